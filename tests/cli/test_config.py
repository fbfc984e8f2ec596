"""The environment becomes one checked configuration, or a list of every fault in it."""

from pathlib import Path

import pytest

from queue_runtime.config import PREFIX, SETTINGS, Setting, explain, load_config, read_environment
from queue_runtime.errors import ConfigError


def problems(**variables: str) -> str:
    """The faults of an environment; names are given without the prefix."""
    return "\n".join(read_environment({PREFIX + name: text for name, text in variables.items()}).problems)


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    config = load_config({})
    assert (config.store, config.listen, config.slots) == ("sqlite", ("127.0.0.1:8090",), 32)
    assert (config.lease_seconds, config.patience, config.http_lease_seconds) == (20, 10, 7200)
    assert (config.retry_seconds, config.sweep_seconds, config.retention_days) == (300, 30, 14)
    assert (config.sqlite_synchronous, config.max_body, config.server) == ("FULL", 2 * 2**20, "hypercorn")
    assert config.roles == {"api", "worker", "sweep"}
    assert config.task_classes is None
    assert config.queues is None


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.rule.words.startswith("a whole number")])
@pytest.mark.parametrize("text", ["-1", "1e3", "abc", "999999999999", "4.0", "0x10", "\uff14", "9" * 5000])
def test_a_bad_integer_stops_the_start_with_name_and_rule(setting: Setting, text: str) -> None:
    (problem,) = read_environment({setting.variable: text}).problems
    assert problem.startswith(f"{setting.variable} must be a whole number")


@pytest.mark.parametrize("name", ["SLOTS", "LEASE_SECONDS", "HTTP_LEASE_SECONDS", "MAX_LOST", "RETENTION_DAYS"])
def test_zero_is_refused_where_it_makes_no_sense(name: str) -> None:
    assert f"{PREFIX}{name} must be" in problems(**{name: "0"})


def test_blanks_around_a_value_are_dropped_and_an_empty_value_is_unset() -> None:
    assert load_config({"QUEUE_RUNTIME_SLOTS": " 4 "}).slots == 4
    assert load_config({"QUEUE_RUNTIME_SLOTS": "", "QUEUE_RUNTIME_TOKEN": "  "}).slots == 32


@pytest.mark.parametrize("text", ["-1", "1e3", "abc", "inf", "nan", "9999999999", "1."])
def test_a_bad_duration_stops_the_start(text: str) -> None:
    assert "QUEUE_RUNTIME_GRACE_SECONDS must be seconds from 0 to 3600" in problems(GRACE_SECONDS=text)


def test_durations_may_have_decimals() -> None:
    assert load_config({"QUEUE_RUNTIME_GRACE_SECONDS": "2.5"}).grace_seconds == 2.5


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"QUEUE_RUNTIME_SLOTS": "0", "QUEUE_RUNTIME_SERVER": "apache", "QUEUE_RUNTIME_ROLE": "api"})
    assert len(caught.value.problems) == 3


def test_an_unknown_variable_of_our_prefix_is_a_fault_with_a_hint() -> None:
    assert "did you mean QUEUE_RUNTIME_SLOTS?" in problems(SLOT="4")
    assert "did you mean QUEUE_RUNTIME_TOKEN_FILE?" in problems(TOKN_FILE="/x")
    assert "did you mean QUEUE_RUNTIME_LISTEN?" in problems(PORT="8090")
    assert "did you mean hypercorn?" in problems(SERVER="hypercron")
    assert "is not a setting" in problems(XYZZY="1")


def test_variables_of_others_are_left_alone() -> None:
    reading = read_environment({"PATH": "/bin", "QUEUE": "1", "MY_QUEUE_RUNTIME_X": "1"})
    assert reading.config is not None
    assert reading.notices == ()


def test_what_kubernetes_injects_for_a_service_of_our_name_is_ignored_with_one_line() -> None:
    reading = read_environment(
        {
            "QUEUE_RUNTIME_SERVICE_HOST": "10.0.0.1",
            "QUEUE_RUNTIME_SERVICE_PORT": "8090",
            "QUEUE_RUNTIME_SERVICE_PORT_HTTP": "8090",
            "QUEUE_RUNTIME_PORT": "tcp://10.0.0.1:8090",
            "QUEUE_RUNTIME_PORT_8090_TCP": "tcp://10.0.0.1:8090",
            "QUEUE_RUNTIME_PORT_8090_TCP_ADDR": "10.0.0.1",
            "QUEUE_RUNTIME_PORT_8090_TCP_PORT": "8090",
            "QUEUE_RUNTIME_PORT_8090_TCP_PROTO": "tcp",
        }
    )
    assert reading.problems == ()
    (notice,) = reading.notices
    assert "Kubernetes" in notice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8090", ("127.0.0.1:8090",)),
        ("[::1]:8090, unix:/run/queue.sock", ("[::1]:8090", "unix:/run/queue.sock")),
        ("localhost:0", ("localhost:0",)),
    ],
)
def test_listen_takes_several_addresses(text: str, expected: tuple[str, ...]) -> None:
    assert load_config({"QUEUE_RUNTIME_LISTEN": text}).listen == expected


def test_a_bare_port_listens_on_all_interfaces() -> None:
    config = load_config({"QUEUE_RUNTIME_LISTEN": ":8090", "QUEUE_RUNTIME_TOKEN": "t"})
    assert config.listen == (":8090",)


@pytest.mark.parametrize(
    "text", ["8090", "localhost", "a:b", "127.0.0.1:70000", "::1:80", "unix:", ",", "http://x:80", "x:1,x:1"]
)
def test_a_bad_address_is_a_fault(text: str) -> None:
    assert "QUEUE_RUNTIME_LISTEN" in problems(LISTEN=text)


@pytest.mark.parametrize("address", ["0.0.0.0:8090", ":8090", "[::]:8090", "example.test:80", "127.0.0.1:1,:8090"])
def test_an_address_others_can_reach_needs_a_token_or_a_clear_word(address: str) -> None:
    assert "QUEUE_RUNTIME_ALLOW_ANONYMOUS=1" in problems(LISTEN=address)
    assert problems(LISTEN=address, TOKEN="t") == ""
    assert problems(LISTEN=address, ALLOW_ANONYMOUS="1") == ""


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1", "unix:/x"])
def test_a_local_address_needs_no_token(address: str) -> None:
    assert problems(LISTEN=address) == ""


def test_a_token_and_anonymous_use_contradict_each_other() -> None:
    assert "contradicts QUEUE_RUNTIME_TOKEN" in problems(TOKEN="t", ALLOW_ANONYMOUS="yes")


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    assert load_config({"QUEUE_RUNTIME_TOKEN_FILE": str(file)}).token == "s3cret"


def test_a_secret_given_twice_or_in_an_unreadable_file_is_a_fault(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert "both set" in problems(TOKEN="a", TOKEN_FILE=missing)
    assert missing in problems(TOKEN_FILE=missing)
    (tmp_path / "empty").write_text("\n")
    assert "is empty" in problems(TOKEN_FILE=str(tmp_path / "empty"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in problems(TOKEN_FILE=str(tmp_path / "binary"))
    # a fault of the token itself is enough: no second one about the token that seems to be missing
    assert problems(TOKEN_FILE=missing, LISTEN=":8090").count("\n") == 0


def test_only_secrets_have_a_file_form() -> None:
    assert "QUEUE_RUNTIME_SLOTS is no secret" in problems(SLOTS_FILE="/x")


def test_a_token_that_no_header_can_carry_is_refused_without_being_shown() -> None:
    text = problems(TOKEN="gehäuse")
    assert "printable ASCII" in text
    assert "geh" not in text


def test_settings_of_a_store_that_was_not_chosen_stop_the_start() -> None:
    for name, store in (("MYSQL_HOST", "mysql"), ("NAMESPACE", "mysql"), ("REDIS_URL", "redis"), ("RECORD", "streams")):
        assert f"set QUEUE_RUNTIME_STORE={store}" in problems(**{name: "x"})
    assert "x:secret@y" not in problems(REDIS_URL="x:secret@y")


@pytest.mark.parametrize("store", ["mysql", "redis", "streams"])
def test_a_store_of_a_later_version_is_refused_as_such(store: str) -> None:
    assert problems(STORE=store) == f"QUEUE_RUNTIME_STORE is {store}, and this version has sqlite only"
    assert "QUEUE_RUNTIME_SQLITE_PATH is a setting for" in problems(STORE=store, SQLITE_PATH="x")


def test_an_unknown_store_is_never_replaced_by_the_default() -> None:
    assert "QUEUE_RUNTIME_STORE must be one of sqlite: did you mean sqlite?" in problems(STORE="sqlit")
    assert "QUEUE_RUNTIME_SQLITE_FOO is not a setting" in problems(SQLITE_FOO="1")


def test_routes_keep_their_order_and_name_their_queue() -> None:
    routes = load_config({"QUEUE_RUNTIME_ROUTES": "PhabricatorMetaMTAWorker=high, *IndexWorker=search"}).routes
    assert routes.queue_for("PhabricatorMetaMTAWorker") == "high"
    assert routes.queue_for("PhabricatorSearchIndexWorker") == "search"
    assert routes.queue_for("Other") == "default"


@pytest.mark.parametrize("text", ["A", "A=", "=b", "A=b c", "A=b,A=c", f"{'A' * 65}=b"])
def test_a_bad_route_is_a_fault(text: str) -> None:
    assert "QUEUE_RUNTIME_ROUTES" in problems(ROUTES=text)


@pytest.mark.parametrize("text", ["demo", "demo:", ":registry", "a b:c", "demo:1", "x:y,x:y"])
def test_a_bad_handler_name_is_a_fault(text: str) -> None:
    assert "QUEUE_RUNTIME_HANDLERS" in problems(HANDLERS=text)


def test_handlers_are_modules_or_files() -> None:
    config = load_config({"QUEUE_RUNTIME_HANDLERS": "my.tasks:registry, /srv/my tasks.py:registry"})
    assert config.handlers == ("my.tasks:registry", "/srv/my tasks.py:registry")


def test_filters_take_exact_names() -> None:
    config = load_config({"QUEUE_RUNTIME_TASK_CLASSES": "A, B", "QUEUE_RUNTIME_QUEUES": "high,low"})
    assert (config.task_classes, config.queues) == (frozenset("AB"), frozenset({"high", "low"}))
    assert "patterns are for QUEUE_RUNTIME_ROUTES" in problems(TASK_CLASSES="*Worker")
    assert "QUEUE_RUNTIME_QUEUES" in problems(QUEUES="a b")
    assert "QUEUE_RUNTIME_QUEUES" in problems(QUEUES=",")


def test_settings_without_effect_are_named_together() -> None:
    environ = {
        "QUEUE_RUNTIME_ROLES": "api,sweep",
        "QUEUE_RUNTIME_HANDLERS": "a:b",
        "QUEUE_RUNTIME_TASK_CLASSES": "A",
        "QUEUE_RUNTIME_QUEUES": "high",
        "GORGE_WORKER_MAX_WORKERS": "4",
        "QUEUE_RUNTIME_GRACE_SECONDS": "5",
        # these count for what is leased over HTTP, too
        "QUEUE_RUNTIME_LEASE_SECONDS": "30",
        "QUEUE_RUNTIME_RETRY_SECONDS": "30",
        "QUEUE_RUNTIME_MAX_LOST": "3",
    }
    reading = read_environment(environ)
    assert reading.problems == ()
    (warning,) = reading.warnings
    assert warning == (
        "without effect, because QUEUE_RUNTIME_ROLES has no worker: QUEUE_RUNTIME_HANDLERS, GORGE_WORKER_MAX_WORKERS, "
        "QUEUE_RUNTIME_TASK_CLASSES, QUEUE_RUNTIME_QUEUES, QUEUE_RUNTIME_GRACE_SECONDS"
    )
    assert read_environment(environ | {"QUEUE_RUNTIME_ROLES": "worker"}).warnings == ()
    assert read_environment({"QUEUE_RUNTIME_ROLES": "api"}).warnings == ()


def test_ended_tasks_may_be_kept_for_ever() -> None:
    assert load_config({"QUEUE_RUNTIME_RETENTION_DAYS": "forever"}).retention_days is None


def test_a_policy_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    assert "No such file" in problems(FEED_POLICY_FILE=str(tmp_path / "missing"))


def test_what_is_in_force_is_shown_with_its_origin_and_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    shown = explain(
        {
            "QUEUE_RUNTIME_TOKEN_FILE": str(file),
            "QUEUE_RUNTIME_SLOTS": "4",
            "GORGE_TASKQUEUE_RETRY_WAIT": "60",
        }
    )
    by_name = {one.variable: (one.text, one.origin) for one in shown}
    assert by_name["QUEUE_RUNTIME_TOKEN"] == ("****", "QUEUE_RUNTIME_TOKEN_FILE")
    assert by_name["QUEUE_RUNTIME_SLOTS"] == ("4", "QUEUE_RUNTIME_SLOTS")
    assert by_name["QUEUE_RUNTIME_RETRY_SECONDS"] == ("60", "GORGE_TASKQUEUE_RETRY_WAIT")
    assert by_name["QUEUE_RUNTIME_SWEEP_SECONDS"] == ("30", "default")
    assert len(shown) == len(SETTINGS)


def test_every_default_obeys_its_own_rule_and_every_field_is_in_the_table() -> None:
    for setting in SETTINGS:
        if setting.default:
            setting.rule.read(setting.default)
    assert [one.field for one in SETTINGS] == list(dict.fromkeys(one.field for one in SETTINGS))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.variable)
def test_the_operations_page_has_every_setting_with_its_default(setting: Setting) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert f"| `{setting.variable.removeprefix(PREFIX)}` | {setting.default or '-'} |" in page

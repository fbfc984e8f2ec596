"""The environment becomes one checked configuration, or a list of every fault in it."""

from pathlib import Path

import pytest

from queue_runtime.config import explain, load_config, read_environment
from queue_runtime.errors import ConfigError
from queue_runtime.settings import PREFIX, SETTINGS, Setting
from tests.cli.commands import run


def problems(**variables: str) -> str:
    """The faults of an environment; names are given without the prefix."""
    return "\n".join(read_environment({PREFIX + name: text for name, text in variables.items()}).problems)


def chosen(setting: Setting, **variables: str) -> dict[str, str]:
    """An environment in which this setting counts."""
    return variables | ({PREFIX + "STORE": setting.store} if setting.store else {})


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
    (problem,) = read_environment(chosen(setting) | {setting.variable: text}).problems
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


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.store], ids=lambda one: one.variable)
def test_settings_of_a_store_that_was_not_chosen_stop_the_start(setting: Setting) -> None:
    other = "redis" if setting.store == "mysql" else "mysql"
    (problem,) = read_environment({"QUEUE_RUNTIME_STORE": other, setting.variable: "s3cret"}).problems
    assert problem.startswith(
        f"{setting.variable} is a setting for QUEUE_RUNTIME_STORE={setting.store}, but the store is {other}: "
    )
    assert "s3cret" not in problem


def test_settings_of_another_store_beside_the_default_one_say_how_it_was_chosen() -> None:
    assert "but the store is sqlite by default: set QUEUE_RUNTIME_STORE=mysql, or" in problems(NAMESPACE="x")
    assert "but the store is sqlite by default: set QUEUE_RUNTIME_STORE=redis, or" in problems(REDIS_FOO="x")
    assert "but the store is mysql by GORGE_TASKQUEUE_MYSQL_HOST" in "".join(
        read_environment({"GORGE_TASKQUEUE_MYSQL_HOST": "db", "QUEUE_RUNTIME_SQLITE_PATH": "x"}).problems
    )


def test_an_unknown_store_is_never_replaced_by_the_default() -> None:
    assert problems(STORE="sqlit", MYSQL_HOST="db") == (
        "QUEUE_RUNTIME_STORE must be one of sqlite, mysql, redis, remote, streams: did you mean sqlite? (it is 'sqlit')"
    )
    assert "QUEUE_RUNTIME_SQLITE_FOO is not a setting" in problems(SQLITE_FOO="1")
    assert "did you mean QUEUE_RUNTIME_MYSQL_HOST?" in problems(STORE="mysql", MYSQL_HOSTS="1")


def test_mysql_has_defaults_for_a_server_on_this_machine() -> None:
    config = load_config({"QUEUE_RUNTIME_STORE": "MySQL"})
    assert (config.store, config.mysql_host, config.mysql_port, config.mysql_socket) == (
        "mysql", "127.0.0.1", 3306, None,
    )  # fmt: skip
    assert (config.mysql_user, config.mysql_password, config.namespace) == ("phorge", "", "phabricator")
    assert (config.mysql_tls_ca, config.mysql_connections, config.mysql_driver) == (None, 8, "aiomysql")


def test_a_socket_wins_over_host_and_port_and_says_so() -> None:
    environ = {"QUEUE_RUNTIME_STORE": "mysql", "QUEUE_RUNTIME_MYSQL_SOCKET": "/run/mysqld/mysqld.sock"}
    assert read_environment(environ).warnings == ()
    reading = read_environment(environ | {"QUEUE_RUNTIME_MYSQL_HOST": "db"})
    assert reading.warnings == ("without effect, because QUEUE_RUNTIME_MYSQL_SOCKET is set: QUEUE_RUNTIME_MYSQL_HOST",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NAMESPACE", "a-b"), ("NAMESPACE", "a`b"), ("NAMESPACE", "n" * 49), ("NAMESPACE", "\u00e4"),
        ("MYSQL_HOST", "db:3306"), ("MYSQL_HOST", "mysql://db"), ("MYSQL_HOST", "a b"), ("MYSQL_USER", "u" * 81),
        ("MYSQL_PORT", "0"), ("MYSQL_CONNECTIONS", "0"), ("MYSQL_CONNECTIONS", "101"), ("MYSQL_DRIVER", "mysqldb"),
        ("MYSQL_TLS_CA", "/no/such/file"),
    ],
)  # fmt: skip
def test_a_bad_setting_of_mysql_is_a_fault(name: str, text: str) -> None:
    assert problems(STORE="mysql", **{name: text}).startswith(f"{PREFIX}{name} must be")


@pytest.mark.parametrize("host", ["db", "db-1.example.test", "10.0.0.1", "::1", "fe80::1%eth0"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert load_config({"QUEUE_RUNTIME_STORE": "mysql", "QUEUE_RUNTIME_MYSQL_HOST": host}).mysql_host == host


def test_ended_tasks_are_kept_as_long_as_the_store_is_used_to() -> None:
    """Phorge's own collector clears its archive."""
    days = {store: load_config({"QUEUE_RUNTIME_STORE": store}).retention_days for store in ("sqlite", "mysql", "redis")}
    assert days == {"sqlite": 14, "mysql": None, "redis": 14}
    environ = {"QUEUE_RUNTIME_STORE": "mysql", "QUEUE_RUNTIME_RETENTION_DAYS": "30"}
    assert load_config(environ).retention_days == 30


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0", "redis://cache", "rediss://:pw@cache:6380/2", "redis://user:p%40ss@[::1]:1/",
        "unix:///run/redis.sock?db=1", "redis://cache/0?socket_timeout=5", "redis+sentinel://a:26379,b/main/2",
        "rediss+sentinel://user:pw@a:1/main?sentinel_password=x",
    ],
)  # fmt: skip
def test_a_redis_url_is_taken_as_it_is(url: str) -> None:
    assert load_config({"QUEUE_RUNTIME_STORE": "redis", "QUEUE_RUNTIME_REDIS_URL": url}).redis_url == url


@pytest.mark.parametrize(
    "url",
    [
        "cache:6379", "http://s3cret@cache", "redis://", "redis://:s3cret@", "redis://cache:99999", "redis://cache:0",
        "redis://cache/db", "unix://", "redis://a:s3cret/x@cache:1", "redis://s3cret cache",
        "redis+sentinel://:s3cret@a:1", "redis+sentinel://a:s3cret/main", "redis+sentinel:///main",
    ],
)  # fmt: skip
def test_a_bad_redis_url_is_a_fault_that_does_not_show_it(url: str) -> None:
    text = problems(STORE="redis", REDIS_URL=url)
    assert text.startswith("QUEUE_RUNTIME_REDIS_URL must")
    assert "s3cret" not in text


def test_the_password_of_a_url_is_a_secret_and_the_rest_of_it_is_not() -> None:
    environ = {
        "QUEUE_RUNTIME_STORE": "redis",
        "QUEUE_RUNTIME_REDIS_URL": "redis+sentinel://:p%40ssword@a:1/m?sentinel_password=sentinel",
    }
    assert load_config(environ).secrets == ("p%40ssword", "p@ssword", "sentinel")
    assert load_config({}).secrets == ()
    assert load_config({"QUEUE_RUNTIME_STORE": "mysql", "QUEUE_RUNTIME_MYSQL_PASSWORD": "password"}).secrets == (
        "password",
    )


SHORT = {
    "TOKEN": ("sqlite", "7 chars", "it"),
    "CONDUIT_TOKEN": ("sqlite", "x", "it"),
    "MYSQL_PASSWORD": ("mysql", "phorge", "it"),
    "REDIS_URL": ("redis", "redis://:p%40ss@a:1/0", "the password in it"),
    "REMOTE_URL": ("remote", "https://u:x@queue", "the password in it"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_secret_of_a_few_characters_is_named_at_the_start_and_is_not_looked_for_in_log_lines(name: str) -> None:
    """It may be a part of any word."""
    store, text, what = SHORT[name]
    more = {
        "REMOTE_URL": {"QUEUE_RUNTIME_REMOTE_TOKEN": "long enough"},
        "CONDUIT_TOKEN": {"QUEUE_RUNTIME_CONDUIT_URL": "http://p"},
    }
    environ = {"QUEUE_RUNTIME_STORE": store, f"QUEUE_RUNTIME_{name}": text, **more.get(name, {})}
    reading = read_environment(environ)
    assert reading.config is not None
    assert set(reading.config.secrets) <= {"long enough"}
    (warning,) = reading.warnings
    assert warning.startswith(f"QUEUE_RUNTIME_{name}: {what} has fewer than 8 characters")
    assert text not in warning.removeprefix(f"QUEUE_RUNTIME_{name}").replace("characters", "")


def test_the_passwords_may_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("pw\n")
    mysql = load_config({"QUEUE_RUNTIME_STORE": "mysql", "QUEUE_RUNTIME_MYSQL_PASSWORD_FILE": str(file)})
    assert mysql.mysql_password == "pw"
    file.write_text("redis://:pw@cache:1/0\n")
    redis = load_config({"QUEUE_RUNTIME_STORE": "redis", "QUEUE_RUNTIME_REDIS_URL_FILE": str(file)})
    assert redis.redis_url == "redis://:pw@cache:1/0"
    assert "is a setting for QUEUE_RUNTIME_STORE=mysql" in problems(MYSQL_PASSWORD_FILE=str(file))


def test_redis_has_settings_of_its_own() -> None:
    config = load_config({"QUEUE_RUNTIME_STORE": "redis"})
    assert (config.redis_url, config.redis_prefix) == ("redis://127.0.0.1:6379/0", "queue-runtime")
    assert (config.redis_allow_eviction, config.event_days) == (False, None)
    assert load_config({"QUEUE_RUNTIME_STORE": "redis", "QUEUE_RUNTIME_EVENT_DAYS": "30"}).event_days == 30
    assert "QUEUE_RUNTIME_REDIS_PREFIX must" in problems(STORE="redis", REDIS_PREFIX="{a}")


@pytest.mark.parametrize(
    ("name", "text"),
    [("LISTEN", "8090"), ("ROUTES", "A"), ("QUEUES", "a b"), ("TASK_CLASSES", "*W"), ("HANDLERS", "demo"),
     ("FEED_POLICY_FILE", "/nix"), ("SERVER", "apache"), ("SLOTS", "0")],
)  # fmt: skip
def test_a_problem_shows_the_value_once(name: str, text: str) -> None:
    assert problems(**{name: text}).count(repr(text)) == 1


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
    assert (config.task_classes, config.queues) == (frozenset("AB"), ("high", "low"))
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
    # settings of other stores are not in force
    assert len(shown) == len([one for one in SETTINGS if one.store in {None, "sqlite"}])


def test_a_default_is_shown_though_the_setting_is_a_secret() -> None:
    shown = {one.variable: one.text for one in explain({"QUEUE_RUNTIME_STORE": "redis"})}
    assert shown["QUEUE_RUNTIME_REDIS_URL"] == "redis://127.0.0.1:6379/0"


def test_every_default_obeys_its_own_rule_and_every_field_is_in_the_table() -> None:
    for setting in SETTINGS:
        for text in (setting.default, *setting.defaults.values()):
            if text:
                setting.rule.read(text)
    assert [one.field for one in SETTINGS] == list(dict.fromkeys(one.field for one in SETTINGS))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.variable)
def test_the_operations_page_has_every_setting_with_its_default(setting: Setting) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    name = setting.variable.removeprefix(PREFIX)
    assert f"| `{name}` | {setting.default_words or '-'} | {setting.rule.words} | {setting.sentence} |" in page


@pytest.mark.parametrize(
    ("setting", "value", "role"),
    [
        ("RETENTION_DAYS", "3", "sweep"),
        ("HTTP_LEASE_SECONDS", "60", "api"),
        ("MAX_BODY", "4096", "api"),
        ("CRON_FILE", "/dev/null", "sweep"),
    ],
)
def test_a_setting_that_no_role_of_this_process_looks_at_is_one_warning(
    tmp_path: Path, setting: str, value: str, role: str
) -> None:
    if setting == "CRON_FILE":
        value = str(tmp_path / "cron.toml")
        Path(value).write_text("")
    name = f"QUEUE_RUNTIME_{setting}"
    others = ",".join({"api", "worker", "sweep"} - {role})
    expected = (f"without effect, because QUEUE_RUNTIME_ROLES has no {role}: {name}",)
    assert read_environment({name: value, "QUEUE_RUNTIME_ROLES": others}).warnings == expected
    assert read_environment({name: value}).warnings == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "truncated"),
        (b"nonsense", "JSON is malformed"),
        (b'{"silent": false}', "missing required field `uris`"),
        (b'{"silent": false, "uris": ["ftp://x"]}', "uris[0] must begin with http"),
        (b"[]", "Expected `object`"),
    ],
)
def test_a_feed_policy_that_says_nothing_stops_the_start_with_the_name_of_its_setting(
    tmp_path: Path, text: bytes, reason: str
) -> None:
    policy = tmp_path / "policy.json"
    policy.write_bytes(text)
    ended = run("serve", folder=tmp_path, variables={"FEED_POLICY_FILE": str(policy), "LISTEN": "127.0.0.1:0"})
    assert ended.returncode == 2
    (line,) = [one for one in ended.stderr.splitlines() if "FEED_POLICY" in one]
    assert f"QUEUE_RUNTIME_FEED_POLICY_FILE: feed policy {policy} is malformed: " in line
    assert reason in line
    assert [one.name for one in tmp_path.iterdir()] == ["policy.json"]

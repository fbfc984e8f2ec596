"""The settings of delegation and of the gateway, and how they go with the rest of a process."""

import socket
from pathlib import Path

import pytest

from queue_runtime.compose import build, load_handlers
from queue_runtime.config import Reading, load_config, read_environment
from queue_runtime.current import Current
from queue_runtime.errors import ConfigError
from queue_runtime.settings import PREFIX
from tests.cli.commands import run
from tests.runtime.harness import open_reference

FALLBACK = """
from queue_runtime.registry import Registry

registry = Registry()

@registry.fallback
async def mine(context, data):
    pass
"""


def read(**variables: str) -> Reading:
    """What is read of these variables; names are given without the prefix."""
    return read_environment({PREFIX + name: text for name, text in variables.items()})


def test_nothing_is_delegated_and_nothing_passed_on_by_default() -> None:
    config = load_config({})
    assert (config.conduit_url, config.gateway, config.conduit_classes) == (None, False, ("*",))
    assert (config.conduit_concurrency, config.gateway_max_body, config.gateway_rate) == (4, 10 * 2**20, 0)
    assert config.gateway_exempt == {"conduit.ping", "conduit.getcapabilities"}


@pytest.mark.parametrize(
    "url", ["http://phorge", "http://phorge:8080/", "https://phorge.example/base", "http://[::1]:80", "http://10.0.0.1"]
)
def test_an_address_of_phorge_is_taken(url: str) -> None:
    config = read(CONDUIT_URL=url).config
    assert config is not None
    assert config.conduit_url == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    ["phorge", "ftp://phorge", "http://", "http://a b", "http://u:secret@phorge", "http://phorge/api/", "http://p?x=1",
     "http://p:0", "http://p:99999", "http://a..b.example", "http://.", "http://" + "a" * 64 + ".example",
     "http://" + "a." * 127 + "example"],
)  # fmt: skip
def test_what_is_no_address_of_phorge_is_refused_without_being_shown(url: str) -> None:
    (problem,) = read(CONDUIT_URL=url).problems
    assert problem.startswith("QUEUE_RUNTIME_CONDUIT_URL must be http://host[:port]")
    assert "secret" not in problem


@pytest.mark.parametrize(
    "url", ["http://phorge/?token=hunter2", "http://u:hunter2@phorge", "http://phorge/api?hunter2"]
)
def test_a_secret_in_an_address_that_is_refused_is_shown_nowhere(url: str) -> None:
    for name in ("CONDUIT_URL", "GATEWAY_URL"):
        reading = read(**{name: url})
        assert reading.config is None
        assert "hunter2" not in str(reading)


def test_a_token_without_an_address_names_both_variables() -> None:
    (warning,) = read(CONDUIT_TOKEN="long-enough-token").warnings
    assert {"QUEUE_RUNTIME_CONDUIT_URL", "QUEUE_RUNTIME_CONDUIT_TOKEN"} <= set(warning.replace(":", "").split())


def test_a_size_may_be_written_as_gorge_had_it() -> None:
    for text, size in (("8388608", 8 * 2**20), ("10M", 10 * 2**20), ("64k", 64 * 2**10), ("2MB", 2 * 2**20)):
        config = read(GATEWAY="1", GATEWAY_URL="http://p", GATEWAY_MAX_BODY=text).config
        assert config is not None
        assert config.gateway_max_body == size
    assert "GATEWAY_MAX_BODY must be" in read(GATEWAY_MAX_BODY="1T").problems[0]


def test_a_gateway_needs_to_know_where_phorge_is() -> None:
    (problem,) = read(GATEWAY="1").problems
    assert "QUEUE_RUNTIME_GATEWAY=1 needs QUEUE_RUNTIME_GATEWAY_URL or QUEUE_RUNTIME_CONDUIT_URL" in problem
    assert read(GATEWAY="1", CONDUIT_URL="http://p").problems == ()


def test_settings_without_effect_get_a_warning() -> None:
    (warning,) = read(CONDUIT_HOST="p", CONDUIT_CLASSES="A").warnings
    assert "QUEUE_RUNTIME_CONDUIT_URL is not set: QUEUE_RUNTIME_CONDUIT_CLASSES, QUEUE_RUNTIME_CONDUIT_HOST" in warning
    (warning,) = read(GATEWAY_RATE="5").warnings
    assert "QUEUE_RUNTIME_GATEWAY is not 1: QUEUE_RUNTIME_GATEWAY_RATE" in warning
    assert read(GATEWAY="1", GATEWAY_URL="http://p", CONDUIT_HOST="h").warnings == ()


@pytest.mark.parametrize(
    "variables",
    [
        {"CONDUIT_URL": "phorge", "CONDUIT_TOKEN": "a long token"},
        {"CONDUIT_URL": "phorge", "GATEWAY": "1"},
        {"GATEWAY": "1", "GATEWAY_URL": "phorge"},
        {"GATEWAY": "perhaps", "GATEWAY_URL": "http://p", "CONDUIT_HOST": "h"},
    ],
    ids=" ".join,
)
def test_nothing_is_concluded_from_a_value_that_cannot_be_read(variables: dict[str, str]) -> None:
    reading = read(**variables)
    assert (len(reading.problems), reading.warnings) == (1, ())


def test_the_old_names_of_worker_and_gateway_are_taken_over() -> None:
    reading = read_environment(
        {
            "GORGE_WORKER_CONDUIT_URL": "http://phorge:80",
            "GORGE_WORKER_CONDUIT_TOKEN": "s3cret of gorge",
            "GORGE_CONDUIT_UPSTREAM_URL": "http://phorge:80/",
            "GORGE_CONDUIT_PROXY_TIMEOUT_SEC": "0",
            "GORGE_CONDUIT_MAX_BODY_SIZE": "10M",
            "GORGE_CONDUIT_RATE_LIMIT_RPS": "20",
            "GORGE_CONDUIT_RATE_LIMIT_BURST": "40",
            "GORGE_CONDUIT_RATE_LIMIT_EXEMPT": "conduit.ping",
            "QUEUE_RUNTIME_GATEWAY": "1",
        }
    )
    config = reading.config
    assert config is not None
    assert (config.conduit_url, config.conduit_token) == ("http://phorge:80", "s3cret of gorge")
    assert (config.gateway_url, config.gateway_seconds) == ("http://phorge:80", 0)
    assert (config.gateway_rate, config.gateway_burst) == (20, 40)
    assert config.gateway_exempt == {"conduit.ping"}
    assert not any("s3cret of gorge" in line for line in (*reading.notices, *reading.warnings))
    assert "s3cret of gorge" in config.secrets


def test_with_phorge_every_class_runs_somewhere() -> None:
    reading = read(CONDUIT_URL="http://phorge", TASK_CLASSES="OtherWorker")
    assert reading.config is not None
    runtime = build(Current(reading.config), lambda: reading, open_reference(), load_handlers(reading.config))
    assert runtime.phorge is not None
    assert runtime.lease_loop is not None
    assert runtime.lease_loop.supported == ["OtherWorker"]


@pytest.mark.parametrize(
    "names",
    [
        {"GATEWAY": "1", "GATEWAY_URL": "http://a..b.example"},
        {"STORE": "remote", "ROLES": "worker", "REMOTE_URL": "http://a..b.example"},
        {"STORE": "mysql", "MYSQL_HOST": "a..b.example"},
        {"STORE": "redis", "REDIS_URL": "redis://a..b.example:6379/0"},
        {"STORE": "redis", "REDIS_URL": "redis+sentinel://a..b.example:26379/queue"},
        {"LISTEN": "a..b.example:8090", "ALLOW_ANONYMOUS": "1"},
    ],
    ids=lambda names: sorted(names)[-1],
)
def test_a_host_that_no_resolver_can_be_asked_for_is_refused_with_the_name_of_its_variable(
    names: dict[str, str],
) -> None:
    hosts = [name for name, text in names.items() if "a..b" in text]
    assert [problem.split()[0] for problem in read(**names).problems] == [f"{PREFIX}{hosts[0]}"]


def test_a_host_may_end_in_a_dot_and_have_long_parts() -> None:
    for host in ("phorge.", "a" * 63 + ".example", "phorge.example."):
        assert not read(CONDUIT_URL=f"http://{host}:8080").problems


@pytest.mark.parametrize("classes", ["OtherWorker", "PhabricatorTestWorkers,Other"])
def test_classes_that_exclude_each_other_leave_a_worker_nothing_to_do(classes: str) -> None:
    names = {"CONDUIT_URL": "http://phorge", "TASK_CLASSES": classes, "CONDUIT_CLASSES": "*IndexWorker,Exact"}
    with pytest.raises(ConfigError, match=r"TASK_CLASSES names no class .*CONDUIT_CLASSES \(\*IndexWorker, Exact\)"):
        load_handlers(load_config({PREFIX + name: text for name, text in names.items()}))
    for some in ("Exact", f"{classes},AIndexWorker", f"{classes},PhabricatorTestWorker"):
        load_handlers(load_config({PREFIX + name: text for name, text in (names | {"TASK_CLASSES": some}).items()}))


def test_a_fallback_of_the_deployment_and_phorge_cannot_both_be(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(FALLBACK)
    names = {"QUEUE_RUNTIME_CONDUIT_URL": "http://phorge", "QUEUE_RUNTIME_HANDLERS": f"{tmp_path}/tasks.py:registry"}
    with pytest.raises(ConfigError, match=r"CONDUIT_URL is set, and .*tasks\.py: mine"):
        load_handlers(load_config(names))


@pytest.mark.parametrize(
    "where",
    [
        {"CONDUIT_URL": "https://phorge"},
        {"CONDUIT_URL": "https://phorge", "SHADOW": "1"},
        {"GATEWAY": "1", "GATEWAY_URL": "https://phorge"},
        {"GATEWAY": "1", "GATEWAY_URL": "https://phorge", "ROLES": "api"},
        {"GATEWAY": "1", "CONDUIT_URL": "https://phorge", "ROLES": "api"},
        {"GATEWAY": "1", "CONDUIT_URL": "http://phorge", "GATEWAY_URL": "https://phorge"},
    ],
    ids=" ".join,
)
def test_authorities_that_are_no_certificates_stop_the_start(tmp_path: Path, where: dict[str, str]) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    reading = read(**where, CONDUIT_TLS_CA=str(file))
    assert reading.config is not None
    registry = load_handlers(reading.config) if "worker" in reading.config.roles else None
    with pytest.raises(ConfigError, match="CONDUIT_TLS_CA must be a file of certificates"):
        build(Current(reading.config), lambda: reading, open_reference(), registry)


def test_a_gateway_with_bad_authorities_ends_as_every_wrong_configuration_does(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    variables = {
        "SQLITE_PATH": str(tmp_path / "queue.sqlite"),
        "LISTEN": "127.0.0.1:0",
        "GATEWAY": "1",
        "GATEWAY_URL": "https://phorge",
        "CONDUIT_TLS_CA": str(file),
    }
    done = run("serve", folder=tmp_path, variables=variables)
    assert done.returncode == 2
    assert "QUEUE_RUNTIME_CONDUIT_TLS_CA must be a file of certificates" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("http://127.0.0.1:8090", "127.0.0.1:8090"),
        ("http://127.0.0.1:8090/base", "127.0.0.1:8090"),
        ("http://localhost:8090", "127.0.0.1:8090"),
        ("http://LOCALHOST:8090", "127.0.0.1:8090"),
        ("http://127.0.0.1:8090", "localhost:8090"),
        ("http://[0:0::1]:8090", "[::1]:8090"),
        ("http://[::1]:8090", "localhost:8090"),
        ("http://0.0.0.0:8090", "127.0.0.1:8090"),
        ("http://127.0.0.2:8090", ":8090"),
        ("http://localhost:8090", "0.0.0.0:8090"),
        ("http://[::1]:8090", "[::]:8090"),
        (f"http://{HERE}:8090", ":8090"),
        ("http://queue.example:8090", "queue.example:8090"),
        ("http://10.0.0.1", "unix:/run/queue.sock,10.0.0.1:80"),
        ("https://10.0.0.1", "10.0.0.1:443"),
    ],
)
def test_this_process_itself_is_no_phorge(url: str, listen: str) -> None:
    """A call would go round in it until it has no socket left."""
    for variables in ({"GATEWAY": "1", "GATEWAY_URL": url}, {"GATEWAY": "1", "CONDUIT_URL": url}, {"CONDUIT_URL": url}):
        (problem,) = read(**variables, LISTEN=listen, ALLOW_ANONYMOUS="1").problems
        assert problem.startswith(f"QUEUE_RUNTIME_{list(variables)[-1]} leads to this process itself")
        assert listen.rpartition(",")[2] in problem


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("http://127.0.0.1:8091", "127.0.0.1:8090"),
        ("http://127.0.0.1", "127.0.0.1:8090"),
        ("http://127.0.0.2:8090", "127.0.0.1:8090"),
        ("http://10.0.0.1:8090", ":8090"),
        ("http://phorge:8090", ":8090"),
        ("http://[::1]:8090", "0.0.0.0:8090"),
        (f"http://{HERE}:8090", "127.0.0.1:8090"),
        ("http://127.0.0.1:8090", "unix:/run/8090"),
    ],
)
def test_what_may_be_a_phorge_is_taken_for_one(url: str, listen: str) -> None:
    assert not read(GATEWAY="1", GATEWAY_URL=url, LISTEN=listen, ALLOW_ANONYMOUS="1").problems


def test_tasks_may_go_through_the_gateway_of_the_same_process() -> None:
    own = "http://127.0.0.1:8090"
    assert not read(GATEWAY="1", GATEWAY_URL="http://phorge", CONDUIT_URL=own, LISTEN="127.0.0.1:8090").problems

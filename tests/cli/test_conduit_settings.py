"""The settings of delegation and of the gateway, and how they go with the rest of a process."""

from pathlib import Path

import pytest

from queue_runtime.compose import build, load_handlers
from queue_runtime.config import Reading, load_config, read_environment
from queue_runtime.current import Current
from queue_runtime.errors import ConfigError
from queue_runtime.settings import PREFIX
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
     "http://p:0", "http://p:99999"],
)  # fmt: skip
def test_what_is_no_address_of_phorge_is_refused_without_being_shown(url: str) -> None:
    (problem,) = read(CONDUIT_URL=url).problems
    assert problem.startswith("QUEUE_RUNTIME_CONDUIT_URL must be http://host[:port]")
    assert "secret" not in problem


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


def test_the_old_names_of_worker_and_gateway_are_taken_over() -> None:
    reading = read_environment(
        {
            "GORGE_WORKER_CONDUIT_URL": "http://phorge:80",
            "GORGE_WORKER_CONDUIT_TOKEN": "s3cret",
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
    assert (config.conduit_url, config.conduit_token) == ("http://phorge:80", "s3cret")
    assert (config.gateway_url, config.gateway_seconds) == ("http://phorge:80", 0)
    assert (config.gateway_rate, config.gateway_burst) == (20, 40)
    assert config.gateway_exempt == {"conduit.ping"}
    assert not any("s3cret" in line for line in (*reading.notices, *reading.warnings))
    assert "s3cret" in config.secrets


def test_with_phorge_every_class_runs_somewhere() -> None:
    reading = read(CONDUIT_URL="http://phorge", TASK_CLASSES="OtherWorker")
    assert reading.config is not None
    runtime = build(Current(reading.config), lambda: reading, open_reference(), load_handlers(reading.config))
    assert runtime.phorge is not None
    assert runtime.lease_loop is not None
    assert runtime.lease_loop.supported == ["OtherWorker"]


def test_a_fallback_of_the_deployment_and_phorge_cannot_both_be(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(FALLBACK)
    names = {"QUEUE_RUNTIME_CONDUIT_URL": "http://phorge", "QUEUE_RUNTIME_HANDLERS": f"{tmp_path}/tasks.py:registry"}
    with pytest.raises(ConfigError, match=r"CONDUIT_URL is set, and .*tasks\.py: mine"):
        load_handlers(load_config(names))


def test_authorities_that_are_no_certificates_stop_the_start(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    reading = read(CONDUIT_URL="https://phorge", CONDUIT_TLS_CA=str(file))
    assert reading.config is not None
    with pytest.raises(ConfigError, match="CONDUIT_TLS_CA must be a file of certificates"):
        build(Current(reading.config), lambda: reading, open_reference(), load_handlers(reading.config))

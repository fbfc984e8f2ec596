"""The commands: exit codes, what they print, and that no mistake shows a traceback."""

import json
import socket
from pathlib import Path

import pytest

from queue_runtime.settings import SETTINGS
from tests.cli.commands import invoke
from tests.cli.conftest import Answers, address_of


def test_config_prints_each_setting_with_its_origin_and_masks_secrets() -> None:
    result = invoke("config", QUEUE_RUNTIME_SLOTS="7", QUEUE_RUNTIME_TOKEN="s3cret")
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["QUEUE_RUNTIME_SLOTS"] == ["7", "QUEUE_RUNTIME_SLOTS"]
    assert rows["QUEUE_RUNTIME_STORE"] == ["sqlite", "default"]
    assert rows["QUEUE_RUNTIME_TOKEN"] == ["****", "QUEUE_RUNTIME_TOKEN"]
    assert "s3cret" not in result.output


@pytest.mark.parametrize("command", ["config", "serve", "health"])
def test_a_bad_configuration_ends_with_2_and_every_problem_on_stderr(command: str) -> None:
    result = invoke(command, QUEUE_RUNTIME_SLOT="7", QUEUE_RUNTIME_LEASE_SECONDS="abc")
    assert result.exit_code == 2
    assert "QUEUE_RUNTIME_SLOT is not a setting" in result.stderr
    assert "QUEUE_RUNTIME_LEASE_SECONDS must be" in result.stderr


def test_help_lists_every_variable_with_its_default() -> None:
    text = invoke("--help").stdout
    assert all(one.variable in text for one in SETTINGS)
    assert "Default: 7200." in text


def test_the_version_is_printed() -> None:
    assert invoke("version").stdout == invoke("--version").stdout
    assert invoke("version").stdout.startswith("queue-runtime ")


def test_health_is_0_when_the_queue_answers_and_1_when_it_does_not(queue: type[Answers]) -> None:
    assert invoke("health", QUEUE_RUNTIME_LISTEN=address_of(queue)).exit_code == 0
    queue.status, queue.body = 503, b'{"status":"unavailable","reason":"disk full"}'
    result = invoke("health", "--ready", QUEUE_RUNTIME_LISTEN=address_of(queue))
    assert result.exit_code == 1
    assert "disk full" in result.stderr
    assert [path for path, _, _ in queue.seen] == ["/healthz", "/readyz"]


def test_health_of_a_wildcard_address_asks_this_machine(queue: type[Answers]) -> None:
    port = address_of(queue).rpartition(":")[2]
    result = invoke("health", QUEUE_RUNTIME_LISTEN=f":{port}", QUEUE_RUNTIME_ALLOW_ANONYMOUS="1")
    assert result.exit_code == 0


def test_health_of_nothing_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers here
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"unix:{tmp_path}/none.sock", "127.0.0.1:0"):
            result = invoke("health", QUEUE_RUNTIME_LISTEN=address)
            assert result.exit_code == 1
            assert len(result.stderr.splitlines()) == 1


def test_enqueue_sends_what_was_given_with_the_token_and_prints_the_id(queue: type[Answers]) -> None:
    queue.body = b'{"data":{"id":42}}'
    result = invoke(
        "enqueue", "DemoWorker", "-", "--priority", "5", "--key", "k",
        stdin='{"name":"x"}', QUEUE_RUNTIME_LISTEN=address_of(queue), QUEUE_RUNTIME_TOKEN="s3cret",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "42\n")
    ((path, token, body),) = queue.seen
    assert (path, token) == ("/api/queue/enqueue", "s3cret")
    assert json.loads(body) == {
        "taskClass": "DemoWorker",
        "data": '{"name":"x"}',
        "priority": 5,
        "idempotencyKey": "k",
    }


def test_enqueue_tells_why_it_was_refused(queue: type[Answers]) -> None:
    queue.status = 400
    queue.body = b'{"error":{"code":"ERR_BAD_REQUEST","message":"taskClass: too long"}}'
    result = invoke("enqueue", "X" * 65, QUEUE_RUNTIME_LISTEN=address_of(queue))
    assert result.exit_code == 1
    assert "400: taskClass: too long" in result.stderr
    queue.status, queue.body = 502, b"<html>"
    assert "no JSON" in invoke("enqueue", "X", QUEUE_RUNTIME_LISTEN=address_of(queue)).stderr

"""`queue-runtime takeover check`: a canary goes the whole way, and the next step is one that can be taken."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.selftest import CANARY, LEFT_AFTER, MARK
from queue_runtime.settings import PREFIX
from tests.backends import Servers
from tests.cli.commands import SCRIPT, run
from tests.cli.takeovers import (
    CLASS,
    NOBODY_THERE,
    PHP_CLASS,
    check,
    hangs,
    keep_busy,
    native_run,
    native_taskmaster,
    nothing_is_active,
    phorge_of,
    serving,
    status,
    stub_phorge,
)
from tests.faults.process import wait_for
from tests.phorge_php import Taskmaster


def test_a_canary_goes_through_the_worker_that_runs(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found):
        code, said = check(found, tmp_path)
        assert f":{served.inner_pid()}@" in said  # the owner that ended it
        served.tell_and_wait()
    assert (code, "came back as done" in said) == (0, True), said
    assert "none has acted" in said
    assert "next is step 5" in said


@pytest.mark.parametrize("task_class", [CLASS, "SleepWorker"])
def test_a_canary_is_no_work(settings: dict[str, str], tmp_path: Path, task_class: str) -> None:
    with serving(tmp_path, settings) as (served, found):
        code, said = check(found, tmp_path, "--canary", task_class)
        assert code == 0, said
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, "not done: no task was ended" in said) == (1, True), said


def test_without_one_the_command_runs_the_canary_itself(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    code, said = check(settings, tmp_path)
    assert (code, "was run by a handler here" in said) == (1, True), said
    assert "this command runs the task itself" in said
    assert "selftest: enqueue " in said
    assert f"must stay on yet: no worker answers at {NOBODY_THERE}" in said
    assert "next is step 2" in said  # nobody would work, were the taskmasters off
    assert nothing_is_active(servers)
    ((result, duration),) = servers.phorge.execute(
        "SELECT result, duration FROM worker_archivetask WHERE taskClass = %s", (CLASS,)
    )
    assert result == 0
    assert duration >= 10_000  # µs: it is asked to take ten milliseconds


@pytest.mark.parametrize(
    ("pause", "words"),
    [
        ({"all": True}, "leasing is paused for everybody"),
        ({"taskClass": CLASS}, f"leasing is paused for the class {CLASS}"),
        ({"queue": "default"}, "leasing is paused for the queue default"),
    ],
)
def test_a_pause_is_told_and_the_step_is_not_passed(
    settings: dict[str, str], tmp_path: Path, servers: Servers, pause: dict[str, Any], words: str
) -> None:
    with serving(tmp_path, settings) as (served, found), served.client() as client:
        client.post("/api/queue/pause", json=pause)
        code, said = check(found, tmp_path)
        client.post("/api/queue/resume", json=pause)
        served.tell_and_wait()
    assert (code, words in said) == (1, True), said
    assert "next is step 2" in said
    assert "none has acted" not in said
    assert ("so lease, renew and settle were not tried" in said) == ("taskClass" not in pause)
    assert nothing_is_active(servers)


def test_a_canary_that_nobody_takes_is_cancelled(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    with serving(tmp_path, settings, SLOTS=1, GRACE_SECONDS=0) as (served, found):
        keep_busy(served)
        code, said = check(found, tmp_path, "--seconds", "1")
        served.kill()
    assert (code, "nobody took task" in said) == (1, True), said
    assert "next is step 2" in said
    assert (2,) in servers.phorge.execute("SELECT result FROM worker_archivetask WHERE taskClass = %s", (CLASS,))


def test_a_canary_that_native_taskmasters_took_shows_nothing_of_ours(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with serving(tmp_path, settings, SLOTS=1) as (served, found):
        keep_busy(served)
        with native_taskmaster(servers.phorge):
            code, said = check(found, tmp_path)
            # and they are not passed over because it was a canary
            done, words = status(found, tmp_path)
        served.kill()
    assert (code, "was ended by native taskmasters" in said) == (1, True), said
    assert "next is step 2" in said
    assert "none has acted" not in said
    assert servers.phorge.execute("SELECT COUNT(*) FROM worker_archivetask WHERE containerPHID = %s", (MARK,)) == [(3,)]
    assert (done, "native taskmasters of web1" in words) == (1, True), words


def test_a_canary_that_fails_is_told_with_its_reason(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found):
        code, said = check(found, tmp_path, "--canary", "FlakyWorker")
        served.tell_and_wait()
    assert (code, "failed: " in said) == (1, True), said


def test_a_class_that_nobody_here_may_run_is_told(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    code, said = check(settings, tmp_path, "--canary", "SomebodysWorker")
    assert (code, "nobody here may run SomebodysWorker" in said) == (1, True), said
    assert nothing_is_active(servers)


def test_a_native_taskmaster_takes_no_canary_of_the_command_and_must_stay_on(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with native_taskmaster(servers.phorge), Taskmaster(servers.phorge) as taskmaster:
        task_id = taskmaster.schedule("SomeWorker")
        seen = "SELECT 1 FROM worker_archivetask WHERE id = %s"
        wait_for("it works", lambda: servers.phorge.execute(seen, (task_id,)), 20)
        code, said = check(settings, tmp_path)
    assert (code, "was run by a handler here" in said) == (1, True), said
    assert "native taskmasters of web1 still act" in said
    assert "must stay on yet: no worker answers" in said
    assert "next is step 2" in said
    assert "bin/config set phd.taskmasters 0" not in said


def test_native_taskmasters_stay_on_where_nobody_here_would_run_their_classes(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    native_run(servers, PHP_CLASS)
    with serving(tmp_path, settings) as (served, found):
        code, said = check(found, tmp_path)
        served.tell_and_wait()
    assert (code, f"does not lease {PHP_CLASS}, which native taskmasters run now" in said) == (1, True), said
    assert "no canary went through PHP" in said
    assert "next is step 2" in said
    assert "bin/config set phd.taskmasters 0" not in said


def test_no_canary_is_sent_into_a_store_that_is_not_in_order(settings: dict[str, str], tmp_path: Path) -> None:
    code, said = check(settings | {"NAMESPACE": "nothere"}, tmp_path)
    assert code == 1
    assert "canary:" not in said


def test_a_shadow_sends_none(settings: dict[str, str], tmp_path: Path) -> None:
    code, said = check(settings, tmp_path, SHADOW="1")
    assert (code, "run it without" in said) == (1, True)


# ---- the canary of a command that is stopped


@contextmanager
def checking(settings: dict[str, str], folder: Path, servers: Servers) -> Iterator[subprocess.Popen[str]]:
    """A `takeover check` whose canary PHP runs without end."""
    php = phorge_of(1, locks=True)
    php.work = hangs
    with stub_phorge(php, settings) as delegating:
        environ = {"PATH": os.environ["PATH"]} | {PREFIX + name: text for name, text in delegating.items()}
        pipe = subprocess.PIPE
        command = [str(SCRIPT), "takeover", "check"]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=pipe, stderr=pipe, text=True)
        try:
            wait_for("PHP runs it", lambda: php.runs, 30)
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_check_that_is_told_to_stop_takes_its_canary_back(
    settings: dict[str, str], tmp_path: Path, servers: Servers, number: signal.Signals
) -> None:
    with checking(settings, tmp_path, servers) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, number.name in errors) == (128 + number, True), errors
    assert "Traceback" not in errors
    assert nothing_is_active(servers)


@pytest.mark.parametrize("command", [["selftest"], ["takeover", "check"]])
def test_what_a_killed_check_leaves_is_taken_back_by_the_next_one(
    settings: dict[str, str], tmp_path: Path, servers: Servers, command: list[str]
) -> None:
    with checking(settings, tmp_path, servers) as process:
        process.kill()
        process.communicate(timeout=20)
    ((left, owner),) = servers.phorge.execute("SELECT id, leaseOwner FROM worker_activetask")
    assert owner.startswith("qr:")
    with Taskmaster(servers.phorge) as taskmaster:
        # of the same class, priority and age, but without the mark
        work = taskmaster.schedule(CANARY, priority=1000)
        taskmaster.write("UPDATE worker_activetask SET dateCreated = dateCreated - %s", (LEFT_AFTER + 60,))
    done = run(*command, folder=tmp_path, variables=settings)
    assert "took back" not in done.stdout, done.stdout  # it may run yet
    servers.phorge.execute("UPDATE worker_activetask SET leaseExpires = 1 WHERE id = %s", (left,))
    done = run(*command, folder=tmp_path, variables=settings)
    assert f"took back tasks [{left}], which an earlier takeover check had left" in done.stdout, done.stdout
    assert servers.phorge.execute("SELECT id FROM worker_activetask") == [(work,)]


def test_a_canary_in_the_queue_is_taken_back_too(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    with serving(tmp_path, settings, SLOTS=1) as (served, found):
        keep_busy(served)
        environ = {"PATH": os.environ["PATH"]} | {PREFIX + name: text for name, text in found.items()}
        process = subprocess.Popen([SCRIPT, "takeover", "check"], cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL)
        sent = "SELECT id FROM worker_activetask WHERE containerPHID = %s"
        wait_for("it is sent", lambda: servers.phorge.execute(sent, (MARK,)), 30)
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
        assert servers.phorge.execute(sent, (MARK,)) == []
        served.kill()

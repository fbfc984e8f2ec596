"""`queue-runtime takeover`: who works on Phorge's queue is told by its rows, and a canary goes the whole way."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from queue_runtime.selftest import CANARY, LEFT_AFTER, MARK
from queue_runtime.settings import PREFIX
from queue_runtime.takeover import Who, who
from tests.backends import Servers
from tests.cli.commands import SCRIPT, invoke, run
from tests.conduit import stub
from tests.conduit.php import TOKEN, Php, served
from tests.conduit.stub import Call, Http, StubPhp
from tests.conduit.threaded import phorge
from tests.faults.process import Served, archived, enqueue, wait_for
from tests.phorge_php import PhpTask, Taskmaster
from tests.phorge_tables import PhorgeTables

CLASS = "PhabricatorTestWorker"
PHP_CLASS = "PhabricatorSearchWorker"
NOBODY_THERE = "127.0.0.1:1"


@pytest.fixture
def settings(servers: Servers) -> dict[str, str]:
    """Of a process on an empty Phorge."""
    servers.phorge.empty()
    return {
        "STORE": "mysql",
        "MYSQL_SOCKET": servers.mariadb.socket,
        "MYSQL_USER": "root",
        "LISTEN": NOBODY_THERE,
    }


@contextmanager
def serving(folder: Path, settings: dict[str, str], **more: object) -> Iterator[tuple[Served, dict[str, str]]]:
    """A worker, and the settings of a command that finds it."""
    chosen: dict[str, object] = {"SQLITE_PATH": ""} | settings | {"LISTEN": "127.0.0.1:0"} | more
    with Served(folder, **chosen) as served, served.client() as client:
        served.wait_for_event("worker started")
        yield served, settings | {"LISTEN": client.base_url.netloc.decode()}


def one_ended(served: Served) -> None:
    """Have it end a task."""
    with served.client() as client:
        (task_id,) = enqueue(client, CLASS)
        wait_for("the end of the task", lambda: archived(client, task_id), 20)


def status(settings: dict[str, str], folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `takeover status`."""
    done = run("takeover", "status", *arguments, folder=folder, variables=settings)
    return done.returncode, done.stdout + done.stderr


@contextmanager
def native_taskmaster(tables: PhorgeTables) -> Iterator[None]:
    """One that takes whatever there is, until the end."""
    stop = threading.Event()

    def work() -> None:
        with Taskmaster(tables) as taskmaster:
            while not stop.is_set():
                if not taskmaster.step(_nothing):
                    stop.wait(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _nothing(task: PhpTask) -> list[tuple[str, str]]:
    return []


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        ("qr:481e9685:4:19966@host", Who.OURS),
        ("23192:1796040935:web1:2", Who.NATIVE),
        ("23192:1796040935:web:with:colons:2", Who.NATIVE),
        ("gorge-worker-1", Who.CALLERS),
        ("mine:7", Who.ALLOWED),
        ("(yield)", Who.NOBODY),
        ("gorge-completion-pending", Who.NOBODY),
        (None, Who.NOBODY),
    ],
)
def test_an_owner_says_whose_it_is(owner: str | None, whose: Who) -> None:
    assert who(owner, ["mine:*"]) is whose


def test_no_pattern_stands_for_a_native_taskmaster() -> None:
    native = "23192:1796040935:web1:2"
    assert who(native, ["*", "23192:*"]) is Who.NATIVE
    assert who(native, [native]) is Who.ALLOWED
    assert who("gorge-worker-1", ["*"]) is Who.ALLOWED


def test_the_plan_has_the_way_there_and_the_way_back() -> None:
    done = invoke("takeover", "plan", "--phorge", "/opt/phorge")
    assert done.exit_code == 0
    there, _, back = done.output.partition("The way back")
    assert "/opt/phorge/bin/config set phd.taskmasters 0" in there
    order = [
        "SHADOW=1 queue-runtime serve",
        "doctor --store",
        "queue-runtime selftest",
        "queue-runtime doctor --conduit ",
        "takeover check",
        "taskmasters 0",
    ]
    assert sorted(order, key=there.index) == order
    assert "queue-runtime takeover status" in there
    assert "/opt/phorge/bin/config set phd.taskmasters NUMBER" in back
    assert "phd restart" not in done.output  # it has no --keep-leases
    assert done.output.count("phd start --keep-leases") == 2


@pytest.mark.parametrize("command", ["status", "check"])
def test_a_store_that_no_taskmaster_sees_is_refused(command: str, tmp_path: Path) -> None:
    done = run("takeover", command, folder=tmp_path, variables={"SQLITE_PATH": str(tmp_path / "queue.sqlite")})
    assert (done.returncode, "the store mysql alone" in done.stderr) == (1, True)


def test_it_is_not_done_while_nobody_works(settings: dict[str, str], tmp_path: Path) -> None:
    code, said = status(settings, tmp_path)
    assert (code, "not done: no task was ended" in said) == (1, True), said


def test_it_is_done_when_only_this_runtime_has_worked(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found):
        one_ended(served)
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, "takeover: done" in said) == (0, True), said
    assert "1 ran in handlers here and 0 in Phorge or a fallback; archived as 1 success" in said


def test_it_is_not_done_when_the_worker_is_gone(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found):
        one_ended(served)
        served.tell_and_wait()
    code, said = status(found, tmp_path)
    assert (code, f"not done: no worker answers at {found['LISTEN']}" in said) == (1, True), said


def test_it_is_not_done_while_a_task_waits_that_no_worker_leases(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with serving(tmp_path, settings) as (served, found), Taskmaster(servers.phorge) as taskmaster:
        one_ended(served)
        waiting = taskmaster.schedule(PHP_CLASS)
        code, said = status(found, tmp_path)
        assert (code, f"leases: 1 of {PHP_CLASS}" in said) == (1, True), said
        assert f"1 tasks wait for somebody: 1 of {PHP_CLASS}" in said
        (task,) = taskmaster.lease()
        assert task.id == waiting
        taskmaster.write("DELETE FROM worker_activetask WHERE id = %s", (waiting,))
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, "takeover: done" in said) == (0, True), said


def test_a_worker_elsewhere_is_named(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    """Two pools, of which none leases everything."""
    pools = ({"TASK_CLASSES": CLASS}, {"TASK_CLASSES": "SleepWorker"})
    with (
        serving(tmp_path, settings, **pools[0]) as (served, found),
        serving(tmp_path, settings, **pools[1]) as (other, there),
    ):
        one_ended(served)
        with served.client() as client:
            client.post("/api/queue/pause", json={"taskClass": "SleepWorker"})
            enqueue(client, "SleepWorker")
            code, said = status(found, tmp_path, "--worker", f"http://{there['LISTEN']}")
            assert (code, "while leasing is paused for the class SleepWorker" in said) == (1, True), said
            client.post("/api/queue/resume", json={"taskClass": "SleepWorker"})
        both = ["--worker", found["LISTEN"], "--worker", f"http://{there['LISTEN']}"]
        code, said = status(found, tmp_path, *both)
        assert (code, "takeover: done" in said) == (0, True), said
        served.tell_and_wait()
        other.tell_and_wait()
    code, said = status(found, tmp_path, "--worker", "no address at all")
    assert (code, "no worker answers at no address at all" in said) == (1, True), said


def test_it_is_not_done_while_a_queue_that_the_worker_passes_by_has_tasks(
    settings: dict[str, str], tmp_path: Path
) -> None:
    narrow = settings | {"QUEUES": "default"}
    with serving(tmp_path, narrow) as (served, found), served.client() as client:
        one_ended(served)
        client.post("/api/queue/enqueue", json={"taskClass": CLASS, "queue": "search"})
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, f"leases: 1 of {CLASS}" in said) == (1, True), said


def test_it_is_not_done_while_a_native_taskmaster_acts(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with serving(tmp_path, settings) as (served, found), Taskmaster(servers.phorge) as taskmaster:
        one_ended(served)
        taskmaster.schedule("SomeWorker")
        taskmaster.schedule("SomeWorker")
        held, other = taskmaster.lease(2)
        code, said = status(found, tmp_path)
        assert (code, "native taskmasters of web1" in said) == (1, True), said
        assert "hold 2 tasks" in said
        taskmaster.archive(held, result=0)
        taskmaster.archive(other, result=1)
        code, said = status(found, tmp_path, "--allow", "*")
        served.tell_and_wait()
    assert (code, "ended 2 in the last" in said) == (1, True), said
    assert "not done: native taskmasters of web1" in said


def test_a_native_taskmaster_that_ended_an_old_task_is_seen_behind_thousands_of_newer_ones(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with Taskmaster(servers.phorge) as taskmaster:
        taskmaster.schedule("SomeWorker")
        (old,) = taskmaster.lease()
        servers.phorge.execute(
            "INSERT INTO worker_archivetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID, result,"
            " duration, priority, dateCreated, dateModified, archivedEpoch)"
            " SELECT 100000 + seq, 'SomeWorker', 'qr:0badcafe:1:1@host', 1, 0, seq, 0, 1, 2000, 1700000000, 1700000000,"
            " 1700000000 FROM seq_1_to_5100"
        )
        taskmaster.archive(old, result=0)
        code, said = status(settings, tmp_path)
    assert (code, "native taskmasters of web1" in said) == (1, True), said


def test_it_is_not_done_while_somebody_acts_who_is_not_allowed(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found), served.client() as client:
        one_ended(served)
        enqueue(client, "SomeWorker")
        client.post("/api/queue/lease", json={"limit": 1}, headers={"X-Lease-Owner": "gorge-worker-1"})
        code, said = status(found, tmp_path)
        assert (code, "not of this runtime act" in said) == (1, True), said
        assert "gorge-worker-1" in said
        assert "2 requests to enqueue came over HTTP" in said
        code, said = status(found, tmp_path, "--allow", "gorge-*")
        served.tell_and_wait()
    assert (code, "takeover: done" in said) == (0, True), said


def test_it_is_not_done_while_phorge_has_not_the_method(settings: dict[str, str], tmp_path: Path) -> None:
    php = StubPhp()
    php.broken = stub.NO_METHOD
    with (
        stub_phorge(php, settings) as delegating,
        serving(tmp_path, delegating) as (served, found),
        served.client() as client,
    ):
        one_ended(served)
        wait_for("readiness turns red", lambda: client.get("/readyz").status_code == 503, 20)
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, f"not done: the worker at {found['LISTEN']} is not ready: conduit: " in said) == (1, True), said


def test_a_shadow_and_a_process_without_worker_are_no_workers(settings: dict[str, str], tmp_path: Path) -> None:
    for more, words in (({"SHADOW": "1"}, "is a shadow"), ({"ROLES": "api,sweep"}, "runs no tasks")):
        chosen: dict[str, object] = {"SQLITE_PATH": ""} | settings | {"LISTEN": "127.0.0.1:0"} | more
        with Served(tmp_path, **chosen) as served, served.client() as client:
            code, said = status(settings, tmp_path, "--worker", client.base_url.netloc.decode())
            served.tell_and_wait()
        assert (code, words in said) == (1, True), said


@pytest.mark.parametrize(("code", "body"), [(200, "<html></html>"), (200, "[]"), (200, "{}"), (503, "busy"), (404, "")])
def test_what_answers_and_is_no_worker_of_ours_is_told(
    settings: dict[str, str], tmp_path: Path, code: int, body: str
) -> None:
    with stranger(code, body) as address:
        for command in ("status", "check"):
            done = run("takeover", command, folder=tmp_path, variables=settings | {"LISTEN": address})
            assert done.returncode == 1
            assert "Traceback" not in done.stderr
            assert f"what answers at {address} is no worker of ours" in done.stdout, done.stdout


@contextmanager
def stranger(code: int, body: str) -> Iterator[str]:
    """Another web server; its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_makes_nothing_where_nothing_was(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    with PhorgeTables(servers.mariadb, "looked_at") as tables:
        status(settings | {"NAMESPACE": tables.namespace}, tmp_path)
        there = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
        assert tables.execute(there, (tables.companion,)) == []


# ---- the canary, where everything runs here


def check(settings: dict[str, str], folder: Path, *arguments: str, **more: str) -> tuple[int, str]:
    """Exit code and output of `takeover check`."""
    done = run("takeover", "check", *arguments, folder=folder, variables=settings | more)
    return done.returncode, done.stdout + done.stderr


def nothing_is_active(servers: Servers) -> bool:
    return servers.phorge.execute("SELECT id FROM worker_activetask") == []


def keep_busy(served: Served) -> None:
    """Have the only slot of a worker taken for longer than any test."""
    with served.client() as client:
        enqueue(client, "SleepWorker", '{"seconds": 300}')
        wait_for("it runs", lambda: client.get("/api/worker/stats").json()["data"]["active"] == 1, 20)


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


def native_run(servers: Servers, task_class: str) -> None:
    """A native taskmaster runs one task of this class, and goes away."""
    with Taskmaster(servers.phorge) as taskmaster:
        task_id = taskmaster.schedule(task_class, priority=0)
        (task,) = taskmaster.lease()
        assert task.id == task_id
        taskmaster.archive(task, result=0)


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


# ---- the canary, where Phorge runs it


@contextmanager
def stub_phorge(php: StubPhp, settings: dict[str, str]) -> Iterator[dict[str, str]]:
    """Settings of a process that delegates to it."""
    with phorge(php):
        yield settings | {"CONDUIT_URL": php.url, "CONDUIT_TOKEN": stub.TOKEN, "CONDUIT_HOST": stub.HOST}


def executed(php: StubPhp) -> list[tuple[str, int]]:
    """Class and id of what PHP was told to run."""
    calls = [call.params for call in php.calls if call.phase in {"execute", ""} and call.params.get("taskClass")]
    return [(call["taskClass"], call["taskID"]) for call in calls]


def phorge_of(version: int, *, locks: bool) -> StubPhp:
    """One with this method."""
    php = StubPhp()
    php.version, php.locks = version, locks
    return php


@pytest.mark.parametrize(
    ("php", "task_class", "words"),
    [
        pytest.param(phorge_of(1, locks=True), CANARY, "queue-runtime's extension", id="extension"),
        pytest.param(phorge_of(1, locks=False), CLASS, "as the fork has", id="fork"),
        pytest.param(phorge_of(0, locks=False), CLASS, "version 0", id="first release"),
    ],
)
def test_php_runs_the_canary_from_a_real_row(  # noqa: PLR0917  fixtures first, then what is varied
    settings: dict[str, str], tmp_path: Path, servers: Servers, php: StubPhp, task_class: str, words: str
) -> None:
    with stub_phorge(php, settings) as delegating:
        code, said = check(delegating, tmp_path)
    assert (code, "must stay on yet: no worker answers" in said) == (1, True), said
    assert words in said
    assert "was run by Phorge" in said
    ((task_id, result, owner),) = servers.phorge.execute(
        "SELECT id, result, leaseOwner FROM worker_archivetask WHERE taskClass = %s AND priority = 1000", (task_class,)
    )
    assert (executed(php), result, owner[:3]) == ([(task_class, task_id)], 0, "qr:")
    assert nothing_is_active(servers)


async def test_the_shipped_extension_runs_the_canary_in_real_php(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    (tmp_path / "locks").mkdir()
    async with served(Php(tmp_path / "locks"), tmp_path) as url:
        delegating = settings | {"CONDUIT_URL": url, "CONDUIT_TOKEN": TOKEN, "CONDUIT_HOST": stub.HOST}
        code, said = await asyncio.to_thread(check, delegating, tmp_path)
    assert (code, f"({CANARY}) was run by Phorge" in said) == (1, True), said
    assert f"must stay on yet: no worker answers at {NOBODY_THERE}" in said
    assert nothing_is_active(servers)


def test_step_four_is_next_when_the_worker_that_runs_would_do_what_native_taskmasters_do(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    native_run(servers, PHP_CLASS)
    php = phorge_of(1, locks=True)
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(found, tmp_path)
        assert f":{served.inner_pid()}@" in said
        served.tell_and_wait()
    assert (code, "was run by Phorge" in said) == (0, True), said
    assert [task_class for task_class, _ in executed(php)] == [CANARY]
    assert "native taskmasters of web1 still act" in said
    assert "none has acted" not in said
    assert "next is step 4" in said
    assert "bin/config set phd.taskmasters 0" in said


def test_with_the_fork_php_and_the_worker_are_tried_by_a_canary_each(settings: dict[str, str], tmp_path: Path) -> None:
    php = StubPhp()
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(found, tmp_path)
        assert f":{served.inner_pid()}@" in said
        served.tell_and_wait()
    assert (code, "has a handler of its own for" in said) == (0, True), said
    assert [task_class for task_class, _ in executed(php)] == [CLASS]
    assert "was run by Phorge" in said
    assert "was run by a handler here" in said


@pytest.mark.parametrize(
    ("narrow", "next_step"),
    [
        ({"CONDUIT_CLASSES": PHP_CLASS}, 5),
        ({"CONDUIT_CLASSES": PHP_CLASS, "TASK_CLASSES": PHP_CLASS}, 2),
        ({"TASK_CLASSES": PHP_CLASS}, 2),
        ({"TASK_CLASSES": f"{PHP_CLASS},{CLASS}"}, 5),
    ],
)
def test_a_worker_that_leaves_the_canary_out_is_tried_otherwise_and_both_sides_are_named(
    settings: dict[str, str], tmp_path: Path, servers: Servers, narrow: dict[str, str], next_step: int
) -> None:
    php = phorge_of(1, locks=True)
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating | narrow) as (served, found):
        code, said = check(found, tmp_path)
        served.tell_and_wait()
    assert [task_class for task_class, _ in executed(php)] == [CANARY], said
    assert f"does not lease {CANARY}: where CONDUIT_CLASSES or TASK_CLASSES are set, add {CANARY}" in said
    assert "queue-runtime.classes" in said
    assert (code, f"next is step {next_step}" in said) == (int(next_step == 2), True), said
    assert ("no canary was run by the worker" in said) == (next_step == 2)
    assert nothing_is_active(servers)


@pytest.mark.parametrize(
    "narrow",
    [
        {"CONDUIT_CLASSES": f"{PHP_CLASS},{CANARY}"},
        {"TASK_CLASSES": f"{PHP_CLASS},{CANARY}"},
        {"QUEUES": "search,low"},
    ],
)
def test_with_the_canary_among_the_classes_it_goes_through_the_worker(
    settings: dict[str, str], tmp_path: Path, narrow: dict[str, str]
) -> None:
    php = phorge_of(1, locks=True)
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating | narrow) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(found, tmp_path)
        assert f":{served.inner_pid()}@" in said
        served.tell_and_wait()
    assert (code, "was run by Phorge" in said) == (0, True), said
    assert "next is step 5" in said


@pytest.mark.parametrize("broken", [stub.BAD_TOKEN, stub.NO_METHOD, stub.SITE_NOT_FOUND, stub.PHP_CUT_OFF])
def test_a_phorge_that_cannot_run_tasks_gets_none_and_the_step_is_shown(
    settings: dict[str, str], tmp_path: Path, servers: Servers, broken: Http
) -> None:
    php = StubPhp()
    php.broken = broken
    with stub_phorge(php, settings) as delegating:
        code, said = check(delegating, tmp_path)
    assert (code, "cannot run tasks: " in said) == (1, True), said
    assert "next is step 2" in said
    assert stub.TOKEN not in said
    assert executed(php) == []
    assert nothing_is_active(servers)


async def _fails(call: Call) -> dict[str, Any]:
    return {"result": "permanent-failure", "failureReason": "it cannot be done"}


async def _lost(call: Call) -> Http:
    return stub.NGINX_TIMEOUT


async def _waits(call: Call) -> dict[str, Any]:
    return {"result": "yield", "retry": 60}


async def _busy(call: Call) -> dict[str, Any]:
    return {"result": "busy"}


async def _not_allowed(call: Call) -> Http:
    return stub.error("ERR-WORKER-CLASS", "this class may not be run")


async def _hangs(call: Call) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (_fails, ["failed: it cannot be done"]),
        (_lost, ["504", "PHP may be running it still", "It is (unknown) now"]),
        (_busy, ["PHP may be running it still", "It is (unknown) now"]),
        (_waits, ["it was put off", "It is (yield) now"]),
        (_not_allowed, ["ERR-WORKER-CLASS", "this class may not be run", "queue-runtime.classes"]),
        (_hangs, ["did not end within 2 s", "PHP may still be running it"]),
    ],
)
def test_a_canary_that_php_does_not_end_well_is_a_fault_with_the_reason_and_no_row_of_it_stays_active(
    settings: dict[str, str], tmp_path: Path, servers: Servers, work: stub.Work, words: list[str]
) -> None:
    php = phorge_of(1, locks=True)
    php.work = work
    with stub_phorge(php, settings) as delegating:
        code, said = check(delegating, tmp_path, "--seconds", "2" if work is _hangs else "60")
    assert (code, [one for one in words if one not in said]) == (1, []), said
    assert "next is step 2" in said
    assert "is above" not in said
    assert nothing_is_active(servers)


# ---- the canary of a command that is stopped


@contextmanager
def checking(settings: dict[str, str], folder: Path, servers: Servers) -> Iterator[subprocess.Popen[str]]:
    """A `takeover check` whose canary PHP runs without end."""
    php = phorge_of(1, locks=True)
    php.work = _hangs
    with stub_phorge(php, settings) as delegating:
        environ = {"PATH": os.environ["PATH"]} | {PREFIX + name: text for name, text in delegating.items()}
        process = subprocess.Popen(
            [SCRIPT, "takeover", "check"], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
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

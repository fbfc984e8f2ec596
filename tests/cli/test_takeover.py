"""`queue-runtime takeover`: who works on Phorge's queue is told by its rows, and a canary goes the whole way."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.selftest import CANARY
from queue_runtime.takeover import Who, who
from tests.backends import Servers
from tests.cli.commands import invoke, run
from tests.conduit import stub
from tests.conduit.php import TOKEN, Php, served
from tests.conduit.stub import Call, Http, StubPhp
from tests.conduit.threaded import phorge
from tests.faults.process import Served, archived, enqueue, wait_for
from tests.phorge_php import PhpTask, Taskmaster
from tests.phorge_tables import PhorgeTables

CLASS = "PhabricatorTestWorker"


@pytest.fixture
def settings(servers: Servers) -> dict[str, str]:
    """Of a process on an empty Phorge."""
    servers.phorge.empty()
    return {"STORE": "mysql", "MYSQL_SOCKET": servers.mariadb.socket, "MYSQL_USER": "root"}


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


def test_the_plan_has_the_way_there_and_the_way_back() -> None:
    done = invoke("takeover", "plan", "--phorge", "/opt/phorge")
    assert done.exit_code == 0
    there, _, back = done.output.partition("The way back")
    assert "/opt/phorge/bin/config set phd.taskmasters 0" in there
    order = [
        "SHADOW=1 queue-runtime serve",
        "doctor --store",
        "queue-runtime selftest",
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
    done = run("takeover", "status", folder=tmp_path, variables=settings)
    assert (done.returncode, "not done: no task was ended" in done.stdout) == (1, True)


def test_it_is_done_when_only_this_runtime_has_worked(settings: dict[str, str], tmp_path: Path) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        (task_id,) = enqueue(client, CLASS)
        wait_for("the end of the task", lambda: archived(client, task_id), 20)
        done = run("takeover", "status", folder=tmp_path, variables=settings)
        served.tell_and_wait()
    assert (done.returncode, "takeover: done" in done.stdout) == (0, True), done.stdout
    assert "1 ran in handlers here and 0 in Phorge or a fallback; archived as 1 success" in done.stdout


def test_it_is_not_done_while_a_native_taskmaster_acts(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        (task_id,) = enqueue(client, CLASS)
        wait_for("the end of the task", lambda: archived(client, task_id), 20)
        served.tell_and_wait()
    with Taskmaster(servers.phorge) as taskmaster:
        taskmaster.schedule("SomeWorker")
        taskmaster.schedule("SomeWorker")
        held, other = taskmaster.lease(2)
        done = run("takeover", "status", folder=tmp_path, variables=settings)
        assert (done.returncode, "native taskmasters of web1" in done.stdout) == (1, True)
        assert "hold 2 tasks" in done.stdout
        taskmaster.archive(held, result=0)
        taskmaster.archive(other, result=1)
        done = run("takeover", "status", folder=tmp_path, variables=settings)
    assert (done.returncode, "ended 2 in the last" in done.stdout) == (1, True)


def test_it_is_not_done_while_somebody_acts_who_is_not_allowed(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        (task_id,) = enqueue(client, CLASS)
        wait_for("the end of the task", lambda: archived(client, task_id), 20)
        enqueue(client, "SomeWorker")
        client.post("/api/queue/lease", json={"limit": 1}, headers={"X-Lease-Owner": "gorge-worker-1"})
        listen = {"LISTEN": client.base_url.netloc.decode()}
        done = run("takeover", "status", folder=tmp_path, variables=settings | listen)
        assert (done.returncode, "not of this runtime act" in done.stdout) == (1, True), done.stdout
        assert "gorge-worker-1" in done.stdout
        assert "2 requests to enqueue came over HTTP" in done.stdout
        done = run("takeover", "status", "--allow", "gorge-*", folder=tmp_path, variables=settings)
        served.tell_and_wait()
    assert (done.returncode, "takeover: done" in done.stdout) == (0, True), done.stdout


# ---- the canary, where everything runs here


def check(settings: dict[str, str], folder: Path, *arguments: str, **more: str) -> tuple[int, str]:
    """Exit code and output of `takeover check`."""
    done = run("takeover", "check", *arguments, folder=folder, variables=settings | more)
    return done.returncode, done.stdout + done.stderr


def nothing_is_active(servers: Servers) -> bool:
    return servers.phorge.execute("SELECT id FROM worker_activetask") == []


def test_a_canary_goes_through_the_worker_that_runs(settings: dict[str, str], tmp_path: Path) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        served.wait_for_event("worker started")
        code, said = check(settings, tmp_path, LISTEN=client.base_url.netloc.decode())
        assert f":{served.inner_pid()}@" in said  # the owner that ended it
        served.tell_and_wait()
    assert (code, "came back as done" in said) == (0, True), said
    assert "none has acted" in said
    assert "next is step 5" in said


def test_without_one_the_command_runs_the_canary_itself(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    code, said = check(settings, tmp_path)
    assert (code, "was run by a handler here" in said) == (0, True), said
    assert "this command runs the task itself" in said
    assert "selftest: enqueue " in said
    assert "next is step 2" in said  # nobody would work, were the taskmasters off
    assert nothing_is_active(servers)
    ((result, duration),) = servers.phorge.execute(
        "SELECT result, duration FROM worker_archivetask WHERE taskClass = %s", (CLASS,)
    )
    assert result == 0
    assert duration >= 10_000  # µs: it is asked to take ten milliseconds


def test_a_canary_that_nobody_takes_is_cancelled(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        served.wait_for_event("worker started")
        client.post("/api/queue/pause", json={"all": True})
        listen = client.base_url.netloc.decode()
        code, said = check(settings, tmp_path, "--seconds", "1", LISTEN=listen)
        client.post("/api/queue/resume", json={"all": True})
        served.tell_and_wait()
    assert (code, "nobody ended task" in said) == (1, True), said
    assert "next is step 2" in said
    assert (2,) in servers.phorge.execute("SELECT result FROM worker_archivetask WHERE taskClass = %s", (CLASS,))
    assert nothing_is_active(servers)


def test_a_canary_that_fails_is_told_with_its_reason(settings: dict[str, str], tmp_path: Path) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        served.wait_for_event("worker started")
        listen = client.base_url.netloc.decode()
        code, said = check(settings, tmp_path, "--canary", "FlakyWorker", LISTEN=listen)
        served.tell_and_wait()
    assert (code, "failed: " in said) == (1, True), said


def test_a_class_that_nobody_here_may_run_is_told(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    code, said = check(settings, tmp_path, "--canary", "SomebodysWorker")
    assert (code, "nobody here may run SomebodysWorker" in said) == (1, True), said
    assert nothing_is_active(servers)


def test_a_native_taskmaster_beside_it_takes_no_canary_and_step_four_is_next(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | settings)) as served, served.client() as client:
        (task_id,) = enqueue(client, CLASS)
        wait_for("the end of the task", lambda: archived(client, task_id), 20)
        served.tell_and_wait()
    with native_taskmaster(servers.phorge), Taskmaster(servers.phorge) as taskmaster:
        task_id = taskmaster.schedule("SomeWorker")
        seen = "SELECT 1 FROM worker_archivetask WHERE id = %s"
        wait_for("it works", lambda: servers.phorge.execute(seen, (task_id,)), 20)
        code, said = check(settings, tmp_path)
    assert (code, "was run by a handler here" in said) == (0, True), said
    assert "native taskmasters of web1 still act" in said
    assert "next is step 4" in said
    assert "bin/config set phd.taskmasters 0" in said
    assert "takeover: done" not in said


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
    assert code == 0, said
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
    assert (code, f"({CANARY}) was run by Phorge" in said) == (0, True), said
    assert nothing_is_active(servers)


def test_the_canary_goes_through_the_worker_that_runs_to_php(settings: dict[str, str], tmp_path: Path) -> None:
    php = StubPhp()
    php.locks = True
    with (
        stub_phorge(php, settings) as delegating,
        Served(tmp_path, **({"SQLITE_PATH": ""} | delegating)) as served,
        served.client() as client,
    ):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(delegating, tmp_path, LISTEN=client.base_url.netloc.decode())
        assert f":{served.inner_pid()}@" in said
        served.tell_and_wait()
    assert (code, "was run by Phorge" in said) == (0, True), said
    assert [task_class for task_class, _ in executed(php)] == [CANARY]


def test_a_worker_with_a_handler_of_its_own_for_the_class_is_passed_by(
    settings: dict[str, str], tmp_path: Path
) -> None:
    php = StubPhp()
    with (
        stub_phorge(php, settings) as delegating,
        Served(tmp_path, **({"SQLITE_PATH": ""} | delegating)) as served,
        served.client() as client,
    ):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(delegating, tmp_path, LISTEN=client.base_url.netloc.decode())
        served.tell_and_wait()
    assert (code, "has a handler of its own for it" in said) == (0, True), said
    assert [task_class for task_class, _ in executed(php)] == [CLASS]


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


@pytest.mark.parametrize(
    ("work", "words"), [(_fails, "failed: it cannot be done"), (_lost, "it is (unknown) now"), (_waits, "(yield) now")]
)
def test_a_canary_that_php_does_not_end_well_is_a_fault_and_no_row_of_it_stays_active(
    settings: dict[str, str], tmp_path: Path, servers: Servers, work: stub.Work, words: str
) -> None:
    php = StubPhp()
    php.locks, php.work = True, work
    with stub_phorge(php, settings) as delegating:
        code, said = check(delegating, tmp_path)
    assert (code, words in said) == (1, True), said
    assert nothing_is_active(servers)

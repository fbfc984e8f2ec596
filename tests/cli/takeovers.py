"""What tests of `queue-runtime takeover` share: a Phorge, workers and native taskmasters on it, and the commands."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.backends import Servers
from tests.cli.commands import run
from tests.conduit import stub
from tests.conduit.stub import Call, StubPhp
from tests.conduit.threaded import phorge
from tests.faults.process import Served, archived, enqueue, wait_for
from tests.phorge_php import PhpTask, Taskmaster
from tests.phorge_tables import PhorgeTables

CLASS = "PhabricatorTestWorker"
PHP_CLASS = "PhabricatorSearchWorker"
NOBODY_THERE = "127.0.0.1:1"
TASKMASTER = "PhabricatorTaskmasterDaemon"


def empty_phorge(servers: Servers) -> dict[str, str]:
    """Settings of a process on an empty Phorge, at whose address nothing answers."""
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
    with Served(folder, wrapper=(), **chosen) as served, served.client() as client:
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


@contextmanager
def book_of_daemons(tables: PhorgeTables) -> Iterator[Callable[[str, str, str], None]]:
    """Phorge's, which is empty; what is given back writes a daemon, its host and how it is into it."""

    def report(daemon: str, host: str, status: str) -> None:
        line = "INSERT INTO phabricator_daemon.daemon_log VALUES (%s, %s, %s, UNIX_TIMESTAMP())"
        tables.execute(line, (daemon, host, status))

    tables.execute(
        "CREATE DATABASE phabricator_daemon; CREATE TABLE phabricator_daemon.daemon_log"
        " (daemon VARCHAR(255), host VARCHAR(255), status VARCHAR(8), dateModified INT UNSIGNED)"
    )
    try:
        yield report
    finally:
        tables.execute("DROP DATABASE phabricator_daemon")


def native_run(servers: Servers, task_class: str) -> None:
    """A native taskmaster runs one task of this class, and goes away."""
    with Taskmaster(servers.phorge) as taskmaster:
        task_id = taskmaster.schedule(task_class, priority=0)
        (task,) = taskmaster.lease()
        assert task.id == task_id
        taskmaster.archive(task, result=0)


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


async def hangs(call: Call) -> dict[str, Any]:
    """A worker that never ends."""
    await asyncio.Event().wait()
    return {}

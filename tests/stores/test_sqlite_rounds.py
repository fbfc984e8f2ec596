"""The writing thread: shared commits, errors that stay with their caller, cancelled callers, closing."""

import asyncio
import errno
import os
import random
import sqlite3
import threading
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path

import pytest

from queue_runtime.errors import EventConflict, StoreFull, StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import U32, Complete, Lease, NewTask, Settlement, Verdict
from stores import sqlite_session
from stores.sqlite import SqliteStore, open_store
from stores.sqlite_session import Session
from tests.clock import Clock
from tests.stores.backdoor import execute, inside, soon


class Gate:
    """Holds the writing thread, so that what is called meanwhile shares the next round."""

    def __init__(self, store: SqliteStore) -> None:
        self._entered = threading.Event()
        self._open = threading.Event()
        self._held = asyncio.ensure_future(store._writer.call("gate", self._wait, alone=True))

    def _wait(self, _session: Session) -> None:
        self._entered.set()
        assert self._open.wait(10)

    async def closed(self) -> None:
        """Return when the thread is held."""
        assert await asyncio.to_thread(self._entered.wait, 10)

    async def open(self) -> None:
        """Let it go on."""
        self._open.set()
        await self._held


async def commits(path: Path, store: SqliteStore) -> int:
    """How many frames end a transaction in the write-ahead log."""
    await inside(store, "SELECT 1")
    log = path.with_name(path.name + "-wal").read_bytes()
    frame = 24 + 4096
    sizes = [int.from_bytes(log[at + 4 : at + 8]) for at in range(32, len(log) - frame + 1, frame)]
    return sum(size > 0 for size in sizes)


async def test_callers_that_wait_together_share_one_commit(path: Path, store: SqliteStore) -> None:
    before = await commits(path, store)
    gate = Gate(store)
    await gate.closed()
    calls = [asyncio.ensure_future(store.enqueue([NewTask(task_class="A")])) for _ in range(50)]
    await asyncio.sleep(0)
    await gate.open()
    tasks = [task for (task,) in await asyncio.gather(*calls)]
    assert [task.id for task in tasks] == list(range(1, 51))
    assert await commits(path, store) == before + 1


async def test_a_refused_caller_takes_nobody_along(store: SqliteStore) -> None:
    await store.enqueue_once("event", NewTask(task_class="A"))
    gate = Gate(store)
    await gate.closed()
    first = asyncio.ensure_future(store.enqueue([NewTask(task_class="NewClass1")]))
    refused = asyncio.ensure_future(store.enqueue_once("event", NewTask(task_class="NewClass2")))
    last = asyncio.ensure_future(store.enqueue([NewTask(task_class="NewClass3")]))
    await asyncio.sleep(0)
    await gate.open()
    with pytest.raises(EventConflict):
        await refused
    ((one,), (three,)) = await asyncio.gather(first, last)
    found = await store.get([one.id, three.id])
    assert [task and task.task_class for task in found] == ["NewClass1", "NewClass3"]
    assert (await store.stats()).active == 3


async def test_a_fault_inside_the_thread_reaches_its_caller_and_the_thread_goes_on(store: SqliteStore) -> None:
    def broken(_session: Session) -> None:
        raise RuntimeError("a bug")

    for alone in (True, False):
        with pytest.raises(RuntimeError, match="a bug"):
            await store._writer.call("broken", broken, alone=alone)
    assert await inside(store, "SELECT 1") == [(1,)]
    assert len(await store.enqueue([NewTask(task_class="A")])) == 1


async def test_a_class_of_a_round_that_was_rolled_back_is_not_mistaken_for_another(store: SqliteStore) -> None:
    def enqueue_and_fail(session: Session) -> None:
        session.lanes.id_of(session, "Gone", "default")
        raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError):
        await store._writer.call("enqueue", enqueue_and_fail)
    await store.enqueue([NewTask(task_class="Other")])
    await store.enqueue([NewTask(task_class="Gone")])
    leased = await store.lease("qr:1", 10, 60, classes={"Gone"})
    assert [task.task_class for task in leased] == ["Gone"]


async def test_five_hundred_cancelled_callers_leave_no_transaction_open(path: Path, clock: Clock) -> None:
    dice = random.Random(8)
    async with open_store(path, StoreOptions(now=clock), synchronous="NORMAL") as store:
        await store.enqueue([NewTask(task_class="A") for _ in range(50)])
        answered: list[int] = []

        async def call(number: int) -> None:
            match number % 3:
                case 0:
                    answered.extend(task.id for task in await store.enqueue([NewTask(task_class="A")]))
                case 1:
                    await store.lease(f"qr:{number}", 2, 60)
                case _:
                    await store.list_active(5)

        for number in range(500):
            caller = asyncio.ensure_future(call(number))
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)
            await asyncio.sleep(dice.random() * 0.0004)
            caller.cancel()
            await asyncio.wait([caller])
        # Another process can write at once: nobody holds the lock.
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        assert None not in await store.get(answered)
        (task,) = await store.enqueue([NewTask(task_class="Last")])
        assert [one.id for one in await store.lease("qr:last", 1, 60, classes={"Last"})] == [task.id]
        (row,) = await store.settle([Settlement.held(Lease(task.id, "qr:last"), Complete())])
        assert row.verdict is Verdict.SETTLED


async def test_a_caller_that_is_gone_before_its_turn_takes_no_lease(store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="A")])
    gate = Gate(store)
    await gate.closed()
    caller = asyncio.ensure_future(store.lease("qr:gone", 1, 60))
    await asyncio.sleep(0)
    caller.cancel()
    await gate.open()
    assert (await store.stats()).leased == 0


async def test_closing_serves_what_is_waiting_and_refuses_what_comes_later(path: Path) -> None:
    async with open_store(path) as store:
        calls = [asyncio.ensure_future(store.enqueue([NewTask(task_class="A")])) for _ in range(20)]
        await asyncio.sleep(0)
    tasks = await asyncio.gather(*calls)
    with pytest.raises(StoreUnavailable, match="ping: the store is closed"):
        await store.ping()
    with pytest.raises(StoreUnavailable, match="enqueue: the store is closed"):
        await store.enqueue([NewTask(task_class="A")])
    assert execute(path, "SELECT count(*) FROM task") == [(len(tasks),)]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("sqlite-")]


async def test_an_event_loop_that_ends_without_closing_leaves_every_answered_task(path: Path) -> None:
    answered: list[int] = []

    def run_and_drop() -> None:
        async def enqueue() -> None:
            opened = open_store(path)
            store = await opened.__aenter__()
            answered.extend(task.id for task in await store.enqueue([NewTask(task_class="A")]))
            waiting = [asyncio.ensure_future(store.enqueue([NewTask(task_class="A")])) for _ in range(10)]
            await asyncio.sleep(0)
            dropped.append((opened, store, waiting))

        asyncio.run(enqueue())

    dropped: list[object] = []
    await asyncio.to_thread(run_and_drop)
    async with open_store(path) as store:
        assert None not in await store.get(answered)
        assert len(await store.enqueue([NewTask(task_class="B")])) == 1


async def test_a_full_file_refuses_with_its_reason_and_serves_again_when_there_is_room(
    path: Path, store: SqliteStore
) -> None:
    kept = await store.enqueue([NewTask(task_class="A") for _ in range(20)])
    ((pages,),) = await inside(store, "PRAGMA page_count")
    await inside(store, f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreFull, match=r"enqueue: .*no room left on the disk"):
        await store.enqueue([NewTask(task_class="A", data="x" * 2**20)])
    assert [task.id for task in await store.lease("qr:1", 3, 60)] == [1, 2, 3]
    await inside(store, "PRAGMA max_page_count=1073741823")
    (large,) = await store.enqueue([NewTask(task_class="A", data="x" * 2**20)])
    assert None not in await store.get([task.id for task in [*kept, large]])
    assert await inside(store, "PRAGMA integrity_check") == [("ok",)]


async def test_a_large_caller_that_does_not_fit_leaves_room_for_the_small_ones_of_its_round(
    store: SqliteStore,
) -> None:
    await store.enqueue([NewTask(task_class="A") for _ in range(20)])
    ((pages,),) = await inside(store, "PRAGMA page_count")
    await inside(store, f"PRAGMA max_page_count={pages + 2}")
    gate = Gate(store)
    await gate.closed()
    before = asyncio.ensure_future(store.lease("qr:before", 2, 60))
    large = asyncio.ensure_future(store.enqueue([NewTask(task_class="A", data="x" * 2**20)]))
    after = asyncio.ensure_future(store.lease("qr:after", 2, 60))
    await asyncio.sleep(0)
    await gate.open()
    with pytest.raises(StoreFull):
        await large
    assert [task.id for task in await before] == [1, 2]
    assert [task.id for task in await after] == [3, 4]


async def test_ids_end_with_a_clear_error_and_never_start_again(path: Path, store: SqliteStore) -> None:
    execute(path, "UPDATE counter SET last_id = ?", (U32 - 2,))
    (task,) = await store.enqueue([NewTask(task_class="A")])
    assert task.id == U32 - 1
    with pytest.raises(StoreFull, match=f"task ids end at {U32}"):
        await store.enqueue([NewTask(task_class="A") for _ in range(2)])
    (task,) = await store.enqueue([NewTask(task_class="A")])
    assert task.id == U32
    with pytest.raises(StoreFull):
        await store.enqueue([NewTask(task_class="A")])


async def test_ids_are_not_given_again_after_retention_has_deleted_the_rows(path: Path, clock: Clock) -> None:
    options = StoreOptions(now=clock, retention=60)
    async with open_store(path, options) as store:
        tasks = await store.enqueue([NewTask(task_class="A", data="x" * 5000) for _ in range(3)])
        await store.cancel([task.id for task in tasks])
        clock.advance(61)
        assert (await store.sweep(10)).expired == 3
    for table in ("task", "payload", "attempt", "idempotency"):
        assert execute(path, f"SELECT count(*) FROM {table}") == [(0,)]
    async with open_store(path, options) as store:
        (task,) = await store.enqueue([NewTask(task_class="A")])
        assert task.id == 4


async def test_a_lock_held_by_another_process_is_waited_for_and_then_an_outage(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.enqueue([NewTask(task_class="A")]))
        assert (await asyncio.wait([waiting], timeout=0.1))[1] == {waiting}
        assert await store.list_active(1) == []  # readers are not held up
        other.execute("ROLLBACK")
        assert len(await waiting) == 1
        monkeypatch.setattr(sqlite_session, "BUSY_SECONDS", 0.1)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreUnavailable, match=r"lease: .*another process has held the file for too long"
        ) as caught:
            await store.lease("qr:1", 1, 60)
        assert caught.value.nothing_happened
        other.execute("ROLLBACK")

    async def leased() -> bool:
        return len(await store.lease("qr:2", 1, 60)) == 1

    await soon(leased)


class Failing:
    """A connection that reports a disk error for some statements, and does nothing then."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.failing: set[str] = set()

    def execute(self, statement: str, values: object = ()) -> sqlite3.Cursor:
        if statement in self.failing:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            error.sqlite_errorname = "SQLITE_IOERR"
            raise error
        return self._connection.execute(statement, values)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


def failing(store: SqliteStore) -> Failing:
    session = store._writer._session
    connection = Failing(session.connection)
    session.connection = connection  # type: ignore[assignment]  # it is one in all that the store asks of it
    return connection


async def together(store: SqliteStore, *calls: Awaitable[object]) -> list[object]:
    """What becomes of calls that share a round."""
    gate = Gate(store)
    await gate.closed()
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    await gate.open()
    return await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("statement", ["SAVEPOINT one", "RELEASE one", "ROLLBACK TO one", "COMMIT"])
@pytest.mark.parametrize("rollback", [[], ["ROLLBACK"]])
async def test_a_disk_error_between_the_statements_is_an_outage_for_those_of_the_round_alone(
    store: SqliteStore, statement: str, rollback: list[str]
) -> None:
    connection = failing(store)
    connection.failing = {statement, *rollback}
    answers = await together(
        store,
        store.enqueue([NewTask(task_class="A")]),
        store._writer.call("enqueue", lambda _session: 1 // 0),
        store.enqueue([NewTask(task_class="B")]),
    )
    outages = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    assert all("the disk reported an error" in str(outage) for outage in outages)
    assert len(outages) + sum(isinstance(answer, ZeroDivisionError) for answer in answers) == 3
    assert len(outages) >= 2
    connection.failing = set()
    assert len(await store.enqueue([NewTask(task_class="C")])) == 1
    assert [task.task_class for task in await store.lease("qr:1", 9, 60)] == ["C"], "nothing of the round was kept"


async def test_a_round_that_cannot_be_rolled_back_holds_up_later_ones_only_as_long_as_that_lasts(
    store: SqliteStore,
) -> None:
    connection = failing(store)
    connection.failing = {"COMMIT", "ROLLBACK"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="the disk reported an error"):
            await store.enqueue([NewTask(task_class="A")])
    connection.failing = set()
    await store.enqueue([NewTask(task_class="B")])
    assert [task.task_class for task in await store.lease("qr:1", 9, 60)] == ["B"]


@pytest.mark.parametrize(("number", "kind"), [(errno.EDQUOT, StoreFull), (errno.ENOSPC, StoreFull), (errno.EIO, None)])
async def test_a_disk_error_where_there_is_no_room_or_quota_left_means_full(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreFull] | None
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("stores.sqlite_errors.os.fsync", refuse)
    connection = failing(store)
    connection.failing = {"COMMIT"}
    with pytest.raises(StoreUnavailable) as caught:
        await store.enqueue([NewTask(task_class="A")])
    assert isinstance(caught.value, StoreFull) is (kind is StoreFull)


def damage(path: Path) -> None:
    """Overwrite everything but the first pages."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * 8)
        file.write(b"\xde\xad" * ((size - 4096 * 8) // 2))


async def test_a_damaged_file_is_an_outage_with_its_reason(path: Path) -> None:
    async with open_store(path) as store:
        await store.enqueue([NewTask(task_class="A", data="x" * 1500) for _ in range(400)])
    damage(path)
    with pytest.raises(StoreUnavailable, match=r"list_active: .*damaged"):
        async with open_store(path) as store:
            await store.list_active(1000)

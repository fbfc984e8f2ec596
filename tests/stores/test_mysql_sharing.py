"""Phorge's own processes work on the same tables at the same moment (spec sections 6.1, 6.3 and 10)."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import (
    Complete,
    Fail,
    Lease,
    NewTask,
    Outcome,
    Release,
    Retry,
    Settlement,
    Task,
    Unknown,
    Verdict,
    Yield,
)
from stores.mysql import MysqlStore, open_store
from tests.faults.process import Served, wait_for
from tests.phorge_bin import BinWorker
from tests.phorge_php import Php, PhpTask, Taskmaster
from tests.phorge_tables import PhorgeTables
from tests.stores.phorge_crowd import Crowd, audited
from tests.stores.phorge_state import check_whole

OWNER = "qr:0badcafe:1:1@test"
PROCESSES = 4


@pytest.fixture
def _written_down(phorge: PhorgeTables) -> Iterator[None]:
    with audited(phorge):
        yield


@pytest.mark.usefixtures("_written_down")
@pytest.mark.parametrize("seconds", [15, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.timeout(240)
def test_everybody_at_once_archives_each_task_exactly_once(phorge: PhorgeTables, tmp_path: Path, seconds: int) -> None:
    """R102. Two native consumers, four processes of ours, eight enqueuers, operators, and `phd start` every 5 s."""
    settings: dict[str, Any] = {
        "STORE": "mysql",
        "SQLITE_PATH": "",
        "MYSQL_SOCKET": phorge.server.socket,
        "MYSQL_USER": "root",
        "LEASE_SECONDS": 6,
        "LOG_LEVEL": "info",
    }
    with ExitStack() as stack:
        served = [stack.enter_context(Served(tmp_path, **settings)) for _ in range(PROCESSES)]
        for one in served:
            one.client().close()  # it listens
        crowd = Crowd(phorge, [one.client for one in served])
        stack.callback(crowd.join)
        crowd.start(crowd.php_enqueuer, 4)
        crowd.start(crowd.http_enqueuer, 4)
        crowd.start(crowd.consumer, 2)
        crowd.start(crowd.operator, 1)
        crowd.start(crowd.http_operator, 1)
        crowd.start(crowd.lock_a_row, 1)
        crowd.start(lambda _: crowd.expire_everything(5), 1)
        crowd.stop_making.wait(seconds)
        crowd.stop_making.set()
        wait_for("all is done", lambda: not _active(phorge), 60, every=0.2)
        crowd.join()
        for one in served:
            one.tell_and_wait()
    assert crowd.errors == []
    assert {status for status in crowd.statuses if status >= 500} == set()
    assert [line for one in served for line in one.events("request") if line["status"] >= 500] == []
    assert [line for one in served for line in one.lines if '"level":"error"' in line] == []
    check_whole(phorge)
    moves = {
        task: (ins, outs)
        for task, ins, outs in phorge.execute(
            "SELECT task, SUM(step = 1), SUM(step = -1) FROM audit.moves GROUP BY task"
        )
    }
    assert {task for task, (ins, outs) in moves.items() if ins - outs != 1} == set(), "archived more than once"
    assert {task: outs for task, (_, outs) in moves.items() if outs} == Counter(crowd.revived), (
        "only retries take rows out"
    )
    assert len(set(crowd.made)) == len(crowd.made), "an id was given twice"
    assert set(crowd.made) <= moves.keys()
    assert len(crowd.done_by_php) > 10, "the native consumers had their share"
    assert len(moves) - len(crowd.done_by_php) > seconds * 10, "and so had ours"
    assert crowd.counts["rows locked"] > 0


def _active(phorge: PhorgeTables) -> int:
    ((number,),) = phorge.execute("SELECT COUNT(*) FROM worker_activetask")
    return int(number)


@pytest.fixture
async def store(phorge: PhorgeTables) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(), StoreOptions(patience=0)) as opened:
        yield opened


@pytest.fixture
def native(phorge: PhorgeTables) -> Iterator[Taskmaster]:
    with Taskmaster(phorge) as php:
        yield php


def nothing(task: PhpTask) -> list[tuple[str, str]]:
    return []


async def take(store: MysqlStore, number: int = 1) -> list[Task]:
    await store.enqueue([NewTask(task_class=f"Class{place}", priority=place) for place in range(number)])
    return await store.lease(OWNER, number, 60)


def due_now(phorge: PhorgeTables) -> None:
    """As if the time had come for everything that waits."""
    phorge.execute("UPDATE worker_activetask SET leaseExpires = leaseExpires - 100000 WHERE leaseExpires > 100000")


async def test_a_native_consumer_takes_nothing_of_ours_early(
    store: MysqlStore, phorge: PhorgeTables, native: Taskmaster
) -> None:
    """It takes any row without an owner at once, whatever its time: delays, back-offs and yields have one."""
    rows = await take(store, 3)
    outcomes: list[Outcome] = [Retry(600), Yield(600), Unknown(600)]
    await store.settle([Settlement.held(Lease(row.id, OWNER), end) for row, end in zip(rows, outcomes, strict=True)])
    later = int(time.time()) + 600
    delayed, ready = await store.enqueue(
        [NewTask(task_class="Delayed", delay_until=later), NewTask(task_class="Ready", priority=9)]
    )
    assert await store.delay([ready.id], later) == 1
    held = (await take(store, 1))[0]
    assert native.lease(10) == []
    due_now(phorge)
    waiting = {*(row.id for row in rows), delayed.id, ready.id, held.id}
    assert {task.id for task in native.lease(10)} == waiting, "and when the time has come it takes them all"


async def test_a_task_that_php_delayed_is_delayed_for_us(store: MysqlStore, phorge: PhorgeTables) -> None:
    """Spec 3.1: owner NULL and a time to come. Native processes do not heed it; we do."""
    with BinWorker(phorge) as php:
        task_id = php.schedule("Delayed", delay_until=int(time.time()) + 600)
        assert await store.lease(OWNER, 10, 60) == []
        assert php.delay(task_id, int(time.time()) - 1) == 1
    assert [row.id for row in await store.lease(OWNER, 10, 60)] == [task_id]


async def test_a_native_awaken_wakes_our_yield_and_ours_wakes_a_native_one(
    store: MysqlStore, phorge: PhorgeTables, native: Taskmaster
) -> None:
    (task,) = await take(store)
    await store.settle([Settlement.held(Lease(task.id, OWNER), Yield(600))])
    with Php(phorge) as php:
        assert php.awaken([task.id]) == 1
        assert php.awaken([task.id]) == 0
    assert [row.id for row in await store.lease("qr:2", 10, 60)] == [task.id]
    await store.settle([Settlement.held(Lease(task.id, "qr:2"), Yield(600))])
    assert await store.awaken([task.id]) == 1
    assert [row.id for row in native.lease()] == [task.id]


async def test_a_native_task_that_ends_after_we_took_it_over_ends_once(
    store: MysqlStore, phorge: PhorgeTables, native: Taskmaster
) -> None:
    """Spec 6.1: native archiving looks at no owner. Ours is LOST then, and the row is archived once."""
    with Php(phorge) as php:
        task_id = php.schedule("A")
        (running,) = native.lease()
        php.expire_all_leases()
    phorge.execute("UPDATE worker_activetask SET leaseExpires = leaseExpires - 2")
    (ours,) = await store.lease(OWNER, 1, 60)
    assert ours.id == running.id == task_id
    native.finish(running, time.monotonic())
    (settled,) = await store.settle(
        [Settlement.held(Lease(task_id, OWNER), Complete(followups=[NewTask(task_class="B")]))]
    )
    assert settled.verdict is Verdict.LOST
    assert await store.renew([Lease(task_id, OWNER)], 60) == [None]
    assert phorge.execute("SELECT id, leaseOwner FROM worker_archivetask") == [(task_id, running.lease_owner)]
    assert _active(phorge) == 0, "no follow-up of a lost run"


@pytest.mark.parametrize(
    "end", [Complete(), Fail(), Retry(600), Yield(600), Release()], ids=lambda end: type(end).__name__
)
async def test_ours_that_ends_after_a_native_process_took_it_over_ends_once(
    store: MysqlStore, phorge: PhorgeTables, native: Taskmaster, end: Complete | Fail | Retry | Yield | Release
) -> None:
    (task,) = await take(store)
    due_now(phorge)
    (running,) = native.lease()
    (settled,) = await store.settle([Settlement.held(Lease(task.id, OWNER), end)])
    assert settled.verdict is Verdict.LOST
    native.run(running, nothing)
    assert native.archived == [task.id]
    check_whole(phorge)


async def test_a_native_process_meets_our_archived_row_and_restarts(
    store: MysqlStore, phorge: PhorgeTables, native: Taskmaster
) -> None:
    """Error 1062: it counts a failure of a row that is gone, loses its follow-ups, and changes nothing of ours."""
    with Php(phorge) as php:
        task_id = php.schedule("A")
    (running,) = native.lease()
    due_now(phorge)
    (ours,) = await store.lease(OWNER, 1, 60)
    await store.settle([Settlement.held(Lease(ours.id, OWNER), Complete(5))])
    before = phorge.execute("SELECT * FROM worker_archivetask")
    native.run(running, lambda task: [("Child", "[]")])
    assert (native.archived, native.restarts) == ([], 1)
    assert phorge.execute("SELECT * FROM worker_archivetask") == before
    assert _active(phorge) == 0
    assert before[0][0] == task_id


async def test_phd_start_costs_a_live_holder_nothing(store: MysqlStore, phorge: PhorgeTables) -> None:
    """Section 10: every lease is over at once, by somebody else's hand. Who holds a row renews it and goes on."""
    rows = await take(store, 5)
    with Php(phorge) as php:
        assert php.expire_all_leases() == 5
    phorge.execute("UPDATE worker_activetask SET leaseExpires = leaseExpires - 2")
    renewed = await store.renew([Lease(row.id, OWNER) for row in rows], 60)
    assert None not in renewed
    settled = await store.settle([Settlement.held(Lease(row.id, OWNER), Complete()) for row in rows])
    assert {one.verdict for one in settled} == {Verdict.SETTLED}


async def test_every_command_of_bin_worker_is_understood(store: MysqlStore, phorge: PhorgeTables) -> None:
    """Section 8, under our live lease: freed, moved, cancelled and brought back."""
    freed, moved, cancelled = await take(store, 3)
    with BinWorker(phorge) as php:
        php.free(freed.id)
        php.set_priority(moved.id, 7)
        assert php.cancel(cancelled.id)
        verdicts = await store.settle(
            [Settlement.held(Lease(row.id, OWNER), Complete()) for row in (freed, moved, cancelled)]
        )
        assert [one.verdict for one in verdicts] == [Verdict.LOST, Verdict.SETTLED, Verdict.LOST]
        assert verdicts[1].archived is not None
        assert verdicts[1].archived.priority == 7, "what somebody has changed meanwhile is kept"
        assert not php.retry(moved.id), "a success needs --repeat"
        assert php.retry(moved.id, repeat=True)
        assert php.retry(cancelled.id)
    again = {row.id for row in await store.lease("qr:2", 10, 60)}
    assert again == {freed.id, moved.id, cancelled.id}
    settled = await store.settle([Settlement.held(Lease(task_id, "qr:2"), Complete()) for task_id in again])
    assert {one.verdict for one in settled} == {Verdict.SETTLED}
    check_whole(phorge)


async def test_what_php_collected_is_gone_for_us_too(store: MysqlStore, phorge: PhorgeTables) -> None:
    """Section 7: by the date of creation. A late report of its holder is LOST, a retry finds nothing."""
    rows = await take(store, 2)
    await store.settle([Settlement.held(Lease(rows[0].id, OWNER), Complete())])
    phorge.execute("UPDATE worker_archivetask SET dateCreated = dateCreated - 2000000")
    with Php(phorge) as php:
        assert php.collect_garbage() == 1
    assert await store.get_archived([rows[0].id]) == [None]
    assert await store.retry([rows[0].id], repeat=True) == [None]
    (late,) = await store.settle([Settlement.held(Lease(rows[0].id, OWNER), Complete())])
    assert late.verdict is Verdict.LOST
    check_whole(phorge)

"""Leases on a million rows, and beside statistics and lists of millions: what they lock, and how they find it.

Times are printed. Held to is what does not depend on the machine: locks, plans, rows read, and times against
each other.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from statistics import median, quantiles
from typing import Any

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Settlement
from stores.lease_request import LeaseRequest
from stores.mysql import MysqlStore, open_store
from stores.mysql_candidates import EXAMINED, Candidates
from stores.mysql_lease import _depth, lease
from tests.clock import START, Clock
from tests.phorge_tables import PhorgeTables
from tests.servers import MariaDb
from tests.stores.mysql_tables import (
    fill_active,
    fill_archived,
    global_rows_read,
    lease_before_its_commit,
    open_sessions,
    plan,
)

MILLION = 1_000_000
LIMIT = 100
FEW = 20
HALF = frozenset(f"Class{number}" for number in range(100))
RARE = frozenset({"Rare"})

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    """One with room for it all in memory, as a server of that size has."""
    with MariaDb("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=256M") as server:
        yield server


def fill(phorge: PhorgeTables, rows: int) -> None:
    """200 classes and 6 priorities: of ten rows seven are ready, two wait after a failure, one has yielded."""
    fill_active(
        phorge,
        rows,
        taskClass="CONCAT('Class', seq DIV 10 * 7919 % 200)",
        priority="ELT(1 + seq DIV 2000 % 6, 1000, 2000, 2500, 3000, 3500, 4000)",
        leaseOwner="CASE WHEN seq % 10 < 7 THEN NULL WHEN seq % 10 < 9 THEN '(retry)' ELSE '(yield)' END",
        leaseExpires=f"IF(seq % 10 < 7, NULL, {START} + IF(seq % 1000 = 7, -600, 600) + seq % 500)",
    )
    phorge.execute(f"UPDATE worker_activetask SET taskClass = 'Rare' WHERE id > {rows - 10 * FEW} AND id % 10 = 1")
    phorge.execute(f"INSERT INTO worker_taskdata (id, data) SELECT seq, '[]' FROM seq_1_to_{rows}")
    phorge.execute(f"INSERT INTO lisk_counter VALUES ('worker_activetask', {4 * MILLION})")


@pytest.fixture
def million(server: MariaDb) -> Iterator[PhorgeTables]:
    with PhorgeTables(server) as phorge:
        fill(phorge, MILLION)
        yield phorge


UNFILTERED: dict[str, Any] = {
    "classes": None,
    "without_classes": (),
    "queues": None,
    "only": None,
    "without": (),
    "due_first": False,
}
FILTERS: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, LIMIT),
    "half of the classes": ({"classes": HALF}, LIMIT),
    "one class": ({"classes": frozenset({"Class7"})}, LIMIT),
    "a rare class": ({"classes": RARE}, FEW),
    "not one class": ({"without_classes": frozenset({"Class7"})}, LIMIT),
    "a queue": ({"queues": frozenset({"default"})}, LIMIT),
    "what is due first": ({"due_first": True}, LIMIT),
    "what is due of half of the classes": ({"due_first": True, "classes": HALF}, LIMIT),
}


SORTED = {"one class": {"taskClass"}, "a rare class": {"taskClass"}}
"""Where the sort of what an index gives is the cheaper way: at most EXAMINED rows."""


async def test_a_lease_of_a_million_rows_locks_what_it_takes(million: PhorgeTables, clock: Clock) -> None:
    """R059, R062"""
    locked = {}
    for name, (filters, limit) in FILTERS.items():
        async with lease_before_its_commit(million, limit, StoreOptions(now=clock), **filters) as held:
            pass
        assert len(held.tasks) >= limit - 1, name
        locked[name] = held.locked
    print(locked)
    # row and index entry of each; where it steps over rows of other classes, of those that it had glanced at
    bounds = {name: 2 * limit + 5 for name, (_, limit) in FILTERS.items()}
    bounds["half of the classes"] = bounds["not one class"] = 2 * _depth(LIMIT) + 5
    assert {name: number for name, number in locked.items() if number > bounds[name]} == {}


async def test_a_lease_of_a_million_rows_sorts_nothing_and_scans_nothing(million: PhorgeTables, clock: Clock) -> None:
    """R062. Only the rows of classes that have few are sorted, and no lock is taken for that."""
    options = StoreOptions(now=clock)
    async with open_sessions(million.settings(), options) as sessions, open_store(million.settings(), options) as store:
        times: dict[str, str] = {}
        for name, (filters, _) in FILTERS.items():
            request = LeaseRequest(owner="qr:plan", limit=10, seconds=60, **(UNFILTERED | filters))
            steps = await plan(sessions, lambda session, request=request: lease(session, request, Candidates()))  # type: ignore[misc]
            base = [step for step in steps if step.table == "worker_activetask"]
            assert base
            assert [step for step in base if step.how in {"ALL", "index"}] == [], name
            assert {step.key for step in base if "filesort" in step.extra} <= SORTED.get(name, set()), name
            taken, read = [], []
            for number in range(300 if name != "a rare class" else 4):
                before, began = global_rows_read(million), time.monotonic()
                assert await store.lease(f"qr:{name}:{number}", 2, 60, **filters)
                taken.append(time.monotonic() - began)
                read.append(global_rows_read(million) - before)
            times[name] = f"p50 {median(taken) * 1000:.1f} ms, p99 {quantiles(taken, n=100)[98] * 1000:.1f} ms"
            times[name] += f", rows read: p50 {median(read):.0f}, at most {max(read)}"
            # row, index entry and intermediate result of each that is looked at
            assert max(read) < 3 * EXAMINED, (name, times)
            assert median(read) < (LIMIT if name in {"none", "not one class", "a queue"} else 2 * EXAMINED), (
                name,
                times,
            )
        print("\n".join(f"{name}: {figures}" for name, figures in times.items()))


async def test_statistics_and_lists_of_millions_leave_leases_alone(server: MariaDb) -> None:
    """R064: three million ended tasks, half a million active ones, and somebody who looks at all of it each second."""
    with PhorgeTables(server) as phorge:
        fill(phorge, MILLION // 2)
        for number in range(1, 4):
            fill_archived(phorge, MILLION, first=number * MILLION + 1)
        async with open_store(phorge.settings()) as store, open_store(phorge.settings()) as reader:
            await leases_for(store, 3)
            alone = await leases_for(store, 10)
            looks: dict[str, list[float]] = {}
            async with looked_at(reader, looks):
                beside = await leases_for(store, 20)
            again = await leases_for(store, 10)
    for name, times in {"leases alone": alone, "beside the looks": beside, "alone again": again, **looks}.items():
        print(f"{name}: {len(times)} of p50 {median(times) * 1000:.1f} ms, longest {max(times) * 1000:.1f} ms")
    assert median(looks["stats"]) < 0.2
    assert median(looks["a first page"]) < 0.2
    assert median(looks["a deep page"]) < 1.0
    assert median(beside) < 2 * max(median(alone), median(again)) + 0.005
    p99 = [quantiles(times, n=100)[98] for times in (alone, again)]
    assert quantiles(beside, n=100)[98] < 5 * max(p99) + 0.05


async def leases_for(store: MysqlStore, seconds: float) -> list[float]:
    """Enqueue, lease and settle for so long; how long each lease took."""
    taken = []
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        owner = f"qr:{began}"
        rows = await store.lease(owner, 10, 60)
        taken.append(time.monotonic() - began)
        await store.settle([Settlement.held(Lease(row.id, owner), Complete()) for row in rows])
        await store.enqueue([NewTask(task_class="A", priority=4000)] * 10)
    return taken


@asynccontextmanager
async def looked_at(store: MysqlStore, times: dict[str, list[float]]) -> AsyncIterator[None]:
    """A console that shows statistics, a first page and a deep page each second; how long each took."""
    looks: dict[str, Callable[[], Awaitable[object]]] = {
        "stats": store.stats,
        "a first page": lambda: store.list_active(100),
        "a deep page": lambda: store.list_active(100, offset=400_000),
        "a deep page of the archive": lambda: store.list_archived(100, before=2 * MILLION),
    }

    async def look() -> None:
        while True:
            for name, call in looks.items():
                began = time.monotonic()
                await call()
                times.setdefault(name, []).append(time.monotonic() - began)
            await asyncio.sleep(1)

    looking = asyncio.ensure_future(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])
        assert looking.cancelled(), looking.exception()

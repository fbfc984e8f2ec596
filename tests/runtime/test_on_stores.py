"""The loops on every real store: nothing lost, nothing twice, whatever the line does."""

import asyncio
from collections import Counter

import pytest

from queue_runtime.registry import Context, Registry
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import Result
from tests.backends import STORES, Place
from tests.clock import Clock
from tests.faulty_store import Fault, FaultyStore
from tests.runtime.harness import Worker, enqueue, new

REAL = [name for name in STORES if name != "reference"]


class Chain:
    """A parent succeeds and leaves a child; the child fails once, then succeeds."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.registry.task("Parent")(self.parent)
        self.registry.task("Child", retry=0)(self.child)
        self.runs: Counter[int] = Counter()
        self.running: set[int] = set()

    async def parent(self, context: Context, data: str) -> None:
        await self._once_at_a_time(context)
        context.enqueue(new("Child"))

    async def child(self, context: Context, data: str) -> None:
        await self._once_at_a_time(context)
        if context.attempt == 1:
            raise ValueError("the first time fails")

    async def _once_at_a_time(self, context: Context) -> None:
        task_id = context.task.id
        assert task_id not in self.running
        self.running.add(task_id)
        self.runs[task_id] += 1
        await asyncio.sleep(0)
        self.running.discard(task_id)


async def drained(store: Store, *, seconds: float = 60) -> None:
    """Wait until nothing is active."""
    async with asyncio.timeout(seconds):
        while (await store.stats()).active:  # noqa: ASYNC110  what is waited for is a fact of a store
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("backend", REAL)
async def test_a_queue_drains_with_its_follow_ups_and_retries(backend: str, place: Place) -> None:
    chain = Chain()
    async with STORES[backend](place, StoreOptions()) as (store, _):
        await enqueue(store, "Parent", 300)
        async with Worker(store, chain.registry, slots=20).running():
            await drained(store)
        rows = await store.list_archived(1000)
    assert Counter((row.task_class, row.result) for row in rows) == {
        ("Parent", Result.SUCCESS): 300,
        ("Child", Result.SUCCESS): 300,
    }
    assert all(chain.runs[row.id] == (1 if row.task_class == "Parent" else 2) for row in rows)


@pytest.mark.parametrize("backend", REAL)
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_bad_line_loses_nothing_and_ends_nothing_twice(backend: str, workers: int, place: Place) -> None:
    """Of eleven calls of any kind one is refused, and one acts and its reply is lost."""
    turn = 0

    def plan(method: str) -> Fault | None:
        nonlocal turn
        turn += 1
        return {2: Fault.REFUSE, 5: Fault.LOSE_REPLY}.get(turn % 11)

    chain = Chain()
    options = StoreOptions(patience=0, max_lost=1000)
    async with STORES[backend](place, options) as (store, _):
        await enqueue(store, "Parent", 12)
        faulty = FaultyStore(store, plan)
        made = [Worker(faulty, chain.registry, slots=4, lease_seconds=2, patience=0) for _ in range(workers)]
        async with made[0].running(), made[-1].running() if workers == 2 else asyncio.timeout(60):
            await drained(store)
        rows = await store.list_archived(1000)
    assert Counter((row.task_class, row.result) for row in rows) == {
        ("Parent", Result.SUCCESS): 12,
        ("Child", Result.SUCCESS): 12,
    }
    assert all(row.failure_count == (0 if row.task_class == "Parent" else 1) for row in rows)


@pytest.mark.parametrize("backend", REAL)
async def test_what_a_dead_worker_held_runs_once_more_and_counts_no_failure(
    backend: str, place: Place, clock: Clock
) -> None:
    """R039: the same crash on every store, the least used one too."""
    ran: Counter[int] = Counter()
    registry = Registry()

    @registry.task("A")
    async def run(context: Context, data: str) -> None:
        ran[context.task.id] += 1

    async with STORES[backend](place, StoreOptions(now=clock)) as (store, _):
        ids = await enqueue(store, "A", 20)
        dead = await store.lease("qr:00000000:1:1@gone", 7, 20, order="dispatch")
        assert len(dead) == 7
        clock.advance(60)
        async with Worker(store, registry).running():
            await drained(store, seconds=10)
        rows = await store.list_archived(100)
    assert ran == dict.fromkeys(ids, 1)
    assert {(row.result, row.failure_count) for row in rows} == {(Result.SUCCESS, 0)}

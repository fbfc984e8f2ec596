"""A blocked event loop is noticed, named, and costs nothing but time."""

import asyncio
import time

import anyio

from queue_runtime.registry import Context, Registry
from queue_runtime.stats import Ending, WorkerStats
from queue_runtime.watchdog import Watchdog
from tests.runtime.conftest import Log
from tests.runtime.harness import Stopwatch, Worker, all_succeeded, enqueue, open_reference, until


async def test_a_handler_that_blocks_the_loop_is_named_with_its_stack_and_the_seconds(logs: list[Log]) -> None:
    store, registry = open_reference(), Registry()

    @registry.task("Blocking")
    async def blocking(context: Context, data: str) -> None:
        time.sleep(0.8)  # noqa: ASYNC251  the fault under test

    (task_id,) = await enqueue(store, "Blocking")
    worker = Worker(store, registry)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(Watchdog(worker.stats, threshold=0.2).run, stop)
        async with worker.running():
            await until(lambda: all_succeeded(store, [task_id]))
            await until(lambda: worker.stats.blocked_seconds)
        stop.set()
    seen, over = (line for line in logs if "blocked" in line["event"])
    assert seen["running"] == f"Blocking {task_id}"
    assert "time.sleep(0.8)" in seen["stack"]
    assert 0.5 < over["seconds"] < 2
    assert worker.stats.blocked_seconds >= 0.5


async def test_a_loop_that_is_merely_busy_is_left_in_peace(logs: list[Log]) -> None:
    stats, stop = WorkerStats(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(Watchdog(stats, threshold=1).run, stop)
        watch = Stopwatch()
        while watch.seconds < 1.5:  # noqa: ASYNC110  keeping the loop busy is the point
            await asyncio.sleep(0)
        stop.set()
    assert stats.blocked_seconds == 0
    assert logs == []


async def test_a_blocked_loop_loses_nothing_to_the_next_owner(logs: list[Log]) -> None:
    """R049: longer than lease and patience. Whoever ends it first, there is one archive row and no failure."""
    store, registry = open_reference(patience=1), Registry()
    runs: list[int] = []

    @registry.task("Blocking")
    async def blocking(context: Context, data: str) -> None:
        runs.append(context.task.id)
        if len(runs) == 1:
            time.sleep(2.5)  # noqa: ASYNC251  the fault under test
            await anyio.sleep(0.2)

    ids = await enqueue(store, "Blocking")
    one = Worker(store, registry, lease_seconds=1, patience=1)
    two = Worker(store, registry, lease_seconds=1, patience=1)
    async with one.running(), two.running():
        await until(lambda: all_succeeded(store, ids))
        await until(lambda: one.stats.active == two.stats.active == 0)
    assert store.tables.archived[ids[0]].failure_count == 0
    assert one.stats.total(Ending.SUCCEEDED) + two.stats.total(Ending.SUCCEEDED) == 1


async def test_a_blocking_function_in_a_thread_holds_up_nobody() -> None:
    """R050: a plain function runs off the loop, and its lease is renewed meanwhile."""
    store, registry = open_reference(), Registry()
    runs: list[int] = []

    @registry.task("Plain")
    def plain(context: Context, data: str) -> None:
        runs.append(context.task.id)
        time.sleep(2.5)

    @registry.task("Quick")
    async def quick(context: Context, data: str) -> None:
        await asyncio.sleep(0)

    slow = await enqueue(store, "Plain")
    one = Worker(store, registry, lease_seconds=1, patience=0)
    two = Worker(store, registry, lease_seconds=1, patience=0)
    async with one.running(), two.running():
        await until(lambda: runs)
        watch = Stopwatch()
        ids = await enqueue(store, "Quick", 10)
        await until(lambda: all_succeeded(store, ids))
        assert watch.seconds < 1
        await until(lambda: all_succeeded(store, slow))
    assert runs == slow

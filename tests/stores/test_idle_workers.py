"""A worker beside rows that it may not take does next to nothing, on every store (R069)."""

import asyncio
import time

import pytest

from queue_runtime.registry import Context, Registry
from queue_runtime.store import StoreOptions
from queue_runtime.task import U32, NewTask
from tests.backends import STORES, Place
from tests.runtime.harness import Worker, until

WATCHED = 0.5
"""Seconds."""


@pytest.mark.parametrize("backend", [name for name in STORES if name != "reference"])
async def test_rows_that_nobody_here_may_take_make_no_hot_loop(backend: str, place: Place) -> None:
    """Ready, due, due since the beginning of time, and due in 2106."""
    registry = Registry()

    @registry.task("A")
    async def run(context: Context, data: str) -> None:
        pass

    async with STORES[backend](place, StoreOptions()) as (store, _):
        rows = await store.enqueue(
            [
                NewTask(task_class="Nobody"),
                NewTask(task_class="Nobody"),
                NewTask(task_class="Nobody", delay_until=1),
                NewTask(task_class="A", delay_until=U32),
            ]
        )
        await store.cancel([rows[1].id])
        await store.retry([rows[1].id])
        worker = Worker(store, registry)
        async with worker.running():
            await until(lambda: worker.stats.leases >= 2)
            await asyncio.sleep(0.2)  # what happened before is told of now
            leases, rings, cpu = worker.stats.leases, worker.doorbell.count, time.process_time()
            await asyncio.sleep(WATCHED)
            assert worker.stats.leases - leases <= 2
            assert worker.doorbell.count - rings <= 2
            assert time.process_time() - cpu < WATCHED / 2
        assert (await store.stats()).active == 4

"""Stores whose time is the server's: whatever the host's clock says or does, nothing is early, late or lost (R068)."""

import asyncio
import time
from collections import Counter

import pytest

from queue_runtime.registry import Context, Registry
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, NewTask, Result, Retry, Settlement
from tests.backends import STORES, Place
from tests.contract.steps import HTTP, SETTLED, held, receipt, verdicts, worker
from tests.runtime.harness import Worker, enqueue

OF_THE_SERVER = ["mysql", "redis", "streams-mysql"]

ALLOWED = 5
"""Seconds that may pass within a test, which are few beside those of the clock."""


class HostClock:
    """What `time.time` says, which is so many seconds ahead."""

    def __init__(self) -> None:
        self._true = time.time
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._true() + self.ahead


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    clock = HostClock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.mark.parametrize("backend", OF_THE_SERVER)
async def test_hosts_whose_clocks_differ_agree_on_what_is_held_and_what_is_due(
    backend: str, place: Place, host: HostClock
) -> None:
    async with STORES[backend](place, StoreOptions()) as (store, plant):
        rows = await store.enqueue([NewTask(task_class="A") for _ in range(4)])
        now = rows[0].date_created
        (delayed,) = await store.enqueue([NewTask(task_class="A", delay_until=now + 60)])
        lease = await store.lease(worker(), 1, 60)
        failed = await store.lease(worker(), 1, 60)
        await store.settle([Settlement.held(held(failed[0]), Retry(wait=60))])
        await store.lease(HTTP, 1, 60)
        for ahead in (600, -600, -3600):
            host.ahead = ahead
            await plant(rows[3].id, "qr:0badcafe:0:1@dead", now - 100)
            taken = await store.lease(worker(), 9, 60, due_first=ahead > 0)
            assert [row.id for row in taken] == [rows[3].id], (
                "what a dead worker left, and nothing that is held or waits"
            )
            assert now + 60 <= (taken[0].lease_expires or 0) <= now + 60 + ALLOWED
            (renewed,) = await store.renew([held(lease[0])], 120)
            assert renewed is not None
            assert now + 120 <= (renewed.lease_expires or 0) <= now + 120 + ALLOWED
        (row,) = await store.get([delayed.id])
        assert row is not None
        assert row.lease_expires == now + 60
        await plant(rows[3].id, None, None)
        (called,) = await store.lease(HTTP, 1, 60)
        assert await verdicts(store, Settlement.held(receipt(called), Complete())) == [SETTLED]


@pytest.mark.parametrize("backend", OF_THE_SERVER)
async def test_a_clock_that_jumps_in_mid_run_stops_no_loop_and_repeats_no_task(
    backend: str, place: Place, host: HostClock
) -> None:
    registry = Registry()
    runs: Counter[int] = Counter()

    @registry.task("A")
    async def run(context: Context, data: str) -> None:
        runs[context.task.id] += 1
        host.ahead = (0, 600, -3600)[len(runs) % 3]
        await asyncio.sleep(0.01)

    async with STORES[backend](place, StoreOptions(patience=1)) as (store, _):
        ids = await enqueue(store, "A", 60)
        async with Worker(store, registry, lease_seconds=3, patience=1).running(), asyncio.timeout(10):
            while (await store.stats()).active:  # noqa: ASYNC110  what is waited for is a fact of a store
                await asyncio.sleep(0.02)
        ended = await store.list_archived(100)
    assert runs == dict.fromkeys(ids, 1)
    assert {(row.result, row.failure_count) for row in ended} == {(Result.SUCCESS, 0)}

"""Waits: bounded, spread, and growing."""

import asyncio
from collections.abc import Callable

import anyio
import pytest

from queue_runtime.backoff import CAP, Backoff, Outage, exponential, pause
from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.registry import Context, Registry, Retry
from tests.runtime.conftest import Log
from tests.runtime.harness import Stopwatch, Worker, enqueue, open_reference, until


def test_a_backoff_doubles_to_its_cap_with_jitter_and_starts_again() -> None:
    backoff = Backoff()
    waits = [backoff.next() for _ in range(10)]
    for number, wait in enumerate(waits):
        ideal = min(0.1 * 2**number, CAP)
        assert ideal / 2 <= wait <= ideal
    backoff.reset()
    assert backoff.next() <= 0.1
    assert len({Backoff().next() for _ in range(20)}) > 10


def test_an_exponential_policy_grows_to_its_cap_and_is_spread() -> None:
    policy = exponential(100, 2, 1000)
    for failures, ideal in ((1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (5000, 1000)):
        waits = {policy(failures) for _ in range(50)}
        assert max(waits) <= ideal
        assert min(waits) >= ideal * 0.74
        assert len(waits) > 5


def test_an_outage_is_one_line_at_its_begin_and_one_at_its_end(logs: list[Log]) -> None:
    lifecycle = Lifecycle()
    outage = Outage("part", lifecycle, red_after=0)
    for _ in range(100):
        assert 0 < outage.failed(StoreFull("settle", "disk full")) <= CAP
    assert outage.on
    assert lifecycle.faults == {"part": "store full: settle: disk full"}
    outage.over()
    outage.over()
    assert not outage.on
    assert lifecycle.faults == {}
    assert [(line["event"], line["source"]) for line in logs] == [("store full", "part"), ("store back", "part")]
    assert logs[1]["tries"] == 100


def test_a_short_outage_is_nobodys_alarm() -> None:
    lifecycle = Lifecycle()
    Outage("part", lifecycle).failed(StoreUnavailable("lease"))
    assert lifecycle.faults == {}


async def test_a_pause_ends_at_the_order_to_stop() -> None:
    stop = anyio.Event()
    assert await pause(stop, 0.01)
    asyncio.get_running_loop().call_later(0.05, stop.set)
    watch = Stopwatch()
    assert not await pause(stop, 30)
    assert watch.seconds < 5


async def waits_after_failure(
    retry: float | Callable[[int], float] | None, *, error: Exception | None = None, failures: int = 0
) -> list[int]:
    """The waits that fifty tasks get which fail together."""
    store, registry = open_reference(), Registry()

    @registry.task("A", retry=retry)
    async def handler(context: Context, data: str) -> None:
        raise error or ValueError

    ids = await enqueue(store, "A", 50)
    for task_id in ids:
        store._put(store.tables.active[task_id], failure_count=failures)
    async with Worker(store, registry, slots=50, retry_seconds=1000).running():
        await until(lambda: all(row.failure_count > failures for row in store.tables.active.values()))
    rows = store.tables.active.values()
    return [(row.lease_expires or 0) - (row.failure_time or 0) for row in rows]


@pytest.mark.parametrize("retry", [None, 1000])
async def test_tasks_that_failed_together_do_not_come_back_together(retry: float | None) -> None:
    """R084."""
    waits = await waits_after_failure(retry)
    assert min(waits) >= 1000
    assert max(waits) <= 1250
    assert len(set(waits)) > 20


async def test_a_policy_is_asked_with_the_failures_so_far_this_one_included() -> None:
    assert set(await waits_after_failure(lambda failures: failures * 100, failures=4)) == {500}


async def test_a_raised_wait_is_kept_to_the_second() -> None:
    assert set(await waits_after_failure(1000, error=Retry(77))) == {77}


@pytest.mark.parametrize("wrong", [lambda failures: 1 / 0, lambda failures: "soon", lambda failures: float("nan")])
async def test_a_policy_that_fails_costs_no_outcome(wrong: Callable[[int], float], logs: list[Log]) -> None:
    assert min(await waits_after_failure(wrong)) >= 1000
    assert any(line["event"] == "retry policy failed" for line in logs)


async def test_waits_out_of_range_are_brought_into_it() -> None:
    assert set(await waits_after_failure(lambda failures: -5)) == {0}
    assert min(await waits_after_failure(lambda failures: 1e12)) > 10**9

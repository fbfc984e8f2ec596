"""Time-outs, lost leases, and handlers that do not stop when told to."""

import asyncio
import threading
import time

import anyio
import pytest
from msgspec.structs import replace

from queue_runtime.registry import Context, PermanentFailure, Registry, Unknown, Yield
from queue_runtime.stats import Ending
from queue_runtime.task import Result, Sentinel
from tests.faulty_store import FaultyStore
from tests.runtime.conftest import Log
from tests.runtime.harness import (
    Stopwatch,
    Worker,
    all_succeeded,
    ended,
    enqueue,
    failures,
    open_reference,
    stubborn_sleep,
    until,
)


async def nothing(context: Context, data: str) -> None:
    """A handler that is done at once."""


async def test_a_handler_past_its_time_out_is_cancelled_and_counts_as_failed() -> None:
    store, registry = open_reference(), Registry()
    cleaned_up: list[bool] = []

    @registry.task("A", timeout=0.1, retry=1000)
    async def handler(context: Context, data: str) -> None:
        try:
            await anyio.sleep(60)
        finally:
            cleaned_up.append(context.cancelled)

    (task_id,) = await enqueue(store, "A")
    async with Worker(store, registry).running():
        watch = Stopwatch()
        await until(lambda: failures(store, task_id))
    assert 0.05 < watch.seconds < 2
    assert cleaned_up == [True]
    assert failures(store, task_id) == ["timed out after 0.1 s"]
    assert store.tables.active[task_id].failure_count == 1
    assert store.tables.history[task_id][0].duration_us >= 100_000


async def test_a_time_out_does_not_touch_runs_that_are_within_theirs() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("Short", timeout=0.05, retry=1000)
    async def short(context: Context, data: str) -> None:
        await anyio.sleep(60)

    @registry.task("Long", timeout=30)
    async def long(context: Context, data: str) -> None:
        await anyio.sleep(0.3)

    (bad,) = await enqueue(store, "Short")
    good = await enqueue(store, "Long", 2)
    async with Worker(store, registry).running():
        await until(lambda: all_succeeded(store, good) and failures(store, bad))


async def test_a_handler_that_turns_the_cancellation_into_its_own_error_has_timed_out() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("A", timeout=0.05, retry=1000)
    async def handler(context: Context, data: str) -> None:
        try:
            await anyio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    (task_id,) = await enqueue(store, "A")
    async with Worker(store, registry).running():
        await until(lambda: failures(store, task_id))
    assert failures(store, task_id) == ["timed out after 0.05 s"]
    assert "ConnectionError" in store.tables.history[task_id][0].trace


@pytest.mark.parametrize(("ending", "owner"), [(Unknown(60), Sentinel.UNKNOWN), (Yield(60), Sentinel.YIELD)])
async def test_what_a_handler_says_after_its_time_out_stands(ending: Exception, owner: str) -> None:
    """A time-out of unknown result is no failure."""
    store, registry = open_reference(), Registry()

    @registry.task("A", timeout=0.05)
    async def handler(context: Context, data: str) -> None:
        try:
            await anyio.sleep(60)
        except asyncio.CancelledError:
            raise ending from None

    (task_id,) = await enqueue(store, "A")
    async with Worker(store, registry).running():
        await until(lambda: store.tables.active[task_id].lease_owner == owner)
    assert store.tables.active[task_id].failure_count == 0


async def test_a_permanent_failure_after_the_time_out_stands() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("A", timeout=0.05)
    async def handler(context: Context, data: str) -> None:
        try:
            await anyio.sleep(60)
        except asyncio.CancelledError:
            raise PermanentFailure("gave up") from None

    (task_id,) = await enqueue(store, "A")
    async with Worker(store, registry).running():
        await until(lambda: ended(store, task_id) is Result.FAILURE)


async def test_runs_that_ignore_the_time_out_are_abandoned_and_others_get_their_slots(logs: list[Log]) -> None:
    """R083."""
    store, registry = open_reference(), Registry()
    release = asyncio.Event()

    @registry.task("Deaf", timeout=0.1)
    async def deaf(context: Context, data: str) -> None:
        await stubborn_sleep(release)

    registry.task("Good")(nothing)
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry, slots=2, lease_seconds=20)
    deaf_ids = await enqueue(store, "Deaf", 2)
    good = await enqueue(store, "Good", 50)
    async with worker.running():
        await until(lambda: all_succeeded(store, good))
        assert worker.stats.abandoned_now == 2
        assert worker.lease_loop.abandoned_ids == deaf_ids
        assert worker.heartbeat.task_ids == ()
        assert worker.stats.of("Deaf").endings[Ending.ABANDONED] == 2
        assert worker.stats.active == 0
        settles = faulty.calls["settle"]
        release.set()
        await until(lambda: worker.stats.abandoned_now == 0)
        assert faulty.calls["settle"] == settles
    # No outcome: the leases run out, and then they are anybody's.
    assert [store.tables.active[task_id].failure_count for task_id in deaf_ids] == [0, 0]
    assert all((store.tables.active[task_id].lease_owner or "").startswith("qr:") for task_id in deaf_ids)
    told = [line["log_level"] for line in logs if "abandoned" in line["event"] and line["task_id"] == deaf_ids[0]]
    assert told == ["error", "warning"]


async def test_a_thread_that_ends_after_its_time_out_gives_its_slot_back_then() -> None:
    store, registry = open_reference(), Registry()
    saw: list[bool] = []

    @registry.task("A", timeout=0.1, retry=1000)
    def handler(context: Context, data: str) -> None:
        while not context.cancelled:
            time.sleep(0.01)
        saw.append(context.cancelled)

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry, stop_seconds=5)
    async with worker.running():
        await until(lambda: failures(store, task_id))
        assert saw == [True]
        assert worker.stats.abandoned_now == 0
    assert failures(store, task_id) == ["timed out after 0.1 s"]


async def test_a_thread_that_does_not_end_is_abandoned_and_never_settled() -> None:
    store, registry = open_reference(), Registry()
    release = threading.Event()

    @registry.task("Stuck", timeout=0.1)
    def stuck(context: Context, data: str) -> None:
        release.wait(20)

    @registry.task("Good")
    def good(context: Context, data: str) -> None:
        """A thread of its own: the stuck one must not hold a place in the limiter."""

    (stuck_id,) = await enqueue(store, "Stuck")
    good_ids = await enqueue(store, "Good", 5)
    worker = Worker(store, registry, slots=1)
    try:
        async with worker.running():
            await until(lambda: all_succeeded(store, good_ids))
            assert worker.stats.abandoned_now == 1
            release.set()
            await until(lambda: worker.stats.abandoned_now == 0)
    finally:
        release.set()
    assert ended(store, stuck_id) is None
    assert store.tables.active[stuck_id].failure_count == 0


async def test_a_thread_that_has_not_begun_never_begins_once_it_is_cancelled() -> None:
    store, registry = open_reference(), Registry()
    registry.task("A", timeout=0.1, retry=1000)(lambda context, data: time.sleep(0.3))
    ids = await enqueue(store, "A", 3)
    async with Worker(store, registry, slots=3, stop_seconds=5).running():
        await until(lambda: all(failures(store, task_id) for task_id in ids))


async def test_an_abandoned_task_is_not_leased_again_by_the_process_that_still_runs_it() -> None:
    store, registry = open_reference(patience=0), Registry()
    release = asyncio.Event()
    starts: list[int] = []

    @registry.task("Deaf", timeout=0.1)
    async def deaf(context: Context, data: str) -> None:
        starts.append(context.task.id)
        if len(starts) == 1:
            await stubborn_sleep(release)

    (task_id,) = await enqueue(store, "Deaf")
    worker = Worker(store, registry, lease_seconds=1, patience=0)
    async with worker.running():
        await until(lambda: worker.stats.abandoned_now == 1)
        await store.free([task_id])
        worker.doorbell.ring()
        calls = worker.stats.leases
        await until(lambda: worker.stats.leases > calls + 1)
        assert starts == [task_id]
        release.set()
        await until(lambda: ended(store, task_id) is Result.SUCCESS)
    assert starts == [task_id, task_id]


@pytest.mark.parametrize("ending", ["success", "failure", "yield"])
async def test_a_task_that_ended_behind_the_workers_back_costs_one_warning(ending: str, logs: list[Log]) -> None:
    """R010: the refusal is final for that task, and the slot is free at once."""
    store, registry = open_reference(), Registry()
    go_on = asyncio.Event()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await go_on.wait()
        if ending == "failure":
            raise ValueError
        if ending == "yield":
            raise Yield(5)

    registry.task("Next")(nothing)
    (task_id,) = await enqueue(store, "A")
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry, slots=1)
    async with worker.running():
        await until(lambda: worker.stats.active == 1)
        await store.cancel([task_id])
        go_on.set()
        following = await enqueue(store, "Next")
        await until(lambda: all_succeeded(store, following))
        assert faulty.calls["settle"] == 2
    assert ended(store, task_id) is Result.CANCELLED
    assert worker.stats.of("A").endings[Ending.LOST] == 1
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["task_id"] for line in warnings] == [task_id]
    assert warnings[0]["event"] == "outcome refused: the lease was lost"


async def test_a_lost_lease_stops_the_handler_and_its_success_is_never_reported(logs: list[Log]) -> None:
    """R007: the handler ignores the first cancellation and goes on for a while."""
    store, registry = open_reference(), Registry()
    cancellations: list[float] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        while len(cancellations) < 2:
            try:
                await anyio.sleep(5)
            except asyncio.CancelledError:
                cancellations.append(time.monotonic())

    (task_id,) = await enqueue(store, "A")
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry, slots=1, stop_seconds=0.2)
    async with worker.running():
        await until(lambda: worker.stats.active == 1)
        row = store.tables.active[task_id]
        store.tables.active[task_id] = replace(row, lease_owner="qr:somebody:else")
        await worker.heartbeat.beat()
        await until(lambda: worker.stats.active == 0)
        assert worker.lease_loop.abandoned_ids == []
    assert faulty.calls["settle"] == 0
    assert cancellations[1] - cancellations[0] >= 0.15
    assert store.tables.active[task_id].lease_owner == "qr:somebody:else"
    assert worker.stats.of("A").endings[Ending.LOST] == 1
    (line,) = [line for line in logs if line["event"].startswith("lease lost")]
    assert "side effect may have happened" in line["event"]


async def test_a_lease_lost_after_the_time_out_outweighs_it() -> None:
    store, registry = open_reference(), Registry()
    release = asyncio.Event()

    @registry.task("A", timeout=0.05)
    async def handler(context: Context, data: str) -> None:
        await stubborn_sleep(release)

    (task_id,) = await enqueue(store, "A")
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry, stop_seconds=30)
    async with worker.running():
        await until(lambda: worker.stats.active == 1)
        (run,) = worker.lease_loop._runner._running
        await until(lambda: run.stopped)
        await store.cancel([task_id])
        await worker.heartbeat.beat()
        release.set()
        await until(lambda: worker.stats.of("A").endings[Ending.LOST] == 1)
    assert faulty.calls["settle"] == 0


async def test_an_expired_lease_that_nobody_took_is_renewed_and_kept() -> None:
    """`phd start` expires every lease in the table."""
    store, registry = open_reference(), Registry()
    go_on = asyncio.Event()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await go_on.wait()

    ids = await enqueue(store, "A")
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: worker.stats.active == 1)
        row = store.tables.active[ids[0]]
        store.tables.active[ids[0]] = replace(row, lease_expires=1)
        await worker.heartbeat.beat()
        assert (store.tables.active[ids[0]].lease_expires or 0) > time.time()
        go_on.set()
        await until(lambda: all_succeeded(store, ids))


async def test_the_deadline_follows_renewals_and_a_handler_may_ask_for_a_longer_lease() -> None:
    store, registry = open_reference(), Registry()
    deadlines: list[float] = []
    step = asyncio.Event()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        deadlines.append(context.remaining())
        assert await context.renew(600)
        deadlines.append(context.remaining())
        await step.wait()

    @registry.task("B", timeout=5)
    async def timed(context: Context, data: str) -> None:
        deadlines.append(context.remaining())

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry, lease_seconds=20)
    async with worker.running():
        await until(lambda: len(deadlines) == 2)
        assert 15 < deadlines[0] <= 20
        assert 595 < deadlines[1] <= 600
        assert (store.tables.active[task_id].lease_expires or 0) - time.time() > 590
        await worker.heartbeat.beat()
        assert (store.tables.active[task_id].lease_expires or 0) - time.time() > 590
        step.set()
        ids = await enqueue(store, "B")
        await until(lambda: all_succeeded(store, ids))
    assert 4 < deadlines[2] <= 5


async def test_a_thread_can_ask_for_a_longer_lease() -> None:
    store, registry = open_reference(), Registry()
    answers: list[bool] = []

    @registry.task("A")
    def handler(context: Context, data: str) -> None:
        answers.append(anyio.from_thread.run(context.renew, 600))

    ids = await enqueue(store, "A")
    async with Worker(store, registry).running():
        await until(lambda: all_succeeded(store, ids))
    assert answers == [True]


async def test_a_renewal_of_a_lost_lease_says_so() -> None:
    store, registry = open_reference(), Registry()
    answers: list[bool] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await store.cancel([context.task.id])
        answers.append(await context.renew(600))
        await anyio.sleep(5)

    await enqueue(store, "A")
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: worker.stats.of("A").endings[Ending.LOST])
    assert answers == [False]

"""The life of the process: start, the order of the stop, exit codes, crashes."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from queue_runtime import supervisor
from queue_runtime.errors import QueueRuntimeError, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.registry import Context, Registry
from queue_runtime.stats import Ending
from queue_runtime.store import Store, StoreOptions
from queue_runtime.supervisor import ECHO_SECONDS, EXIT_CRASHED, EXIT_UNFINISHED, Runtime, supervise
from queue_runtime.sweep_loop import SweepLoop
from queue_runtime.task import Complete, Lease, Result, Sentinel, Settled, Settlement, SweepReport, Task
from queue_runtime.watchdog import Watchdog
from tests.faulty_store import FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import (
    Stopwatch,
    Worker,
    all_succeeded,
    ended,
    enqueue,
    new,
    open_reference,
    stubborn_sleep,
    until,
)


async def nothing(context: Context, data: str) -> None:
    """A handler that is done at once."""


class FakeServer:
    """Serves until the lifecycle is closing, and notes what was true then."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.at_closing: Callable[[], None] = lambda: None

    async def run(self, on_started: Callable[[Sequence[str]], None] | None = None) -> None:
        if on_started is not None:
            on_started(["127.0.0.1:1"])
        await self._lifecycle.closing.wait()
        self.at_closing()


def runtime_of(worker: Worker, *, grace: float = 10) -> Runtime:
    return Runtime(
        lifecycle=worker.lifecycle,
        store=worker.store,
        intake=worker.intake,
        settler=worker.settler,
        doorbell=worker.doorbell,
        lease_loop=worker.lease_loop,
        heartbeat=worker.heartbeat,
        sweep_loop=SweepLoop(worker.store, worker.lifecycle, sweep_seconds=30),
        watchdog=Watchdog(worker.stats),
        server=FakeServer(worker.lifecycle),
        grace_seconds=grace,
    )


@asynccontextmanager
async def supervised(runtime: Runtime) -> AsyncIterator[asyncio.Task[int]]:
    """The process at work; its exit code is the task's result."""
    supervising = asyncio.create_task(supervise(runtime))
    await asyncio.sleep(0)  # its first step: it owns the signals
    try:
        yield supervising
    finally:
        supervising.cancel()
        await asyncio.gather(supervising, return_exceptions=True)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


async def code_of(supervising: asyncio.Task[int], *, seconds: float = 10) -> int:
    with anyio.fail_after(seconds):
        return await supervising


async def test_sigterm_lets_short_tasks_finish_and_releases_the_long_one(logs: list[Log]) -> None:
    """R018: 2 s, 8 s and 60 s against a grace of 10 s, a tenth of each; 50 more wait."""
    store, registry = open_reference(), Registry()

    @registry.task("Sleep")
    async def sleep(context: Context, data: str) -> None:
        await worker.lifecycle.stopping.wait()  # the seconds count from the signal, however slow the machine is
        await anyio.sleep(float(data))

    ids = [(await enqueue(store, "Sleep", data=data))[0] for data in ("0.2", "0.8", "6.0")]
    waiting = await enqueue(store, "Sleep", 50, data="0")
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry, slots=3)
    async with supervised(runtime_of(worker, grace=1)) as supervising:
        await until(lambda: worker.stats.active == 3)
        leases = faulty.calls["lease"]
        send(signal.SIGTERM)
        watch = Stopwatch()
        assert await code_of(supervising) == 0
        assert 0.7 < watch.seconds < 3
    assert [ended(store, task_id) for task_id in ids] == [Result.SUCCESS, Result.SUCCESS, None]
    long = store.tables.active[ids[2]]
    assert (long.lease_owner, long.lease_expires, long.failure_count) == (None, None, 0)
    assert all(store.tables.active[task_id].lease_owner is None for task_id in waiting)
    assert faulty.calls["lease"] == leases
    assert worker.stats.of("Sleep").endings[Ending.RELEASED] == 1
    assert logs[-1]["event"] == "stopped"


async def test_an_idle_process_stops_at_once() -> None:
    store = open_reference()
    registry = Registry()
    registry.task("A")(nothing)
    async with supervised(runtime_of(Worker(store, registry))) as supervising:
        send(signal.SIGINT)
        watch = Stopwatch()
        assert await code_of(supervising) == 0
    assert watch.seconds < 1


async def test_the_stop_goes_in_the_order_that_loses_nothing() -> None:
    store, registry = open_reference(), Registry()
    order: list[str] = []
    release = asyncio.Event()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await release.wait()

    ids = await enqueue(store, "A")
    worker = Worker(store, registry)
    runtime = runtime_of(worker)
    assert isinstance(runtime.server, FakeServer)

    def at_closing() -> None:
        order.append("closing")
        assert all_succeeded(store, ids)
        assert worker.settler.waiting == 0

    runtime.server.at_closing = at_closing
    async with supervised(runtime) as supervising:
        await until(lambda: worker.stats.active == 1)
        send(signal.SIGTERM)
        await worker.lifecycle.stopping.wait()
        # While handlers finish, callers are still served.
        assert not worker.lifecycle.closing.is_set()
        (row,) = await worker.intake.enqueue([new("B")])
        await store.lease("web1:1", 1, 60, only=[row.id])
        (settled,) = await worker.settler.settle([Settlement.unfenced(row.id, Complete())])
        assert settled.archived is not None
        release.set()
        assert await code_of(supervising) == 0
    assert order == ["closing"]


async def test_a_second_signal_ends_the_grace() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await anyio.sleep(60)

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry)
    async with supervised(runtime_of(worker, grace=60)) as supervising:
        await until(lambda: worker.stats.active == 1)
        send(signal.SIGTERM)
        await worker.lifecycle.stopping.wait()
        send(signal.SIGTERM)  # an echo: the order was sent to the process and to its group
        with anyio.move_on_after(ECHO_SECONDS * 2):
            await asyncio.shield(supervising)
        assert worker.stats.active == 1
        send(signal.SIGTERM)
        assert await code_of(supervising, seconds=3) == 0
    assert store.tables.active[task_id].lease_owner is None


async def test_a_signal_before_anything_has_started_stops_it_too() -> None:
    """R017: during start-up, before the first lease."""
    store, registry = open_reference(), Registry()
    registry.task("A")(nothing)
    (task_id,) = await enqueue(store, "A")
    supervising = asyncio.create_task(supervise(runtime_of(Worker(store, registry))))
    await asyncio.sleep(0)  # its first step: it owns the signals, and no loop has run yet
    send(signal.SIGTERM)
    assert await code_of(supervising) == 0
    assert ended(store, task_id) in {None, Result.SUCCESS}


async def test_sighup_is_noted_and_changes_nothing(logs: list[Log]) -> None:
    store, registry = open_reference(), Registry()
    registry.task("A")(nothing)
    async with supervised(runtime_of(Worker(store, registry))) as supervising:
        send(signal.SIGHUP)
        await until(lambda: any("SIGHUP" in line["event"] for line in logs))
        ids = await enqueue(store, "A")
        await until(lambda: all_succeeded(store, ids))
        send(signal.SIGTERM)
        assert await code_of(supervising) == 0


async def test_the_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with supervised(runtime_of(Worker(open_reference(), Registry()))) as supervising:
        send(signal.SIGTERM)
        await code_of(supervising)
    assert signal.getsignal(signal.SIGTERM) == before


async def test_rolling_restarts_use_up_no_attempt() -> None:
    """R080."""
    store, registry = open_reference(), Registry()
    release = asyncio.Event()

    @registry.task("A", max_attempts=4)
    async def handler(context: Context, data: str) -> None:
        try:
            await release.wait()
        except asyncio.CancelledError:
            raise ConnectionError("as libraries do") from None

    (task_id,) = await enqueue(store, "A")
    store._put(store.tables.active[task_id], failure_count=3)
    for _ in range(10):
        worker = Worker(store, registry)
        async with supervised(runtime_of(worker, grace=0.01)) as supervising:
            await until(lambda worker=worker: worker.stats.active == 1)  # type: ignore[misc]  # a default binds it
            send(signal.SIGTERM)
            assert await code_of(supervising) == 0
        assert store.tables.active[task_id].failure_count == 3
    release.set()
    async with Worker(store, registry).running():
        await until(lambda: ended(store, task_id) is Result.SUCCESS)


async def test_work_done_in_spite_of_the_cancellation_is_a_success() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        try:
            await anyio.sleep(60)
        except asyncio.CancelledError:
            await anyio.sleep(0.05)  # a critical section that it would rather end

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry, stop_seconds=1)
    async with supervised(runtime_of(worker, grace=0)) as supervising:
        await until(lambda: worker.stats.active == 1)
        send(signal.SIGTERM)
        assert await code_of(supervising) == 0
    assert ended(store, task_id) is Result.SUCCESS


async def test_a_handler_that_does_not_stop_is_named_by_the_exit_and_costs_no_cpu(logs: list[Log]) -> None:
    """R052: a shielded section and a handler that ignores cancellation."""
    store, registry = open_reference(), Registry()
    release = asyncio.Event()

    @registry.task("Deaf")
    async def deaf(context: Context, data: str) -> None:
        await stubborn_sleep(release)

    @registry.task("Shielded")
    async def shielded(context: Context, data: str) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(60)

    (deaf_id,) = await enqueue(store, "Deaf")
    (shielded_id,) = await enqueue(store, "Shielded")
    worker = Worker(store, registry, stop_seconds=0.5)
    async with supervised(runtime_of(worker, grace=0.1)) as supervising:
        await until(lambda: worker.stats.active == 2)
        cpu = time.process_time()
        send(signal.SIGTERM)
        watch = Stopwatch()
        assert await code_of(supervising) == EXIT_UNFINISHED
        assert 1 <= watch.seconds < 3
        assert time.process_time() - cpu < 0.3 * watch.seconds
        release.set()
        await until(lambda: worker.stats.abandoned_now == 0)
    assert (logs[-2]["event"], logs[-2]["task_ids"]) == ("stopped with tasks neither settled nor released", [deaf_id])
    assert store.tables.active[shielded_id].lease_owner is None
    assert_left_behind(store, deaf_id)


def assert_left_behind(store: ReferenceStore, task_id: int) -> None:
    """Nobody knows how the run went: it counts neither as a failure nor as a lost worker, and runs again soon."""
    row = store.tables.active[task_id]
    assert (row.lease_owner, row.failure_count, row.lost_count) == (Sentinel.UNKNOWN, 0, 0)
    assert 3 <= (row.lease_expires or 0) - time.time() <= 5


async def test_a_thread_that_does_not_end_is_given_back_and_another_is_awaited() -> None:
    store, registry = open_reference(), Registry()
    release = threading.Event()
    begun: list[str] = []

    @registry.task("Stuck")
    def stuck(context: Context, data: str) -> None:
        begun.append("stuck")
        release.wait(20)

    @registry.task("Polite")
    def polite(context: Context, data: str) -> None:
        begun.append("polite")
        while not context.cancelled:
            time.sleep(0.01)
        raise InterruptedError

    (stuck_id,) = await enqueue(store, "Stuck")
    (polite_id,) = await enqueue(store, "Polite")
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry, stop_seconds=0.2)
    try:
        async with supervised(runtime_of(worker, grace=0)) as supervising:
            await until(lambda: len(begun) == 2)
            send(signal.SIGTERM)
            assert await code_of(supervising) == EXIT_UNFINISHED
            assert worker.lease_loop.abandoned_ids == [stuck_id]
            settles = faulty.calls["settle"]
            release.set()
            await until(lambda: worker.stats.abandoned_now == 0)
            assert faulty.calls["settle"] == settles  # it ended after all, and is not settled a second time
    finally:
        release.set()
    assert (store.tables.active[polite_id].lease_owner, store.tables.active[polite_id].failure_count) == (None, 0)
    assert_left_behind(store, stuck_id)


@pytest.mark.parametrize("trouble", ["away", "hangs", "breaks"])
async def test_an_abandoned_run_that_cannot_be_given_back_holds_up_nothing(
    trouble: str, logs: list[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LAST_ROUND_SECONDS", 0.2)

    class Troubled(ReferenceStore):
        async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
            if trouble == "hangs":
                await anyio.sleep(60)
            raise ZeroDivisionError if trouble == "breaks" else StoreUnavailable("settle")

    store, registry = Troubled(StoreOptions(patience=1)), Registry()
    release = asyncio.Event()

    @registry.task("Deaf")
    async def deaf(context: Context, data: str) -> None:
        await stubborn_sleep(release)

    (task_id,) = await enqueue(store, "Deaf")
    worker = Worker(store, registry)
    async with supervised(runtime_of(worker, grace=0)) as supervising:
        await until(lambda: worker.stats.active == 1)
        send(signal.SIGTERM)
        assert await code_of(supervising, seconds=3) == EXIT_UNFINISHED
        release.set()
        await until(lambda: worker.stats.abandoned_now == 0)
    assert [line["event"] for line in logs].count("runs that did not end are left to their leases") == 1
    (last,) = [line for line in logs if line["event"] == "stopped with tasks neither settled nor released"]
    assert last["task_ids"] == [task_id]
    assert (store.tables.active[task_id].lease_owner or "").startswith("qr:")


async def test_the_stores_figures_are_looked_at_until_the_stop() -> None:
    worker = Worker(open_reference(), Registry())
    looked = anyio.Event()

    async def look(stop: anyio.Event) -> None:
        looked.set()
        await stop.wait()

    runtime = runtime_of(worker)
    runtime.figures = look
    async with supervised(runtime) as supervising:
        await looked.wait()
        send(signal.SIGTERM)
        assert await code_of(supervising) == 0


async def test_outcomes_that_cannot_be_written_are_named_by_the_exit(logs: list[Log]) -> None:
    store, registry = open_reference(), Registry()
    registry.task("A")(nothing)
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry)

    async def impatient(**settings: float) -> list[int]:
        return await drain(seconds=0.1)

    drain = worker.settler.drain
    worker.settler.drain = impatient  # type: ignore[method-assign]  # the real bound is ten seconds
    (task_id,) = await enqueue(store, "A")
    faulty.refuse("settle", times=1000)
    async with supervised(runtime_of(worker)) as supervising:
        await until(lambda: worker.settler.waiting)
        before = faulty.calls["settle"]
        send(signal.SIGTERM)
        assert await code_of(supervising) == EXIT_UNFINISHED
    assert faulty.calls["settle"] - before >= 5
    assert logs[-1]["task_ids"] == [task_id]


async def test_a_lease_that_arrives_after_the_signal_is_given_back() -> None:
    class Slow(ReferenceStore):
        async def lease(self, *arguments: object, **settings: object) -> list[Task]:
            tasks = await super().lease(*arguments, **settings)  # type: ignore[arg-type]  # passed on as they are
            asked.set()
            await answer.wait()
            return tasks

    asked, answer = asyncio.Event(), asyncio.Event()
    store, registry = Slow(StoreOptions()), Registry()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        raise AssertionError("must not run")

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry)
    async with supervised(runtime_of(worker)) as supervising:
        await asked.wait()
        send(signal.SIGTERM)
        await worker.lifecycle.stopping.wait()
        await anyio.wait_all_tasks_blocked()
        assert not supervising.done()
        answer.set()
        assert await code_of(supervising) == 0
    assert store.tables.active[task_id].lease_owner is None
    assert store.tables.active[task_id].failure_count == 0


class BuggyStore(ReferenceStore):
    """Raises what no store should, in the methods named."""

    def __init__(self) -> None:
        super().__init__(StoreOptions())
        self.bugs: set[str] = set()

    async def sweep(self, limit: int) -> SweepReport:
        if "sweep" in self.bugs:
            raise ZeroDivisionError
        return await super().sweep(limit)

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        if "renew" in self.bugs:
            raise ZeroDivisionError
        return await super().renew(leases, seconds)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if "settle" in self.bugs and not any(isinstance(one.outcome, Complete) for one in settlements):
            self.bugs.discard("settle")
            raise ZeroDivisionError
        return await super().settle(settlements)

    async def changed(self, timeout: float) -> bool:
        if "changed" in self.bugs:
            raise ZeroDivisionError
        return await super().changed(min(timeout, 0.05))


@pytest.mark.parametrize("bug", ["sweep", "renew", "changed"])
async def test_a_crash_of_any_loop_ends_the_process_loudly_and_in_order(bug: str, logs: list[Log]) -> None:
    store, registry = BuggyStore(), Registry()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await anyio.sleep(60)

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry, lease_seconds=1)
    runtime = runtime_of(worker, grace=60)
    runtime.sweep_loop = SweepLoop(store, worker.lifecycle, sweep_seconds=0.05)
    async with supervised(runtime) as supervising:
        await until(lambda: worker.stats.active == 1)
        store.bugs.add(bug)
        assert await code_of(supervising) == EXIT_CRASHED
    assert store.tables.active[task_id].lease_owner is None
    crash = next(line for line in logs if "crashed" in line["event"])
    assert crash["log_level"] == "error"
    assert crash["exc_info"] is not None


async def test_a_server_that_cannot_listen_ends_the_process_with_its_reason(logs: list[Log]) -> None:
    class Deaf:
        async def run(self, on_started: Callable[[Sequence[str]], None] | None = None) -> None:
            raise QueueRuntimeError("cannot listen on 127.0.0.1:1")

    runtime = runtime_of(Worker(open_reference(), Registry()))
    runtime.server = Deaf()
    async with supervised(runtime) as supervising:
        assert await code_of(supervising) == EXIT_CRASHED
    failed = next(line for line in logs if line["event"] == "HTTP server failed")
    assert failed["reason"] == "cannot listen on 127.0.0.1:1"


async def test_a_server_that_ends_by_itself_ends_the_process() -> None:
    class Brief:
        async def run(self, on_started: Callable[[Sequence[str]], None] | None = None) -> None:
            return

    runtime = runtime_of(Worker(open_reference(), Registry()))
    runtime.server = Brief()
    async with supervised(runtime) as supervising:
        assert await code_of(supervising) == EXIT_CRASHED


@pytest.mark.parametrize("roles", ["api", "worker", "sweep"])
async def test_each_role_runs_alone(roles: str) -> None:
    store: Store = open_reference()
    registry = Registry()
    registry.task("A")(nothing)
    worker = Worker(store, registry)
    whole = runtime_of(worker)
    runtime = Runtime(
        lifecycle=worker.lifecycle,
        store=store,
        intake=worker.intake,
        settler=worker.settler,
        doorbell=worker.doorbell,
        lease_loop=whole.lease_loop if roles == "worker" else None,
        heartbeat=whole.heartbeat if roles == "worker" else None,
        sweep_loop=whole.sweep_loop if roles == "sweep" else None,
        server=whole.server if roles == "api" else None,
        grace_seconds=1,
    )
    async with supervised(runtime) as supervising:
        await worker.intake.enqueue([new("A")])
        if roles == "worker":
            await until(lambda: worker.stats.total(Ending.SUCCEEDED) == 1)
        send(signal.SIGTERM)
        assert await code_of(supervising) == 0


async def test_the_addresses_are_told_when_the_server_listens() -> None:
    runtime = runtime_of(Worker(open_reference(), Registry()))
    told: list[str] = []
    runtime.on_started = told.extend
    async with supervised(runtime) as supervising:
        send(signal.SIGTERM)
        assert await code_of(supervising) == 0
    assert told == ["127.0.0.1:1"]

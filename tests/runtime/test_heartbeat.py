"""Renewal: what is held stays held, and an outage stops only what can no longer be sure."""

import asyncio
import time
from collections.abc import Sequence

import anyio
from msgspec.structs import replace

from queue_runtime.heartbeat import Heartbeat
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.registry import Context, Registry
from queue_runtime.stats import Ending
from queue_runtime.store import StoreOptions
from queue_runtime.task import Lease, Result, Task
from tests.faulty_store import Fault, FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import Stopwatch, Worker, all_succeeded, ended, enqueue, open_reference, until


class Holder:
    """A lease in a test's hand."""

    def __init__(self, task: Task, *, seconds: float) -> None:
        assert task.lease_owner is not None
        self.lease = Lease(task.id, task.lease_owner)
        self.lease_until = time.monotonic() + seconds
        self.finish_unsure = False
        self.told: list[str] = []

    @property
    def stops_unsure(self) -> bool:
        return not self.finish_unsure and not self.told

    def lost(self) -> None:
        self.told.append("lost")

    def unsure(self) -> None:
        self.told.append("unsure")


async def hold(store: ReferenceStore, *, count: int = 1, seconds: float = 20) -> list[Holder]:
    await enqueue(store, "A", count)
    return [Holder(task, seconds=seconds) for task in await store.lease("qr:test:1", count, 20)]


async def test_all_leases_are_renewed_in_one_call() -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    heartbeat = Heartbeat(faulty, Lifecycle(), lease_seconds=20, patience=10)
    holders = await hold(store, count=50, seconds=1)
    for holder in holders:
        heartbeat.hold(holder)
    assert await heartbeat.beat() == 20 / 3
    assert faulty.calls["renew"] == 1
    assert all(holder.lease_until > time.monotonic() + 19 for holder in holders)


async def test_only_the_lease_that_is_lost_is_told_so() -> None:
    store = open_reference()
    heartbeat = Heartbeat(store, Lifecycle(), lease_seconds=20, patience=10)
    holders = await hold(store, count=3)
    for holder in holders:
        heartbeat.hold(holder)
    await store.cancel([holders[1].lease.task_id])
    await heartbeat.beat()
    assert [holder.told for holder in holders] == [[], ["lost"], []]


async def test_what_was_dropped_is_renewed_no_more_and_a_newer_holder_is_not_mixed_up_with_it() -> None:
    store = open_reference()
    heartbeat = Heartbeat(store, Lifecycle(), lease_seconds=20, patience=10)
    (old,) = await hold(store)
    heartbeat.hold(old)
    newer = Holder(replace(store.tables.active[1], lease_owner="qr:test:2"), seconds=20)
    heartbeat.hold(newer)
    heartbeat.drop(old)
    assert list(heartbeat.task_ids) == [1]
    heartbeat.drop(newer)
    assert list(heartbeat.task_ids) == []


async def test_a_reply_that_comes_after_the_settlement_stops_nobody() -> None:
    """The task was settled and leased anew while the renewal of the old lease was under way."""

    class Gated(ReferenceStore):
        async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
            asked.set()
            await answer.wait()
            return await super().renew(leases, seconds)

    asked, answer = asyncio.Event(), asyncio.Event()
    store = Gated(StoreOptions())
    heartbeat = Heartbeat(store, Lifecycle(), lease_seconds=20, patience=10)
    (old,) = await hold(store)
    heartbeat.hold(old)
    beat = asyncio.create_task(heartbeat.beat())
    await asked.wait()
    heartbeat.drop(old)
    newer = Holder(store._put(store.tables.active[1], lease_owner="qr:test:2"), seconds=20)
    heartbeat.hold(newer)
    answer.set()
    await beat
    assert old.told == newer.told == []
    assert list(heartbeat.task_ids) == [1]


async def test_an_outcome_under_way_is_judged_by_the_settler_alone(logs: list[Log]) -> None:
    """Its row may be gone because it was just written: a renewal that finds nothing is no lost lease."""
    store, registry = open_reference(), Registry()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await asyncio.sleep(0)

    (task_id,) = await enqueue(store, "A")
    faulty = FaultyStore(store)
    faulty.lose_reply("settle")
    worker = Worker(faulty, registry)
    async with worker.running():
        await until(lambda: ended(store, task_id) is Result.SUCCESS and worker.settler.waiting)
        await worker.heartbeat.beat()
        await until(lambda: worker.stats.total(Ending.SUCCEEDED))
    assert worker.stats.total(Ending.LOST) == 0
    assert not any("lease lost" in line["event"] for line in logs)


async def test_during_an_outage_a_run_goes_on_until_lease_and_patience_are_over() -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    heartbeat = Heartbeat(faulty, Lifecycle(), lease_seconds=1, patience=1)
    (holder, unsure) = await hold(store, count=2, seconds=-0.5)
    unsure.finish_unsure = True
    heartbeat.hold(holder)
    heartbeat.hold(unsure)
    faulty.down = True
    await heartbeat.beat()
    assert heartbeat.failing
    assert holder.told == []
    holder.lease_until = unsure.lease_until = time.monotonic() - 1
    await heartbeat.beat()
    assert holder.told == ["unsure"]
    assert unsure.told == []
    faulty.down = False
    await heartbeat.beat()
    assert not heartbeat.failing


async def test_a_store_that_hangs_counts_as_away() -> None:
    class Hanging(ReferenceStore):
        async def renew(self, *arguments: object) -> list[Task | None]:
            await anyio.sleep(60)
            return []

    store = Hanging(open_reference()._options)
    heartbeat = Heartbeat(store, Lifecycle(), lease_seconds=1, patience=0)
    (holder,) = await hold(store, seconds=0)
    heartbeat.hold(holder)
    watch = Stopwatch()
    await heartbeat.beat()
    await heartbeat.beat()
    assert watch.seconds < 2
    assert heartbeat.failing
    assert holder.told == ["unsure"]


async def test_with_nothing_held_an_earlier_outage_is_forgotten() -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    heartbeat = Heartbeat(faulty, Lifecycle(), lease_seconds=20, patience=10)
    (holder,) = await hold(store)
    heartbeat.hold(holder)
    faulty.down = True
    await heartbeat.beat()
    heartbeat.drop(holder)
    await heartbeat.beat()
    assert not heartbeat.failing


async def test_a_run_longer_than_its_lease_runs_once(logs: list[Log]) -> None:
    """R001."""
    store, registry = open_reference(), Registry()
    runs: list[int] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        runs.append(context.task.id)
        await anyio.sleep(2.3)  # a lease of one second that nobody renews may be taken after two

    ids = await enqueue(store, "A", 4)
    one = Worker(store, registry, slots=2, lease_seconds=1, patience=0)
    two = Worker(store, registry, slots=2, lease_seconds=1, patience=0)
    store._options = replace(store._options, patience=0)
    async with one.running(), two.running():
        await until(lambda: all_succeeded(store, ids))
    assert sorted(runs) == ids


async def test_an_outage_longer_than_the_lease_stops_the_run_and_another_takes_it(logs: list[Log]) -> None:
    store, registry = open_reference(patience=1), Registry()
    starts: list[float] = []
    ends: list[float] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            try:
                await anyio.sleep(60)
            finally:
                ends.append(time.monotonic())

    ids = await enqueue(store, "A")
    faulty = FaultyStore(store)
    cut_off = Worker(faulty, registry, lease_seconds=1, patience=1)
    async with cut_off.running():
        await until(lambda: starts)
        faulty.down = True
        async with Worker(store, registry, lease_seconds=1, patience=1).running():
            await until(lambda: all_succeeded(store, ids))
        faulty.down = False
        await until(lambda: cut_off.settler.waiting == 0)
    assert ends[0] <= starts[1]
    assert store.tables.archived[ids[0]].failure_count == 0


async def test_finish_unsure_goes_on_to_the_end() -> None:
    store, registry = open_reference(), Registry()
    finished: list[bool] = []

    @registry.task("A", finish_unsure=True)
    async def handler(context: Context, data: str) -> None:
        await anyio.sleep(1.5)
        finished.append(True)

    ids = await enqueue(store, "A")
    faulty = FaultyStore(store)
    worker = Worker(faulty, registry, lease_seconds=1, patience=0)
    async with worker.running():
        await until(lambda: worker.stats.active)
        faulty.down = True
        await until(lambda: finished)
        faulty.down = False
        await until(lambda: all_succeeded(store, ids))


async def test_nothing_is_leased_while_renewals_fail() -> None:
    store, registry = open_reference(), Registry()
    go_on = asyncio.Event()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await go_on.wait()

    await enqueue(store, "A")
    broken: set[str] = set()
    faulty = FaultyStore(store, lambda method: Fault.REFUSE if method in broken else None)
    worker = Worker(faulty, registry, slots=4, lease_seconds=1, patience=30)
    async with worker.running():
        await until(lambda: worker.stats.active == 1)
        broken.add("renew")
        await until(lambda: worker.heartbeat.failing)
        calls = faulty.calls["lease"]
        await enqueue(store, "A", 3)
        renewals = faulty.calls["renew"]
        await until(lambda: faulty.calls["renew"] > renewals + 2)
        assert faulty.calls["lease"] <= calls + 1  # one may have been under way
        assert worker.stats.active == 1
        broken.clear()
        await until(lambda: worker.stats.active == 4)
        go_on.set()
        await until(lambda: worker.stats.total(Ending.SUCCEEDED) == 4)


async def test_an_outcome_that_waits_for_the_store_stays_fenced() -> None:
    """Its lease is renewed until the outcome is written, so that nobody runs the task a second time meanwhile."""
    store, registry = open_reference(patience=0), Registry()
    runs: list[int] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        runs.append(context.task.id)

    (task_id,) = await enqueue(store, "A")
    broken = {"settle"}
    faulty = FaultyStore(store, lambda method: Fault.REFUSE if method in broken else None)
    worker = Worker(faulty, registry, lease_seconds=1, patience=0)
    async with worker.running(), Worker(store, registry, lease_seconds=1, patience=0).running():
        await until(lambda: worker.stats.active == 0 and runs)
        watch = Stopwatch()
        await until(lambda: watch.seconds > 2.3)
        broken.clear()
        assert await worker.settler.drain() == []  # which does not wait for the end of the back-off
        assert ended(store, task_id) is Result.SUCCESS
    assert runs == [task_id]

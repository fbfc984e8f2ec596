"""What is leased, how much of it, and when."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence

import anyio
import pytest

from queue_runtime import lease_loop
from queue_runtime.doorbell import Doorbell
from queue_runtime.lanes import Lane, lanes_of
from queue_runtime.owner import Owners
from queue_runtime.registry import Context, Registry
from queue_runtime.stats import Ending
from queue_runtime.store import Order, StoreOptions
from queue_runtime.task import Pause, PauseKind, Sentinel, Settled, Settlement, Task
from tests.faulty_store import Fault, FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import (
    Stopwatch,
    Worker,
    all_succeeded,
    ended,
    enqueue,
    failures,
    new,
    open_reference,
    until,
)


async def nothing(context: Context, data: str) -> None:
    """A handler that is done at once."""


class Ask:
    """One lease call as the store saw it."""

    def __init__(self, owner: str, limit: int, classes: Collection[str] | None, due_first: bool, order: Order) -> None:
        self.owner = owner
        self.limit = limit
        self.classes = classes
        self.due_first = due_first
        self.order = order
        self.without: list[int] = []
        self.without_classes: Collection[str] = ()
        self.queues: Collection[str] | None = None
        self.at = time.monotonic()


class WatchedStore(ReferenceStore):
    """Notes each lease call."""

    def __init__(self) -> None:
        super().__init__(StoreOptions(patience=1))
        self.asks: list[Ask] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def lease(
        self,
        owner: str,
        limit: int,
        seconds: int,
        *,
        classes: Collection[str] | None = None,
        without_classes: Collection[str] = (),
        queues: Collection[str] | None = None,
        only: Collection[int] | None = None,
        without: Collection[int] = (),
        due_first: bool = False,
        order: Order = "strict",
    ) -> list[Task]:
        ask = Ask(owner, limit, classes, due_first, order)
        ask.without, ask.without_classes, ask.queues = list(without), without_classes, queues
        self.asks.append(ask)
        await self.gate.wait()
        return await super().lease(
            owner,
            limit,
            seconds,
            classes=classes,
            without_classes=without_classes,
            queues=queues,
            without=without,
            due_first=due_first,
            order=order,
        )


class Gauge:
    """How many runs are under way at once."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def run(self, context: Context, data: str) -> None:
        name = context.task.task_class
        self.now[name] += 1
        self.most[name] = max(self.most[name], self.now[name])
        await anyio.sleep(0.01)
        self.now[name] -= 1


async def test_so_many_slots_run_so_many_tasks_at_once() -> None:
    store, registry, gauge = open_reference(), Registry(), Gauge()
    registry.task("A")(gauge.run)
    ids = await enqueue(store, "A", 60)
    async with Worker(store, registry, slots=7).running():
        await until(lambda: all_succeeded(store, ids))
    assert gauge.most["A"] == 7


async def test_one_long_task_does_not_hold_many_short_ones() -> None:
    """R076, shortened."""
    store, registry = open_reference(), Registry()
    release = asyncio.Event()

    @registry.task("Long")
    async def long(context: Context, data: str) -> None:
        await release.wait()

    @registry.task("Short")
    async def short(context: Context, data: str) -> None:
        await anyio.sleep(0.01)

    (long_id,) = await enqueue(store, "Long")
    ids = await enqueue(store, "Short", 200)
    async with Worker(store, registry, slots=4).running():
        watch = Stopwatch()
        await until(lambda: all_succeeded(store, ids))
        assert watch.seconds < 3
        assert ended(store, long_id) is None
        release.set()
        await until(lambda: all_succeeded(store, [long_id]))


async def test_with_most_slots_busy_the_last_one_is_refilled_at_once() -> None:
    """Half of the slots are never free: the refill must not wait for it."""
    store, registry = open_reference(), Registry()
    release = asyncio.Event()

    @registry.task("Long")
    async def long(context: Context, data: str) -> None:
        await release.wait()

    registry.task("Short")(nothing)
    await enqueue(store, "Long", 9)
    ids = await enqueue(store, "Short", 100)
    async with Worker(store, registry, slots=10).running():
        watch = Stopwatch()
        await until(lambda: all_succeeded(store, ids))
        assert watch.seconds < 2
        release.set()


async def test_never_more_is_leased_than_free_slots_can_start() -> None:
    store, registry = WatchedStore(), Registry()
    release = asyncio.Event()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await release.wait()

    await enqueue(store, "A", 50)
    worker = Worker(store, registry, slots=3)
    async with worker.running():
        await until(lambda: worker.stats.active == 3)
        worker.doorbell.ring()
        await anyio.wait_all_tasks_blocked()
        assert sum((row.lease_owner is not None) for row in store.tables.active.values()) == 3
        assert [ask.limit for ask in store.asks] == [3]
        release.set()


async def test_each_call_has_an_owner_of_its_own_and_asks_for_dispatch_order() -> None:
    store, registry = WatchedStore(), Registry()
    registry.task("A")(nothing)
    ids = await enqueue(store, "A", 50)
    async with Worker(store, registry, slots=5, queues=frozenset({"default"})).running():
        await until(lambda: all_succeeded(store, ids))
    assert len({ask.owner for ask in store.asks}) == len(store.asks) >= 10
    assert all(re.fullmatch(r"qr:[0-9a-f]{8}:\d+:\d+@.{0,24}", ask.owner) for ask in store.asks)
    assert {ask.order for ask in store.asks} == {"dispatch"}
    assert {ask.queues for ask in store.asks} == {frozenset({"default"})}


def test_an_owner_fits_its_column_however_long_the_host_is_called() -> None:
    owners = Owners(host="h" * 200)
    first, second = owners.next(), owners.next()
    assert first != second
    assert first.endswith("@" + "h" * 24)
    assert len(first) + len("999999999") <= 64


async def test_every_fourth_call_takes_what_came_due_first() -> None:
    store, registry = WatchedStore(), Registry()
    registry.task("A")(nothing)
    worker = Worker(store, registry)
    for _ in range(8):
        await worker.lease_loop.lease_once()
    assert [ask.due_first for ask in store.asks] == [False, False, False, True] * 2


async def test_a_stream_of_new_work_does_not_starve_a_retry() -> None:
    store, registry = open_reference(), Registry()
    runs: Counter[int] = Counter()

    @registry.task("New")
    async def fresh(context: Context, data: str) -> None:
        context.enqueue(new("New"))

    @registry.task("Old")
    async def old(context: Context, data: str) -> None:
        runs[context.task.id] += 1

    ids = await enqueue(store, "Old")
    await store.lease("qr:test:1", 1, 1)
    row = store.tables.active[ids[0]]
    store._put(row, lease_owner=Sentinel.RETRY, lease_expires=1)
    await enqueue(store, "New", 20)
    async with Worker(store, registry, slots=2).running():
        await until(lambda: all_succeeded(store, ids))


async def test_ids_that_this_process_holds_are_passed_over() -> None:
    store, registry = WatchedStore(), Registry()
    release = asyncio.Event()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await release.wait()

    ids = await enqueue(store, "A", 2)
    worker = Worker(store, registry, slots=4)
    async with worker.running():
        await until(lambda: worker.stats.active == 2)
        await store.free(ids)
        worker.doorbell.ring()
        asks = len(store.asks)
        await until(lambda: len(store.asks) > asks)
        assert store.asks[-1].without == ids
        assert worker.stats.active == 2
        release.set()


async def test_a_ring_during_a_lease_call_is_not_lost() -> None:
    """The call has looked already when the task arrives."""

    class Slow(WatchedStore):
        async def lease(self, *arguments: object, **settings: object) -> list[Task]:
            tasks = await super().lease(*arguments, **settings)  # type: ignore[arg-type]  # passed on as they are
            await after.wait()
            return tasks

    after = asyncio.Event()
    store, registry = Slow(), Registry()
    started: list[float] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        started.append(time.monotonic())

    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: store.asks)
        await enqueue(store, "A")
        worker.doorbell.ring()
        watch = Stopwatch()
        after.set()
        await until(lambda: started)
        assert watch.seconds < 0.5


async def test_an_idle_worker_starts_a_task_at_once_and_an_awakened_one_too() -> None:
    """R070 and R077."""
    store, registry = open_reference(), Registry()
    started: list[float] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        started.append(time.monotonic())

    (waiting,) = await enqueue(store, "A")
    row = store.tables.active[waiting]
    store._put(row, lease_owner=Sentinel.YIELD, lease_expires=int(time.time()) + 5000)
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: worker.stats.leases >= 2)  # it has been idle for a second
        before = time.monotonic()
        await enqueue(store, "A")
        await until(lambda: len(started) == 1)
        assert started[0] - before < 0.2
        before = time.monotonic()
        await store.awaken([waiting])
        await until(lambda: len(started) == 2)
        assert started[1] - before < 0.2


async def test_an_idle_worker_asks_about_once_a_second_and_not_more() -> None:
    store, registry = WatchedStore(), Registry()
    registry.task("A")(nothing)
    worker = Worker(store, registry)
    async with worker.running():
        watch = Stopwatch()
        await until(lambda: watch.seconds > 2.5)
    assert 2 <= len(store.asks) <= 5


async def test_work_that_nobody_here_may_take_makes_no_hot_loop() -> None:
    """R069: the bell rings and rings, and every call brings nothing."""
    store, registry = WatchedStore(), Registry()
    registry.task("A")(nothing)
    worker = Worker(store, registry)
    async with worker.running():
        watch = Stopwatch()
        while watch.seconds < 1:
            worker.doorbell.ring()
            await anyio.sleep(0.001)
        assert len(store.asks) < 30
        # And then real work is not kept waiting for long.
        ids = await enqueue(store, "A")
        worker.doorbell.ring()
        await until(lambda: all_succeeded(store, ids), seconds=0.3)


async def test_a_store_that_rings_without_end_does_not_spin_the_bell() -> None:
    class Ringing(ReferenceStore):
        async def changed(self, timeout: float) -> bool:
            await asyncio.sleep(0)
            return True

    store, bell, stop = Ringing(StoreOptions()), Doorbell(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(bell.listen, store, stop)
        watch = Stopwatch()
        await until(lambda: watch.seconds > 0.5)
        stop.set()
    assert 5 < bell.count < 100


async def test_a_ring_wakes_all_who_wait_and_a_past_one_makes_nobody_wait() -> None:
    bell = Doorbell()
    counts: list[int] = []

    async def wait() -> None:
        counts.append(await bell.wait(0, 10))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        bell.ring()
    assert counts == [1, 1]
    assert await bell.wait(0, 10) == 1
    assert await bell.wait(1, 0.01) == 1


async def test_the_bell_outlives_an_outage_and_stops_when_told() -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    faulty.refuse("changed", times=2)
    bell, stop = Doorbell(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(bell.listen, faulty, stop)
        await enqueue(store, "A")
        await until(lambda: bell.count)
        watch = Stopwatch()
        stop.set()
    assert watch.seconds < 1


# ---- what may be leased


def registry_of(*classes: str, fallback: bool = False, caps: dict[str, int] | None = None) -> Registry:
    registry = Registry()
    for name in classes:
        registry.task(name, concurrency=(caps or {}).get(name))(nothing)
    if fallback:
        registry.fallback(nothing, concurrency=(caps or {}).get("*"))
    return registry


def shape(lanes: list[Lane]) -> list[tuple[set[str] | None, set[str]]]:
    return [(None if lane.classes is None else set(lane.classes), set(lane.without_classes)) for lane in lanes]


@pytest.mark.parametrize(
    ("registry", "classes", "expected"),
    [
        (registry_of(), None, []),
        (registry_of("A", "B"), None, [({"A", "B"}, set())]),
        (registry_of("A", "B"), {"B", "X"}, [({"B"}, set())]),
        (registry_of("A"), {"X"}, []),
        (registry_of("A", "B", caps={"A": 2}), None, [({"B"}, set()), ({"A"}, set())]),
        (registry_of("A", caps={"A": 2}), None, [({"A"}, set())]),
        (registry_of("A", caps={"A": 8}), None, [({"A"}, set())]),
        (registry_of("A", fallback=True), None, [(None, set())]),
        (registry_of("A", "B", fallback=True, caps={"A": 2}), None, [(None, {"A"}), ({"A"}, set())]),
        (registry_of("A", fallback=True), {"X", "Y"}, [({"X", "Y"}, set())]),
        (registry_of("A", "B", fallback=True, caps={"A": 2}), {"A", "X"}, [({"X"}, set()), ({"A"}, set())]),
        (registry_of("A", fallback=True, caps={"*": 2}), None, [({"A"}, set()), (None, {"A"})]),
        (registry_of("A", fallback=True, caps={"*": 2}), {"A", "X"}, [({"A"}, set()), ({"X"}, set())]),
        (registry_of(fallback=True, caps={"*": 2}), None, [(None, set())]),
    ],
)
def test_only_what_can_be_run_is_asked_for(
    registry: Registry, classes: set[str] | None, expected: list[tuple[set[str] | None, set[str]]]
) -> None:
    lanes = lanes_of(registry, None if classes is None else frozenset(classes), slots=8)
    assert shape(lanes) == expected


async def test_classes_of_others_are_left_alone() -> None:
    store, registry = open_reference(), registry_of("A", "B")
    mine = await enqueue(store, "A", 3)
    await enqueue(store, "B", 3)
    await enqueue(store, "C", 3)
    worker = Worker(store, registry, classes=frozenset({"A", "D"}))
    async with worker.running():
        await until(lambda: all_succeeded(store, mine))
    assert [row.lease_owner for row in store.tables.active.values()] == [None] * 6
    assert worker.lease_loop.supported == ["A"]


async def test_queues_of_others_are_left_alone() -> None:
    store, registry = open_reference(), registry_of("A")
    await store.enqueue([new("A", queue="high"), new("A", queue="low")])
    worker = Worker(store, registry, queues=frozenset({"high"}))
    async with worker.running():
        await until(lambda: worker.stats.total(Ending.SUCCEEDED) == 1)
    assert [row.queue for row in store.tables.active.values()] == ["low"]
    assert worker.lease_loop.queues == ["high"]


async def test_the_fallback_runs_what_has_no_handler() -> None:
    store, registry = open_reference(), Registry()
    seen: list[str] = []

    async def delegate(context: Context, data: str) -> None:
        seen.append(context.task.task_class)

    registry.fallback(delegate)
    registry.task("A")(nothing)
    ids = await enqueue(store, "A") + await enqueue(store, "Other") + await enqueue(store, "Another")
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: all_succeeded(store, ids))
    assert sorted(seen) == ["Another", "Other"]
    assert worker.lease_loop.supported == ["A", "*"]


async def test_a_worker_without_a_class_leases_nothing_and_says_so(logs: list[Log]) -> None:
    store = WatchedStore()
    await enqueue(store, "A")
    worker = Worker(store, Registry(), classes=frozenset({"A"}))
    async with worker.running():
        worker.doorbell.ring()
        await anyio.wait_all_tasks_blocked()
        assert await worker.lease_loop.lease_once() == 0
    assert store.asks == []
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert "leases nothing" in warnings[0]["event"]
    assert warnings[1]["classes"] == ["A"]


async def test_a_cap_bounds_its_class_and_leaves_the_other_slots_to_others() -> None:
    store, registry, gauge = open_reference(), Registry(), Gauge()
    registry.task("Capped", concurrency=2)(gauge.run)
    registry.task("Free")(gauge.run)
    ids = await enqueue(store, "Capped", 20) + await enqueue(store, "Free", 100)
    async with Worker(store, registry, slots=8).running():
        await until(lambda: all_succeeded(store, ids))
    assert gauge.most["Capped"] == 2
    assert gauge.most["Free"] >= 6


async def test_a_class_without_room_is_left_out_of_the_calls() -> None:
    store, registry = WatchedStore(), Registry()
    release = asyncio.Event()

    @registry.task("Capped", concurrency=1)
    async def capped(context: Context, data: str) -> None:
        await release.wait()

    registry.task("Free")(nothing)
    await enqueue(store, "Capped", 5)
    worker = Worker(store, registry, slots=4)
    async with worker.running():
        await until(lambda: worker.stats.active == 1)
        asks = len(store.asks)
        worker.doorbell.ring()
        await until(lambda: len(store.asks) > asks)
        assert all(set(ask.classes or ()) == {"Free"} for ask in store.asks[asks:])
        held = [row.id for row in store.tables.active.values() if row.lease_owner is not None]
        assert len(held) == 1
        release.set()
        await until(lambda: worker.stats.total(Ending.SUCCEEDED) == 5)


class SlowSettles(WatchedStore):
    """Settles when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_to_settle = asyncio.Event()
        self.may_settle = asyncio.Event()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        self.asked_to_settle.set()
        await self.may_settle.wait()
        return await super().settle(settlements)


async def test_a_class_with_a_cap_is_leased_by_half_of_its_cap_while_outcomes_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though most slots are free all the time: each call that is not made is a statement saved."""
    monkeypatch.setattr(lease_loop, "GATHER_SECONDS", 60.0)
    store, registry = SlowSettles(), Registry()
    goes_on = asyncio.Semaphore(0)

    @registry.task("Capped", concurrency=8)
    async def capped(context: Context, data: str) -> None:
        await goes_on.acquire()

    ids = await enqueue(store, "Capped", 12)
    worker = Worker(store, registry, slots=32)
    async with worker.running():
        await until(lambda: worker.stats.active == 8)
        for _ in range(3):
            goes_on.release()
        await until(lambda: worker.stats.active == 5)
        await store.asked_to_settle.wait()
        await anyio.wait_all_tasks_blocked()
        assert [ask.limit for ask in store.asks] == [8]
        goes_on.release()
        await until(lambda: worker.stats.active == 8)
        assert [ask.limit for ask in store.asks] == [8, 4]
        store.may_settle.set()
        for _ in range(8):
            goes_on.release()
        await until(lambda: all_succeeded(store, ids))


async def test_the_cap_of_the_fallback_counts_all_its_classes_together() -> None:
    store, registry, gauge = open_reference(), Registry(), Gauge()
    total = Gauge()

    async def delegate(context: Context, data: str) -> None:
        total.now["all"] += 1
        total.most["all"] = max(total.most["all"], total.now["all"])
        await gauge.run(context, data)
        total.now["all"] -= 1

    registry.fallback(delegate, concurrency=3)
    ids = await enqueue(store, "X", 10) + await enqueue(store, "Y", 10)
    async with Worker(store, registry, slots=8).running():
        await until(lambda: all_succeeded(store, ids))
    assert total.most["all"] == 3


async def test_a_pause_stops_the_start_of_new_tasks_and_a_resume_starts_them_at_once() -> None:
    store, registry = open_reference(), registry_of("A")
    await store.pause(Pause(PauseKind.CLASS, "A"))
    ids = await enqueue(store, "A")
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: worker.stats.leases >= 2)
        assert worker.stats.active == 0
        await store.resume(Pause(PauseKind.CLASS, "A"))
        await until(lambda: all_succeeded(store, ids), seconds=0.5)


# ---- trouble


async def test_an_outage_is_waited_out_with_one_line_and_a_red_light(logs: list[Log]) -> None:
    """R024: bounded tries, folded lines; leasing is back soon after."""
    store, registry = open_reference(), registry_of("A")
    faulty = FaultyStore(store)
    faulty.down = True
    worker = Worker(faulty, registry)
    worker.lease_loop._outage._red_after = 0.3
    async with worker.running():
        await until(lambda: "worker" in worker.lifecycle.faults)
        assert worker.stats.lease_errors <= 6
        faulty.down = False
        ids = await enqueue(store, "A")
        await until(lambda: all_succeeded(store, ids))
        await until(lambda: not worker.lifecycle.faults)
    lines = [line for line in logs if line.get("source") == "worker"]
    assert [line["event"] for line in lines] == ["store away", "store back"]


async def test_leasing_stops_while_too_many_outcomes_wait() -> None:
    store, registry = open_reference(), registry_of("A")
    broken = {"settle"}
    faulty = FaultyStore(store, lambda method: Fault.REFUSE if method in broken else None)
    ids = await enqueue(store, "A", 50)
    worker = Worker(faulty, registry, slots=4, bound=10)
    async with worker.running():
        await until(lambda: worker.settler.full)
        tries = faulty.calls["settle"]
        await until(lambda: faulty.calls["settle"] > tries + 2)
        assert 10 <= worker.settler.waiting < 14
        broken.clear()
        await until(lambda: all_succeeded(store, ids))


async def test_a_lost_lease_reply_costs_the_lease_time_and_nothing_else() -> None:
    store, registry = open_reference(patience=0), registry_of("A")
    faulty = FaultyStore(store)
    faulty.lose_reply("lease")
    ids = await enqueue(store, "A", 3)
    async with Worker(faulty, registry, lease_seconds=1, patience=0).running():
        await until(lambda: all_succeeded(store, ids))
    assert [store.tables.archived[task_id].failure_count for task_id in ids] == [0, 0, 0]


async def test_a_bad_line_loses_no_task_and_runs_it_to_one_end() -> None:
    """Every fifth call of any kind is refused, every fifth acts and its reply is lost."""
    turn = 0

    def plan(method: str) -> Fault | None:
        nonlocal turn
        turn += 1
        return {1: Fault.REFUSE, 3: Fault.LOSE_REPLY}.get(turn % 5)

    # A lease whose reply was lost counts as a lost run; giving tasks up for that is another test's matter.
    store, registry = open_reference(patience=0, max_lost=1000), Registry()
    registry.task("A")(nothing)

    @registry.task("Parent")
    async def parent(context: Context, data: str) -> None:
        context.enqueue(new("Child"))

    registry.task("Child")(nothing)
    ids = await enqueue(store, "A", 15) + await enqueue(store, "Parent", 5)
    worker = Worker(FaultyStore(store, plan), registry, slots=4, lease_seconds=1, patience=0)
    async with worker.running():
        await until(lambda: not store.tables.active, seconds=60)
    assert all_succeeded(store, ids)
    assert len(store.tables.archived) == 25


async def test_a_lease_whose_reply_comes_too_late_is_given_back_unrun() -> None:
    store, registry = WatchedStore(), Registry()
    owners: list[str | None] = []

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        owners.append(context.task.lease_owner)

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry, lease_seconds=1, patience=0)
    store.gate.clear()
    async with worker.running():
        await until(lambda: store.asks)
        watch = Stopwatch()
        await until(lambda: watch.seconds > 1)
        assert worker.stats.leases == 0
        store.gate.set()
        await until(lambda: ended(store, task_id) is not None)
    late = store.asks[0].owner
    assert len(owners) == 1
    assert owners != [late]
    assert failures(store, task_id) == []

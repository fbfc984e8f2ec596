"""A task that kills its process takes no good ones with it (R079), and those under suspicion hold up nobody else."""

import asyncio

import anyio

from queue_runtime.quarantine import Quarantine
from queue_runtime.registry import Context, Registry
from queue_runtime.task import Result
from tests.faulty_store import FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.harness import (
    Stopwatch,
    Worker,
    all_succeeded,
    ended,
    enqueue,
    open_reference,
    stubborn_sleep,
    until,
)


async def lose(store: ReferenceStore, task_ids: list[int], times: int) -> None:
    """As if processes that held these tasks were killed."""
    for task_id in task_ids:
        row = store.tables.active[task_id]
        store._put(row, lost_count=times - 1, lease_owner="qr:0:0:0@gone", lease_expires=1)


async def test_tasks_that_lost_their_worker_twice_run_one_at_a_time_and_all_succeed() -> None:
    store, registry = open_reference(), Registry()
    together: list[int] = []
    running = 0

    @registry.task("A")
    async def count(context: Context, data: str) -> None:
        nonlocal running
        running += 1
        together.append(running)
        await anyio.sleep(0.005)
        running -= 1

    ids = await enqueue(store, "A", 8)
    await lose(store, ids, 2)
    async with Worker(store, registry, slots=4).running():
        await until(lambda: all_succeeded(store, ids))
    assert together == [1] * 8


async def test_one_loss_is_an_ordinary_kill_and_changes_nothing() -> None:
    store, registry = open_reference(), Registry()
    gate = anyio.Event()
    started = 0

    @registry.task("A")
    async def wait(context: Context, data: str) -> None:
        nonlocal started
        started += 1
        await gate.wait()

    ids = await enqueue(store, "A", 4)
    await lose(store, ids, 1)
    async with Worker(store, registry, slots=4).running():
        await until(lambda: started == 4)
        gate.set()
        await until(lambda: all_succeeded(store, ids))


async def test_the_worst_suspect_goes_first_and_the_others_keep_their_count() -> None:
    store, registry = open_reference(), Registry()
    order: list[int] = []
    gate = anyio.Event()

    @registry.task("A")
    async def note(context: Context, data: str) -> None:
        order.append(context.task.id)
        await gate.wait()

    first, second, third = await enqueue(store, "A", 3)
    await lose(store, [first], 2)
    await lose(store, [second], 4)
    async with Worker(store, registry, slots=4).running():
        await until(lambda: len(order) == 2 and store.tables.active[first].lease_owner is None)
        assert sorted(order) == [second, third]  # the third is under no suspicion
        assert store.tables.active[first].lost_count == 2
        gate.set()
        await until(lambda: all_succeeded(store, [first, second, third]))


async def test_a_suspect_that_dies_alone_is_given_up_and_nobody_else_is() -> None:
    """Each death is played by leaving the culprit's row as a dead process does."""
    store, registry = open_reference(max_lost=5), Registry()

    @registry.task("A")
    async def work(context: Context, data: str) -> None:
        if data == "poison":
            row = store.tables.active[context.task.id]
            store._put(row, lease_owner="qr:0:0:0@gone", lease_expires=1)
            raise RuntimeError("dies")

    (poison,) = await enqueue(store, "A", 1, "poison")
    good = await enqueue(store, "A", 20)
    await lose(store, [poison, *good[:3]], 2)
    async with Worker(store, registry, slots=4).running():
        await until(lambda: all_succeeded(store, good) and ended(store, poison) is Result.FAILURE)
    assert store.tables.archived[poison].lost_count == 5


class Suspects:
    """A registry whose `Slow` runs wait for the gate and whose `Fresh` runs end at once."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.registry.task("Slow")(self.slow)
        self.registry.task("Fresh")(self.fresh)
        self.gate = anyio.Event()
        self.started: list[int] = []

    async def slow(self, context: Context, data: str) -> None:
        self.started.append(context.task.id)
        await self.gate.wait()

    async def fresh(self, context: Context, data: str) -> None:
        """Done at once."""


async def test_healthy_suspects_that_take_long_hold_up_no_other_work() -> None:
    store, work = open_reference(), Suspects()
    suspects = await enqueue(store, "Slow", 16)
    await lose(store, suspects, 2)
    fresh = await enqueue(store, "Fresh", 50)
    async with Worker(store, work.registry, slots=16).running():
        watch = Stopwatch()
        await until(lambda: all_succeeded(store, fresh))
        assert watch.seconds < 1
        more = await enqueue(store, "Fresh", 50)
        await until(lambda: all_succeeded(store, more))
        assert len(work.started) == 1
        work.gate.set()
        await until(lambda: all_succeeded(store, suspects))


async def test_suspects_that_wait_for_their_turn_are_not_leased_again_and_again() -> None:
    store, work = open_reference(), Suspects()
    suspects = await enqueue(store, "Slow", 16)
    await lose(store, suspects, 2)
    faulty = FaultyStore(store)
    worker = Worker(faulty, work.registry, slots=4)
    async with worker.running():
        await until(lambda: worker.lease_loop._quarantine.held_back == set(suspects[1:]))
        calls = faulty.calls["lease"]
        assert calls <= 10
        await anyio.sleep(1.2)
        assert faulty.calls["lease"] - calls <= 3  # the safety net, once a second
        assert {store.tables.active[one].lease_owner for one in suspects[1:]} == {None}
        assert work.started == suspects[:1]
        work.gate.set()
        watch = Stopwatch()
        await until(lambda: all_succeeded(store, suspects))
        assert watch.seconds < 1  # each starts when the one before has ended, and not a second later


async def test_a_suspect_that_lives_past_its_window_makes_room_for_the_next_at_once() -> None:
    store, work = open_reference(), Suspects()
    suspects = await enqueue(store, "Slow", 3)
    await lose(store, suspects, 2)
    worker = Worker(store, work.registry, slots=4)
    worker.lease_loop._quarantine = Quarantine(seconds=0.2)
    async with worker.running():
        await until(lambda: len(work.started) == 1)
        watch = Stopwatch()
        await until(lambda: len(work.started) == 3)
        assert 0.35 < watch.seconds < 0.9
        work.gate.set()
        await until(lambda: all_succeeded(store, suspects))


async def test_a_suspect_whose_next_loss_is_its_last_is_watched_to_its_end() -> None:
    store, work = open_reference(max_lost=3), Suspects()
    suspects = await enqueue(store, "Slow", 3)
    await lose(store, suspects, 2)
    fresh = await enqueue(store, "Fresh", 3)
    worker = Worker(store, work.registry, slots=4)
    worker.lease_loop._quarantine = Quarantine(max_lost=3, seconds=0.05)
    async with worker.running():
        await until(lambda: worker.lease_loop._quarantine.held_back == set(suspects[1:]))
        await until(lambda: all_succeeded(store, fresh))
        await anyio.sleep(0.2)
        assert len(work.started) == 1
        work.gate.set()
        await until(lambda: all_succeeded(store, suspects))


async def test_an_abandoned_suspect_holds_up_the_others_no_longer() -> None:
    store, registry = open_reference(max_lost=3), Registry()
    release = asyncio.Event()

    @registry.task("Deaf", timeout=0.05)
    async def deaf(context: Context, data: str) -> None:
        await stubborn_sleep(release)

    registry.task("Fresh")(Suspects().fresh)
    (stuck,) = await enqueue(store, "Deaf")
    following = await enqueue(store, "Fresh", 2)
    await lose(store, [stuck, *following], 2)
    store._put(store.tables.active[stuck], priority=1)
    worker = Worker(store, registry, slots=4)
    worker.lease_loop._quarantine = Quarantine(max_lost=3)
    async with worker.running():
        try:
            await until(lambda: all_succeeded(store, following))
            assert worker.stats.abandoned_now == 1
        finally:
            release.set()


async def test_a_suspect_starts_only_when_the_others_are_known_to_be_given_back() -> None:
    store, work = open_reference(), Suspects()
    suspects = await enqueue(store, "Slow", 3)
    await lose(store, suspects, 2)
    fresh = await enqueue(store, "Fresh")
    faulty = FaultyStore(store)
    faulty.refuse("settle", times=3)
    async with Worker(faulty, work.registry, slots=4).running():
        await until(lambda: all_succeeded(store, fresh))
        await until(lambda: work.started)
        assert faulty.faults["settle"] == 3
        held = [one for one in suspects if store.tables.active[one].lease_owner is not None]
        assert held == work.started
        work.gate.set()
        await until(lambda: all_succeeded(store, suspects))


async def test_with_two_losses_allowed_one_is_enough_for_suspicion() -> None:
    store, work = open_reference(max_lost=2), Suspects()
    suspects = await enqueue(store, "Slow", 2)
    await lose(store, suspects, 1)
    worker = Worker(store, work.registry, slots=4)
    worker.lease_loop._quarantine = Quarantine(max_lost=2)
    async with worker.running():
        await until(lambda: worker.lease_loop._quarantine.held_back == {suspects[1]})
        assert work.started == suspects[:1]
        work.gate.set()
        await until(lambda: all_succeeded(store, suspects))

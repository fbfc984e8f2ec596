"""A task that kills its process takes no good ones with it (R079)."""

import anyio

from queue_runtime.registry import Context, Registry
from queue_runtime.task import Result
from tests.reference_store import ReferenceStore
from tests.runtime.harness import Worker, all_succeeded, ended, enqueue, open_reference, until


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
        await until(lambda: order and store.tables.active[first].lease_owner is None)
        assert order == [second]
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

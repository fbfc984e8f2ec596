"""Many callers of one opened store at the same time."""

import asyncio

from queue_runtime.store import Store
from queue_runtime.task import Complete, NewTask, Release, Settlement, Task
from tests.clock import Clock
from tests.contract.steps import HTTP, SETTLED, add, add_plain, held, receipt, row, settle, take_new, verdicts, worker


async def test_no_task_is_leased_twice(store: Store) -> None:
    ids = await add_plain(store, 200)
    calls = await asyncio.gather(*[store.lease(worker(), 7, 60) for _ in range(40)])
    taken = [task.id for rows in calls for task in rows]
    assert sorted(taken) == ids


async def test_no_task_is_leased_twice_through_a_filter(store: Store) -> None:
    """Candidates that somebody else has taken meanwhile are passed over, and others taken in their place."""
    for _ in range(4):  # a race: on a busy machine one round may go by in single file
        ids = await add(store, *[NewTask(task_class=name) for name in "AB" * 50])
        calls = await asyncio.gather(*[store.lease(worker(), 4, 60, classes={"A"}) for _ in range(20)])
        taken = [task.id for rows in calls for task in rows]
        assert sorted(taken) == ids[::2]


async def test_calls_under_one_name_get_different_tasks_and_all_of_their_own(store: Store) -> None:
    """R091: two parallel calls with the same X-Lease-Owner."""
    await add_plain(store, 40)
    calls = await asyncio.gather(*[store.lease(HTTP, 5, 60) for _ in range(8)])
    assert [len(rows) for rows in calls] == [5] * 8
    assert len({task.id for rows in calls for task in rows}) == 40
    settled = await verdicts(store, *[Settlement.held(receipt(task), Complete()) for rows in calls for task in rows])
    assert settled == [SETTLED] * 40


async def test_each_caller_of_settle_gets_its_own_answers(store: Store) -> None:
    tasks = [await take_new(store) for _ in range(30)]
    lost = tasks[::3]
    await store.free([task.id for task in lost])
    answers = await asyncio.gather(*[settle(store, held(task), Complete()) for task in tasks])
    for task, answer in zip(tasks, answers, strict=True):
        assert (answer.archived.id if answer.archived else None) == (None if task in lost else task.id)


async def test_one_lease_settled_by_many_is_settled_once(store: Store) -> None:
    task = await take_new(store)
    child = NewTask(task_class="Child")
    answers = await asyncio.gather(
        *[settle(store, held(task), Complete(followups=[child])) for _ in range(20)],
    )
    assert sorted(answer.verdict for answer in answers) == ["replayed"] * 19 + ["settled"]
    assert len(await store.list_active(99)) == 1


async def test_cancel_and_settle_race_for_one_end(store: Store) -> None:
    """R010: whoever is first, the task ends once."""
    for _ in range(20):
        task = await take_new(store)
        (cancelled,), answer = await asyncio.gather(store.cancel([task.id]), settle(store, held(task), Complete()))
        assert (cancelled is not None) != (answer.verdict is SETTLED)
        assert await store.get([task.id]) == [None]


async def test_enqueuers_and_leasers_at_once_lose_nothing(store: Store) -> None:
    """R099: a leased task always has its data; R061."""
    ran: list[Task] = []

    async def enqueue(number: int) -> None:
        for part in range(5):
            await add(store, *[NewTask(task_class="A", data=f"{number}.{part}.{n}") for n in range(4)])

    async def drain() -> None:
        while len(ran) < 160:
            rows = await store.lease(worker(), 10, 600)
            ran.extend(rows)
            await store.settle([Settlement.held(held(task), Complete()) for task in rows])
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await asyncio.gather(*[enqueue(number) for number in range(8)], *[drain() for _ in range(4)])
    wanted = {f"{number}.{part}.{n}" for number in range(8) for part in range(5) for n in range(4)}
    assert {task.data for task in ran} == wanted
    assert len(ran) == 160


async def test_renewals_beside_settles_are_answered_for_their_own_task(store: Store, clock: Clock) -> None:
    tasks = [await take_new(store) for _ in range(20)]

    async def use(number: int, task: Task) -> None:
        if number % 2:
            (renewed,) = await store.renew([held(task)], 100 + number)
            assert renewed is not None
            assert (renewed.id, renewed.lease_expires) == (task.id, clock.now + 100 + number)
        else:
            assert (await settle(store, held(task), Release())).verdict is SETTLED

    await asyncio.gather(*[use(number, task) for number, task in enumerate(tasks)])


async def test_a_caller_that_gives_up_waiting_harms_nobody(store: Store) -> None:
    """R043: cancelled calls leave the store whole, and nobody gets another's answer."""

    async def impatient(number: int) -> None:
        call = asyncio.ensure_future(add(store, NewTask(task_class="Gone", data=str(number))))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def patient(number: int) -> None:
        (task_id,) = await add(store, NewTask(task_class="Mine", data=str(number)))
        found = await row(store, task_id)
        assert (found.task_class, found.data) == ("Mine", str(number))

    await asyncio.gather(*[one(number) for number in range(50) for one in (impatient, patient)])
    mine = [task for task in await store.list_active(500) if task.task_class == "Mine"]
    assert len(mine) == 50

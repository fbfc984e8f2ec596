"""Group commit for enqueues: one round for many, an answer for each."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from queue_runtime.errors import InvalidRequest, StoreFull, StoreUnavailable
from queue_runtime.intake import ROUNDS_IN_FLIGHT, Intake
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Task
from tests.faulty_store import FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.harness import new, open_reference, until


@asynccontextmanager
async def serving(intake: Intake) -> AsyncIterator[Intake]:
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(intake.run, stop)
        try:
            yield intake
        finally:
            stop.set()


class GatedStore(ReferenceStore):
    """Notes the size of each enqueue, and lets one pass only when told to."""

    def __init__(self) -> None:
        super().__init__(StoreOptions())
        self.rounds: list[int] = []
        self.gate = asyncio.Event()

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        self.rounds.append(len(tasks))
        await self.gate.wait()
        if any(task.task_class == "Bad" for task in tasks):
            raise InvalidRequest("queue", "not here")
        return await super().enqueue(tasks)


async def test_one_caller_pays_one_round_and_gets_its_rows() -> None:
    store = FaultyStore(open_reference())
    async with serving(Intake(store)) as intake:
        rows = await intake.enqueue([new("A"), new("B")])
        assert await intake.enqueue([]) == []
    assert [row.task_class for row in rows] == ["A", "B"]
    assert store.calls["enqueue"] == 1


async def test_what_arrives_during_the_rounds_shares_the_next_and_each_gets_its_own_rows() -> None:
    store = GatedStore()
    answers: dict[int, list[Task]] = {}

    async def call(number: int) -> None:
        answers[number] = await intake.enqueue([new(f"C{number}") for _ in range(number)])

    async with serving(Intake(store)) as intake, anyio.create_task_group() as group:
        for number in range(1, ROUNDS_IN_FLIGHT + 1):
            group.start_soon(call, number)
            await until(lambda: len(store.rounds) == number)  # noqa: B023  awaited within the turn
        for number in range(ROUNDS_IN_FLIGHT + 1, 30):
            group.start_soon(call, number)
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
    assert store.rounds == [*range(1, ROUNDS_IN_FLIGHT + 1), sum(range(ROUNDS_IN_FLIGHT + 1, 30))]
    for number, rows in answers.items():
        assert [row.task_class for row in rows] == [f"C{number}"] * number


async def test_a_round_is_bounded_by_count_and_by_bytes_but_takes_one_caller_whole() -> None:
    store = GatedStore()
    store.gate.set()
    intake = Intake(store, max_tasks=10, max_bytes=10_000)
    calls = [intake.enqueue([new("A")] * size) for size in (4, 4, 4, 25)]
    calls += [intake.enqueue([new("A", "x" * 6000)]) for _ in range(2)]
    async with serving(intake):
        await asyncio.gather(*calls)
    assert store.rounds == [8, 4, 25, 1, 1]


async def test_a_bad_part_fails_its_caller_alone() -> None:
    store = GatedStore()
    store.gate.set()
    intake = Intake(store)
    calls = [intake.enqueue([new("A")]), intake.enqueue([new("B"), new("Bad")]), intake.enqueue([new("C")])]
    async with serving(intake):
        first, bad, last = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(bad, InvalidRequest)
    assert isinstance(first, list)
    assert isinstance(last, list)
    assert sorted(task.task_class for task in store.tables.active.values()) == ["A", "C"]


async def test_an_outage_reaches_every_caller_of_the_round_as_an_error_of_its_own() -> None:
    class Full(ReferenceStore):
        async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
            raise StoreFull("enqueue", "disk full")

    intake = Intake(Full(StoreOptions()))
    calls = [intake.enqueue([new("A")]) for _ in range(3)]
    async with serving(intake):
        errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, StoreFull) and error.reason == "disk full" for error in errors)
    assert len({id(error) for error in errors}) == 3


async def test_a_store_that_goes_away_while_each_part_is_tried_alone_is_asked_once() -> None:
    class Leaving(GatedStore):
        async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
            if len(tasks) == 1 and tasks[0].task_class == "B":
                self.rounds.append(1)
                raise StoreUnavailable("enqueue", "gone")
            return await super().enqueue(tasks)

    store = Leaving()
    store.gate.set()
    intake = Intake(store)
    calls = [intake.enqueue([new(name)]) for name in ("A", "Bad", "B", "C", "D")]
    async with serving(intake):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert store.rounds == [5, 1, 1, 1]
    assert isinstance(answers[0], list)
    assert isinstance(answers[1], InvalidRequest)
    assert [str(answer) for answer in answers[2:]] == ["enqueue: gone"] * 3
    assert len({id(answer) for answer in answers[2:]}) == 3


async def test_a_part_without_room_keeps_nobody_from_trying_alone() -> None:
    class Narrow(GatedStore):
        async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
            if len(tasks) == 1 and tasks[0].task_class == "Large":
                raise StoreFull("enqueue", "no room")
            return await super().enqueue(tasks)

    store = Narrow()
    store.gate.set()
    intake = Intake(store)
    calls = [intake.enqueue([new(name)]) for name in ("Bad", "Large", "A")]
    async with serving(intake):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [InvalidRequest, StoreFull, list]


async def test_callers_that_have_gone_away_break_no_round() -> None:
    store = GatedStore()
    async with serving(Intake(store)) as intake:
        under_way = asyncio.create_task(intake.enqueue([new("Started")]))
        await until(lambda: store.rounds)
        others = []
        for number in range(2, ROUNDS_IN_FLIGHT + 1):
            others.append(asyncio.create_task(intake.enqueue([new("Other")])))
            await until(lambda: len(store.rounds) == number)  # noqa: B023  awaited within the turn
        gone = asyncio.create_task(intake.enqueue([new("Gone")]))
        stays = asyncio.create_task(intake.enqueue([new("Stays")]))
        await anyio.wait_all_tasks_blocked()
        under_way.cancel()
        gone.cancel()
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
        (row,) = await stays
        await asyncio.gather(*others)
    assert row.task_class == "Stays"
    # What was under way happens all the same; what had not begun is dropped.
    classes = sorted(task.task_class for task in store.tables.active.values())
    assert classes == ["Other"] * len(others) + ["Started", "Stays"]


async def test_after_the_stop_what_has_arrived_is_served_and_later_calls_are_refused() -> None:
    store = GatedStore()
    intake = Intake(store)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(intake.run, stop)
        first = asyncio.create_task(intake.enqueue([new("A")]))
        await until(lambda: store.rounds)
        stop.set()
        second = asyncio.create_task(intake.enqueue([new("B")]))
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
    assert (await first)[0].task_class == "A"
    assert (await second)[0].task_class == "B"
    with pytest.raises(StoreUnavailable):
        await intake.enqueue([new("C")])


async def test_a_round_that_is_cut_off_leaves_no_caller_waiting() -> None:
    store = GatedStore()
    intake = Intake(store)
    running = asyncio.create_task(intake.run(anyio.Event()))
    calls = [asyncio.create_task(intake.enqueue([new("A")]))]
    await until(lambda: store.rounds)
    calls.append(asyncio.create_task(intake.enqueue([new("B")])))
    await anyio.wait_all_tasks_blocked()
    running.cancel()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_it_says_when_something_was_enqueued() -> None:
    rings: list[bool] = []
    intake = Intake(open_reference(), enqueued=lambda: rings.append(True))
    async with serving(intake):
        await intake.enqueue([new("A")])
    assert rings == [True]


async def test_nothing_is_lost_when_the_store_loses_every_other_reply() -> None:
    """Each caller knows: either its rows, or an error; and a caller that tries again by its key adds nothing."""
    store = open_reference()
    faulty = FaultyStore(store)
    async with serving(Intake(faulty)) as intake:
        for number in range(20):
            task = new("A", idempotency_key=f"key {number}")
            if number % 2:
                faulty.lose_reply("enqueue")
                with pytest.raises(StoreUnavailable):
                    await intake.enqueue([task])
            await intake.enqueue([task])
    assert len(store.tables.active) == 20

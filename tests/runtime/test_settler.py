"""Outcomes are written in batches, and none is lost while the store is away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace

from queue_runtime.errors import InvalidRequest, StoreFull, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import Settler
from queue_runtime.store import StoreOptions
from queue_runtime.task import (
    MAX_FOLLOWUPS,
    Complete,
    Fail,
    Failure,
    Lease,
    Release,
    Result,
    Retry,
    Settled,
    Settlement,
    Task,
    Verdict,
    Yield,
)
from tests.faulty_store import Fault, FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import Stopwatch, ended, enqueue, new, open_reference, until


@asynccontextmanager
async def serving(settler: Settler) -> AsyncIterator[Settler]:
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(settler.run, stop)
        try:
            yield settler
        finally:
            stop.set()


async def leased(store: ReferenceStore, count: int) -> list[Lease]:
    """So many tasks in the hand of one of our workers."""
    await enqueue(store, "A", count)
    return [Lease(task.id, "qr:test:1") for task in await store.lease("qr:test:1", count, 20)]


class Answers:
    """What became of submitted outcomes."""

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self.verdicts: dict[int, Verdict] = {}

    def submit(self, lease: Lease, outcome: Complete | Fail | Retry | Yield | Release | None = None) -> None:
        def done(settled: Settled) -> None:
            assert lease.task_id not in self.verdicts
            self.verdicts[lease.task_id] = settled.verdict

        self._settler.submit(Settlement.held(lease, outcome or Complete()), done)


class PickyStore(ReferenceStore):
    """Refuses rounds with follow-ups of class Bad, or with a yield of 666 s; notes the size of each round."""

    def __init__(self) -> None:
        super().__init__(StoreOptions())
        self.rounds: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        self.rounds.append(len(settlements))
        await self.gate.wait()
        for settlement in settlements:
            match settlement.outcome:
                case Complete(_, followups) if any(task.task_class == "Bad" for task in followups):
                    raise InvalidRequest("queue", "not here")
                case Yield(666):
                    raise ZeroDivisionError
        return await super().settle(settlements)


async def test_outcomes_that_end_together_are_one_round() -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    leases = await leased(store, 100)
    async with serving(Settler(faulty)) as settler:
        answers = Answers(settler)
        for lease in leases:
            answers.submit(lease)
        assert settler.waiting == 100
        assert settler.busy
        await until(lambda: len(answers.verdicts) == 100)
        assert settler.waiting == 0
        assert not settler.busy
    assert faulty.calls["settle"] == 1
    assert all(ended(store, lease.task_id) is Result.SUCCESS for lease in leases)


async def test_what_arrives_during_a_round_shares_the_next() -> None:
    store = PickyStore()
    store.gate.clear()
    leases = await leased(store, 10)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(leases[0])
        await until(lambda: store.rounds)
        for lease in leases[1:9]:
            answers.submit(lease)
        call = asyncio.create_task(settler.settle([Settlement.held(leases[9], Complete(7))]))
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
        (settled,) = await call
        await until(lambda: len(answers.verdicts) == 9)
    assert store.rounds == [1, 9]
    assert settled.archived is not None
    assert settled.archived.duration_us == 7


async def test_a_round_is_bounded_by_count_and_by_the_bytes_of_follow_ups() -> None:
    store = PickyStore()
    leases = await leased(store, 1000) + await leased(store, 203)
    heavy = Complete(0, [new("Child", "x" * 2**20)] * 5)
    settler = Settler(store)
    answers = Answers(settler)
    for lease in leases[:1200]:
        answers.submit(lease)
    for lease in leases[1200:]:
        answers.submit(lease, heavy)
    async with serving(settler):
        await until(lambda: len(answers.verdicts) == 1203)
    assert store.rounds == [1000, 201, 1, 1]


async def test_a_round_is_bounded_by_the_number_of_follow_ups() -> None:
    store = PickyStore()
    leases = await leased(store, 3)
    settler = Settler(store)
    answers = Answers(settler)
    for lease in leases:
        answers.submit(lease, Complete(0, [new("Child", "")] * (MAX_FOLLOWUPS // 2 + 1000)))
    async with serving(settler):
        await until(lambda: len(answers.verdicts) == 3)
    assert store.rounds == [1, 1, 1]


async def test_callers_and_outcomes_cannot_crowd_each_other_out() -> None:
    store = PickyStore()
    leases = await leased(store, 1000) + await leased(store, 1000)
    settler = Settler(store)
    answers = Answers(settler)
    for lease in leases[:1000]:
        answers.submit(lease)
    calls = [asyncio.create_task(settler.settle([Settlement.held(lease, Complete())])) for lease in leases[1000:]]
    await anyio.wait_all_tasks_blocked()
    async with serving(settler):
        await asyncio.gather(*calls)
        await until(lambda: len(answers.verdicts) == 1000)
    assert store.rounds == [1000, 1000]


async def test_full_says_when_too_many_outcomes_wait() -> None:
    settler = Settler(open_reference(), bound=3)
    answers = Answers(settler)
    for number in range(2):
        answers.submit(Lease(number, "qr:x"))
    assert not settler.full
    answers.submit(Lease(2, "qr:x"))
    assert settler.full


async def test_in_an_outage_callers_hear_of_it_at_once_and_outcomes_wait(logs: list[Log]) -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    leases = await leased(store, 21)
    async with serving(Settler(faulty)) as settler:
        answers = Answers(settler)
        faulty.down = True
        for lease in leases[:20]:
            answers.submit(lease)
        await until(lambda: faulty.faults["settle"] >= 2)
        assert not settler.busy
        watch = Stopwatch()
        with pytest.raises(StoreUnavailable):
            await settler.settle([Settlement.held(leases[20], Complete())])
        assert watch.seconds < 1
        assert settler.waiting == 20
        faulty.down = False
        await until(lambda: len(answers.verdicts) == 20)
        # The caller's own next try decides; nothing was kept for it.
        assert ended(store, leases[20].task_id) is None
        (settled,) = await settler.settle([Settlement.held(leases[20], Complete())])
        assert settled.verdict is Verdict.SETTLED
    assert set(answers.verdicts.values()) == {Verdict.SETTLED}
    away = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in away] == ["store away"]
    assert [line["event"] for line in logs if line["log_level"] == "info"] == ["store back"]


async def test_a_caller_that_gets_through_ends_the_wait_of_the_outcomes() -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    leases = await leased(store, 2)
    async with serving(Settler(faulty)) as settler:
        answers = Answers(settler)
        faulty.refuse("settle", times=5)
        answers.submit(leases[0])
        await until(lambda: faulty.faults["settle"] == 5)  # the next wait is long
        await settler.settle([Settlement.held(leases[1], Complete())])
        await until(lambda: answers.verdicts, seconds=0.5)


async def test_readiness_is_red_while_outcomes_have_waited_too_long_and_green_again_by_itself() -> None:
    store, lifecycle = open_reference(), Lifecycle()
    faulty = FaultyStore(store)
    (lease,) = await leased(store, 1)
    settler = Settler(faulty, lifecycle=lifecycle)
    settler._outage._red_after = 0.2
    async with serving(settler):
        faulty.down = True
        Answers(settler).submit(lease)
        await until(lambda: "settler" in lifecycle.faults)
        faulty.down = False
        await until(lambda: not lifecycle.faults)


@pytest.mark.parametrize(
    "outcome", [Complete(5), Fail(), Retry(9), Yield(60), Release()], ids=lambda outcome: type(outcome).__name__
)
async def test_an_outcome_whose_reply_was_lost_was_probably_written(
    outcome: Complete | Fail | Retry | Yield | Release, logs: list[Log]
) -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    (lease,) = await leased(store, 1)
    async with serving(Settler(faulty)) as settler:
        answers = Answers(settler)
        faulty.lose_reply("settle")
        answers.submit(lease, outcome)
        await until(lambda: answers.verdicts)
    assert answers.verdicts == {lease.task_id: Verdict.REPLAYED}
    probably = [line for line in logs if "probably written" in line["event"]]
    assert len(probably) == (0 if isinstance(outcome, Complete | Fail) else 1)


class Closed(ReferenceStore):
    """Cannot be written for the first round. Meanwhile somebody else takes the task."""

    def __init__(self, error: StoreUnavailable) -> None:
        super().__init__(StoreOptions())
        self.error: StoreUnavailable | None = error

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if (error := self.error) is not None:
            self.error = None
            await self.cancel([settlement.task_id for settlement in settlements])
            raise error
        return await super().settle(settlements)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (StoreUnavailable("settle", "no answer"), Verdict.REPLAYED),
        (StoreUnavailable("settle", "busy", nothing_happened=True), Verdict.LOST),
        (StoreFull("settle", "no room"), Verdict.LOST),
    ],
)
async def test_a_lease_that_was_lost_while_nothing_could_be_written_is_no_success(
    error: StoreUnavailable, verdict: Verdict
) -> None:
    store = Closed(error)
    (lease,) = await leased(store, 1)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(lease)
        await until(lambda: answers.verdicts)
    assert answers.verdicts == {lease.task_id: verdict}


@pytest.mark.parametrize("maximum", [0, 2**40, 2.5, "3"])
async def test_a_maximum_that_the_store_refuses_is_not_carried_over(maximum: object) -> None:
    store = open_reference()
    (lease,) = await leased(store, 1)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(lease, Retry(9, max_attempts=maximum))  # type: ignore[arg-type]  # the fault under test
        await until(lambda: answers.verdicts)
    assert answers.verdicts == {lease.task_id: Verdict.SETTLED}
    assert "max_attempts" in store.tables.history[lease.task_id][0].message


async def test_a_lease_that_is_lost_is_final(logs: list[Log]) -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    (lease,) = await leased(store, 1)
    await store.cancel([lease.task_id])
    async with serving(Settler(faulty)) as settler:
        answers = Answers(settler)
        answers.submit(lease)
        await until(lambda: answers.verdicts)
    assert answers.verdicts == {lease.task_id: Verdict.LOST}
    assert faulty.calls["settle"] == 1


async def test_a_late_outcome_after_the_end_of_its_lease_is_still_written() -> None:
    store = open_reference()
    (lease,) = await leased(store, 1)
    store.tables.active[lease.task_id] = replace(store.tables.active[lease.task_id], lease_expires=1)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(lease)
        await until(lambda: answers.verdicts)
    assert answers.verdicts == {lease.task_id: Verdict.SETTLED}


async def test_a_refused_part_harms_nobody_else(logs: list[Log]) -> None:
    store = PickyStore()
    leases = await leased(store, 5)
    settler = Settler(store)
    answers = Answers(settler)
    answers.submit(leases[0])
    answers.submit(leases[1], Complete(0, [new("Bad")]))
    answers.submit(leases[2], Yield(666))
    calls = [
        settler.settle([Settlement.held(leases[3], Complete())]),
        settler.settle([Settlement.held(leases[4], Complete(0, [new("Bad")]))]),
    ]
    async with serving(settler):
        good, bad = await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: len(answers.verdicts) == 3)
    assert isinstance(bad, InvalidRequest)
    assert isinstance(good, list)
    assert ended(store, leases[0].task_id) is ended(store, leases[3].task_id) is Result.SUCCESS
    # In place of an outcome that the store will not have there is a failure that says so.
    for lease, reason in ((leases[1], "InvalidRequest: queue: not here"), (leases[2], "ZeroDivisionError")):
        assert reason in store.tables.history[lease.task_id][0].message
    assert ended(store, leases[1].task_id) is Result.FAILURE
    assert store.tables.active[leases[2].task_id].failure_count == 1


async def test_what_ran_to_its_end_is_not_run_again_because_the_store_refuses_its_outcome() -> None:
    class Strict(PickyStore):
        async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
            if any(isinstance(one.outcome, Fail | Retry) and one.outcome.failure.message == "a" for one in settlements):
                raise InvalidRequest("message", "not here")
            return await super().settle(settlements)

    store = Strict()
    leases = await leased(store, 3)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(leases[0], Complete(5, [new("Bad")]))
        answers.submit(leases[1], Fail(Failure("a", duration_us=6)))
        answers.submit(leases[2], Retry(99, Failure("a")))
        await until(lambda: len(answers.verdicts) == 3)
    assert [ended(store, lease.task_id) for lease in leases[:2]] == [Result.FAILURE] * 2
    ran, failed, again = [store.tables.history[lease.task_id][0] for lease in leases]
    assert (ran.message, ran.duration_us) == (
        "it ran, but the outcome could not be stored: InvalidRequest: queue: not here",
        5,
    )
    assert (failed.message[:23], failed.duration_us) == ("it failed for good, but", 6)
    assert again.message.startswith("the outcome could not be stored")
    assert store.tables.active[leases[2].task_id].failure_count == 1


async def test_a_store_that_refuses_even_the_failure_ends_the_loop_and_keeps_the_outcome() -> None:
    class Broken(ReferenceStore):
        async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
            raise ZeroDivisionError

    store = Broken(StoreOptions())
    leases = await leased(store, 2)
    settler = Settler(store)
    for lease in leases:
        Answers(settler).submit(lease)
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await settler.run(anyio.Event())
    assert settler.unwritten_ids == [lease.task_id for lease in leases]
    assert await settler.drain(seconds=0.1) == [lease.task_id for lease in leases]


async def test_callers_that_have_gone_away_break_no_round() -> None:
    store = PickyStore()
    store.gate.clear()
    leases = await leased(store, 4)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        under_way = asyncio.create_task(settler.settle([Settlement.held(leases[0], Complete())]))
        await until(lambda: store.rounds)
        gone = asyncio.create_task(settler.settle([Settlement.held(leases[1], Complete())]))
        stays = asyncio.create_task(settler.settle([Settlement.held(leases[2], Complete())]))
        answers.submit(leases[3])
        await anyio.wait_all_tasks_blocked()
        under_way.cancel()
        gone.cancel()
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
        await stays
        await until(lambda: answers.verdicts)
    assert [ended(store, lease.task_id) for lease in leases] == [
        Result.SUCCESS,
        None,
        Result.SUCCESS,
        Result.SUCCESS,
    ]


async def test_a_drain_writes_what_waits_and_says_what_could_not_be_written() -> None:
    store = open_reference()
    faulty = FaultyStore(store)
    leases = await leased(store, 3)
    async with serving(Settler(faulty)) as settler:
        answers = Answers(settler)
        answers.submit(leases[0])
        assert await settler.drain() == []
        faulty.refuse("settle", times=4)
        answers.submit(leases[1])
        assert await settler.drain() == []
        faulty.down = True
        answers.submit(leases[2])
        before = faulty.faults["settle"]
        assert await settler.drain(seconds=0.1) == [leases[2].task_id]
        assert faulty.faults["settle"] - before >= 5


async def test_a_drain_over_a_store_that_hangs_is_bounded() -> None:
    store = PickyStore()
    store.gate.clear()
    (lease,) = await leased(store, 1)
    async with serving(Settler(store)) as settler:
        Answers(settler).submit(lease)
        watch = Stopwatch()
        assert await settler.drain(bound=0.3) == [lease.task_id]
        assert watch.seconds < 3
        store.gate.set()


async def test_after_the_end_callers_are_refused() -> None:
    settler = Settler(open_reference())
    async with serving(settler):
        await settler.settle([])
    with pytest.raises(StoreUnavailable):
        await settler.settle([Settlement.unfenced(1, Complete())])


async def test_a_caller_cut_off_with_the_loop_is_told() -> None:
    store = PickyStore()
    store.gate.clear()
    leases = await leased(store, 2)
    settler = Settler(store)
    running = asyncio.create_task(settler.run(anyio.Event()))
    calls = [asyncio.create_task(settler.settle([Settlement.held(leases[0], Complete())]))]
    await until(lambda: store.rounds)
    calls.append(asyncio.create_task(settler.settle([Settlement.held(leases[1], Complete())])))
    await anyio.wait_all_tasks_blocked()
    running.cancel()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    await asyncio.gather(running, return_exceptions=True)


async def test_a_bad_line_loses_no_outcome_and_writes_none_twice() -> None:
    """Every third settle is refused, every third acts and its reply is lost."""
    turn = 0

    def plan(method: str) -> Fault | None:
        nonlocal turn
        turn += 1
        return (None, Fault.REFUSE, Fault.LOSE_REPLY)[turn % 3]

    store = open_reference()
    tasks: list[Task] = []
    for number in range(40):
        await enqueue(store, "A")
        tasks += await store.lease(f"qr:test:{number}", 1, 20)
    async with serving(Settler(FaultyStore(store, plan))) as settler:
        answers = Answers(settler)
        for number, task in enumerate(tasks):
            answers.submit(Lease(task.id, f"qr:test:{number}"), Complete(0, [new("Child")]))
            await asyncio.sleep(0)
        await until(lambda: len(answers.verdicts) == 40, seconds=60)
    assert all(ended(store, task.id) is Result.SUCCESS for task in tasks)
    assert len(store.tables.active) == 40

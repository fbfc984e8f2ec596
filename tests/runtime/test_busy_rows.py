"""A row that somebody else has locked holds up its own outcome, and no other."""

import asyncio

import anyio
import pytest

from queue_runtime import settler as module
from queue_runtime.errors import InvalidRequest, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import BUSY_PAUSE, Settler
from queue_runtime.task import Complete, Lease, Result, Settlement, Verdict
from tests.runtime.harness import ended, until
from tests.runtime.settling import REFUSED, Seconds, TroubledStore
from tests.runtime.test_settler import Answers, leased, serving


async def test_an_outcome_waits_for_its_locked_row_while_the_others_are_written() -> None:
    store = TroubledStore()
    first, second, third = await leased(store, 3)
    store.locked = {first.task_id}
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(first)
        answers.submit(second)
        await until(lambda: second.task_id in answers.verdicts and store.busy > 1)
        answers.submit(third)
        await until(lambda: third.task_id in answers.verdicts)
        assert first.task_id not in answers.verdicts
        assert settler.unwritten_ids == [first.task_id]
        store.locked = set()
        await until(lambda: first.task_id in answers.verdicts)
        assert settler.waiting == 0
    assert set(answers.verdicts.values()) == {Verdict.SETTLED}


async def test_a_caller_gets_all_answers_in_order_once_the_locked_row_is_free() -> None:
    store = TroubledStore()
    leases = await leased(store, 3)
    store.locked = {leases[1].task_id}
    round_ = [Settlement.held(lease, Complete()) for lease in leases]
    async with serving(Settler(store)) as settler:
        asking = asyncio.create_task(settler.settle([*round_, round_[1]]))
        await until(lambda: store.busy > 3)
        assert not asking.done()
        store.locked = set()
        verdicts = [settled.verdict for settled in await asking]
    assert verdicts == [Verdict.SETTLED, Verdict.SETTLED, Verdict.SETTLED, Verdict.REPLAYED]


async def test_a_caller_is_told_which_row_stays_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.2)
    store = TroubledStore()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    async with serving(Settler(store)) as settler:
        with pytest.raises(StoreUnavailable, match=f"task {lease.task_id} is locked"):
            await settler.settle([Settlement.held(lease, Complete())])
    assert ended(store, lease.task_id) is None


async def test_a_caller_hears_at_once_when_the_server_closes() -> None:
    """It waits until then: the row may come free while the handlers finish."""
    store, lifecycle = TroubledStore(), Lifecycle()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    async with serving(Settler(store, lifecycle=lifecycle)) as settler:
        asking = asyncio.create_task(settler.settle([Settlement.held(lease, Complete())]))
        lifecycle.stopping.set()
        await until(lambda: store.busy > 2)
        assert not asking.done()
        lifecycle.closing.set()
        with pytest.raises(StoreUnavailable, match=f"task {lease.task_id} is locked"):
            await asking


async def test_a_stop_does_not_wait_for_a_locked_row_and_names_it() -> None:
    store = TroubledStore()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    async with serving(Settler(store)) as settler:
        Answers(settler).submit(lease)
        await until(lambda: store.busy > 0)
        assert await settler.drain(seconds=0.1, bound=0.3) == [lease.task_id]


async def test_an_outcome_found_locked_while_each_is_tried_alone_is_sent_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was due again before the others had been tried, and stood twice in the next round: answers went astray."""
    monkeypatch.setattr(module, "BUSY_PAUSE", 0.0)
    store = TroubledStore()
    leases = await leased(store, 34)
    first, refused, second, third, fourth = leases[0], leases[1], leases[30], leases[31], leases[32]
    foreign = Lease(leases[33].task_id, "qr:other:1")
    store.locked = {first.task_id}
    settler = Settler(store)
    answers = Answers(settler)
    for lease in leases[:30]:
        answers.submit(lease, REFUSED if lease is refused else Complete())
    await settler.round()
    assert len(store.sent) == 1 + 30 + 1  # together, each alone, and the failure in place of the refused one
    store.locked = {second.task_id}
    for lease in (second, third, foreign, fourth):
        answers.submit(lease)
    await settler.round()
    assert sorted(store.sent[-1]) == sorted(lease.task_id for lease in (first, second, third, foreign, fourth))
    assert second.task_id not in answers.verdicts
    store.locked = set()
    await settler.round()
    assert settler.waiting == 0
    assert answers.verdicts.pop(foreign.task_id) is Verdict.LOST
    assert set(answers.verdicts.values()) == {Verdict.SETTLED}
    written = [lease for lease in leases[:33] if lease is not refused]
    assert {ended(store, lease.task_id) for lease in written} == {Result.SUCCESS}
    assert ended(store, foreign.task_id) is None


async def test_a_caller_whose_row_is_locked_waits_for_it_also_where_another_one_of_the_round_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BUSY_PAUSE", 0.0)
    store = TroubledStore()
    leases = await leased(store, 30)
    store.locked = {leases[0].task_id}
    async with serving(Settler(store)) as settler:
        locked, refused, *others = (
            asyncio.create_task(settler.settle([Settlement.held(lease, REFUSED if at == 1 else Complete())]))
            for at, lease in enumerate(leases)
        )
        await asyncio.gather(*others)
        with pytest.raises(InvalidRequest):
            await refused
        await until(lambda: store.busy > 3)
        assert not locked.done()
        store.locked = set()
        (settled,) = await locked
    assert settled.verdict is Verdict.SETTLED


async def test_a_caller_is_answered_in_the_second_round_however_many_rows_are_locked() -> None:
    store, clock = TroubledStore(), Seconds()
    (free,) = await leased(store, 1)
    calls = [await leased(store, 1000) for _ in range(5)]
    outcomes = [await leased(store, 1000) for _ in range(3)]
    store.locked = {lease.task_id for batch in (*calls, *outcomes) for lease in batch}
    settler = Settler(store, bound=10_000, clock=clock)
    answers = Answers(settler)
    for lease in (lease for batch in outcomes for lease in batch):
        answers.submit(lease)
    callers = [
        asyncio.create_task(settler.settle([Settlement.held(lease, Complete()) for lease in batch])) for batch in calls
    ]
    await anyio.wait_all_tasks_blocked()
    for _ in range(20):  # all have been found locked, some more than once
        await settler.round()
        clock.advance(BUSY_PAUSE)
    asking = asyncio.create_task(settler.settle([Settlement.held(free, Complete())]))
    await anyio.wait_all_tasks_blocked()
    for _ in range(2):
        await settler.round()
        clock.advance(BUSY_PAUSE)
    await anyio.wait_all_tasks_blocked()
    assert asking.done()
    (late,) = await leased(store, 1)
    answers.submit(late)
    for _ in range(2):
        await settler.round()
        clock.advance(BUSY_PAUSE)
    assert answers.verdicts == {late.task_id: Verdict.SETTLED}
    store.locked = set()
    while settler.waiting or not all(caller.done() for caller in callers):
        await settler.round()
        clock.advance(BUSY_PAUSE)
    assert len(answers.verdicts) == 3001


async def test_fresh_outcomes_cannot_keep_those_whose_row_was_locked_from_their_turn() -> None:
    store, clock = TroubledStore(), Seconds()
    (first,) = await leased(store, 1)
    store.locked = {first.task_id}
    settler = Settler(store, bound=10_000, clock=clock)
    answers = Answers(settler)
    answers.submit(first)
    await settler.round()
    store.locked = set()
    clock.advance(BUSY_PAUSE)
    for _ in range(2):
        for lease in await leased(store, 1000):
            answers.submit(lease)
        for lease in await leased(store, 1000):
            answers.submit(lease)
        await settler.round()
    assert first.task_id in answers.verdicts


async def test_outcomes_of_one_task_keep_their_order_while_its_row_is_locked() -> None:
    store, clock = TroubledStore(), Seconds()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    settler = Settler(store, clock=clock)
    told: list[int] = []
    for number in range(3):
        settler.submit(Settlement.held(lease, Complete(number)), lambda _, number=number: told.append(number))  # type: ignore[misc]
        await settler.round()
        clock.advance(BUSY_PAUSE / 2)  # so they are due one after the other, and the first ones more often
    assert store.sent == [[lease.task_id]] * 2, "one asks for the row, the others stand behind"
    store.locked = set()
    late = asyncio.create_task(settler.settle([Settlement.held(lease, Complete(9))]))
    await anyio.wait_all_tasks_blocked()
    while settler.waiting or not late.done():
        await settler.round()
        clock.advance(BUSY_PAUSE / 2)
        await anyio.wait_all_tasks_blocked()
    assert told == [0, 1, 2]
    assert store.tables.archived[lease.task_id].duration_us == 0
    assert [settled.verdict for settled in await late] == [Verdict.REPLAYED]


async def test_whoever_stands_first_for_a_locked_row_and_goes_away_holds_up_nobody() -> None:
    store, clock = TroubledStore(), Seconds()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    settler = Settler(store, clock=clock)
    first, second = (asyncio.create_task(settler.settle([Settlement.held(lease, Complete())])) for _ in range(2))
    await anyio.wait_all_tasks_blocked()
    await settler.round()
    first.cancel()
    store.locked = set()
    for _ in range(2):
        clock.advance(BUSY_PAUSE)
        await settler.round()
    assert [settled.verdict for settled in await second] == [Verdict.SETTLED]


async def test_an_outcome_whose_row_is_locked_is_not_being_written() -> None:
    """The lease loop waits for slots to come free while outcomes are being written, and here none does."""
    store, clock = TroubledStore(), Seconds()
    first, second = await leased(store, 2)
    store.locked = {first.task_id}
    settler = Settler(store, clock=clock)
    answers = Answers(settler)
    answers.submit(first)
    await settler.round()
    assert not settler.busy
    answers.submit(second)
    assert settler.busy
    await settler.round()
    clock.advance(BUSY_PAUSE)
    assert not settler.busy
    assert settler.waiting == 1
    store.locked = set()
    await settler.round()
    assert (settler.waiting, settler.busy) == (0, False)


async def test_after_a_crash_an_outcome_whose_row_was_locked_gets_its_last_try() -> None:
    store = TroubledStore()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    settler = Settler(store)
    answers = Answers(settler)
    running = asyncio.create_task(settler.run(anyio.Event()))
    answers.submit(lease)
    await until(lambda: store.busy)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.locked = set()
    assert await settler.drain() == []
    assert answers.verdicts == {lease.task_id: Verdict.SETTLED}

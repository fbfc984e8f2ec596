"""A full store takes no new tasks: outcomes with follow-ups wait for room, and no other outcome waits with them."""

import asyncio
from collections.abc import Sequence

import anyio
import pytest

from queue_runtime.errors import InvalidRequest, StoreFull, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settle_part import brings_tasks
from queue_runtime.settler import Settler
from queue_runtime.task import Complete, Settled, Settlement, Verdict
from tests.runtime.harness import ended, until
from tests.runtime.settling import REFUSED, WITH_CHILD, Seconds, TroubledStore
from tests.runtime.test_settler import Answers, leased, serving

LONG = 6.0
"""Seconds after which every back-off is over."""


def without_room() -> TroubledStore:
    store = TroubledStore()
    store.full = True
    return store


async def test_outcomes_with_followups_wait_for_room_and_the_others_are_written() -> None:
    store = without_room()
    first, second, third = await leased(store, 3)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(first, WITH_CHILD)
        answers.submit(second)  # in one round with it
        await until(lambda: second.task_id in answers.verdicts)
        answers.submit(third)  # and after it
        await until(lambda: third.task_id in answers.verdicts)
        await until(lambda: store.no_room > 2)
        assert settler.unwritten_ids == [first.task_id]
        store.full = False
        await until(lambda: first.task_id in answers.verdicts)
        assert settler.waiting == 0
    assert set(answers.verdicts.values()) == {Verdict.SETTLED}
    assert [row.task_class for row in await store.list_active(9)] == ["Child"]


async def test_a_caller_hears_at_once_that_there_is_no_room_and_others_of_the_round_do_not() -> None:
    store = without_room()
    first, second = await leased(store, 2)
    settler = Settler(store)
    answers = Answers(settler)
    answers.submit(second)  # waits for the first round, with the call
    async with serving(settler):
        with pytest.raises(StoreFull, match="no room"):
            await settler.settle([Settlement.held(first, WITH_CHILD)])
        await until(lambda: second.task_id in answers.verdicts)
    assert ended(store, first.task_id) is None


async def test_a_stop_does_not_wait_for_room_for_ever_and_names_what_waits() -> None:
    store = without_room()
    (lease,) = await leased(store, 1)
    async with serving(Settler(store)) as settler:
        Answers(settler).submit(lease, WITH_CHILD)
        await until(lambda: store.no_room > 0)
        assert await settler.drain(seconds=0.1, bound=0.3) == [lease.task_id]


async def test_a_stop_sends_at_once_what_waits_for_room() -> None:
    store, clock = without_room(), Seconds()
    (lease,) = await leased(store, 1)
    settler = Settler(store, clock=clock)
    answers = Answers(settler)
    answers.submit(lease, WITH_CHILD)
    for _ in range(8):
        await settler.round()
        clock.advance(LONG)
    await settler.round()
    calls = len(store.sent)
    await settler.round()
    assert len(store.sent) == calls, "its next try is seconds away"
    store.full = False
    draining = asyncio.create_task(settler.drain())
    await anyio.wait_all_tasks_blocked()
    await settler.round()
    assert await draining == []
    assert answers.verdicts == {lease.task_id: Verdict.SETTLED}


async def test_after_a_crash_what_waits_for_room_gets_its_last_try() -> None:
    store = without_room()
    leases = await leased(store, 2)
    settler = Settler(store)
    answers = Answers(settler)
    running = asyncio.create_task(settler.run(anyio.Event()))
    for lease in leases:
        answers.submit(lease, WITH_CHILD)
    await until(lambda: store.no_room > 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await settler.drain(seconds=0.2) == [lease.task_id for lease in leases]
    store.full = False
    assert await settler.drain() == []
    assert len(answers.verdicts) == 2


async def test_want_of_room_is_no_outage_either_where_each_is_tried_alone() -> None:
    """Another part was refused, so each was tried alone; the outcome with follow-ups then delayed all the others."""
    store, clock, lifecycle = without_room(), Seconds(), Lifecycle()
    leases = await leased(store, 6)
    settler = Settler(store, lifecycle=lifecycle, clock=clock)
    answers = Answers(settler)
    answers.submit(leases[0], REFUSED)
    answers.submit(leases[2])
    answers.submit(leases[1], WITH_CHILD)  # the last one, so that no answer of another one ends an outage
    needy, refused = (
        asyncio.create_task(settler.settle([settlement]))
        for settlement in (Settlement.held(leases[3], WITH_CHILD), Settlement.held(leases[4], REFUSED))
    )
    await anyio.wait_all_tasks_blocked()
    await settler.round()
    with pytest.raises(StoreFull):
        await needy
    with pytest.raises(InvalidRequest):
        await refused
    assert set(answers.verdicts) == {leases[0].task_id, leases[2].task_id}
    answers.submit(leases[5])
    assert settler.busy
    await settler.round()
    assert leases[5].task_id in answers.verdicts
    assert settler.unwritten_ids == [leases[1].task_id]


async def test_what_waits_for_room_is_not_being_written() -> None:
    """The lease loop waits for slots to come free while outcomes are being written, and here none does for hours."""
    store, clock = without_room(), Seconds()
    (lease,) = await leased(store, 1)
    settler = Settler(store, clock=clock)
    Answers(settler).submit(lease, WITH_CHILD)
    assert settler.busy
    for _ in range(3):
        await settler.round()
        assert not settler.busy
        clock.advance(LONG)
    assert settler.waiting == 1


async def test_one_that_needs_more_room_than_there_is_keeps_none_of_the_others_from_theirs() -> None:
    store, clock = without_room(), Seconds()
    leases = await leased(store, 5)
    huge = leases[0].task_id

    class Nearly(TroubledStore):
        """Has room for all but one of them."""

        async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
            self.full = any(one.task_id == huge and brings_tasks(one) for one in settlements)
            return await super().settle(settlements)

    nearly = Nearly()
    nearly.tables = store.tables
    settler = Settler(nearly, clock=clock)
    answers = Answers(settler)
    for lease in leases:
        answers.submit(lease, WITH_CHILD)
    for _ in range(40):
        await settler.round()
        clock.advance(LONG)
    assert set(answers.verdicts) == {lease.task_id for lease in leases[1:]}


async def test_readiness_is_green_again_when_nobody_waits_for_room_any_more() -> None:
    store, clock, lifecycle = without_room(), Seconds(), Lifecycle()
    (lease,) = await leased(store, 1)
    settler = Settler(store, lifecycle=lifecycle, clock=clock)
    settler._room._red_after = 0.0
    answers = Answers(settler)
    answers.submit(lease, WITH_CHILD)
    await settler.round()
    assert "follow-ups" in lifecycle.faults
    await store.cancel([lease.task_id])
    store.full = False
    clock.advance(LONG)
    await settler.round()
    assert answers.verdicts == {lease.task_id: Verdict.LOST}
    assert not lifecycle.faults


async def test_an_outage_that_the_others_of_the_round_meet_changes_nothing_for_those_without_room() -> None:
    class AwayForOthers(TroubledStore):
        async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
            if not any(brings_tasks(one) for one in settlements):
                raise StoreUnavailable("settle", "away")
            return await super().settle(settlements)

    store = AwayForOthers()
    store.full = True
    first, second = await leased(store, 2)
    settler = Settler(store, clock=Seconds())
    needy, other = (
        asyncio.create_task(settler.settle([settlement]))
        for settlement in (Settlement.held(first, WITH_CHILD), Settlement.held(second, Complete()))
    )
    await anyio.wait_all_tasks_blocked()
    await settler.round()
    with pytest.raises(StoreFull):
        await needy
    with pytest.raises(StoreUnavailable, match="away"):
        await other

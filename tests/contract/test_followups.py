"""Follow-ups: created with the end of their parent, in one step."""

import asyncio

import pytest

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Routes, Store
from queue_runtime.task import (
    MAX_FOLLOWUP_BYTES,
    MAX_FOLLOWUPS,
    MAX_LIST,
    Complete,
    NewTask,
    Retry,
    Settlement,
    Unknown,
    Yield,
)
from tests.clock import Clock
from tests.contract.steps import (
    LOST,
    SETTLED,
    everything,
    held,
    row,
    settle,
    take_new,
)

CHILD = NewTask(task_class="Child")


async def test_follow_ups_are_created_with_the_end_of_their_parent(store: Store, clock: Clock) -> None:
    task = await take_new(store, priority=1500)
    clock.advance(3)
    full = NewTask(
        task_class="Full",
        data="[]",
        priority=4000,
        object_phid="O",
        container_phid="C",
        delay_until=clock.now + 5,
        queue="q",
        idempotency_key="k",
        max_attempts=2,
    )
    await settle(store, held(task), Complete(followups=[CHILD, full]))

    first, second = await store.list_active(9)
    assert (first.task_class, first.priority, first.lease_owner) == ("Child", 1500, None)
    assert (first.date_created, first.date_modified) == (clock.now, clock.now)
    assert (second.task_class, second.priority, second.object_phid, second.container_phid) == ("Full", 4000, "O", "C")
    assert (second.lease_owner, second.lease_expires) == ("(delay)", clock.now + 5)
    assert (second.queue, second.idempotency_key, second.max_attempts) == ("q", "k", 2)
    assert task.id < first.id < second.id
    assert (await row(store, second.id)).data == "[]"


async def test_a_follow_up_keeps_priority_zero_and_its_own_priority(store: Store) -> None:
    task = await take_new(store, priority=1500)
    await settle(store, held(task), Complete(followups=[NewTask(task_class="C", priority=p) for p in (0, 9, None)]))
    assert [one.priority for one in await store.list_active(9)] == [0, 9, 1500]


async def test_the_parents_priority_is_the_one_it_has_now(store: Store) -> None:
    task = await take_new(store, priority=1500)
    await store.priority([task.id], 7)
    await settle(store, held(task), Complete(followups=[CHILD]))
    assert [one.priority for one in await store.list_active(9)] == [7]


@pytest.mark.options(routes=Routes((("Child", "routed"),)))
async def test_a_follow_up_is_routed_by_its_own_class(store: Store) -> None:
    task = await take_new(store, queue="parents")
    await settle(store, held(task), Complete(followups=[CHILD, NewTask(task_class="Other")]))
    assert [one.queue for one in await store.list_active(9)] == ["routed", "default"]


async def test_a_loser_creates_no_follow_ups(store: Store) -> None:
    """R097"""
    task = await take_new(store)
    await store.free([task.id])
    assert (await settle(store, held(task), Complete(followups=[CHILD]))).verdict is LOST
    assert [one.id for one in await store.list_active(9)] == [task.id]


async def test_thousands_of_follow_ups_are_one_step_and_keep_their_order(store: Store) -> None:
    task = await take_new(store)
    children = [NewTask(task_class=f"C{number}") for number in range(MAX_LIST)]
    await settle(store, held(task), Complete(followups=children))
    assert [one.task_class for one in await store.list_active(MAX_LIST)] == [one.task_class for one in children]


async def test_as_many_follow_ups_as_there_may_be_are_stored(store: Store) -> None:
    task = await take_new(store)
    child = NewTask(task_class="C" * 64, object_phid="P" * 64, container_phid="P" * 64)
    await settle(store, held(task), Complete(followups=[child] * MAX_FOLLOWUPS))
    assert (await store.stats()).active == MAX_FOLLOWUPS


@pytest.mark.parametrize(
    "too_many",
    [
        pytest.param([CHILD] * (MAX_FOLLOWUPS + 1), id="tasks"),
        pytest.param([NewTask(task_class="Child", data="x" * (MAX_FOLLOWUP_BYTES // 2 + 1))] * 2, id="bytes"),
    ],
)
async def test_too_many_follow_ups_and_nothing_of_the_round_happens(store: Store, too_many: list[NewTask]) -> None:
    good, bad = await take_new(store), await take_new(store)
    before = await everything(store)
    with pytest.raises(InvalidRequest):
        await store.settle(
            [Settlement.held(held(good), Complete()), Settlement.held(held(bad), Complete(followups=too_many))]
        )
    assert await everything(store) == before
    assert (await settle(store, held(good), Complete())).verdict is SETTLED


@pytest.mark.parametrize(
    "bad", [Complete(duration_us=-1), Complete(duration_us=2**63), Retry(wait=-1), Yield(wait=-1), Unknown(wait=2**32)]
)
async def test_an_outcome_outside_the_bounds_is_refused_and_nothing_of_the_round_happens(
    store: Store, bad: Complete | Retry | Yield | Unknown
) -> None:
    good, other = await take_new(store), await take_new(store)
    before = await everything(store)
    with pytest.raises(InvalidRequest):
        await store.settle([Settlement.held(held(good), Complete()), Settlement.held(held(other), bad)])
    assert await everything(store) == before


async def test_a_reader_sees_the_parent_or_the_children_and_never_both_or_none(store: Store) -> None:
    for _ in range(20):
        task = await take_new(store)
        shown, _ = await asyncio.gather(
            store.list_active(9), settle(store, held(task), Complete(followups=[CHILD, CHILD]))
        )
        assert [one.task_class for one in shown] in (["Plain"], ["Child", "Child"])
        await store.cancel([one.id for one in await store.list_active(9)])


async def test_the_follow_ups_of_a_round_are_told_apart_by_their_parents(store: Store) -> None:
    first, second = await take_new(store, priority=10), await take_new(store, priority=20)
    await store.settle(
        [
            Settlement.held(held(second), Complete(followups=[NewTask(task_class="OfSecond")] * 2)),
            Settlement.held(held(first), Complete(followups=[NewTask(task_class="OfFirst")])),
        ]
    )
    shown = [(one.task_class, one.priority) for one in await store.list_active(9)]
    assert shown == [("OfFirst", 10), ("OfSecond", 20), ("OfSecond", 20)]

"""Settling many at once: order, replays, losers, follow-ups (ARCHITECTURE rule 11)."""

import asyncio

import pytest

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Routes, Store
from queue_runtime.task import (
    Complete,
    Fail,
    Lease,
    NewTask,
    Release,
    Result,
    Retry,
    Settlement,
    Unknown,
    Yield,
)
from tests.clock import Clock
from tests.contract.steps import (
    ENDS,
    GIVES_BACK,
    HTTP,
    LOST,
    OUTCOMES,
    REPLAYED,
    SETTLED,
    add,
    add_plain,
    ended,
    errors,
    everything,
    held,
    receipt,
    row,
    settle,
    take_new,
    verdicts,
    worker,
)

CHILD = NewTask(task_class="Child")


async def test_nothing_to_settle_is_fine(store: Store) -> None:
    assert await store.settle([]) == []


async def test_answers_come_in_the_order_of_the_round(store: Store) -> None:
    tasks = [await take_new(store) for _ in range(6)]
    ends = {task.id: outcome for task, outcome in zip(tasks, OUTCOMES.values(), strict=True)}
    backwards = [Settlement.held(held(task), ends[task.id]) for task in reversed(tasks)]
    settled = await store.settle(backwards)
    assert [one.verdict for one in settled] == [SETTLED] * 6
    archived = [one.archived.id if one.archived else None for one in settled]
    assert archived == [None, None, None, None, tasks[1].id, tasks[0].id]


@pytest.mark.parametrize("kind", ENDS)
async def test_the_same_end_twice_is_settled_then_replayed(store: Store, kind: str) -> None:
    """R098: in one round or in two, with the same answer."""
    task = await take_new(store)
    once = Settlement.held(held(task), OUTCOMES[kind])
    first, second = await store.settle([once, once])
    assert (first.verdict, second.verdict) == (SETTLED, REPLAYED)
    (third,) = await store.settle([once])
    assert third.verdict is REPLAYED
    assert first.archived == second.archived == third.archived
    assert first.archived is not None


@pytest.mark.parametrize("kind", GIVES_BACK)
async def test_the_same_giving_back_twice_is_settled_then_lost(store: Store, kind: str) -> None:
    task = await take_new(store)
    once = Settlement.held(held(task), OUTCOMES[kind])
    assert await verdicts(store, once, once) == [SETTLED, LOST]
    before = await everything(store)
    assert await verdicts(store, once) == [LOST]
    assert await everything(store) == before


async def test_a_later_item_sees_the_earlier_ones(store: Store) -> None:
    task = await take_new(store)
    fence = held(task)
    round_ = [Settlement.held(fence, outcome) for outcome in (Retry(), Complete(), Retry())]
    assert await verdicts(store, *round_) == [SETTLED, LOST, LOST]
    assert (await row(store, task.id)).failure_count == 1

    other = held(await take_new(store))
    round_ = [Settlement.held(other, outcome) for outcome in (Complete(), Fail(), Release())]
    assert await verdicts(store, *round_) == [SETTLED, LOST, LOST]


async def test_a_loser_does_not_abort_the_round(store: Store) -> None:
    first, lost, last = [await take_new(store) for _ in range(3)]
    await store.free([lost.id])
    round_ = [Settlement.held(held(task), Complete()) for task in (first, lost, last)]
    assert await verdicts(store, *round_) == [SETTLED, LOST, SETTLED]
    assert (await ended(store, first.id)).result is Result.SUCCESS
    assert (await ended(store, last.id)).result is Result.SUCCESS
    assert (await row(store, lost.id)).lease_owner is None


# ---- replays


@pytest.mark.parametrize(("written", "asked"), [("complete", "fail"), ("fail", "complete"), ("complete", "release")])
async def test_another_outcome_than_the_one_written_is_lost(store: Store, written: str, asked: str) -> None:
    task = await take_new(store)
    await settle(store, held(task), OUTCOMES[written])
    assert (await settle(store, held(task), OUTCOMES[asked])).verdict is LOST


@pytest.mark.parametrize("kind", ENDS)
async def test_only_the_holder_who_ended_it_is_answered_with_a_replay(store: Store, kind: str) -> None:
    task = await take_new(store, HTTP)
    assert task.lease_expires is not None
    await settle(store, receipt(task), OUTCOMES[kind])
    strangers = [
        Lease(task.id, "web2:1"),
        Lease(task.id, "web2:1", task.lease_expires),
        Lease(task.id, HTTP, task.lease_expires + 1),
        Lease(task.id, HTTP, task.lease_expires - 1),
        Lease(task.id + 1, HTTP, task.lease_expires),
    ]
    assert await verdicts(store, *[Settlement.held(one, OUTCOMES[kind]) for one in strangers]) == [LOST] * 5
    assert (await settle(store, receipt(task), OUTCOMES[kind])).verdict is REPLAYED
    assert (await settle(store, held(task), OUTCOMES[kind])).verdict is REPLAYED


async def test_a_receipt_is_replayed_however_late(store: Store, clock: Clock) -> None:
    task = await take_new(store, HTTP, seconds=60)
    await settle(store, receipt(task), Complete())
    clock.advance(100_000)
    assert (await settle(store, receipt(task), Complete())).verdict is REPLAYED


@pytest.mark.parametrize("kind", ENDS)
async def test_a_cancelled_task_replays_nothing(store: Store, kind: str) -> None:
    """R010"""
    task = await take_new(store)
    await store.cancel([task.id])
    assert (await settle(store, held(task), OUTCOMES[kind])).verdict is LOST
    assert (await ended(store, task.id)).result is Result.CANCELLED


async def test_a_task_brought_back_replays_nothing(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Complete())
    await store.retry([task.id], repeat=True)
    assert (await settle(store, held(task), Complete())).verdict is LOST
    assert await store.get_archived([task.id]) == [None]


@pytest.mark.options(retention=100)
async def test_after_its_retention_a_replay_is_lost_and_creates_nothing(store: Store, clock: Clock) -> None:
    """R098"""
    task = await take_new(store)
    await settle(store, held(task), Complete())
    clock.advance(101)
    await store.sweep(100)
    assert (await settle(store, held(task), Complete(followups=[CHILD]))).verdict is LOST
    assert await everything(store) == ([], [], [])


async def test_a_replay_creates_no_follow_ups_whatever_its_body_says(store: Store) -> None:
    """R098, R097"""
    task = await take_new(store)
    await settle(store, held(task), Complete(followups=[CHILD]))
    for followups in ([CHILD], [CHILD, CHILD], []):
        settled = await settle(store, held(task), Complete(duration_us=9, followups=followups))
        assert settled.verdict is REPLAYED
        assert settled.archived is not None
        assert settled.archived.duration_us == 0
    assert len(await store.list_active(9)) == 1


# ---- follow-ups


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


async def test_a_thousand_follow_ups_are_one_step_and_keep_their_order(store: Store) -> None:
    task = await take_new(store)
    children = [NewTask(task_class=f"C{number}") for number in range(1000)]
    await settle(store, held(task), Complete(followups=children))
    assert [one.task_class for one in await store.list_active(2000)] == [one.task_class for one in children]


async def test_one_follow_up_too_many_and_nothing_of_the_round_happens(store: Store) -> None:
    good, bad = await take_new(store), await take_new(store)
    before = await everything(store)
    with pytest.raises(InvalidRequest):
        await store.settle(
            [Settlement.held(held(good), Complete()), Settlement.held(held(bad), Complete(followups=[CHILD] * 1001))]
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


# ---- large rounds


async def test_a_thousand_mixed_outcomes_are_one_round(store: Store) -> None:
    await add_plain(store, 1000)
    tasks = await store.lease(worker(), 1000, 600)
    await store.free([task.id for task in tasks[6::7]])
    kinds = [(*OUTCOMES, "lost")[number % 7] for number in range(1000)]
    outcomes = {"lost": Complete(), **OUTCOMES}
    settled = await store.settle(
        [Settlement.held(held(task), outcomes[kind]) for task, kind in zip(tasks, kinds, strict=True)]
    )

    assert [one.verdict for one in settled] == [LOST if kind == "lost" else SETTLED for kind in kinds]
    for task, kind, one in zip(tasks, kinds, settled, strict=True):
        assert (one.archived.id if one.archived else None) == (task.id if kind in ENDS else None)
    stats = await store.stats()
    assert (stats.archived, stats.active) == (kinds.count("complete") + kinds.count("fail"), 1000 - stats.archived)
    assert stats.failed == kinds.count("retry")


async def test_several_owners_settle_in_one_round(store: Store) -> None:
    tasks = [await take_new(store, owner) for owner in (worker(), worker(), HTTP, "web2:1")]
    fences = [held(tasks[0]), held(tasks[1]), receipt(tasks[2]), receipt(tasks[3])]
    assert await verdicts(store, *[Settlement.held(fence, Complete()) for fence in fences]) == [SETTLED] * 4


async def test_fenced_and_unfenced_outcomes_share_a_round(store: Store) -> None:
    task = await take_new(store)
    (free,) = await add(store, CHILD)
    round_ = [
        Settlement.unfenced(task.id, Retry()),
        Settlement.held(held(task), Complete()),
        Settlement.unfenced(free, Complete()),
        Settlement.unfenced(task.id, Fail()),
    ]
    assert await verdicts(store, *round_) == [SETTLED, LOST, SETTLED, SETTLED]
    assert [one.kind for one in await errors(store, task.id)] == ["retry", "failure"]

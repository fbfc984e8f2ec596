"""Settling many at once: order, replays, losers, follow-ups (docs/architecture.md, rule 11)."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import (
    Complete,
    Fail,
    NewTask,
    Release,
    Result,
    Retry,
    Settlement,
)
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

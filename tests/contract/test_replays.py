"""An end that is reported again: whose, how late, and with what."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import (
    Complete,
    Lease,
    NewTask,
    Result,
    Settlement,
)
from tests.clock import Clock
from tests.contract.steps import (
    ENDS,
    HTTP,
    LOST,
    OUTCOMES,
    REPLAYED,
    ended,
    everything,
    held,
    receipt,
    settle,
    take_new,
    verdicts,
)

CHILD = NewTask(task_class="Child")


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

"""Events: an event id is delivered once, and answered the same for ever (docs/protocol.md)."""

import asyncio

import pytest

from queue_runtime.errors import EventConflict, InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import Complete, NewTask
from tests.clock import Clock
from tests.contract.steps import everything, held, settle, take

TASK = NewTask(task_class="Feed", data='{"a":1}')


async def test_the_same_event_twice_is_one_task_and_one_answer(store: Store) -> None:
    """R095: a caller that heard nothing may ask again."""
    first = await store.enqueue_once("event-1", TASK)
    assert first.data is None
    assert await store.enqueue_once("event-1", TASK) == first
    assert (await store.stats()).active == 1


async def test_fifty_deliveries_at_once_make_one_task(store: Store) -> None:
    """R095"""
    rows = await asyncio.gather(*[store.enqueue_once("event-1", TASK) for _ in range(50)])
    assert len({row.id for row in rows}) == 1
    assert (await store.stats()).active == 1


@pytest.mark.parametrize(
    "other",
    [
        NewTask(task_class="Feed", data='{"a":2}'),
        NewTask(task_class="Mail", data='{"a":1}'),
        NewTask(task_class="Feed", data='{"a":1}', priority=0),
        NewTask(task_class="Feed", data='{"a":1}', object_phid="PHID-1"),
        NewTask(task_class="Feed", data='{"a":1}', container_phid="PHID-1"),
        NewTask(task_class="Feed", data='{"a":1}', delay_until=5),
        NewTask(task_class="Feed", data='{"a":1}', queue="high"),
        NewTask(task_class="Feed", data='{"a":1}', idempotency_key="k"),
        NewTask(task_class="Feed", data='{"a":1}', max_attempts=2),
    ],
)
async def test_the_same_event_with_another_task_is_a_conflict_and_changes_nothing(store: Store, other: NewTask) -> None:
    """R095"""
    first = await store.enqueue_once("event-1", TASK)
    before = await everything(store)
    with pytest.raises(EventConflict):
        await store.enqueue_once("event-1", other)

    assert await everything(store) == before
    assert await store.enqueue_once("event-1", TASK) == first


@pytest.mark.options(retention=10)
async def test_the_answer_stays_when_the_task_has_run_and_when_it_is_gone(store: Store, clock: Clock) -> None:
    first = await store.enqueue_once("event-1", TASK)
    task = await take(store)
    assert await store.enqueue_once("event-1", TASK) == first
    await settle(store, held(task), Complete())
    assert await store.enqueue_once("event-1", TASK) == first

    clock.advance(11)
    await store.sweep(100)
    assert await store.get_archived([first.id]) == [None]
    assert await store.enqueue_once("event-1", TASK) == first
    with pytest.raises(EventConflict):
        await store.enqueue_once("event-1", NewTask(task_class="Other"))
    assert (await store.stats()).active == 0


async def test_two_events_with_the_same_task_are_two_tasks(store: Store) -> None:
    first = await store.enqueue_once("event-1", TASK)
    second = await store.enqueue_once("Event-1", TASK)
    assert first.id != second.id


async def test_an_event_whose_task_has_a_known_key_answers_the_first_task(store: Store) -> None:
    keyed = NewTask(task_class="Feed", idempotency_key="k")
    (first,) = await store.enqueue([NewTask(task_class="First", idempotency_key="k")])
    assert await store.enqueue_once("event-1", keyed) == first
    assert await store.enqueue_once("event-1", keyed) == first
    assert (await store.stats()).active == 1


@pytest.mark.parametrize("event_id", ["", "x" * 129, "\u00e9" * 65, "a\0b", "\udcff"])
async def test_an_event_id_outside_the_bounds_is_refused(store: Store, event_id: str) -> None:
    with pytest.raises(InvalidRequest):
        await store.enqueue_once(event_id, TASK)
    assert (await store.stats()).active == 0


@pytest.mark.parametrize("event_id", ["x", "x" * 128, "\u00e9" * 64, "it's 100 % \u2028"])
async def test_an_event_id_inside_the_bounds_is_taken_as_it_is(store: Store, event_id: str) -> None:
    first = await store.enqueue_once(event_id, TASK)
    assert await store.enqueue_once(event_id, TASK) == first

"""Idempotency keys: a known key answers its first task."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import Complete, Fail, NewTask, Settlement
from tests.clock import Clock
from tests.contract.steps import add, ended, held, settle, take

KEYED = NewTask(task_class="First", idempotency_key="order-7")
AGAIN = NewTask(task_class="Second", data="other", priority=1, idempotency_key="order-7")


async def test_a_known_key_answers_the_first_task_and_creates_nothing(store: Store) -> None:
    (first,) = await store.enqueue([KEYED])
    assert await store.enqueue([AGAIN]) == [first]
    assert (await store.stats()).active == 1


async def test_a_key_counts_within_one_call_too(store: Store) -> None:
    first, second, other = await store.enqueue([KEYED, AGAIN, NewTask(task_class="Other")])
    assert first == second
    assert other.id != first.id
    assert (await store.stats()).active == 2


async def test_a_known_key_does_not_stop_the_rest_of_its_call(store: Store) -> None:
    (first,) = await store.enqueue([KEYED])
    before, known, after = await store.enqueue([NewTask(task_class="A"), AGAIN, NewTask(task_class="B")])
    assert known == first
    assert (before.task_class, after.task_class) == ("A", "B")
    assert (await store.stats()).active == 3


async def test_the_answer_is_the_row_as_it_was_then(store: Store, clock: Clock) -> None:
    (first,) = await store.enqueue([KEYED])
    await store.priority([first.id], 1)
    clock.advance(5)
    task = await take(store)
    assert await store.enqueue([AGAIN]) == [first]

    await settle(store, held(task), Complete())
    assert await store.enqueue([AGAIN]) == [first]
    assert (await store.stats()).active == 0


async def test_the_key_of_a_delayed_task_answers_its_delay(store: Store, clock: Clock) -> None:
    (first,) = await store.enqueue([NewTask(task_class="A", idempotency_key="k", delay_until=clock.now + 60)])
    assert await store.enqueue([NewTask(task_class="A", idempotency_key="k")]) == [first]
    assert first.lease_owner == "(delay)"


async def test_keys_are_compared_exactly(store: Store) -> None:
    keys = ["k", "K", "k ", " k", "ke\u0301", "k\u00e9", "%", "_", "'", "\U0001f642"]
    ids = await add(store, *[NewTask(task_class="A", idempotency_key=key) for key in keys])
    assert len(set(ids)) == len(keys)
    assert await add(store, *[NewTask(task_class="A", idempotency_key=key) for key in keys]) == ids


async def test_a_task_without_a_key_is_always_new(store: Store) -> None:
    ids = await add(store, *[NewTask(task_class="A")] * 3)
    assert len(set(ids)) == 3


async def test_a_follow_up_with_a_known_key_creates_nothing(store: Store) -> None:
    (first,) = await store.enqueue([KEYED])
    (parent,) = await add(store, NewTask(task_class="Parent"))
    task = await take(store, only=parent)
    await settle(store, held(task), Complete(followups=[AGAIN, NewTask(task_class="Child", idempotency_key="c")]))

    assert sorted(one.task_class for one in await store.list_active(9)) == ["Child", "First"]
    assert await store.enqueue([AGAIN]) == [first]


async def test_the_key_of_a_follow_up_is_known_afterwards(store: Store) -> None:
    (parent,) = await add(store, NewTask(task_class="Parent"))
    task = await take(store, only=parent)
    await settle(store, held(task), Complete(followups=[NewTask(task_class="Child", idempotency_key="c")]))
    (child,) = await store.list_active(9)

    assert await store.enqueue([NewTask(task_class="Again", idempotency_key="c")]) == [child]


async def test_a_key_survives_failure_and_retry(store: Store) -> None:
    (first,) = await store.enqueue([KEYED])
    await settle(store, held(await take(store)), Fail())
    await store.retry([first.id])
    assert await store.enqueue([AGAIN]) == [first]
    assert (await store.stats()).active == 1


@pytest.mark.options(retention=100)
async def test_a_key_is_forgotten_when_the_retention_of_its_task_ends(store: Store, clock: Clock) -> None:
    """R016: a key never refuses new work for ever."""
    (first,) = await store.enqueue([KEYED])
    clock.advance(1000)
    await settle(store, held(await take(store)), Complete())
    clock.advance(99)
    await store.sweep(100)
    assert await store.enqueue([AGAIN]) == [first]

    clock.advance(1)
    await store.sweep(100)
    (second,) = await store.enqueue([AGAIN])
    assert second.id > first.id
    assert second.task_class == "Second"


@pytest.mark.options(retention=100)
async def test_the_key_of_a_cancelled_task_is_forgotten_too(store: Store, clock: Clock) -> None:
    (first,) = await add(store, KEYED)
    await store.cancel([first])
    clock.advance(100)
    await store.sweep(100)
    assert await add(store, AGAIN) != [first]


async def test_a_replayed_outcome_does_not_touch_keys(store: Store) -> None:
    (parent,) = await add(store, NewTask(task_class="Parent", idempotency_key="p"))
    fence = held(await take(store))
    await settle(store, fence, Complete())
    await store.settle([Settlement.held(fence, Complete(followups=[NewTask(task_class="C", idempotency_key="c")]))])

    assert (await ended(store, parent)).idempotency_key == "p"
    (new,) = await store.enqueue([NewTask(task_class="New", idempotency_key="c")])
    assert new.task_class == "New"

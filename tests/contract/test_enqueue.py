"""Adding tasks."""

import asyncio

import pytest

from queue_runtime.store import Routes, Store
from queue_runtime.task import U32, Complete, NewTask, Task
from tests.clock import Clock
from tests.contract.steps import add, add_plain, ended, held, row, settle, take, take_new


async def test_a_new_task_has_phorges_defaults(store: Store, clock: Clock) -> None:
    (task,) = await store.enqueue([NewTask(task_class="Plain", data="{}")])

    assert task == Task(
        id=task.id,
        task_class="Plain",
        data_id=task.data_id,
        priority=2000,
        date_created=clock.now,
        date_modified=clock.now,
    )
    assert task.id > 0
    assert task.data_id > 0


async def test_rows_come_back_in_the_order_of_the_call_with_rising_ids(store: Store) -> None:
    rows = await store.enqueue([NewTask(task_class=f"C{number}", priority=9 - number) for number in range(9)])

    assert [row.task_class for row in rows] == [f"C{number}" for number in range(9)]
    assert [row.id for row in rows] == sorted({row.id for row in rows})


async def test_the_reply_of_an_enqueue_has_no_payload_but_the_row_has_it_at_once(store: Store) -> None:
    """R061, R099: a row is never seen without its data."""
    (task,) = await store.enqueue([NewTask(task_class="Plain", data='{"a":1}')])

    assert task.data is None
    assert (await row(store, task.id)).data == '{"a":1}'


async def test_every_option_is_kept(store: Store, clock: Clock) -> None:
    new = NewTask(
        task_class="Full",
        data="x",
        priority=4000,
        object_phid="PHID-TASK-abc",
        container_phid="PHID-REPO-def",
        delay_until=clock.now + 9,
        queue="search",
        idempotency_key="k1",
        max_attempts=3,
    )
    (task,) = await store.enqueue([new])

    found = await row(store, task.id)
    assert found == Task(
        id=task.id,
        task_class="Full",
        data_id=task.data_id,
        priority=4000,
        date_created=clock.now,
        date_modified=clock.now,
        lease_owner="(delay)",
        lease_expires=clock.now + 9,
        object_phid="PHID-TASK-abc",
        container_phid="PHID-REPO-def",
        queue="search",
        idempotency_key="k1",
        max_attempts=3,
        data="x",
    )


async def test_every_option_survives_a_lease_and_the_archive(store: Store) -> None:
    task = await take_new(
        store, data="x", priority=7, object_phid="O", container_phid="C", queue="q", idempotency_key="k", max_attempts=3
    )
    await settle(store, held(task), Complete(duration_us=5))

    found = await ended(store, task.id)
    assert (found.task_class, found.data_id, found.data, found.priority) == ("Plain", task.data_id, "x", 7)
    assert (found.object_phid, found.container_phid, found.queue) == ("O", "C", "q")
    assert (found.idempotency_key, found.max_attempts, found.date_created) == ("k", 3, task.date_created)


@pytest.mark.parametrize("priority", [0, 1, 2**31 - 1, 2**31, U32])
async def test_a_priority_is_kept_to_the_last_digit(store: Store, priority: int) -> None:
    (task,) = await store.enqueue([NewTask(task_class="Plain", priority=priority)])
    assert task.priority == (await row(store, task.id)).priority == priority


@pytest.mark.parametrize("until", [1, 1_600_000_000, U32])
async def test_a_delay_is_stored_as_it_was_given_even_when_past(store: Store, until: int) -> None:
    (task,) = await store.enqueue([NewTask(task_class="Plain", delay_until=until)])
    assert (task.lease_owner, task.lease_expires) == ("(delay)", until)


@pytest.mark.options(routes=Routes((("Mail*", "high"), ("*IndexWorker", "search"), ("MailIndexWorker", "never"))))
async def test_a_task_without_a_queue_is_routed_by_its_class_and_the_first_pattern_wins(store: Store) -> None:
    classes = ["MailWorker", "XIndexWorker", "MailIndexWorker", "mailWorker", "Other"]
    rows = await store.enqueue([NewTask(task_class=name) for name in classes])
    assert [row.queue for row in rows] == ["high", "search", "high", "default", "default"]


@pytest.mark.options(routes=Routes((("*", "routed"),)))
async def test_a_queue_of_its_own_wins_over_the_route(store: Store) -> None:
    (task,) = await store.enqueue([NewTask(task_class="Mail", queue="mine")])
    assert task.queue == (await row(store, task.id)).queue == "mine"


async def test_nothing_to_enqueue_is_fine(store: Store) -> None:
    assert await store.enqueue([]) == []
    assert (await store.stats()).active == 0


async def test_a_thousand_tasks_are_one_round_with_rising_ids(store: Store) -> None:
    ids = await add_plain(store, 1000)
    assert ids == sorted(set(ids))
    assert len(ids) == 1000
    assert (await store.stats()).active == 1000


async def test_later_calls_draw_later_ids(store: Store) -> None:
    """FIFO across calls: no reserve of ids is kept back."""
    first = await add_plain(store, 3)
    second = await add_plain(store, 2)
    assert max(first) < min(second)
    assert (await take(store)).id == first[0]


async def test_a_hundred_callers_at_once_each_get_their_own_rows(store: Store) -> None:
    """R043, R061: an answer never belongs to somebody else, and is readable at once."""

    async def call(number: int) -> None:
        (task_id,) = await add(store, NewTask(task_class=f"C{number}", data=str(number)))
        found = await row(store, task_id)
        assert (found.task_class, found.data) == (f"C{number}", str(number))

    await asyncio.gather(*[call(number) for number in range(100)])
    assert (await store.stats()).active == 100

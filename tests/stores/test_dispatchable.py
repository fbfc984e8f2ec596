"""What the records tell a dispatch: exactly the tasks that a lease would take, page by page, and cheaply."""

from collections.abc import AsyncIterator
from typing import cast

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Pause, PauseKind
from stores.dispatchable import Candidate, Due, Named, Ready, Record, Which, Young
from tests.backends import STORES, Opened, Place
from tests.clock import Clock
from tests.stores.streams_house import worker


@pytest.fixture(params=["sqlite", "mysql"])
async def opened(request: pytest.FixtureRequest, place: Place, clock: Clock) -> AsyncIterator[Opened]:
    async with STORES[request.param](place, StoreOptions(now=clock, patience=4)) as opened:
        yield opened


@pytest.fixture
def record(opened: Opened) -> Record:
    return cast(Record, opened.store)


async def all_pages(record: Record, which: Which, limit: int = 1000) -> list[Candidate]:
    """Every page, from the first on."""
    found: list[Candidate] = []
    following: Which | None = which
    while following is not None:
        page = await record.dispatchable(following, limit)
        assert len(page.tasks) <= limit
        found += page.tasks
        following = page.next
    return found


async def fill(opened: Opened, clock: Clock) -> list[int]:
    """Rows in every state there is; their ids."""
    store, now = opened.store, clock.now
    new = [
        *[NewTask(task_class="A", priority=priority) for priority in (5, 1, 5, 2)],
        NewTask(task_class="B", queue="q"),
        *[NewTask(task_class="A", delay_until=now + wait) for wait in (1, 2, 50)],
    ]
    ids = [row.id for row in await store.enqueue(new)]
    more = [row.id for row in await store.enqueue([NewTask(task_class="A")] * 9)]
    await store.lease("web1:1", 1, 5, only=more[:1])
    await store.lease(worker(), 1, 5, only=more[1:2])
    for row, owner, expires in (
        (more[2], "gorge-failure-pending", 1),
        (more[3], "(yield)", now + 3),
        (more[4], None, 0),
        (more[5], "23:5:web1:2", now - 100),
        (more[6], "qr:1:1:1@h", now + 1),
        (more[7], "somebody", None),
    ):
        await opened.plant(row, owner, expires)
    await store.cancel(more[8:])
    return [*ids, *more]


@pytest.mark.parametrize("wait", [0, 1, 2, 4, 6, 7, 9, 10, 11, 60])
@pytest.mark.parametrize("limit", [1, 2, 1000])
async def test_they_are_what_a_lease_would_take(
    opened: Opened, record: Record, clock: Clock, wait: int, limit: int
) -> None:
    ids = await fill(opened, clock)
    clock.advance(wait)
    found = await all_pages(record, Ready(), limit) + await all_pages(record, Due(), limit)
    named = await all_pages(record, Named(ids))
    wanted = await record.lease("web2:2", 1000, 60)
    assert sorted(one.id for one in found) == sorted(task.id for task in wanted)
    assert sorted(named) == sorted(found)
    assert {(one.id, one.task_class, one.queue, one.priority) for one in found} == {
        (task.id, task.task_class, task.queue, task.priority) for task in wanted
    }


async def test_each_kind_comes_in_its_order(opened: Opened, record: Record, clock: Clock) -> None:
    ids = await fill(opened, clock)
    clock.advance(100)
    ready, due = await all_pages(record, Ready(), 2), await all_pages(record, Due(), 2)
    assert [(one.priority, one.id) for one in ready] == sorted((one.priority, one.id) for one in ready)
    assert [(one.expires, one.id) for one in due] == sorted((one.expires or 0, one.id) for one in due)
    assert [one.id for one in await all_pages(record, Young(ids[1]), 2)] == ids[2:5]
    assert {one.expires for one in ready} == {None}


@pytest.mark.parametrize(
    ("pause", "left"),
    [(Pause(PauseKind.CLASS, "A"), {"B"}), (Pause(PauseKind.QUEUE, "q"), {"A"}), (Pause(PauseKind.ALL), set[str]())],
)
async def test_paused_ones_are_left_out(
    opened: Opened, record: Record, clock: Clock, pause: Pause, left: set[str]
) -> None:
    await fill(opened, clock)
    await record.pause(pause)
    clock.advance(100)
    found = await all_pages(record, Ready(), 1) + await all_pages(record, Due(), 1)
    assert {one.task_class for one in found} == left
    assert (await record.dispatchable(Ready(), 1)).pauses == {pause}


async def test_the_newest_id_is_the_last_that_was_given_out(record: Record) -> None:
    assert (await record.dispatchable(Ready(), 1)).newest == 0
    rows = await record.enqueue([NewTask(task_class="A")] * 3)
    await record.cancel([row.id for row in rows])
    page = await record.dispatchable(Young(0), 10)
    assert (page.newest, page.tasks, page.next) == (rows[-1].id, [], None)


async def test_ids_that_cannot_be_are_no_error(record: Record) -> None:
    assert (await record.dispatchable(Named([-1, 0, 2**40]), 10)).tasks == []
    assert (await record.dispatchable(Named([]), 10)).tasks == []
    assert (await record.dispatchable(Young(2**40), 10)).tasks == []

"""Lists of active and archived tasks: order, pages, filters."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import Fail, NewTask, Result, Retry, State, TaskFilter
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import HTTP, OUTCOMES, add, add_plain, held, settle, take, take_new

# ---- active


async def test_active_rows_are_listed_by_priority_then_id_without_data(store: Store, clock: Clock) -> None:
    ids = await add(
        store,
        *[NewTask(task_class="A", data="x", priority=p) for p in (3, 2, 2)],
        NewTask(task_class="A", data="x", priority=1, delay_until=clock.now + 60),
    )
    await take(store, only=ids[1])
    shown = await store.list_active(9)
    assert [task.id for task in shown] == [ids[3], ids[1], ids[2], ids[0]]
    assert {task.data for task in shown} == {None}


async def test_an_offset_skips_rows(store: Store) -> None:
    ids = await add_plain(store, 7)
    assert [task.id for task in await store.list_active(3, offset=2)] == ids[2:5]
    assert [task.id for task in await store.list_active(3, offset=6)] == ids[6:]
    assert await store.list_active(3, offset=7) == []


async def test_keyset_pages_join_without_gap_or_repeat(store: Store) -> None:
    await add(store, *[NewTask(task_class="A", priority=number % 3) for number in range(20)])
    seen = []
    after: tuple[int, int] | None = None
    while page := await store.list_active(3, after=after):
        seen += [(task.priority, task.id) for task in page]
        after = seen[-1]
        assert len(seen) <= 20
    assert len(seen) == 20
    assert seen == sorted(set(seen))


async def test_a_keyset_page_goes_on_after_its_last_row_was_archived(store: Store) -> None:
    ids = await add_plain(store, 4)
    first, second = await store.list_active(2)
    await store.cancel([second.id])
    page = await store.list_active(2, after=(second.priority, second.id))
    assert [task.id for task in page] == ids[2:]
    assert first.id == ids[0]


async def test_a_limit_of_zero_lists_nothing_and_an_over_large_one_is_lowered(store: Store) -> None:
    await add_plain(store, 3)
    assert await store.list_active(0) == []
    assert len(await store.list_active(10**9)) == 3
    for task in await store.list_active(9):
        await store.cancel([task.id])
    assert await store.list_archived(0) == []
    assert len(await store.list_archived(10**9)) == 3


async def test_a_list_never_shows_more_than_five_thousand(store: Store) -> None:
    ids: list[int] = []
    for _ in range(6):
        ids += await add_plain(store, 900)
    assert len(await store.list_active(10**9)) == 5000
    await store.cancel(ids)
    assert len(await store.list_archived(10**9)) == 5000


async def test_active_rows_are_filtered_by_what_they_are(store: Store, clock: Clock) -> None:
    a, b, c = await add(
        store,
        NewTask(task_class="A", queue="q", object_phid="O1", container_phid="C1", priority=1),
        NewTask(task_class="B", queue="r", object_phid="O1", priority=2),
        NewTask(task_class="C", queue="q", container_phid="C1", priority=3),
    )
    await settle(store, held(await take(store, only=b)), Retry(wait=0))
    clock.advance(1)
    await settle(store, held(await take(store, only=b)), Retry(wait=0))

    async def ids(where: TaskFilter) -> list[int]:
        return [task.id for task in await store.list_active(9, where=where)]

    assert await ids(TaskFilter()) == [a, b, c]
    assert await ids(TaskFilter(classes=frozenset({"A", "C", "Z"}))) == [a, c]
    assert await ids(TaskFilter(queues=frozenset({"q"}))) == [a, c]
    assert await ids(TaskFilter(object_phid="O1")) == [a, b]
    assert await ids(TaskFilter(container_phid="C1")) == [a, c]
    assert await ids(TaskFilter(min_failures=1)) == [b]
    assert await ids(TaskFilter(min_failures=3)) == []
    assert await ids(TaskFilter(max_failures=1)) == [a, c]
    assert await ids(TaskFilter(min_priority=2)) == [b, c]
    assert await ids(TaskFilter(max_priority=2)) == [a, b]
    assert await ids(TaskFilter(min_priority=2, max_priority=2)) == [b]
    assert await ids(TaskFilter(classes=frozenset({"A", "B"}), object_phid="O1", queues=frozenset({"r"}))) == [b]
    assert await ids(TaskFilter(classes=frozenset())) == []
    assert await ids(TaskFilter(states=frozenset())) == []
    assert await ids(TaskFilter(queues=frozenset())) == []


async def test_active_rows_are_filtered_by_state(store: Store, plant: Plant, clock: Clock) -> None:
    free, due, delayed, native_delay, parked, stale_native, odd, timeless = await add_plain(store, 8)
    await store.delay([due], clock.now)
    await store.delay([delayed], clock.now + 60)
    await plant(native_delay, None, clock.now + 60)
    await plant(parked, "gorge-failure-pending", 2**31 - 1)
    await plant(stale_native, "23:5:web1:2", clock.now - 1)
    await plant(odd, "owner without a time", None)
    await plant(timeless, "(yield)", None)
    leased, http, patient = await take_new(store), await take_new(store, HTTP), await take_new(store, seconds=5)
    clock.advance(6)

    async def ids(*states: State) -> set[int]:
        return {task.id for task in await store.list_active(20, where=TaskFilter(states=frozenset(states)))}

    assert await ids(State.READY) == {free, due, stale_native}
    assert await ids(State.LEASED) == {leased.id, http.id, patient.id, odd}
    assert await ids(State.WAITING) == {delayed, native_delay, timeless}, "a sentinel holds nothing"
    assert await ids(State.PARKED) == {parked}
    assert await ids(State.READY, State.PARKED) == {free, due, stale_native, parked}
    assert len(await ids(*State)) == 11


async def test_filters_and_pages_work_together(store: Store) -> None:
    ids = await add(store, *[NewTask(task_class="AB"[n % 2]) for n in range(10)])
    where = TaskFilter(classes=frozenset({"B"}))
    first = await store.list_active(2, where=where)
    after = (first[-1].priority, first[-1].id)
    rest = await store.list_active(9, after=after, where=where)
    assert [task.id for task in (*first, *rest)] == ids[1::2]
    assert [task.id for task in await store.list_active(2, offset=1, where=where)] == [ids[3], ids[5]]


# ---- archived


async def test_archived_rows_are_listed_newest_id_first_without_data(store: Store, clock: Clock) -> None:
    ids = await add(store, *[NewTask(task_class="A", data="x")] * 4)
    for task_id in (ids[2], ids[0], ids[3]):
        clock.advance(1)
        await store.cancel([task_id])
    shown = await store.list_archived(9)
    assert [task.id for task in shown] == [ids[3], ids[2], ids[0]]
    assert {task.data for task in shown} == {None}


async def test_archive_pages_join_without_gap_or_repeat(store: Store) -> None:
    ids = await add_plain(store, 10)
    await store.cancel(ids)
    seen: list[int] = []
    before: int | None = None
    while page := await store.list_archived(3, before=before):
        seen += [task.id for task in page]
        before = seen[-1]
        assert len(seen) <= 10
    assert seen == ids[::-1]


async def test_archived_rows_are_filtered(store: Store, clock: Clock) -> None:
    done, failed = await take_new(store), await take_new(store, priority=7, queue="q", object_phid="O")
    await settle(store, held(done), OUTCOMES["complete"])
    await settle(store, held(failed), Retry(wait=0))
    clock.advance(1)
    await settle(store, held(await take(store)), Fail())
    (gone,) = await add(store, NewTask(task_class="Gone", container_phid="C"))
    await store.cancel([gone])

    async def ids(where: TaskFilter) -> list[int]:
        return [task.id for task in await store.list_archived(9, where=where)]

    assert await ids(TaskFilter(results=frozenset({Result.SUCCESS}))) == [done.id]
    assert await ids(TaskFilter(results=frozenset({Result.FAILURE, Result.CANCELLED}))) == [gone, failed.id]
    assert await ids(TaskFilter(results=frozenset())) == []
    assert await ids(TaskFilter(classes=frozenset({"Gone"}))) == [gone]
    assert await ids(TaskFilter(queues=frozenset({"q"}))) == [failed.id]
    assert await ids(TaskFilter(object_phid="O")) == [failed.id]
    assert await ids(TaskFilter(container_phid="C")) == [gone]
    assert await ids(TaskFilter(min_failures=1)) == [failed.id]
    assert await ids(TaskFilter(max_failures=0)) == [gone, done.id]
    assert await ids(TaskFilter(max_priority=7)) == [failed.id]
    assert await ids(TaskFilter(min_priority=8)) == [gone, done.id]
    assert await ids(TaskFilter(ended_since=clock.now)) == [gone, failed.id]
    assert await ids(TaskFilter(ended_since=clock.now - 1)) == [gone, failed.id, done.id]
    assert await ids(TaskFilter(ended_since=clock.now, object_phid="O")) == [failed.id]
    assert await ids(TaskFilter(ended_since=clock.now + 1)) == []


async def test_when_it_ended_decides_and_not_when_it_began(store: Store, clock: Clock) -> None:
    old, young = await add_plain(store, 2)
    await store.cancel([young])
    clock.advance(100)
    await store.cancel([old])
    shown = await store.list_archived(9, where=TaskFilter(ended_since=clock.now))
    assert [task.id for task in shown] == [old]
    # it means nothing to active rows
    (waiting,) = await add_plain(store, 1)
    assert [task.id for task in await store.list_active(9, where=TaskFilter(ended_since=clock.now + 9))] == [waiting]


async def test_results_mean_nothing_to_active_rows(store: Store) -> None:
    ids = await add_plain(store, 1)
    shown = await store.list_active(9, where=TaskFilter(results=frozenset({Result.SUCCESS})))
    assert [task.id for task in shown] == ids


# ---- by id


async def test_rows_are_read_by_id_in_the_order_asked_with_data(store: Store) -> None:
    ids = await add(store, *[NewTask(task_class="A", data=str(n)) for n in range(3)])
    await store.cancel([ids[1]])
    active = await store.get([ids[2], ids[1], 999_999, ids[0], ids[2]])
    assert [task.data if task else None for task in active] == ["2", None, None, "0", "2"]
    archived = await store.get_archived([ids[2], ids[1], ids[1]])
    assert [task.data if task else None for task in archived] == [None, "1", "1"]
    assert await store.get([]) == []
    assert await store.get_archived([]) == []


@pytest.mark.parametrize("count", [1, 1000])
async def test_a_task_is_in_exactly_one_of_active_and_archive(store: Store, count: int) -> None:
    ids = await add_plain(store, count)
    await store.cancel(ids[::2])
    active, archived = await store.get(ids), await store.get_archived(ids)
    assert [(a is None) != (b is None) for a, b in zip(active, archived, strict=True)] == [True] * count

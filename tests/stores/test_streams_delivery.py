"""How tasks get into the streams and out of them: at once, when they come due, and after something was lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import (
    Complete,
    Fail,
    NewTask,
    Pause,
    PauseKind,
    Release,
    Result,
    Retry,
    State,
    TaskFilter,
    Yield,
)
from stores.dispatchable import Due
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from tests.servers import RedisServer
from tests.stores.streams_house import KEYS, House, add, finish, insert_as_php, open_house, take, taken, until

BRISK = Tending(every=0.05, reclaim=0.2, old=0.2)


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


@pytest.fixture
async def store(house: House) -> StreamsStore:
    return await house.store()


# ---- the way of a task


async def test_a_task_goes_from_the_record_through_its_stream_and_leaves_nothing_behind(
    store: StreamsStore, house: House
) -> None:
    (task_id,) = await add(store)
    assert house.waiting() == [task_id]
    assert await ids_in(store, State.READY) == [task_id]
    (task,) = await take(store, 5)
    assert (task.id, task.data) == (task_id, "")
    assert await ids_in(store, State.LEASED) == [task_id]
    await finish(store, [task])
    assert [(row.id, row.result) for row in await store.list_archived(5)] == [(task_id, Result.SUCCESS)]
    assert await store.list_active(5) == []
    await until(house.is_empty)


async def ids_in(store: Store, state: State) -> list[int]:
    return [task.id for task in await store.list_active(5, where=TaskFilter(states=frozenset({state})))]


async def test_an_entry_tells_the_task_and_its_class_and_queue(store: StreamsStore, house: House) -> None:
    (task_id,) = await add(store, task_class="Ein Ärgernis", queue="low")
    ((_, fields),) = house.redis.xrange(KEYS + "low")  # type: ignore[misc]
    assert fields == {b"job_id": b"%d" % task_id, b"job_type": "Ein Ärgernis".encode(), b"queue": b"low"}


async def test_the_same_key_twice_gives_one_job(store: StreamsStore) -> None:
    new = NewTask(task_class="A", idempotency_key="message:send_reply:7")
    first, again = await store.enqueue([new]), await store.enqueue([new])
    assert first[0].id == again[0].id
    assert len(await take(store, 5)) == 1
    assert await take(store, 5) == []


async def test_a_task_is_retried_and_dead_at_its_last_attempt(store: StreamsStore) -> None:
    (task_id,) = await add(store, max_attempts=2)
    for _ in range(2):
        (task,) = await store.get(await taken(store, 1))
        assert task is not None
        await finish(store, [task], Retry(wait=0))
    (ended,) = await store.get_archived([task_id])
    assert ended is not None
    assert (ended.result, ended.failure_count) == (Result.FAILURE, 2)
    assert await take(store, 5) == []


async def test_a_delayed_task_does_not_run_early_and_starts_in_its_second(store: StreamsStore, house: House) -> None:
    """R065, R066"""
    due = int(time.time()) + 2
    (task_id,) = await add(store, delay_until=due)
    assert house.waiting() == []
    assert await taken(store, 1) == [task_id]
    assert due <= time.time() < due + 1


@pytest.mark.parametrize("wait", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_back_off_ends_within_a_second_of_its_time(store: StreamsStore, wait: int) -> None:
    (task_id,) = await add(store)
    began = int(time.time())
    await finish(store, await take(store), Retry(wait=wait))
    assert await taken(store, 1) == [task_id]
    assert began + wait < time.time() < began + wait + 2.5


async def test_the_stale_lease_of_a_dead_worker_is_delivered_again(house: House) -> None:
    store = await house.store(options=StoreOptions(patience=0))
    (task_id,) = await add(store)
    (task,) = await store.lease("qr:dead:1:1@h", 1, 1, order="dispatch")
    assert task.id == task_id
    assert await taken(store, 1) == [task_id]


@pytest.mark.parametrize(
    "give_back", ["release", "free", "awaken", "retry", "follow-up", "event", "delay"], ids=lambda name: name
)
async def test_what_is_ready_at_once_is_in_its_stream_at_once(
    store: StreamsStore, house: House, give_back: str
) -> None:
    """R077"""
    (task_id,) = await add(store)
    held = await take(store)
    wanted = task_id
    match give_back:
        case "release":
            await finish(store, held, Release())
        case "free":
            await store.free([task_id])
        case "awaken":
            await finish(store, held, Yield(wait=600))
            await store.awaken([task_id])
        case "retry":
            await finish(store, held, Fail())
            await store.retry([task_id])
        case "follow-up":
            await finish(store, held, Complete(followups=[NewTask(task_class="A")]))
            wanted = task_id + 1
        case "event":
            wanted = (await store.enqueue_once("e", NewTask(task_class="A"))).id
        case "delay":
            (wanted,) = await add(store, delay_until=int(time.time()) + 600)
            await store.delay([wanted], int(time.time()))
    await until(lambda: house.waiting() == [wanted], seconds=1)


async def test_a_release_that_overtakes_its_own_claim_is_not_lost(store: StreamsStore) -> None:
    """The entry of the claimed task may be taken away only now."""
    (task_id,) = await add(store)
    for _ in range(50):
        (task,) = await taken_tasks(store)
        assert task.id == task_id
        await finish(store, [task], Release())


async def taken_tasks(store: Store) -> list[Any]:
    (task_id,) = await taken(store, 1, seconds=2)
    return await store.get([task_id])


# ---- rows that come past us


async def test_a_row_that_php_inserts_is_dispatched(store: StreamsStore, house: House) -> None:
    """R070"""
    await store.changed(0)
    insert_as_php(house.path, 77)
    assert await taken(store, 1, seconds=2) == [77]


async def test_a_row_that_php_inserts_late_is_dispatched_too(house: House) -> None:
    """Its id was drawn long before the row can be seen, and younger rows were seen since."""
    store = await house.store(tending=BRISK)
    ids = await add(store, number=5)
    assert await taken(store, 5) == ids
    await store.changed(0)
    await asyncio.sleep(1.1)  # it is young no longer
    insert_as_php(house.path, ids[-1] + 10)
    assert await taken(store, 1) == [ids[-1] + 10]
    await asyncio.sleep(1.1)
    insert_as_php(house.path, ids[-1] + 5)
    assert await taken(store, 1, seconds=5) == [ids[-1] + 5]


async def test_a_pause_that_was_lifted_elsewhere_is_noticed_for_old_tasks_too(house: House) -> None:
    plain = await house.record()
    (task_id,) = await add(plain)
    await plain.pause(Pause(PauseKind.CLASS, "A"))
    insert_as_php(house.path, 5000, "B")  # so that nobody looks among such low ids any more
    store = await house.store(tending=BRISK)
    assert await taken(store, 1) == [5000]
    await plain.resume(Pause(PauseKind.CLASS, "A"))
    assert await taken(store, 1, seconds=5) == [task_id]


async def test_tasks_enqueued_by_an_instance_without_redis_are_dispatched(house: House, store: StreamsStore) -> None:
    plain = await house.record()
    await store.changed(0)
    (task_id,) = await add(plain)
    assert await taken(store, 1, seconds=2) == [task_id]


async def test_the_sweep_delivers_what_was_missed(store: StreamsStore, house: House) -> None:
    await take(store)  # everything was delivered once
    plain = await house.record()
    ids = await add(plain, number=2500)
    report = await store.sweep(1000)
    assert report.redelivered == 1000
    assert house.waiting() == ids[:1000]
    assert (await store.sweep(1000)).redelivered == 0
    assert len(house.waiting()) == 1000


async def test_the_sweep_delivers_what_became_due(store: StreamsStore, house: House) -> None:
    await take(store)
    plain = await house.record()
    due = int(time.time()) + 2
    (task_id,) = await add(plain, delay_until=due)
    async with asyncio.timeout(10):
        while house.waiting() != [task_id]:
            assert (await store.sweep(100)).redelivered == 0 or time.time() >= due
    assert time.time() >= due


# ---- streams that are full


async def test_a_full_stream_takes_no_more_and_is_filled_again_as_it_empties(house: House) -> None:
    store = await house.store(cap=20)
    ids = await add(store, number=95)
    assert house.waiting() == ids[:20]
    high = await add(store, queue="high")
    seen: list[int] = []
    async with asyncio.timeout(10):
        while len(seen) < 96:
            tasks = await take(store, 7)
            seen += [task.id for task in tasks]
            await finish(store, tasks)
            assert len(house.waiting()) <= 20
            if not tasks:
                await store.changed(0.2)
    assert seen[0] == high[0]
    assert seen[1:] == ids
    await until(house.is_empty)


async def test_what_is_due_is_not_starved_by_a_flood(house: House) -> None:
    store = await house.store(cap=20)
    await add(store, number=200)
    held = await take(store, 3)
    await finish(store, held, Retry(wait=0))
    await add(store, number=200)
    async with asyncio.timeout(5):
        while len((await store.dispatchable(Due(), 10)).tasks) < 3:  # noqa: ASYNC110  a fact of the record
            await asyncio.sleep(0.05)
    late = {task.id for task in held}
    async with asyncio.timeout(20):
        for turn in count():
            if not late:
                break
            tasks = await take(store, 5, due_first=turn % 4 == 3)  # as the lease loop
            late -= {task.id for task in tasks}
            await finish(store, tasks)
            await store.changed(0.05)
    assert (await store.stats()).active > 200


async def test_younger_tasks_do_not_overtake_those_that_found_the_stream_full(house: House) -> None:
    store = await house.store(cap=20)
    ids = await add(store, number=30)
    assert [task.id for task in await take(store, 5)] == ids[:5]
    ids += await add(store)
    assert house.waiting() == ids[5:20]
    assert await taken(store, 26) == ids[5:]


async def test_what_comes_due_behind_a_page_of_due_rows_that_nobody_runs_is_seen(house: House) -> None:
    store, plain = await house.store(), await house.record()
    await add(plain, task_class="Nobody", queue="nobody", number=1100, delay_until=int(time.time()) - 60)
    await store.changed(0)
    due = int(time.time()) + 2
    (task_id,) = await add(store, delay_until=due)
    async with asyncio.timeout(10):
        while house.waiting() != [task_id]:
            await store.changed(0.5)
    assert due <= time.time() < due + 1


# ---- streams that lose something


async def test_entries_that_somebody_cut_off_are_missed_for_old_tasks_too(house: House) -> None:
    plain = await house.record()
    ids = await add(plain, number=10)
    insert_as_php(house.path, 5000)  # so that nobody looks among such low ids any more
    store = await house.store(tending=BRISK)
    await store.changed(0)
    house.redis.xtrim(KEYS + "default", maxlen=3, approximate=False)
    assert sorted(await taken(store, 11, seconds=5)) == [*ids, 5000]


async def test_a_server_that_was_emptied_is_told_everything_by_the_next_lease(
    store: StreamsStore, house: House
) -> None:
    ids = await add(store, number=3)
    await store.changed(0)
    house.redis.flushall()
    assert [task.id for task in await take(store)] == ids[:1]  # from the record, which does not wait for that
    await until(lambda: house.waiting() == ids[1:])


async def test_books_of_many_lost_entries_are_mended(house: House) -> None:
    """Also of tasks that are no work any more, which nobody adds again."""
    store, plain = await house.store(cap=5000), await house.record()
    ids = await add(store, number=3000)
    await store.changed(0)
    await plain.cancel(ids[:2500])
    house.redis.delete(KEYS + "default")
    await store.sweep(100)
    assert (house.sent(), house.waiting()) == (500, ids[2500:])


async def lose_everything(house: House) -> None:
    house.redis.flushall()


async def lose_the_stream(house: House) -> None:
    house.redis.delete(KEYS + "default")


async def lose_the_group(house: House) -> None:
    house.redis.xgroup_destroy(KEYS + "default", "queue-runtime")


async def lose_some_entries(house: House) -> None:
    house.redis.xtrim(KEYS + "default", maxlen=3, approximate=False)


async def lose_the_books(house: House) -> None:
    house.redis.delete(f"{KEYS}/sent", f"{KEYS}/classes/default", f"{KEYS}/queues")


@pytest.mark.parametrize("lose", [lose_everything, lose_the_stream, lose_the_group, lose_some_entries, lose_the_books])
async def test_whatever_redis_loses_every_task_runs_once_and_soon(house: House, lose: Callable[[House], Any]) -> None:
    """R030, R031"""
    store = await house.store(tending=BRISK, block_seconds=lambda: 1)
    first = await add(store, number=10)
    await finish(store, await take(store, 2))
    await store.changed(0)
    await lose(house)
    more = await add(store, number=5)
    assert sorted(await taken(store, 13, seconds=5)) == [*first[2:], *more]
    assert await take(store, 5) == []
    assert store.dispatch.mode == "streams"
    assert all(row.failure_count == 0 for row in await store.list_active(100))
    await until(lambda: not house.waiting())


async def test_a_group_that_is_there_is_no_error(house: House) -> None:
    for _ in range(3):
        store = await house.store()
        (task_id,) = await add(store)
        assert [task.id for task in await take(store, 5)] == [task_id]


async def test_an_evicting_server_is_named_in_the_operations(house: House) -> None:
    """R035: no task is lost with it, because the record has them."""
    house.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        store = await house.store()
        (task_id,) = await add(store)
        assert [task.id for task in await take(store)] == [task_id]
        assert "allkeys-lru" in str((await store.operations())["dispatch"])
    finally:
        house.redis.config_set("maxmemory-policy", "noeviction")


# ---- entries that are no work


async def test_nonsense_in_a_stream_is_dropped(store: StreamsStore, house: House) -> None:
    await take(store)
    for fields in ({"x": "y"}, {"job_id": "abc", "job_type": "A"}, {"job_id": "-1", "job_type": "A"}, {"job_id": "1"}):
        house.redis.xadd(KEYS + "default", fields)  # type: ignore[arg-type]
    (task_id,) = await add(store)
    assert [task.id for task in await take(store, 5)] == [task_id]
    await until(lambda: not house.waiting())
    assert store.dispatch.mode == "streams"


async def test_an_entry_of_a_task_that_is_gone_or_held_is_dropped_and_delivered_once(
    store: StreamsStore, house: House
) -> None:
    """R040: no bouncing between read and given back."""
    gone, held, free = await add(store, number=3)
    plain = await house.record()
    await plain.cancel([gone])
    await plain.lease("web1:1", 1, 600, only=[held])
    assert [task.id for task in await take(store, 5)] == [free]
    await until(lambda: not house.waiting())
    assert house.pending() == 0


async def test_many_dead_entries_do_not_keep_a_worker_from_the_live_one_behind_them(
    store: StreamsStore, house: House
) -> None:
    dead = await add(store, number=300)
    (alive,) = await add(store)
    plain = await house.record()
    await plain.cancel(dead)
    assert [task.id for task in await take(store, 4)] == [alive]


async def test_a_doubled_entry_is_harmless(store: StreamsStore, house: House) -> None:
    """R094"""
    (task_id,) = await add(store)
    house.redis.xadd(KEYS + "default", {"job_id": task_id, "job_type": "A", "queue": "default"})
    assert [task.id for task in await take(store, 5)] == [task_id]
    assert await take(store, 5) == []
    await until(lambda: not house.waiting())


async def test_old_entries_that_are_no_work_any_more_are_dropped_though_nobody_reads(house: House) -> None:
    store = await house.store(tending=BRISK)
    ids = await add(store, number=5)
    plain = await house.record()
    await plain.cancel(ids[:3])
    await asyncio.sleep(0.3)  # they are old then
    await store.sweep(100)
    assert house.waiting() == ids[3:]


async def test_a_task_can_wait_in_another_queue_than_its_entry_says(store: StreamsStore, house: House) -> None:
    await add(store, queue="low", number=2)
    (first, second) = house.waiting("low")
    house.redis.xadd(KEYS + "high", {"job_id": second, "job_type": "A", "queue": "high"})
    assert [task.id for task in await take(store, 1)] == [second]
    assert [task.id for task in await take(store, 1)] == [first]

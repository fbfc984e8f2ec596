"""A server that forgets: all of it, or the last moments before it was killed."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Fail, NewTask, Retry, Yield
from stores.redis import RedisStore, open_store
from stores.redis_check import repair
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, drain, emptied, settle, soon, worker


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


# ---- everything


async def test_after_a_flush_new_work_runs_and_old_outcomes_are_lost(
    redis_server: RedisServer, store: RedisStore
) -> None:
    await add(store, 10, idempotency_key="k")
    await add(store, 10)
    held = await store.lease(worker(), 5, 60)
    with client_of(redis_server) as client:
        client.flushall()
    assert [one.verdict for one in await settle(store, held)] == ["lost"] * 5
    assert await store.lease(worker(), 10, 60) == []
    assert await add(store, 1, idempotency_key="k") == [12]  # forgotten with its task, and no id is used again
    assert await drain(store) == [12]
    await assert_whole(store)


@pytest.mark.parametrize("seen_by", ["enqueue", "lease", "event"])
async def test_no_process_draws_an_id_again_that_it_has_seen(
    redis_server: RedisServer, store: RedisStore, seen_by: str
) -> None:
    async with open_store(redis_server.socket_url) as other:
        match seen_by:
            case "enqueue":
                await add(other, 7)
            case "lease":
                await add(store, 7)
                await other.lease(worker(), 9, 60)
            case _:
                await add(store, 6)
                await other.enqueue_once("e", NewTask(task_class="A"))
        with client_of(redis_server) as client:
            client.flushall()
        assert await add(other, 1) == [8]
        (parent,) = await other.lease(worker(), 1, 60)
        with client_of(redis_server) as client:
            client.delete("{queue-runtime}:last_id")
        await settle(other, [parent], Complete(followups=[NewTask(task_class="Child")]))
        assert [row.id for row in await other.list_active(9)] == [9]


async def test_a_flush_in_mid_run_stops_nobody(redis_server: RedisServer, store: RedisStore) -> None:
    """Enqueuers, workers and sweeps go on; what is enqueued after the last flush all runs, each once."""
    ended: list[int] = []
    last: list[int] = []
    flushes = 20

    async def work() -> None:
        while not last or not set(last) <= set(ended):
            tasks = await store.lease(worker(), 5, 60)
            results = await settle(store, tasks)
            if flushes == 0:
                ended.extend(one.archived.id for one in results if one.archived)
            await store.sweep(100)
            await asyncio.sleep(0)

    workers = [asyncio.create_task(work()) for _ in range(3)]
    seen: list[int] = []
    with client_of(redis_server) as client:
        while flushes:
            seen += [task_id for part in await asyncio.gather(*[add(store, 5) for _ in range(4)]) for task_id in part]
            client.flushall()
            flushes -= 1
    last = await add(store, 300)
    async with asyncio.timeout(30):
        await asyncio.gather(*workers)
    assert sorted(set(ended)) == sorted(ended)
    assert len({*seen, *last}) == len(seen) + len(last)
    await assert_whole(store)


# ---- the last moments


LAST_MOMENTS = 1.1
"""What appendfsync everysec may lose, in seconds, and a little."""


async def life(server: RedisServer, url: str) -> tuple[set[int], set[int]]:
    """Use a queue until its server is killed: the ids that were promised a second before, and those that ended."""
    promised: list[tuple[float, int]] = []
    ended: list[tuple[float, int]] = []

    async def enqueue(line: RedisStore) -> None:
        while True:
            rows = await line.enqueue(
                [NewTask(task_class="A", delay_until=1), NewTask(task_class="B", data="x" * 2000)]
            )
            promised.extend((time.monotonic(), row.id) for row in rows)
            await asyncio.sleep(0.005)

    async def run(line: RedisStore) -> None:
        while True:
            tasks = await line.lease(worker(), 3, 60)
            for one in await settle(line, tasks, Complete(followups=[NewTask(task_class="Child")])):
                if one.archived:
                    ended.append((time.monotonic(), one.archived.id))
            await asyncio.sleep(0.005)

    async with open_store(url) as line:
        users = [asyncio.create_task(use(line)) for use in (enqueue, enqueue, run, run)]
        await soon(
            lambda: all(done and done[0][0] < time.monotonic() - LAST_MOMENTS - 0.3 for done in (promised, ended))
        )
        server.kill()
        killed_at = time.monotonic()
        results = await asyncio.gather(*users, return_exceptions=True)
    assert {type(one) for one in results} == {StoreUnavailable}
    safe = killed_at - LAST_MOMENTS
    return {one for when, one in promised if when < safe}, {one for when, one in ended if when < safe}


async def archived_of(store: RedisStore, ids: set[int]) -> set[int]:
    """Which of these tasks have ended."""
    return {row.id for row in await store.get_archived(sorted(ids)) if row}


async def active_of(store: RedisStore, ids: set[int]) -> set[int]:
    """Which of these have not."""
    return {row.id for row in await store.get(sorted(ids)) if row}


async def kill_and_check(times: int, *arguments: str, durable: bool = False) -> None:
    """Kill the server so often; after each start its indexes are whole and nothing older than a second is missing."""
    with RedisServer(*arguments, durable=durable) as server:
        promised: set[int] = set()
        ended: set[int] = set()
        for _ in range(times):
            new_promised, new_ended = await life(server, server.url)
            assert new_promised
            assert new_ended
            promised |= new_promised
            ended |= new_ended
            server.start()
            async with open_store(server.url, StoreOptions(patience=0)) as store:
                await assert_whole(store)
                assert promised == await archived_of(store, promised) | await active_of(store, promised)
                assert ended == await archived_of(store, ended)
                newest = max(row.id for row in await store.list_archived(1))
                fresh = await add(store, 1)
                assert fresh[0] > max(newest, *promised)


@pytest.mark.timeout(300)
async def test_a_server_that_is_killed_loses_a_second_at_most_and_no_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """appendonly, everysec.

    The machine lives on, and so does what the server had written and not yet synced: this shows that the server writes
    at once and reads what it wrote, and nothing of fsync. For a crash of the machine the cut files below stand.
    """
    monkeypatch.setattr("stores.redis_calls.TRY_SECONDS", 0.1)
    await kill_and_check(3, "--appendonly", "yes", "--appendfsync", "everysec")


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_server_that_is_killed_twenty_times_loses_a_second_at_most_and_no_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stores.redis_calls.TRY_SECONDS", 0.1)
    await kill_and_check(20, "--appendonly", "yes", "--appendfsync", "everysec")


# ---- a file that ends in the middle


async def use_for_a_while(store: RedisStore, rounds: int) -> None:
    """Some of everything that changes rows, in several lanes."""
    for number in range(rounds):
        await store.enqueue(
            [
                NewTask(task_class=f"C{number % 5}", queue=f"q{number % 3}", data="x" * (number % 2 * 2000)),
                NewTask(task_class="Later", delay_until=1, idempotency_key=f"k{number}"),
            ]
        )
        await store.enqueue_once(f"e{number}", NewTask(task_class="Event"))
        tasks = await store.lease(worker(), 3, 60, due_first=number % 2 == 0)
        outcome = (Complete(followups=[NewTask(task_class="Child")]), Retry(wait=0), Yield(5), Fail())[number % 4]
        await settle(store, tasks[:2], outcome)
        if number % 5 == 0:
            await store.cancel([tasks[-1].id])
            await store.retry([tasks[-1].id], repeat=True)


def append_file(server: RedisServer) -> Path:
    """The file that the server appends to; before version 7 there is but one."""
    (path,) = [*server.folder.glob("appendonlydir/*.incr.aof"), *server.folder.glob("appendonly.aof")]
    return path


def transactions_of(text: bytes) -> list[tuple[int, int]]:
    """Where each begins and ends in the file: a script is one."""
    begin, end = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"
    found, at = [], text.find(begin)
    while at >= 0:
        close = text.index(end, at) + len(end)
        found.append((at, close))
        at = text.find(begin, close)
    return found


async def test_a_file_that_ends_within_a_script_costs_that_script_and_no_index() -> None:
    """As after a crash of the machine: cut at random bytes, within scripts, from the end to the beginning.

    Redis 7.0 may leave the beginning of the cut script in its file and run it at the start after the next one, before
    what was written since: half a script. That is what the doctor mends.
    """
    dice = random.Random(6)
    with RedisServer(durable=True) as server:
        async with open_store(server.url) as store:
            await use_for_a_while(store, 40)
        server.kill()
        path = append_file(server)
        spans = transactions_of(path.read_bytes())
        assert len(spans) > 100
        for first, last in sorted(dice.sample(spans, 12), reverse=True):
            with path.open("r+b") as file:
                file.truncate(dice.randrange(first + 1, last))
            server.start()
            async with open_store(server.url, StoreOptions(patience=0)) as store:
                await assert_whole(store)
                stats = await store.stats()
                rows = await store.list_active(1000)
                assert len(rows) == stats.active
                await use_for_a_while(store, 3)
            server.kill()
            server.start()
            async with open_store(server.url, StoreOptions(patience=0)) as store:
                assert (await repair(store)).left == frozenset()
                await assert_whole(store)
                (fresh,) = await add(store, 1)
                assert fresh in await drain(store)
                await assert_whole(store)
            server.kill()

"""A server that forgets: all of it, or the last moments before it was killed."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, NewTask
from stores.redis import RedisStore, open_store
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
    """appendonly, everysec"""
    monkeypatch.setattr("stores.redis_calls.TRY_SECONDS", 0.1)
    await kill_and_check(3, "--appendonly", "yes", "--appendfsync", "everysec")


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_server_that_is_killed_twenty_times_loses_a_second_at_most_and_no_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stores.redis_calls.TRY_SECONDS", 0.1)
    await kill_and_check(20, "--appendonly", "yes", "--appendfsync", "everysec")

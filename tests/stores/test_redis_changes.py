"""How work is heard of: by the server's message across processes, and by looking where that fails."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import pytest

from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import StoreUnavailable
from queue_runtime.task import NewTask, Retry
from stores import redis_calls, redis_changes, redis_ear
from stores.redis import RedisStore, open_store
from stores.redis_calls import Argument
from tests.servers import RedisServer
from tests.stores.redis_house import add, client_of, emptied, settle, soon, worker
from tests.stores.relay import relay_to


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


@pytest.fixture
async def other(redis_server: RedisServer, store: RedisStore) -> AsyncIterator[RedisStore]:
    """The same queue as another process has it open."""
    async with open_store(redis_server.socket_url) as other:
        yield other


async def quiet(store: RedisStore) -> None:
    """Hear out everything so far, and wait until messages are heard."""
    while await store.changed(0.05):
        pass


async def test_an_enqueue_of_another_process_is_heard_at_once(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R070: by the message alone, because nobody looks in this time."""
    monkeypatch.setattr(redis_changes, "_SELDOM", 60.0)
    await quiet(store)
    for _ in range(5):
        waiting = asyncio.create_task(store.changed(20))
        await asyncio.sleep(0.02)
        await add(other, 1)
        async with asyncio.timeout(5):
            assert await waiting is True
        await quiet(store)


async def test_every_process_hears_of_a_change(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_changes, "_SELDOM", 60.0)
    async with open_store(redis_server.socket_url) as third:
        listeners = (store, other, third)
        await asyncio.gather(*[quiet(one) for one in listeners])
        waiting = [asyncio.create_task(one.changed(20)) for one in listeners]
        await asyncio.sleep(0.05)
        await add(third, 1)
        async with asyncio.timeout(5):
            assert await asyncio.gather(*waiting) == [True] * 3


async def test_whoever_is_rung_for_is_served_before_the_next_look(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server runs one script at a time, and a look in front of the lease is time that a task waits."""
    monkeypatch.setattr(redis_changes, "_SELDOM", 60.0)
    await quiet(store)
    asked: list[str] = []
    script = store.calls.script

    async def note(name: str, *arguments: Argument, repeatable: bool = False) -> object:
        asked.append(name)
        return await script(name, *arguments, repeatable=repeatable)

    monkeypatch.setattr(store.calls, "script", note)
    bell, stop = Doorbell(), anyio.Event()

    async def work() -> None:
        await bell.wait(bell.count, 20)
        await store.lease(worker(), 1, 60)

    async with anyio.create_task_group() as group:
        group.start_soon(bell.listen, store, stop)
        group.start_soon(work)
        await asyncio.sleep(0.02)
        asked.clear()
        await add(other, 1)
        await soon(lambda: len(asked) > 1)
        stop.set()
    assert asked == ["lease", "changed"]


async def test_one_change_is_one_ring(store: RedisStore, other: RedisStore) -> None:
    await quiet(store)
    await add(other, 5)
    assert await store.changed(5) is True
    assert await store.changed(0.1) is False


async def test_a_row_is_told_of_in_the_second_in_which_it_comes_due(store: RedisStore) -> None:
    """R065: not before it, and soon after it began, by the server's clock."""
    await quiet(store)
    due = int(time.time()) + 2
    await store.enqueue([NewTask(task_class="A", delay_until=due)])
    assert await store.changed(5) is True
    while not await store.lease(worker(), 1, 60):
        assert await store.changed(5) is True
    assert 0 <= time.time() - due < 0.3


async def test_a_back_off_set_by_another_process_is_told_of(store: RedisStore, other: RedisStore) -> None:
    await add(other, 1)
    await settle(other, await other.lease(worker(), 1, 60), Retry(wait=0))
    async with asyncio.timeout(10):
        while not await store.lease(worker(), 1, 60):
            await store.changed(5)


async def test_what_happens_while_the_line_is_dead_is_heard_all_the_same(
    redis_server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll is the safety net; after that the messages come again."""
    await quiet(store)
    with client_of(redis_server) as client:
        await soon(lambda: len(client.client_list(_type="pubsub")) == 1)
        waiting = asyncio.create_task(store.changed(20))
        await asyncio.sleep(0.05)
        client.client_kill_filter(_type="pubsub", skipme=True)
        assert await waiting is True  # somebody who heard nothing for a while looks
        await add(store, 1)
        assert await store.changed(5) is True
        await soon(lambda: len(client.client_list(_type="pubsub")) == 1)
    monkeypatch.setattr(redis_changes, "_SELDOM", 60.0)
    await quiet(store)
    await add(store, 1)
    assert await store.changed(5) is True


async def test_after_a_flush_changes_are_heard(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R031"""
    monkeypatch.setattr(redis_changes, "_SELDOM", 60.0)
    await add(other, 3)
    await quiet(store)
    waiting = asyncio.create_task(store.changed(20))
    await asyncio.sleep(0.05)
    with client_of(redis_server) as client:
        client.flushall()
    await add(other, 1)
    async with asyncio.timeout(5):
        assert await waiting is True


async def test_a_line_that_has_gone_silent_is_noticed(
    redis_server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R029: nothing comes and nothing ends; the listener asks, and connects again."""
    monkeypatch.setattr(redis_ear, "_SILENCE", 0.1)
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    async with relay_to(redis_server.host, redis_server.port) as relay, open_store(relay.url) as line:
        await quiet(line)
        opened = relay.opened
        await asyncio.sleep(0.5)
        assert relay.opened == opened  # an idle line is no silent one: the server answers
        relay.delay = 60
        await soon(lambda: relay.opened > opened)
        relay.delay = 0
        relay.cut()
        with suppress(StoreUnavailable):
            await quiet(line)
        await add(store, 1)
        async with asyncio.timeout(10):
            while not await line.changed(5):
                pass


async def test_an_outage_is_told_to_who_listens_and_its_end_is_heard() -> None:
    """R023"""
    server = RedisServer("--appendonly", "yes")
    with server:
        async with emptied(server) as store:
            await add(store, 1)
            await quiet(store)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await store.changed(20)
            server.start()
            async with asyncio.timeout(10):
                assert await store.changed(10) is True
            assert len(await store.lease(worker(), 1, 60)) == 1


async def test_a_listener_that_gives_up_waiting_harms_nothing(store: RedisStore, other: RedisStore) -> None:
    await quiet(store)
    for number in range(30):
        waiting = asyncio.create_task(store.changed(20))
        await asyncio.sleep(number * 0.0003)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await add(other, 1)
    async with asyncio.timeout(5):
        assert await store.changed(5) is True

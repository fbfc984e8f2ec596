"""Scripts: how they are put together, and what happens when a server forgets them."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import stores
from queue_runtime.errors import StoreFull
from queue_runtime.task import U32, NewTask
from stores.luatext import compose, load_script, read_lua
from stores.redis import RedisStore, open_store
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, drain, emptied, key

LUA = Path(stores.__file__).parent / "lua"
METHODS = sorted(path.stem for path in LUA.glob("*.lua"))


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


def test_a_script_begins_with_the_fragments_that_it_names() -> None:
    script = compose("-- Does something. use: base bell\nreturn 1\n")
    assert script.text == f"{read_lua('fragments/base.lua')}\n{read_lua('fragments/bell.lua')}\n" + (
        "-- Does something. use: base bell\nreturn 1\n"
    )


def test_a_script_without_fragments_is_itself() -> None:
    assert compose("return 1").text == "return 1"


def test_a_fragment_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        compose("-- Does something. use: nothing\n")


@pytest.mark.parametrize("name", METHODS)
def test_every_script_says_what_it_does_and_uses_a_fragment_for_its_keys(name: str) -> None:
    first, *_ = read_lua(f"{name}.lua").splitlines()
    assert re.fullmatch(r"-- .+\. use: base( \w+)*", first)


@pytest.mark.parametrize("name", METHODS)
def test_every_script_is_one_that_a_server_can_load(redis_server: RedisServer, name: str) -> None:
    script = load_script(name)
    with client_of(redis_server) as client:
        assert client.script_load(script.text) == script.sha


async def test_a_server_that_forgets_its_scripts_all_the_time_disturbs_nobody(
    redis_server: RedisServer, store: RedisStore
) -> None:
    """R033: no error reaches a caller, and each script runs exactly once for a call."""
    ids: list[int] = []
    with client_of(redis_server) as client:
        for number in range(100):
            client.script_flush()
            calls = [add(store, 2) for _ in range(4)]
            ids += [task_id for part in await asyncio.gather(*calls) for task_id in part]
            if number % 3 == 0:
                client.script_flush()
                await drain(store)
    await drain(store)
    assert sorted(ids) == list(range(1, 801))
    stats = await store.stats()
    assert (stats.active, stats.archived) == (0, 800)
    await assert_whole(store)


async def test_ids_end_where_the_shared_tables_end(redis_server: RedisServer, store: RedisStore) -> None:
    with client_of(redis_server) as client:
        client.set(key("last_id"), U32 - 2)
    assert await add(store, 2) == [U32 - 1, U32]
    with pytest.raises(StoreFull, match="task ids end"):
        await add(store, 1)
    with pytest.raises(StoreFull):
        await store.enqueue_once("event", NewTask(task_class="A"))
    assert await drain(store) == [U32 - 1, U32]
    await assert_whole(store)


async def test_two_queues_on_one_server_know_nothing_of_each_other(redis_server: RedisServer) -> None:
    async with (
        open_store(redis_server.socket_url, prefix="one") as one,
        open_store(redis_server.socket_url, prefix="other") as other,
    ):
        await add(one, 3)
        assert (await other.stats()).active == 0
        assert await other.lease("qr:1", 9, 60) == []
        assert len(await drain(one)) == 3


def test_all_keys_of_a_queue_are_in_one_slot_of_a_cluster(redis_server: RedisServer) -> None:
    with client_of(redis_server) as client:
        client.flushall()

        async def use() -> None:
            async with open_store(redis_server.socket_url) as store:
                await add(store, 5, idempotency_key="k", data="x" * 5000)
                await store.enqueue_once("e", NewTask(task_class="B", queue="q", delay_until=9))
                await drain(store)

        asyncio.run(use())
        assert {bytes(name).partition(b"}")[0] for name in client.scan_iter()} == {b"{queue-runtime"}

"""Payloads: short ones in the body, long ones apart, and rows that are no text."""

from collections.abc import AsyncIterator

import pytest

from queue_runtime.task import Complete, NewTask
from stores.redis import RedisStore, open_store
from stores.redis_lease import UNREADABLE
from stores.redis_rows import INLINE_DATA
from tests.contract.steps import ended, errors
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, emptied, key, settle, worker


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


@pytest.mark.parametrize("size", [0, 1, INLINE_DATA - 1, INLINE_DATA, INLINE_DATA + 1, 50_000])
async def test_a_payload_is_whole_wherever_it_stands(redis_server: RedisServer, store: RedisStore, size: int) -> None:
    text = "\u00e9" * (size // 2) + "x" * (size % 2)
    (task_id,) = await add(store, 1, data=text)
    with client_of(redis_server) as client:
        assert client.hexists(key("data"), f"{task_id:010d}") == (size > INLINE_DATA)
    (task,) = await store.lease(worker(), 1, 60)
    assert task.data == text
    await settle(store, [task], Complete(followups=[NewTask(task_class="Child", data=text)]))
    assert (await ended(store, task_id)).data == text
    (child,) = await store.lease(worker(), 1, 60)
    assert child.data == text
    await assert_whole(store)


async def test_a_batch_may_mix_short_and_long_payloads(store: RedisStore) -> None:
    texts = [str(number) * (1 if number % 3 else 3000) for number in range(30)]
    await store.enqueue([NewTask(task_class="A", data=text) for text in texts])
    assert [task.data for task in await store.lease(worker(), 30, 60)] == texts


async def test_large_rows_are_read_in_several_replies(redis_server: RedisServer, store: RedisStore) -> None:
    """R027: a reply has a bound, whatever is asked for."""
    ids = await add(store, 20, data="x" * 2**20)
    with client_of(redis_server) as client:
        client.config_resetstat()
        rows = await store.get([*ids, 999, ids[0]])
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 3
    assert [row.id if row else None for row in rows] == [*ids, None, ids[0]]
    assert {len(row.data or "") for row in rows if row} == {2**20}


async def test_large_payloads_come_over_a_slow_line_in_bounded_batches(
    redis_server: RedisServer, store: RedisStore
) -> None:
    """R027: about 10 MiB a second. A lease takes what fits into one reply, and no half batch."""
    ids = [task_id for _ in range(3) for task_id in await add(store, 3, data="x" * 2**20)]
    async with Proxy((redis_server.host, redis_server.port)) as proxy:
        proxy.delay = 0.006  # for each 64 KiB
        async with open_store(f"redis://{proxy.host}:{proxy.port}/0") as slow:
            batches = [await slow.lease(worker(), 64, 60) for _ in range(2)]
    assert [[task.id for task in batch] for batch in batches] == [ids[:8], ids[8:]]
    assert {len(task.data or "") for batch in batches for task in batch} == {2**20}
    held = {row.id: row.lease_owner for row in await store.list_active(99)}
    assert held == {task.id: task.lease_owner for batch in batches for task in batch}


@pytest.mark.parametrize("damage", ["payload", "class", "rest", "long payload", "lost payload"])
async def test_a_row_that_is_no_text_is_archived_and_the_others_run(
    redis_server: RedisServer, store: RedisStore, damage: str
) -> None:
    """R087: one bad among nine good ones."""
    long = "long" in damage or "lost" in damage
    good = await add(store, 4)
    (bad,) = await add(store, 1, data="payload" * (1000 if long else 1), object_phid="PHID-bad", task_class="BadClass")
    good += await add(store, 5)
    name = f"{bad:010d}"
    with client_of(redis_server) as client:
        body = client.hget(key("body"), name)
        assert isinstance(body, bytes)
        match damage:
            case "payload":
                client.hset(key("body"), name, body.replace(b"payload", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9"))
            case "class":
                client.hset(key("body"), name, body.replace(b"BadClass", b"Bad\xff\xff\xff\xff\xff"))
                strange = b"Bad\xff\xff\xff\xff\xff"
                client.zadd(key("R:default/").encode() + strange, {name: 2000})
                client.zadd(key("heads:R:default"), {name.encode() + strange: 2000})
                client.zrem(key("R:default/BadClass"), name)
            case "rest":
                client.hset(key("body"), name, body.replace(b"PHID-bad", b"PHID-\xff\xff\xff"))
            case "long payload":
                client.hset(key("data"), name, b"\xff" * 5000)
            case _:
                client.hdel(key("data"), name)
    taken = await store.lease(worker(), 20, 60)
    assert [task.id for task in taken] == good
    assert (await store.stats()).archived == 1
    (entry,) = await errors(store, bad)
    assert (entry.kind, entry.message) == ("failure", UNREADABLE)
    assert [row.id for row in await store.list_archived(9)] == [bad]
    assert (await ended(store, bad)).id == bad

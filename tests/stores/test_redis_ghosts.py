"""No ghosts: what is not there is not made by talking of it, and what is half there is never handed out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis import Redis

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Outcome, Settlement
from stores.redis import RedisStore
from tests.clock import Clock
from tests.contract.steps import OUTCOMES, UNKNOWN_IDS
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, drain, emptied, key, plant_entries, settle, worker


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


def everything(client: Redis) -> dict[bytes, bytes | None]:
    """All keys with what they hold, but for the signal that something changed."""
    signal = {key("version").encode(), key("quiet").encode()}
    return {name: client.dump(name) for name in client.scan_iter() if name not in signal}


Talk = Callable[[RedisStore, list[int]], Awaitable[object]]


def settling(outcome: Outcome) -> Talk:
    """Settle as a worker, as an HTTP caller, and as a legacy one."""
    return lambda store, ids: store.settle(
        [Settlement.held(Lease(task_id, "web1:1", 5), outcome) for task_id in ids]
        + [Settlement.held(Lease(task_id, "qr:1"), outcome) for task_id in ids]
        + [Settlement.unfenced(task_id, outcome) for task_id in ids]
    )


TALK: dict[str, Talk] = {
    **{f"settle {kind}": settling(outcome) for kind, outcome in OUTCOMES.items()},
    "renew": lambda store, ids: store.renew([Lease(task_id, "qr:1") for task_id in ids], 60),
    "cancel": lambda store, ids: store.cancel(ids),
    "awaken": lambda store, ids: store.awaken(ids),
    "free": lambda store, ids: store.free(ids),
    "priority": lambda store, ids: store.priority(ids, 1),
    "delay": lambda store, ids: store.delay(ids, 1),
    "retry": lambda store, ids: store.retry(ids, repeat=True),
    "get": lambda store, ids: store.get(ids),
    "history": lambda store, ids: store.history(ids),
    "lease": lambda store, ids: store.lease(worker(), 9, 60, only=ids),
}


@pytest.mark.parametrize("what", TALK)
async def test_unknown_ids_make_nothing(redis_server: RedisServer, store: RedisStore, what: str) -> None:
    """R008: a ghost has no class and no payload, and fails for ever."""
    with client_of(redis_server) as client:
        assert everything(client) == {}
        await TALK[what](store, UNKNOWN_IDS)
        assert everything(client) == {}

        await add(store, 3)
        await settle(store, await store.lease(worker(), 1, 60))
        before = everything(client)
        await TALK[what](store, UNKNOWN_IDS)
        assert everything(client) == before


async def test_followups_of_an_unknown_parent_are_not_enqueued(store: RedisStore) -> None:
    child = NewTask(task_class="Child", data="x" * 5000)
    known, unknown = NewTask(task_class="Known"), NewTask(task_class="Unknown", data="y" * 5000)
    await add(store, 1)
    (task,) = await store.lease(worker(), 1, 60)
    assert task.lease_owner is not None
    settled = await store.settle(
        [
            Settlement.unfenced(999, Complete(followups=[unknown, child])),
            Settlement.held(Lease(task.id, task.lease_owner), Complete(followups=[child, known])),
        ]
    )
    assert [one.verdict for one in settled] == ["lost", "settled"]
    rows = await store.get([row.id for row in await store.list_active(9)])
    assert [(row.task_class, row.data) for row in rows if row] == [("Child", "x" * 5000), ("Known", "")]
    await assert_whole(store)


@pytest.mark.parametrize("place", ["R:default/A", "D:default/A", "H:default/A", "W:default/A"])
async def test_an_index_entry_without_a_task_is_not_leased_and_goes(
    redis_server: RedisServer, store: RedisStore, place: str
) -> None:
    ids = await add(store, 3)
    with client_of(redis_server) as client:
        plant_entries(client, place, {"0000000900": 0, "0000000901": 0})
        assert await drain(store) == ids
        await store.lease(worker(), 9, 60)
        assert client.zcard(key(place)) == 0
    await assert_whole(store)


async def test_a_task_that_ends_while_it_is_swept_and_taken_over_is_whole_at_every_moment(
    redis_server: RedisServer, clock: Clock
) -> None:
    """R008: ends, expiries and sweeps of the same tasks in the same moment, 2,000 times."""
    async with emptied(redis_server, StoreOptions(now=clock, patience=0, max_lost=1000, retention=1)) as store:
        for _ in range(100):
            await add(store, 20)
            tasks = await store.lease(worker(), 20, 5)
            clock.advance(6)
            calls: list[Awaitable[object]] = []
            for task in tasks:
                calls += [settle(store, [task]), store.lease(worker(), 1, 5), store.sweep(10)]
            await asyncio.gather(*calls)
            await store.cancel([row.id for row in await store.list_active(100)])
        clock.advance(6)
        await store.sweep(5000)
        await assert_whole(store)
        assert (await store.stats()).archived == 0

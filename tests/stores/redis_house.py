"""Servers, stores and loads that the tests of the Redis store share."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

from redis import Redis

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Outcome, Settled, Settlement, Task
from stores.redis import RedisStore, open_store
from stores.redis_check import check
from tests.servers import RedisServer
from tests.stores.redis_backdoor import KEYS

_calls = count(1)

BOUND = "0" * 10
"""What heads have for the id of a row where they are bounds (lua/fragments/heads.lua)."""


@contextmanager
def client_of(server: RedisServer) -> Iterator[Redis]:
    """A connection past the store."""
    client = Redis(unix_socket_path=server.socket)
    try:
        yield client
    finally:
        client.close()


def commands(client: Redis) -> dict[str, int]:
    """How often each command ran since the last reset, in scripts too."""
    stats = client.info("commandstats")
    ours = ("cmdstat_info", "cmdstat_config|resetstat")
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items() if name not in ours}


async def cost_of(client: Redis, call: Callable[[], Awaitable[object]]) -> dict[str, int]:
    """The commands of one call: the second one, which whatever it is is not the first."""
    await call()
    client.config_resetstat()
    await call()
    return commands(client)


@asynccontextmanager
async def emptied(server: RedisServer, options: StoreOptions = StoreOptions()) -> AsyncIterator[RedisStore]:
    """A store on the server, which is emptied first."""
    with client_of(server) as client:
        client.flushall()
    async with open_store(server.socket_url, options) as store:
        yield store


def worker() -> str:
    """A fresh owner of one of our workers."""
    return f"qr:0badcafe:{next(_calls)}:1@test"


async def add(store: RedisStore, number: int, **fields: object) -> list[int]:
    """Enqueue so many tasks that differ in nothing."""
    new = NewTask(**{"task_class": "A", **fields})  # type: ignore[arg-type]  # a test's shorthand
    return [row.id for row in await store.enqueue([new] * number)]


def plant_entries(client: Redis, place: str, entries: dict[str, int]) -> None:
    """Put entries into a place past the store, and have the heads lead to them."""
    kind, _, lane = place.partition(":")
    queue, _, task_class = lane.partition("/")
    client.zadd(key(place), entries)
    _follow_first(client, place, f"heads:{kind}:{queue}", task_class)
    _follow_first(client, f"heads:{kind}:{queue}", f"heads:{kind}", queue)
    client.zadd(key("lanes"), {lane_member(queue, task_class): 0})


def lane_member(queue: str, task_class: str) -> str:
    """A lane as the set of all lanes has it (lua/fragments/heads.lua)."""
    return f"{task_class}\0{queue}"


def _follow_first(client: Redis, name: str, above: str, own: str) -> None:
    first: Any = client.zrange(key(name), 0, 0, withscores=True)
    ((member, score),) = first
    row = BOUND if name.startswith("W:") or above == "heads:W" else member[:10].decode()
    client.zadd(key(above), {row + own: score})


async def settle(store: RedisStore, tasks: list[Task], outcome: Outcome | None = None) -> list[Settled]:
    """End runs of one of our workers: with success, unless another outcome is given."""
    end = Complete() if outcome is None else outcome
    return await store.settle(
        [Settlement.held(Lease(task.id, task.lease_owner), end) for task in tasks if task.lease_owner]
    )


async def drain(store: RedisStore) -> list[int]:
    """Run everything that can be leased now; the ids."""
    ran: list[int] = []
    while tasks := await store.lease(worker(), 100, 60):
        await settle(store, tasks)
        ran += [task.id for task in tasks]
    return ran


async def until_empty(store: RedisStore, seconds: float = 30.0) -> None:
    """Wait until no task is active."""
    async with asyncio.timeout(seconds):
        while (await store.stats()).active:  # noqa: ASYNC110  what another process does rings no event here
            await asyncio.sleep(0.01)


async def assert_whole(store: RedisStore) -> None:
    """Every task stands in the indexes it must stand in, and nowhere else."""
    report = await check(store)
    assert report.whole, report


def key(name: str) -> str:
    """A key of the default queue."""
    return KEYS + name


async def soon(condition: object, seconds: float = 10.0) -> None:
    """Wait until the condition, called again and again, holds."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what a server does rings no event here
            await asyncio.sleep(0.01)

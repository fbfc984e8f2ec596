"""Stores with a dispatch over a record, and the ways in which their Redis fails."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

from redis import Redis

from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Outcome, Settled, Settlement, Task
from stores import sqlite, streams
from stores.dispatchable import Record
from stores.sqlite import SqliteStore
from stores.streams import StreamsStore
from tests.servers import RedisServer
from tests.stores.redis_house import client_of
from tests.stores.relay import Relay, relay_to

PREFIX = "queue-runtime-streams"
KEYS = f"{{{PREFIX}}}:"
"""How the keys of the default dispatch begin."""

NOWHERE = "unix:///nonexistent/redis.sock"
"""A Redis that is not there."""

BACK_SECONDS = 0.05
"""In place of three seconds of PINGs."""


def over(record: Store, url: str, **settings: Any) -> AbstractAsyncContextManager[StreamsStore]:
    """A dispatch over this record, which trusts Redis again soon."""
    return streams.open_store(cast(Record, record), url, **{"back_seconds": BACK_SECONDS, **settings})


@asynccontextmanager
async def toggled(host: str, port: int, *, seed: int = 0, longest: float = 0.1) -> AsyncIterator[Relay]:
    """A line to a server that is cut and mended all the time."""
    dice = random.Random(seed)

    async def toggle(relay: Relay) -> None:
        there = relay.target
        while True:
            await asyncio.sleep(dice.uniform(0, 2 * longest))
            relay.target = (host, 1)  # nobody listens on it
            relay.cut()
            await asyncio.sleep(dice.uniform(0, longest))
            relay.target = there

    async with relay_to(host, port) as relay:
        toggling = asyncio.create_task(toggle(relay))
        try:
            yield relay
        finally:
            toggling.cancel()
            with suppress(asyncio.CancelledError):
                await toggling


async def until(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Wait until the condition holds; fail after a bound."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what a server does rings no event here
            await asyncio.sleep(0.005)


class House:
    """Dispatches over one record in one folder, and a view of their Redis past all of them."""

    def __init__(self, stack: AsyncExitStack, path: Path, url: str, client: Redis) -> None:
        self._stack = stack
        self.path = path
        self.url = url
        self.redis = client

    async def record(self, options: StoreOptions = StoreOptions()) -> SqliteStore:
        """The record by itself, as an instance without Redis has it. Each call is another process, as it were."""
        return await self._stack.enter_async_context(sqlite.open_store(self.path, options, synchronous="NORMAL"))

    async def store(
        self,
        *,
        record: Store | None = None,
        url: str | None = None,
        options: StoreOptions = StoreOptions(),
        **settings: Any,
    ) -> StreamsStore:
        """One instance."""
        record = record or await self.record(options)
        opening = over(record, url or self.url, options=options, **settings)
        return await self._stack.enter_async_context(opening)

    @property
    def port(self) -> int:
        """Where the server listens on the loopback."""
        return int(cast(Any, self.redis.config_get("port"))["port"])

    def waiting(self, queue: str = "default") -> list[int]:
        """The tasks in a stream, delivered or not."""
        entries: Any = self.redis.xrange(KEYS + queue)
        return [int(fields[b"job_id"]) for _, fields in entries]

    def pending(self, queue: str = "default") -> int:
        """Entries that were read and not taken away."""
        if not self.redis.exists(KEYS + queue):
            return 0
        groups: Any = self.redis.xinfo_groups(KEYS + queue)
        return sum(group["pending"] for group in groups)

    def consumers(self, queue: str = "default") -> list[str]:
        """Names of the group's consumers."""
        found: Any = self.redis.xinfo_consumers(KEYS + queue, "queue-runtime")
        return [one["name"].decode() for one in found]

    def sent(self) -> int:
        """How many tasks have an entry, by the dispatch's own books."""
        return int(cast(Any, self.redis.hlen(f"{KEYS}/sent")))

    def is_empty(self) -> bool:
        """Whether no stream holds anything, delivered or not, and the books say so."""
        queues = cast(Any, self.redis.smembers(f"{KEYS}/queues"))
        names = [queue.decode() for queue in queues]
        return not self.sent() and not any(self.waiting(name) or self.pending(name) for name in names)


@asynccontextmanager
async def open_house(folder: Path, server: RedisServer) -> AsyncIterator[House]:
    """A house whose Redis is empty."""
    with client_of(server) as client:
        client.flushall()
        async with AsyncExitStack() as stack:
            yield House(stack, folder / "queue.sqlite3", server.socket_url, client)


_owners = count(1)


def worker() -> str:
    """A fresh owner of one of our workers."""
    return f"qr:0badcafe:{next(_owners)}:1@test"


async def take(store: Store, limit: int = 1, **filters: Any) -> list[Task]:
    """Lease as our worker does."""
    return await store.lease(worker(), limit, 20, order="dispatch", **filters)


async def taken(store: Store, number: int, *, seconds: float = 10) -> list[int]:
    """Lease as the worker does, woken by `changed`, until so many tasks are there; their ids."""
    found: list[int] = []
    async with asyncio.timeout(seconds):
        while len(found) < number:
            found += [task.id for task in await take(store, number - len(found))]
            if len(found) < number:
                await store.changed(1)
    return found


async def add(store: Store, *, number: int = 1, **fields: Any) -> list[int]:
    """Enqueue tasks that differ in nothing."""
    new = NewTask(**{"task_class": "A", **fields})
    return [row.id for row in await store.enqueue([new] * number)]


async def finish(store: Store, tasks: Sequence[Task], outcome: Outcome | None = None) -> list[Settled]:
    """End these runs, with success unless another outcome is given."""
    end = Complete() if outcome is None else outcome
    return await store.settle([Settlement.held(Lease(task.id, task.lease_owner or ""), end) for task in tasks])


def insert_as_php(path: Path, task_id: int, task_class: str = "A") -> None:
    """Write a row into the file behind every store's back, as PHP does with Phorge's tables."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT OR IGNORE INTO lane (task_class, queue) VALUES (?, 'default')", (task_class,))
        connection.execute("UPDATE counter SET last_id = max(last_id, ?), active = active + 1", (task_id,))
        connection.execute(
            "INSERT INTO task (id, lane, priority, date_created, date_modified, data)"
            " SELECT ?, id, 2000, unixepoch(), unixepoch(), '[]' FROM lane WHERE task_class = ? AND queue = 'default'",
            (task_id, task_class),
        )

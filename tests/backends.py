"""The stores under test. A new store is one entry in STORES, and passes the contract suite without a skip."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from msgspec.structs import replace
from redis import Redis

from queue_runtime.store import Store, StoreOptions
from stores import mysql, sqlite
from stores.mysql_settings import MysqlSettings
from tests.phorge_tables import PhorgeTables
from tests.reference_store import ReferenceStore
from tests.servers import MariaDb, RedisServer

Plant = Callable[[int, str | None, int | None], Awaitable[None]]
"""Writes owner and expiry of an active row as another program would, past the store's rules."""


class Opened(NamedTuple):
    """An empty store, and the back door to its rows."""

    store: Store
    plant: Plant


class Servers:
    """The database servers of one test process, each started when the first test asks for it."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @cached_property
    def mariadb(self) -> MariaDb:
        return self._stack.enter_context(MariaDb())

    @cached_property
    def redis(self) -> RedisServer:
        return self._stack.enter_context(RedisServer())

    @cached_property
    def phorge(self) -> PhorgeTables:
        """Phorge's default namespace on the MariaDB server."""
        tables = PhorgeTables(self.mariadb)
        self._stack.callback(tables.close)
        return tables

    @cached_property
    def redis_client(self) -> Redis:
        """A connection to the Redis server, past every store."""
        client = Redis(unix_socket_path=self.redis.socket)
        self._stack.callback(client.close)
        return client


class Place(NamedTuple):
    """Where a store may keep its rows: the test's own folder, or a server, which has to be emptied first."""

    folder: Path
    servers: Servers


Open = Callable[[Place, StoreOptions], AbstractAsyncContextManager[Opened]]
"""Opens an empty store."""


def with_back_door(store: ReferenceStore) -> Opened:
    """The reference keeps its rows in the open."""

    async def plant(task_id: int, owner: str | None, expires: int | None) -> None:
        active = store.tables.active
        active[task_id] = replace(active[task_id], lease_owner=owner, lease_expires=expires)

    return Opened(store, plant)


@asynccontextmanager
async def open_reference(_place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
    yield with_back_door(ReferenceStore(options))


@asynccontextmanager
async def open_sqlite(place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
    path = place.folder / "queue.sqlite3"

    async def plant(task_id: int, owner: str | None, expires: int | None) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE task SET owner = ?, expires = ? WHERE id = ?", (owner, expires, task_id))

    async with sqlite.open_store(path, options) as store:
        yield Opened(store, plant)


OpenMysql = Callable[[MysqlSettings, StoreOptions], AbstractAsyncContextManager[Store]]
OpenRedis = Callable[[str, StoreOptions], AbstractAsyncContextManager[Store]]
PlantRedis = Callable[[Redis, int, str | None, int | None], None]


def on_mysql(open_store: OpenMysql) -> Open:
    """On Phorge's own tables, which are emptied before each test."""

    @asynccontextmanager
    async def open_mysql(place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
        phorge = place.servers.phorge
        phorge.empty()

        async def plant(task_id: int, owner: str | None, expires: int | None) -> None:
            phorge.execute(
                "UPDATE worker_activetask SET leaseOwner = %s, leaseExpires = %s WHERE id = %s",
                (owner, expires, task_id),
            )

        async with open_store(phorge.settings(), options) as store:
            yield Opened(store, plant)

    return open_mysql


def on_redis(open_store: OpenRedis, plant_row: PlantRedis) -> Open:
    """On a Redis server that is emptied before each test."""

    @asynccontextmanager
    async def open_redis(place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
        client = place.servers.redis_client
        client.flushall()

        async def plant(task_id: int, owner: str | None, expires: int | None) -> None:
            plant_row(client, task_id, owner, expires)

        async with open_store(place.servers.redis.socket_url, options) as store:
            yield Opened(store, plant)

    return open_redis


STORES: dict[str, Open] = {"reference": open_reference, "sqlite": open_sqlite, "mysql": on_mysql(mysql.open_store)}

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
from stores import mysql, redis, remote, sqlite
from stores.mysql_settings import MysqlSettings
from tests.http.house import serve_with
from tests.phorge_tables import PhorgeTables
from tests.reference_store import ReferenceStore
from tests.servers import MariaDb, RedisServer
from tests.stores import streams_house
from tests.stores.redis_backdoor import plant_row

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


TOKEN = "the token of both ends"


@asynccontextmanager
async def open_remote(place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
    """Over a server of our own in this process, whose store keeps the time."""
    async with (
        open_sqlite(place, options) as served,
        serve_with(served.store, "hypercorn", token=TOKEN) as running,
        remote.open_store(f"http://{running.host}:{running.port}", TOKEN) as store,
    ):
        yield Opened(store, served.plant)


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


def on_streams(open_record: Open, url_of: Callable[[Servers], str] = lambda servers: servers.redis.socket_url) -> Open:
    """With a dispatch on a Redis server that is emptied before each test."""

    @asynccontextmanager
    async def open_streams(place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
        place.servers.redis_client.flushall()
        async with (
            open_record(place, options) as record,
            streams_house.over(record.store, url_of(place.servers), options=options) as store,
        ):
            yield Opened(store, record.plant)

    return open_streams


def with_bad_redis(open_record: Open) -> Open:
    """With a dispatch whose Redis comes and goes all the time."""

    @asynccontextmanager
    async def open_toggled(place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
        server = place.servers.redis
        async with (
            streams_house.toggled(server.host, server.port) as relay,
            on_streams(open_record, lambda _: relay.url)(place, options) as opened,
        ):
            yield opened

    return open_toggled


STORES: dict[str, Open] = {
    "reference": open_reference,
    "sqlite": open_sqlite,
    "mysql": on_mysql(mysql.open_store),
    "redis": on_redis(redis.open_store, plant_row),
    "remote": open_remote,
    "streams-sqlite": on_streams(open_sqlite),
    "streams-mysql": on_streams(on_mysql(mysql.open_store)),
}

WITHOUT_REDIS: dict[str, Open] = {
    "streams-sqlite-without-redis": on_streams(open_sqlite, lambda _: streams_house.NOWHERE),
    "streams-mysql-without-redis": on_streams(on_mysql(mysql.open_store), lambda _: streams_house.NOWHERE),
    "streams-sqlite-with-bad-redis": with_bad_redis(open_sqlite),
    "streams-mysql-with-bad-redis": with_bad_redis(on_mysql(mysql.open_store)),
}
"""The same stores where Redis is away, or comes and goes. They pass the contract suite and the histories too."""

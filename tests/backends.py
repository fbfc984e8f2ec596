"""The stores under test. A new store is one entry in STORES, and passes the contract suite without a skip."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from queue_runtime.store import Store, StoreOptions
from stores import sqlite
from tests import reference_store

Plant = Callable[[int, str | None, int | None], Awaitable[None]]
"""Writes owner and expiry of an active row as another program would, past the store's rules."""


class Opened(NamedTuple):
    """An empty store, and the back door to its rows."""

    store: Store
    plant: Plant


Open = Callable[[Path, StoreOptions], AbstractAsyncContextManager[Opened]]
"""Opens an empty store, which may keep its files in the folder."""


@asynccontextmanager
async def open_reference(_folder: Path, options: StoreOptions) -> AsyncIterator[Opened]:
    async with reference_store.open_store(options) as store:

        async def plant(task_id: int, owner: str | None, expires: int | None) -> None:
            active = store.tables.active
            active[task_id] = replace(active[task_id], lease_owner=owner, lease_expires=expires)

        yield Opened(store, plant)


@asynccontextmanager
async def open_sqlite(folder: Path, options: StoreOptions) -> AsyncIterator[Opened]:
    path = folder / "queue.sqlite3"

    async def plant(task_id: int, owner: str | None, expires: int | None) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE task SET owner = ?, expires = ? WHERE id = ?", (owner, expires, task_id))

    async with sqlite.open_store(path, options) as store:
        yield Opened(store, plant)


STORES: dict[str, Open] = {"reference": open_reference, "sqlite": open_sqlite}

"""A remote store and the server behind it, in one process, and a line between them that a test can break."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from queue_runtime.server import Kind
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import NewTask
from stores import remote, sqlite
from stores.remote import RemoteStore
from tests.faulty_store import FaultyStore
from tests.http.house import House, serve_with
from tests.proxy import Proxy

TOKEN = "the token of both ends"
SECONDS = 5.0
"""How long the server may be silent in these tests, which is far more than it ever is."""


class Far(NamedTuple):
    """Both ends. `behind` is the store that the server has: its `calls` say what really reached it."""

    store: RemoteStore
    behind: FaultyStore
    proxy: Proxy
    house: House


@asynccontextmanager
async def far_store(
    folder: Path,
    *,
    kind: Kind = "hypercorn",
    seconds: float = SECONDS,
    options: StoreOptions = StoreOptions(),
    **settings: Any,
) -> AsyncIterator[Far]:
    """A remote store on an empty SQLite store, through a proxy. `settings` are the server's."""
    async with sqlite.open_store(folder / "queue.sqlite", StoreOptions()) as below:
        behind = FaultyStore(below)
        async with (
            serve_with(behind, kind, token=TOKEN, **settings) as running,
            Proxy((running.host, running.port)) as proxy,
            remote.open_store(f"unix:{proxy.socket}", TOKEN, options, seconds=seconds) as store,
        ):
            yield Far(store, behind, proxy, running.house)


async def add(store: Store, number: int = 1, **fields: Any) -> list[int]:
    """Enqueue so many tasks that differ in nothing."""
    return [task.id for task in await store.enqueue([NewTask(**{"task_class": "A", **fields})] * number)]

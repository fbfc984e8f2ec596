"""Ways past the store: SQL on its file by another connection, and on its own writing connection."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from stores.sqlite import SqliteStore


def execute(path: Path, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """Run a statement as another program would."""
    with closing(sqlite3.connect(path, timeout=5)) as connection, connection:
        return connection.execute(statement, values).fetchall()


async def inside(store: SqliteStore, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on the store's own writing connection, outside of any transaction."""
    return await store._writer.call(  # the tests of this folder know the store from within
        "inside", lambda session: session.connection.execute(statement).fetchall(), alone=True
    )


async def soon(condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  nothing rings when another process has done something
            await asyncio.sleep(0.01)

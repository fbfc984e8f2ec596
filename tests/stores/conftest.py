"""Fixtures of the SQLite tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queue_runtime.store import StoreOptions
from stores.sqlite import SqliteStore, open_store
from tests.clock import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of this test is."""
    return tmp_path / "queue.sqlite3"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    """An empty store on the test's clock."""
    async with open_store(path, StoreOptions(now=clock)) as opened:
        yield opened

"""Random histories: a real store answers as the reference store does, and no law is ever broken.

A history that failed is printed shrunk; it is kept as a named test of the contract suite.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Task
from tests.backends import STORES, Open, Opened, Place, Servers, open_reference, with_back_door
from tests.clock import Clock
from tests.property.history import History
from tests.property.running import play_many
from tests.reference_store import ReferenceStore
from tests.scratch import IN_MEMORY

IN_CI = {"sqlite": 2000, "mysql": 100, "redis": 500, "remote": 8, "streams-sqlite": 10, "streams-mysql": 8}
IN_ALL = {"sqlite": 20_000, "mysql": 2000, "redis": 5000, "remote": 500, "streams-sqlite": 500, "streams-mysql": 500}
"""How many histories each store plays: the slower, the fewer."""

REAL = [name for name in STORES if name != "reference"]

HISTORIES = st.lists(st.binary(min_size=24, max_size=24), min_size=16, max_size=36)
"""One string of bytes for each step; see dice.py."""


def play_histories(open_real: Open, servers: Servers, number: int, *, derandomize: bool) -> None:
    """Play each history on a fresh pair of stores."""

    async def on_fresh_stores(steps: list[bytes], place: Place) -> None:
        clock = Clock()
        options = StoreOptions(now=clock, patience=4, max_lost=2, retention=60)
        async with open_reference(place, options) as reference, open_real(place, options) as real:
            await History(reference, real, clock).play(steps)

    def play(runner: asyncio.Runner, steps: list[bytes]) -> None:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            runner.run(on_fresh_stores(steps, Place(Path(folder), servers)))

    play_many(play, HISTORIES, number, derandomize=derandomize)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", REAL)
def test_a_store_agrees_with_the_reference_on_random_histories(backend: str, servers: Servers) -> None:
    play_histories(STORES[backend], servers, IN_CI[backend], derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("backend", REAL)
def test_a_store_agrees_on_many_more_histories_never_seen_before(backend: str, servers: Servers) -> None:
    """Other ones every time; a failure prints how to see it again."""
    play_histories(STORES[backend], servers, IN_ALL[backend], derandomize=False)


# ---- the test of the test


class Gaps(ReferenceStore):
    """Draws ids as from a database that other programs draw from too; the ids of data are something else again."""

    def _insert(self, new: NewTask, default_priority: int) -> Task:
        self.tables.last_id += 1 + self.tables.last_id % 3
        row = super()._insert(new, default_priority)
        if row.id != self.tables.last_id:  # a known key
            return row
        own = replace(row, data_id=10_000 - row.id)
        self.tables.active[row.id] = own
        if new.idempotency_key is not None:
            self.tables.keys[new.idempotency_key] = own
        return own


@asynccontextmanager
async def open_with_gaps(_place: Place, options: StoreOptions) -> AsyncIterator[Opened]:
    yield with_back_door(Gaps(options))


def test_histories_do_not_ask_for_the_ids_of_the_reference(servers: Servers) -> None:
    play_histories(open_with_gaps, servers, 200, derandomize=True)

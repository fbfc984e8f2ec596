"""Random histories: a real store answers as the reference store does, and no law is ever broken.

A history that failed is printed shrunk; it is kept as a named test of the contract suite.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from random import Random, SystemRandom

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Task
from tests.backends import STORES, Open, Opened, Place, Servers, open_reference, with_back_door
from tests.clock import Clock
from tests.property.choices import NARROW, WIDE, Variety
from tests.property.history import History
from tests.property.running import play_many
from tests.property.windows import small_windows
from tests.reference_store import ReferenceStore
from tests.scratch import IN_MEMORY

IN_CI = {"sqlite": 2000, "mysql": 100, "redis": 500, "remote": 8, "streams-sqlite": 10, "streams-mysql": 8}
IN_ALL = {"sqlite": 20_000, "mysql": 2000, "redis": 5000, "remote": 500, "streams-sqlite": 500, "streams-mysql": 500}
"""How many histories each store plays: the slower, the fewer."""

WIDE_IN_CI = {"sqlite": 40, "mysql": 4, "redis": 60, "remote": 2, "streams-sqlite": 2, "streams-mysql": 2}
WIDE_IN_ALL = {"sqlite": 2000, "mysql": 200, "redis": 2000, "remote": 60, "streams-sqlite": 60, "streams-mysql": 60}
"""And how many of the wide ones, which are longer."""

REAL = [name for name in STORES if name != "reference"]

HISTORIES = st.lists(st.binary(min_size=24, max_size=24), min_size=16, max_size=36)
"""One string of bytes for each step; see dice.py."""


def play_histories(open_real: Open, servers: Servers, number: int, *, derandomize: bool) -> None:
    """Play each history on a fresh pair of stores."""

    def play(runner: asyncio.Runner, steps: list[bytes]) -> None:
        play_one(runner, open_real, servers, steps, NARROW)

    play_many(play, HISTORIES, number, derandomize=derandomize)


def play_wide(backend: str, servers: Servers, seeds: Iterable[int]) -> None:
    """Long histories over dozens of lanes, beyond the windows. They do not shrink: what fails is known by its seed."""
    with nullcontext() if "mysql" in backend else small_windows(), asyncio.Runner() as runner:
        for seed in seeds:
            dice = Random(seed)
            steps = [dice.randbytes(72) for _ in range(dice.choice((20, 40, 80)))]
            try:
                play_one(runner, STORES[backend], servers, steps, WIDE)
            except Exception as error:
                error.add_note(f"the seed is {seed}")
                raise


def play_one(runner: asyncio.Runner, open_real: Open, servers: Servers, steps: list[bytes], variety: Variety) -> None:
    """Play one history on a fresh pair of stores."""

    async def on_fresh_stores(steps: list[bytes], place: Place) -> None:
        clock = Clock()
        options = StoreOptions(now=clock, patience=4, max_lost=variety.max_lost, retention=60)
        async with open_reference(place, options) as reference, open_real(place, options) as real:
            await History(reference, real, clock, variety).play(steps)

    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        runner.run(on_fresh_stores(steps, Place(Path(folder), servers)))


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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", REAL)
def test_a_store_agrees_over_dozens_of_lanes_and_beyond_its_windows(backend: str, servers: Servers) -> None:
    play_wide(backend, servers, range(WIDE_IN_CI[backend]))


@pytest.mark.long
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("backend", REAL)
def test_a_store_agrees_on_many_more_wide_histories(backend: str, servers: Servers) -> None:
    play_wide(backend, servers, [SystemRandom().getrandbits(32) for _ in range(WIDE_IN_ALL[backend])])


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

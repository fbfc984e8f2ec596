"""Random histories: a real store answers as the reference store does, and no law is ever broken.

A history that failed is printed shrunk; it is kept as a named test of the contract suite.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from queue_runtime.store import StoreOptions
from tests.backends import STORES, open_reference
from tests.clock import Clock
from tests.property.history import History
from tests.property.running import IN_MEMORY, play_many

REAL = [name for name in STORES if name != "reference"]

HISTORIES = st.lists(st.binary(min_size=24, max_size=24), min_size=16, max_size=36)
"""One string of bytes for each step; see dice.py."""


def play_histories(backend: str, number: int, *, derandomize: bool) -> None:
    """Play each history on a fresh pair of stores."""

    async def on_fresh_stores(steps: list[bytes], folder: Path) -> None:
        clock = Clock()
        options = StoreOptions(now=clock, patience=4, max_lost=2, retention=60)
        async with open_reference(folder, options) as reference, STORES[backend](folder, options) as real:
            await History(reference, real, clock).play(steps)

    def play(runner: asyncio.Runner, steps: list[bytes]) -> None:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            runner.run(on_fresh_stores(steps, Path(folder)))

    play_many(play, HISTORIES, number, derandomize=derandomize)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", REAL)
def test_two_thousand_histories(backend: str) -> None:
    play_histories(backend, 2000, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("backend", REAL)
def test_twenty_thousand_histories_never_seen_before(backend: str) -> None:
    """Other ones every time; a failure prints how to see it again."""
    play_histories(backend, 20_000, derandomize=False)

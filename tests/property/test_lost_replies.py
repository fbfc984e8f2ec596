"""Refused calls and lost replies: callers that follow the rules lose nothing, and nothing ends twice."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from queue_runtime.store import StoreOptions
from tests.backends import STORES, Place, Servers
from tests.clock import Clock
from tests.property.callers import Callers
from tests.property.running import play_many
from tests.scratch import IN_MEMORY

HISTORIES = {
    "reference": 300,
    "sqlite": 300,
    "mysql": 50,
    "redis": 150,
    "remote": 20,
    "streams-sqlite": 20,
    "streams-mysql": 20,
}
"""The slower the store, the fewer."""

STEPS = st.lists(st.binary(min_size=8, max_size=8), min_size=16, max_size=40)
FAULTS = st.binary(min_size=60, max_size=60)
"""One byte for each call until the line is mended."""


@pytest.mark.parametrize("backend", STORES)
def test_a_bad_line_costs_no_task_and_no_second_effect(backend: str, servers: Servers) -> None:
    """R094, R095, R098"""

    async def on_a_fresh_store(steps: list[bytes], faults: bytes, place: Place) -> None:
        clock = Clock()
        options = StoreOptions(now=clock, patience=4, max_lost=1000)
        async with STORES[backend](place, options) as opened:
            await Callers(opened.store, clock, faults).play(steps)

    def play(runner: asyncio.Runner, history: tuple[list[bytes], bytes]) -> None:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            runner.run(on_a_fresh_store(*history, Place(Path(folder), servers)))

    play_many(play, st.tuples(STEPS, FAULTS), HISTORIES[backend], derandomize=True)

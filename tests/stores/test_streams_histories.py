"""Random histories of a store with a dispatch: with Redis up, with Redis away, and with Redis coming and going."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import strategies as st

from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import Task
from tests.backends import STORES, WITHOUT_REDIS, Open, Place, Servers
from tests.clock import Clock
from tests.property.callers import Callers
from tests.property.running import play_many
from tests.property.test_lost_replies import FAULTS, STEPS
from tests.property.test_stores_agree import play_histories
from tests.scratch import IN_MEMORY

KINDS = {name: kind for name, kind in STORES.items() if name.startswith("streams-")} | WITHOUT_REDIS
IN_CI, IN_ALL = {"sqlite": 10, "mysql": 6}, 500


def _few(kind: str) -> int:
    return next(number for record, number in IN_CI.items() if record in kind)


class Dispatched:
    """Leases as our own worker does, who is woken before."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def lease(self, *args: Any, **options: Any) -> list[Task]:
        await self._store.changed(0)
        return await self._store.lease(*args, **{**options, "order": "dispatch"})


def play_callers(open_kind: Open, servers: Servers, number: int, *, derandomize: bool) -> None:
    """Callers that follow the rules, on a line that refuses calls and loses replies; see test_lost_replies.py."""

    async def on_a_fresh_store(steps: list[bytes], faults: bytes, place: Place) -> None:
        clock = Clock()
        options = StoreOptions(now=clock, patience=4, max_lost=1000)
        async with open_kind(place, options) as opened:
            await Callers(cast(Store, Dispatched(opened.store)), clock, faults).play(steps)

    def play(runner: asyncio.Runner, history: tuple[list[bytes], bytes]) -> None:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            runner.run(on_a_fresh_store(*history, Place(Path(folder), servers)))

    play_many(play, st.tuples(STEPS, FAULTS), number, derandomize=derandomize)


@pytest.mark.parametrize("kind", KINDS)
def test_no_task_is_lost_or_ends_twice_when_leased_through_the_streams(kind: str, servers: Servers) -> None:
    play_callers(KINDS[kind], servers, _few(kind), derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
def test_no_task_is_lost_in_many_more_histories(kind: str, servers: Servers) -> None:
    play_callers(KINDS[kind], servers, IN_ALL, derandomize=False)


@pytest.mark.parametrize("kind", WITHOUT_REDIS)
def test_the_store_agrees_with_the_reference_whatever_redis_does(kind: str, servers: Servers) -> None:
    play_histories(WITHOUT_REDIS[kind], servers, _few(kind), derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", WITHOUT_REDIS)
def test_the_store_agrees_in_many_more_histories(kind: str, servers: Servers) -> None:
    play_histories(WITHOUT_REDIS[kind], servers, IN_ALL, derandomize=False)

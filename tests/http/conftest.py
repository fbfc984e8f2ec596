"""Fixtures: the app over each store, with a clock that the test moves."""

import gc
import logging
from collections.abc import AsyncIterator, Iterator
from typing import get_args

import pytest

from queue_runtime.server import Kind
from queue_runtime.store import StoreOptions
from tests.backends import STORES, Opened, Place
from tests.clock import Clock
from tests.http.house import House, Running, open_house, serve


@pytest.fixture(params=sorted(STORES.keys() - {"remote"}))  # no process serves the API on another one's
async def opened(request: pytest.FixtureRequest, place: Place, clock: Clock) -> AsyncIterator[Opened]:
    """An empty store and the back door to its rows."""
    async with STORES[request.param](place, StoreOptions(now=clock)) as opened:
        yield opened


@pytest.fixture
async def house(opened: Opened) -> AsyncIterator[House]:
    """The app with default settings: no token, no worker."""
    async with open_house(opened.store) as house:
        yield house


@pytest.fixture(params=get_args(Kind))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of the servers."""
    found: Kind = request.param
    return found


@pytest.fixture
async def running(house: House, kind: Kind) -> AsyncIterator[Running]:
    """The app behind each server."""
    async with serve(house, kind) as running:
        yield running


@pytest.fixture
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever callers do, no library reports an error."""
    yield
    gc.collect()  # an exception that nobody fetched is reported when its task goes
    loud = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert [record.getMessage() for record in loud] == []

"""Opens an empty store of each kind for each test; `@pytest.mark.options(…)` sets StoreOptions for one test."""

from collections.abc import AsyncIterator

import pytest

from queue_runtime.store import Store, StoreOptions
from tests.backends import STORES, WITHOUT_REDIS, Opened, Place, Plant
from tests.clock import Clock


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "options(**settings): StoreOptions that the store of this test is opened with")


KINDS = [*STORES, *(pytest.param(kind, marks=pytest.mark.long) for kind in WITHOUT_REDIS)]


@pytest.fixture(params=KINDS)
async def opened(request: pytest.FixtureRequest, place: Place, clock: Clock) -> AsyncIterator[Opened]:
    """One kind of store, empty, on this test's clock."""
    mark = request.node.get_closest_marker("options")
    options = StoreOptions(now=clock, **(mark.kwargs if mark else {}))
    async with (STORES | WITHOUT_REDIS)[request.param](place, options) as opened:
        yield opened


@pytest.fixture
def store(opened: Opened) -> Store:
    """The store itself."""
    return opened.store


@pytest.fixture
def plant(opened: Opened) -> Plant:
    """The back door: what another program may have written into a row."""
    return opened.plant

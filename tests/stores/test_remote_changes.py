"""News from the server: a long poll that costs nothing while there is none, and misses nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from stores import remote
from tests.http.house import until
from tests.http.test_disconnects import http_tasks
from tests.stores.remote_house import TOKEN, Far, add, far_store


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    async with far_store(tmp_path) as far:
        yield far


async def settled_down(store: remote.RemoteStore) -> None:
    """Hear out everything that has happened so far."""
    async with asyncio.timeout(5):
        while await store.changed(0.1):
            pass


async def test_twenty_idle_workers_ask_the_store_nothing(far: Far) -> None:
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(remote.open_store(f"unix:{far.proxy.socket}", TOKEN)) for _ in range(20)
        ]
        await asyncio.gather(*[settled_down(store) for store in stores])
        far.behind.calls.clear()
        trips = far.proxy.trips
        polls = [asyncio.create_task(store.changed(20)) for store in stores]
        await until(lambda: far.proxy.trips == trips + 20)
        await asyncio.sleep(0.5)  # for what must not happen in it
        assert far.proxy.trips == trips + 20
        assert far.behind.calls.total() == 0
        await add(far.store)
        async with asyncio.timeout(5):
            assert await asyncio.gather(*polls) == [True] * 20
        assert set(far.behind.calls) == {"enqueue", "changed"}


async def test_a_bell_that_rings_all_the_time_is_not_asked_all_the_time(far: Far) -> None:
    await settled_down(far.store)
    trips = far.proxy.trips
    end = asyncio.get_running_loop().time() + 0.5
    while asyncio.get_running_loop().time() < end:
        far.house.doorbell.ring()
        assert await far.store.changed(1)
    assert far.proxy.trips - trips <= 0.5 / remote.BREATH + 2


async def test_a_poll_that_was_cut_off_misses_nothing(far: Far) -> None:
    await settled_down(far.store)
    poll = asyncio.create_task(far.store.changed(20))
    await until(lambda: far.proxy.open == 1)
    far.proxy.refusing = True
    far.proxy.cut()
    with pytest.raises(StoreUnavailable):
        await poll
    far.house.doorbell.ring()
    with pytest.raises(StoreUnavailable):
        await far.store.changed(20)
    far.proxy.refusing = False
    async with asyncio.timeout(5):
        assert await far.store.changed(20)


async def test_a_poll_whose_caller_has_gone_is_dropped(far: Far) -> None:
    await settled_down(far.store)
    before = http_tasks()
    polls = [asyncio.create_task(far.store.changed(20)) for _ in range(5)]
    await until(lambda: http_tasks() > before + 5)
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    await until(lambda: http_tasks() <= before)


async def test_a_server_that_stops_ends_the_polls_and_lets_nobody_lease(far: Far) -> None:
    await settled_down(far.store)
    await add(far.store)
    await settled_down(far.store)
    poll = asyncio.create_task(far.store.changed(20))
    await asyncio.sleep(0)
    far.house.lifecycle.stopping.set()
    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailable, match="the server is stopping"):
            await poll
        # it is an error, so that the next question comes after a pause, and not at once
        with pytest.raises(StoreUnavailable, match="the server is stopping"):
            await far.store.changed(20)
    assert await far.store.lease("qr:0:1:1@h", 1, 60) == []
    assert (await far.store.stats()).active == 1


@pytest.mark.parametrize(("patience", "warnings"), [(10, 0), (9, 0), (11, 1)])
async def test_a_worker_that_goes_on_for_longer_than_the_server_waits_is_told_once(
    tmp_path: Path, patience: int, warnings: int
) -> None:
    """The server's patience is 10 here: cut off, such a worker would run a task that another one has already."""
    async with far_store(tmp_path, options=StoreOptions(patience=patience)) as far:
        with capture_logs() as lines:
            for _ in range(3):
                await far.store.changed(0.01)
        told = [line for line in lines if "LEASE_SECONDS" in line["event"]]
        assert [line["log_level"] for line in told] == ["error"] * warnings

"""Callers cancelled at any moment: no reply reaches the wrong one, no connection leaks, no transaction stays open."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Settlement, Yield
from stores.mysql import MysqlStore, open_store
from stores.mysql_settings import DriverName
from tests.clock import Clock
from tests.phorge_tables import PhorgeTables
from tests.proxy import Proxy
from tests.stores.mysql_cases import CASES, Case
from tests.stores.phorge_state import (
    TRANSACTIONS_EVERY,
    check_whole,
    connections,
    eventually,
    open_transactions,
    state,
    succeeds,
)

CONNECTIONS = 3


async def check_nothing_is_left(store: MysqlStore, proxy: Proxy, phorge: PhorgeTables) -> None:
    """All the room of the pool is there, the server has no more connections than it, and no open transaction."""
    gate = asyncio.Event()
    inside = 0

    async def hold() -> None:
        nonlocal inside
        async with store._sessions._pool.connection("test"):  # the bound itself, which no call shows
            inside += 1
            await gate.wait()

    holders = [asyncio.ensure_future(hold()) for _ in range(CONNECTIONS)]
    await eventually(lambda: inside == CONNECTIONS, "the whole room of the pool can be had")
    gate.set()
    await asyncio.gather(*holders)
    await eventually(lambda: proxy.open <= CONNECTIONS, "cancelled connections are closed")
    await eventually(lambda: connections(phorge) <= CONNECTIONS, "the server has no others")
    await asyncio.sleep(TRANSACTIONS_EVERY)
    await eventually(lambda: not open_transactions(phorge), "no transaction is open", every=TRANSACTIONS_EVERY)


async def storm(calls: Sequence[Callable[[], Awaitable[None]]], chance: random.Random, longest: float) -> int:
    """Make all calls at once and cancel each at a moment of its own; how many were cut off."""
    cut = 0

    async def one(call: Callable[[], Awaitable[None]]) -> None:
        nonlocal cut
        await asyncio.sleep(chance.uniform(0, longest))
        task = asyncio.ensure_future(call())
        done, _ = await asyncio.wait([task], timeout=chance.uniform(0, longest / 2))
        if not done:
            task.cancel()
            cut += 1
        with suppress(asyncio.CancelledError, StoreUnavailable):
            await task

    await asyncio.gather(*(one(call) for call in calls))
    return cut


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
@pytest.mark.parametrize("number", [300, pytest.param(2000, marks=pytest.mark.long)])
async def test_cancelled_calls_leave_nothing_behind_and_mix_no_replies(
    phorge: PhorgeTables, number: int, driver: DriverName
) -> None:
    """R043 and R045, on MySQL: a pool of three behind a slow line."""
    chance = random.Random(number)
    async with Proxy(phorge.server.socket) as proxy:
        settings = phorge.settings(socket=proxy.socket, connections=CONNECTIONS, driver=driver)
        async with open_store(settings, StoreOptions(patience=0)) as store:
            known = await store.enqueue([NewTask(task_class=f"Known{place}") for place in range(20)])
            proxy.delay = 0.001

            async def look(place: int) -> None:
                (row,) = await store.get([known[place].id])
                assert row is not None
                assert row.task_class == f"Known{place}", "the reply is another's"

            async def enqueue(place: int) -> None:
                answer = await store.enqueue([NewTask(task_class=f"New{place}")] * 2)
                assert [task.task_class for task in answer] == [f"New{place}"] * 2

            async def work(place: int) -> None:
                owner = f"qr:{place:08x}:1"
                tasks = await store.lease(owner, 3, 60)
                assert {task.lease_owner for task in tasks} <= {owner}
                await store.renew([Lease(task.id, owner) for task in tasks], 90)
                await store.settle([Settlement.held(Lease(task.id, owner), Yield(5)) for task in tasks])

            kinds = (look, look, enqueue, work)
            calls = [partial(kinds[place % 4], place % 20) for place in range(number)]
            cut = await storm(calls, chance, number / 1000)
            assert number / 10 < cut < number
            proxy.delay = 0
            await check_nothing_is_left(store, proxy, phorge)
            check_whole(phorge)
            await asyncio.gather(*(look(place) for place in range(20)))


async def test_cancelled_waits_for_room_and_for_a_connection_keep_the_room(phorge: PhorgeTables) -> None:
    """R045: some are cancelled while they wait for a connection, some while it is being opened."""
    chance = random.Random(45)
    async with Proxy(phorge.server.socket) as proxy:
        settings = phorge.settings(socket=proxy.socket, connections=CONNECTIONS)
        async with open_store(settings, StoreOptions()) as store:

            async def call() -> None:
                await store.ping()
                if chance.random() < 0.5:
                    proxy.cut()

            proxy.delay = 0.002
            assert await storm([call] * 500, chance, 0.6) > 50
            proxy.delay = 0
            await succeeds(store.ping)
            await check_nothing_is_left(store, proxy, phorge)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_call_cancelled_at_any_moment_is_all_or_nothing(case: Case, phorge: PhorgeTables, clock: Clock) -> None:
    """At each turn of the event loop that the call takes."""
    options = StoreOptions(now=clock, patience=0)
    async with open_store(phorge.settings(), options) as store, open_store(phorge.settings(), options) as beside:
        await case.call(store, await case.prepare(beside, phorge))
        phorge.empty()
        rows = await case.prepare(beside, phorge)
        before = state(phorge)
        await case.call(store, rows)
        after = state(phorge)
        for turns in range(2000):
            phorge.empty()
            rows = await case.prepare(beside, phorge)
            call = asyncio.ensure_future(case.call(store, rows))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            idle = sum(len(one._sessions._pool._idle) for one in (store, beside))
            await eventually(lambda idle=idle: connections(phorge) == idle, "the server has noticed")  # type: ignore[misc]
            assert state(phorge) in (before, after), "all or nothing"
            if not call.cancelled():
                break
        assert state(phorge) == after
        check_whole(phorge)


async def test_settle_after_a_cancelled_settle_tells_the_truth(phorge: PhorgeTables) -> None:
    async with open_store(phorge.settings(), StoreOptions(patience=0)) as store:
        for turns in range(0, 60, 3):
            await store.enqueue([NewTask(task_class="A")])
            owner = f"qr:1:{turns}"
            (task,) = await store.lease(owner, 1, 60)
            settlement = Settlement.held(Lease(task.id, owner), Complete())
            call = asyncio.ensure_future(store.settle([settlement]))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])

            async def ended(settlement: Settlement = settlement) -> bool:
                (settled,) = await store.settle([settlement])
                return settled.archived is not None

            for _ in range(500):
                if await ended():
                    break
            assert phorge.execute("SELECT COUNT(*) FROM worker_archivetask WHERE id = %s", (task.id,)) == [(1,)]

"""The line breaks at every single trip of every method that writes: all or nothing, never twice, and it goes on."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask
from stores.mysql import MysqlStore, open_store
from tests.clock import Clock
from tests.phorge_tables import PhorgeTables
from tests.proxy import Fault, Proxy
from tests.stores.mysql_cases import CASES, Case, Rows
from tests.stores.phorge_state import (
    TRANSACTIONS_EVERY,
    State,
    check_whole,
    eventually,
    open_transactions,
    state,
    succeeds,
)

MODES = (Fault.LOSE_REQUEST, Fault.STRAND_REQUEST, Fault.LOSE_REPLY, Fault.STRAND_REPLY)


class Bench:
    """A store behind a proxy, and one beside it that prepares the rows."""

    def __init__(self, phorge: PhorgeTables, clock: Clock, proxy: Proxy, store: MysqlStore, beside: MysqlStore) -> None:
        self.phorge = phorge
        self.proxy = proxy
        self.store = store
        self._beside = beside

    async def prepare(self, case: Case) -> Rows:
        """Empty tables with the rows of the case, and a store that has a connection."""
        self.phorge.empty()
        rows = await case.prepare(self._beside, self.phorge)
        await succeeds(self.store.paused)
        return rows

    async def ends(self, case: Case) -> tuple[State, State, int]:
        """The state before the call and after it when nothing breaks; how many trips it takes."""
        await case.call(self.store, await self.prepare(case))  # what it remembers saves it trips from now on
        rows = await self.prepare(case)
        before, trips = state(self.phorge), self.proxy.trips
        await case.call(self.store, rows)
        return before, state(self.phorge), self.proxy.trips - trips

    async def broken(self, case: Case, plan: Mapping[int, Fault], before: State, after: State) -> list[int]:
        """Make the call while the line breaks as planned, check everything, and go on. The trips that were broken."""
        phorge, proxy = self.phorge, self.proxy
        rows = await self.prepare(case)
        proxy.break_at(plan)
        try:
            async with asyncio.timeout(5):
                await case.call(self.store, rows)
            answered = True
        except StoreUnavailable:
            answered = False
        fired = proxy.fired
        proxy.break_at({})
        # what a lost COMMIT began may still be under way
        await eventually(lambda: answered or state(phorge) in (before, after), "all or nothing")
        if answered:
            assert state(phorge) == after, "an answered call is committed, and done once"
        check_whole(phorge)
        if case.repeatable:
            await succeeds(lambda: self._again(case, rows))
            assert state(phorge) == after, "made again, it is as if it had been made once"
        (task,) = await succeeds(lambda: self.store.enqueue([NewTask(task_class="Next")]))
        leased = await succeeds(lambda: self.store.lease("qr:next", 1, 60, only={task.id}))
        assert [row.id for row in leased] == [task.id]
        return fired

    async def _again(self, case: Case, rows: Rows) -> None:
        """Rows whose lock outlives the broken line are busy for a moment."""
        try:
            await case.call(self.store, rows)
        except AssertionError as busy:
            raise StoreUnavailable(case.name, "busy") from busy


@asynccontextmanager
async def bench_on(phorge: PhorgeTables, clock: Clock) -> AsyncIterator[Bench]:
    options = StoreOptions(now=clock, patience=0)
    async with (
        Proxy(phorge.server.socket) as proxy,
        open_store(phorge.settings(), options) as beside,
        open_store(phorge.settings(socket=proxy.socket), options) as store,
    ):
        yield Bench(phorge, clock, proxy, store, beside)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_line_that_breaks_at_any_trip_leaves_all_or_nothing(
    case: Case, phorge: PhorgeTables, clock: Clock
) -> None:
    """R057"""
    async with bench_on(phorge, clock) as bench:
        before, after, trips = await bench.ends(case)
        for fault in MODES:
            for number in count(1):
                if not await bench.broken(case, {number: fault}, before, after):
                    break
            assert number > trips, "every trip of the call was broken"


@pytest.mark.parametrize("case", CASES[:3], ids=[case.name for case in CASES[:3]])
async def test_an_enqueue_whose_line_breaks_twice_is_never_inserted_twice(
    case: Case, phorge: PhorgeTables, clock: Clock
) -> None:
    """The reply of the COMMIT is lost, and so is one of the trips that look for its rows afterwards."""
    async with bench_on(phorge, clock) as bench:
        before, after, trips = await bench.ends(case)
        for first in (Fault.LOSE_REPLY, Fault.STRAND_REPLY):
            for second in (Fault.LOSE_REQUEST, Fault.LOSE_REPLY):
                for number in range(1, 30):
                    plan = {trips: first, trips + number: second}
                    if len(await bench.broken(case, plan, before, after)) < 2:
                        break
                assert number > 5, "it took trips to look"


async def test_an_enqueue_whose_commit_arrives_late_is_inserted_once(phorge: PhorgeTables, clock: Clock) -> None:
    """The line breaks while the COMMIT is on its way, and the network delivers it afterwards."""
    case = CASES[0]
    async with bench_on(phorge, clock) as bench:
        _, after, trips = await bench.ends(case)
        for number in range(1, trips + 1):
            await bench.prepare(case)
            bench.proxy.break_at({number: Fault.LATE})
            call = asyncio.ensure_future(case.call(bench.store, []))
            await eventually(lambda: bench.proxy.fired, "the request is on its way")
            await asyncio.wait([call], timeout=0.05)
            bench.proxy.deliver()
            await call
            await asyncio.sleep(TRANSACTIONS_EVERY)
            await eventually(lambda: not open_transactions(phorge), "the late one has ended", every=TRANSACTIONS_EVERY)
            assert state(phorge) == after
            check_whole(phorge)

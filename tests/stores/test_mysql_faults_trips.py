"""The line breaks at every trip and after every statement of every method: all or nothing, never twice."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import NewTask
from stores.mysql import MysqlStore, open_store
from stores.mysql_settings import DriverName
from tests.clock import Clock
from tests.phorge_tables import PhorgeTables
from tests.proxy import After, Fault, Proxy
from tests.stores.mysql_cases import CASES, READS, Case, Rows, archived, of_every_kind
from tests.stores.phorge_state import (
    TRANSACTIONS_EVERY,
    State,
    check_whole,
    eventually,
    open_transactions,
    state,
    succeeds,
)

MODES = (Fault.LOSE_REQUEST, Fault.STRAND_REQUEST, Fault.LOSE_REPLY, Fault.STRAND_REPLY, Fault.LATE)


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
        # what it remembers saves it trips from now on; each case below ends with a repetition too
        rows = await self.prepare(case)
        await case.call(self.store, rows)
        if case.repeatable:
            await case.call(self.store, rows)
        rows = await self.prepare(case)
        before, trips = state(self.phorge), self.proxy.trips
        await case.call(self.store, rows)
        return before, state(self.phorge), self.proxy.trips - trips

    async def broken(self, case: Case, plan: Mapping[int, Fault | After], before: State, after: State) -> list[int]:
        """Make the call while the line breaks as planned, check everything, and go on. The trips that were broken."""
        phorge, proxy = self.phorge, self.proxy
        rows = await self.prepare(case)
        proxy.break_at(plan)
        try:
            async with asyncio.timeout(10):
                await case.call(self.store, rows)
            answered = True
        except StoreUnavailable:
            answered = False
        proxy.deliver()
        fired = proxy.fired
        proxy.break_at({})
        # what a lost COMMIT began may still be under way
        if not case.partial:
            await eventually(lambda: answered or state(phorge) in (before, after), "all or nothing")
            assert not answered or state(phorge) == after, "an answered call is committed, and done once"
        check_whole(phorge)
        if case.repeatable:
            await succeeds(lambda: self._again(case, rows, after))
        (task,) = await succeeds(lambda: self.store.enqueue([NewTask(task_class="Next")]))
        leased = await succeeds(lambda: self.store.lease("qr:next", 1, 60, only={task.id}))
        assert [row.id for row in leased] == [task.id]
        return fired

    async def _again(self, case: Case, rows: Rows, after: State) -> None:
        """Made again, it is as if it had been made once; rows whose lock outlives the line come a moment later."""
        await case.call(self.store, rows)
        if case.partial and state(self.phorge) != after:
            raise StoreUnavailable(case.name, "a row is locked at this moment")
        assert state(self.phorge) == after


@asynccontextmanager
async def bench_on(phorge: PhorgeTables, clock: Clock, driver: DriverName = "aiomysql") -> AsyncIterator[Bench]:
    options = StoreOptions(now=clock, patience=0)
    async with (
        Proxy(phorge.server.socket) as proxy,
        open_store(phorge.settings(), options) as beside,
        open_store(phorge.settings(socket=proxy.socket, driver=driver), options) as store,
    ):
        yield Bench(phorge, clock, proxy, store, beside)


def each_driver(case: Case) -> list[object]:
    """asyncmy too, in CI for the calls that have the most to lose."""
    marks = () if case.name in {"enqueue", "lease", "settle"} else (pytest.mark.long,)
    return [
        pytest.param(case, "aiomysql", id=case.name),
        pytest.param(case, "asyncmy", id=f"{case.name}, asyncmy", marks=marks),
    ]


@pytest.mark.parametrize(("case", "driver"), [one for case in CASES for one in each_driver(case)])
async def test_a_line_that_breaks_at_any_trip_leaves_all_or_nothing(
    case: Case, driver: DriverName, phorge: PhorgeTables, clock: Clock
) -> None:
    """R057"""
    async with bench_on(phorge, clock, driver) as bench:
        before, after, trips = await bench.ends(case)
        for fault in MODES:
            for number in count(1):
                if not await bench.broken(case, {number: fault}, before, after):
                    break
            assert number > trips, "every trip of the call was broken"


@pytest.mark.parametrize(("case", "driver"), [one for case in CASES for one in each_driver(case)])
async def test_a_line_that_breaks_between_two_statements_of_a_trip_leaves_all_or_nothing(
    case: Case, driver: DriverName, phorge: PhorgeTables, clock: Clock
) -> None:
    """A trip carries up to a dozen statements. The server gets the first, then the first two, and so on to the last."""
    async with bench_on(phorge, clock, driver) as bench:
        before, after, trips = await bench.ends(case)
        broken = 0
        for number in range(1, trips + 1):
            for statements in count(1):
                if not await bench.broken(case, {number: After(statements)}, before, after):
                    break
                broken += 1
        assert broken or case.name in {"pause", "resume"}, "some trip has several statements"


FEW_FAULTS = (Fault.LOSE_REQUEST, Fault.STRAND_REPLY, After(1))
ALL_FAULTS = (*MODES, After(1), After(2))


@pytest.mark.parametrize(
    ("driver", "faults"),
    [
        pytest.param("aiomysql", FEW_FAULTS, id="aiomysql"),
        pytest.param("aiomysql", ALL_FAULTS, id="aiomysql, all", marks=pytest.mark.long),
        pytest.param("asyncmy", ALL_FAULTS, id="asyncmy, all", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("read", READS)
async def test_a_line_that_breaks_under_a_reader_changes_nothing_but_the_moment(
    read: str, driver: DriverName, faults: Sequence[Fault | After], phorge: PhorgeTables, clock: Clock
) -> None:
    """At every trip, those of a new connection too: the right answer or none, and the right one the next time."""
    phorge.empty()
    call, options = READS[read], StoreOptions(now=clock, patience=0)
    async with Proxy(phorge.server.socket) as proxy:
        settings = phorge.settings(socket=proxy.socket, driver=driver)
        async with open_store(phorge.settings(), options) as beside:
            await of_every_kind(beside, phorge)
            right, whole = await call(beside), state(phorge)
        for fault in faults:
            for number in count(1):
                proxy.break_at({number: fault})
                async with open_store(settings, options) as store:
                    trips = proxy.trips
                    with suppress(StoreUnavailable):
                        async with asyncio.timeout(10):
                            assert await call(store) == right
                    trips = proxy.trips - trips
                    proxy.deliver()
                    fired = proxy.fired
                    proxy.break_at({})
                    assert await succeeds(lambda store=store: call(store)) == right  # type: ignore[misc]
                if not fired and trips < number:
                    break
            assert number > 3, "opening takes trips"
        assert state(phorge) == whole


def test_every_method_of_the_protocol_is_broken() -> None:
    methods = {name for name, value in vars(Store).items() if callable(value) and not name.startswith("_")}
    assert {name.split()[0] for name in (*(case.name for case in CASES), *READS)} >= methods - {"sweep"}


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


async def test_a_sweep_whose_line_breaks_is_finished_by_the_next_ones(phorge: PhorgeTables, clock: Clock) -> None:
    """It works in several short transactions, so it may stop half way, but only between two tasks."""
    case = Case("sweep", archived, lambda store, rows: store.sweep(100))
    async with bench_on(phorge, clock) as bench:

        async def prepare() -> None:
            rows = await bench.prepare(case)
            phorge.execute(
                "UPDATE worker_archivetask SET archivedEpoch = 1, dateModified = 1 WHERE id <= %s", (rows[3].id,)
            )
            phorge.execute(f"INSERT INTO `{phorge.companion}`.task_extra (task_id, date_created) VALUES (4711, 1)")

        async def finish() -> State:
            for _ in range(3):
                await succeeds(lambda: bench.store.sweep(100))
            check_whole(phorge)
            return state(phorge)

        await prepare()
        trips = bench.proxy.trips
        after = await finish()
        assert len(after["archive"]) == 2
        assert "4711" not in str(after)
        trips = bench.proxy.trips - trips
        for fault, number in [(fault, number) for fault in (*MODES, After(1)) for number in range(1, trips + 1)]:
            await prepare()
            bench.proxy.break_at({number: fault})
            with suppress(StoreUnavailable):
                await bench.store.sweep(100)
            bench.proxy.deliver()
            check_whole(phorge)
            bench.proxy.break_at({})
            assert await finish() == after

"""Housekeeping: regular, at once while there is more, and never in anybody's way."""

import time

import anyio

from queue_runtime.errors import StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.store import StoreOptions
from queue_runtime.sweep_loop import SweepLoop
from queue_runtime.task import SweepReport
from tests.reference_store import ReferenceStore
from tests.runtime.harness import Stopwatch, enqueue, until


class SweptStore(ReferenceStore):
    """Answers with the reports it was given, then with nothing to do."""

    def __init__(self, *reports: SweepReport | Exception) -> None:
        super().__init__(StoreOptions())
        self._reports = list(reports)
        self.at: list[float] = []

    async def sweep(self, limit: int) -> SweepReport:
        self.at.append(time.monotonic())
        report = self._reports.pop(0) if self._reports else SweepReport()
        if isinstance(report, Exception):
            raise report
        return report


async def test_it_goes_on_at_once_while_there_is_more_and_then_rests() -> None:
    store = SweptStore(SweepReport(expired=1000, more=True), SweepReport(expired=1000, more=True))
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(SweepLoop(store, Lifecycle(), sweep_seconds=0.5).run, stop)
        await until(lambda: len(store.at) == 4)
        stop.set()
    waits = [after - before for before, after in zip(store.at, store.at[1:], strict=False)]
    assert waits[0] < 0.3 > waits[1]
    assert min(waits[:2]) >= 0.04
    assert waits[2] >= 0.45


async def test_an_outage_is_waited_out_and_the_end_is_prompt() -> None:
    store = SweptStore(*[StoreUnavailable("sweep", "lock wait")] * 3)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(SweepLoop(store, Lifecycle(), sweep_seconds=0.1).run, stop)
        await until(lambda: len(store.at) == 5)
        watch = Stopwatch()
        stop.set()
    assert watch.seconds < 0.5


async def test_one_step_does_the_stores_housekeeping() -> None:
    store = ReferenceStore(StoreOptions(retention=0))
    ids = await enqueue(store, "A", 3)
    await store.cancel(ids)
    report = await SweepLoop(store, Lifecycle(), sweep_seconds=30, limit=2).sweep_once()
    assert (report.expired, report.more) == (2, True)

"""The selftest on stores that answer wrongly, not at all, or are shared with somebody who takes everything."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from queue_runtime import selftest
from queue_runtime.errors import StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.selftest import SelftestLoop, run_selftest
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, NewTask, Sentinel, Settled, Settlement, Task, Verdict
from tests.faulty_store import FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.harness import open_reference, until

CALLS = ["enqueue", "get", "paused", "delay", "lease", "renew", "settle", "get_archived", "cancel", "list_active"]


class Wrong(ReferenceStore):
    """A store of which one method answers wrongly."""

    def __init__(self, method: str, answer: Any) -> None:
        super().__init__(StoreOptions())

        async def wrong(*_: object, **__: object) -> Any:
            return answer

        setattr(self, method, wrong)


@pytest.mark.parametrize(
    ("method", "answer", "step"),
    [
        ("enqueue", [], "enqueue"),
        ("get", [None] * 3, "read"),
        ("renew", [None] * 3, "renew"),
        ("settle", [Settled(Verdict.LOST)] * 3, "settle"),
        ("settle", [Settled(Verdict.SETTLED)] * 3, "fence"),
        ("get_archived", [None], "archive"),
    ],
)
async def test_a_wrong_answer_is_told_with_its_step(method: str, answer: Any, step: str) -> None:
    store = Wrong(method, answer)
    report = await run_selftest(store)
    assert (report.ok, report.failed) == (False, step)
    assert report.sentence.startswith(f"{step} failed: ")
    assert "queue-runtime doctor --store" in report.sentence
    assert store.tables.active == {}


@pytest.mark.parametrize("method", CALLS)
async def test_an_outage_at_any_call_is_told_and_leaves_nothing_that_is_active(method: str) -> None:
    reference = open_reference()
    store = FaultyStore(reference)
    store.refuse(method)
    report = await run_selftest(store)
    assert report.trouble is not None
    assert "the store does not answer" in report.trouble
    assert reference.tables.active == {}
    assert (await run_selftest(store)).ok


async def test_a_reply_that_was_lost_leaves_a_hidden_row_which_a_later_one_takes_back() -> None:
    reference = open_reference()
    store = FaultyStore(reference)
    store.lose_reply("enqueue")
    assert (await run_selftest(store)).failed == "enqueue"
    assert len(reference.tables.active) == 3
    for row in list(reference.tables.active.values()):
        reference.tables.active[row.id] = replace(row, date_created=row.date_created - selftest.LEFT_AFTER)
    assert (await run_selftest(store)).ok
    assert reference.tables.active == {}


class Thief(ReferenceStore):
    """Somebody else takes what comes due, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(StoreOptions())
        self.times = times

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        count = await super().delay(task_ids, until)
        if self.times:
            self.times -= 1
            await self.lease("23192:1796040935:web1:2", 1, 7200)
        return count


async def test_somebody_who_was_quicker_is_no_fault_of_the_store() -> None:
    store = Thief(2)
    report = await run_selftest(store)
    assert (report.ok, len(report.task_ids)) == (True, 9)
    assert store.tables.active == {}


async def test_somebody_who_is_quicker_each_time_is_named() -> None:
    store = Thief(3)
    report = await run_selftest(store)
    assert report.failed == "lease"
    assert "23192:1796040935:web1:2 took the task of the selftest each time" in report.sentence
    assert store.tables.active == {}


class Locked(ReferenceStore):
    """The first outcome meets a row that somebody has locked."""

    met = False

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not self.met:
            self.met = True
            return [Settled(Verdict.BUSY), *await super().settle(settlements[1:])]
        return await super().settle(settlements)


async def test_a_row_that_somebody_has_locked_is_asked_for_again() -> None:
    assert (await run_selftest(Locked(StoreOptions()))).ok


class Stuck(ReferenceStore):
    """Never answers a renewal."""

    async def renew(self, leases: Sequence[Any], seconds: int) -> list[Task | None]:
        await asyncio.Event().wait()
        return []


async def test_a_store_that_never_answers_is_given_up_and_its_tasks_are_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selftest, "BOUND_SECONDS", 0.1)
    store = Stuck(StoreOptions())
    report = await run_selftest(store)
    assert (report.failed, report.trouble) == ("renew", "no answer within 0 s")
    assert store.tables.active == {}


async def test_one_that_is_interrupted_takes_its_tasks_back() -> None:
    store = Stuck(StoreOptions())
    with anyio.move_on_after(0.1):
        await run_selftest(store)
    assert store.tables.active == {}
    assert len(store.tables.archived) == 3


class Cutting(ReferenceStore):
    """Has the selftest cancelled in the moment in which a call has been committed."""

    def __init__(self, method: str, scope: anyio.CancelScope) -> None:
        super().__init__(StoreOptions())
        act = getattr(self, method)

        async def cut(*arguments: Any, **named: Any) -> Any:
            answer = await act(*arguments, **named)
            setattr(self, method, act)
            scope.cancel()
            await asyncio.sleep(0)
            return answer

        setattr(self, method, cut)


@pytest.mark.parametrize("method", CALLS)
async def test_one_that_is_stopped_right_after_a_commit_takes_its_tasks_back(method: str) -> None:
    with anyio.CancelScope() as scope:
        store = Cutting(method, scope)
        await run_selftest(store)
    assert store.tables.active == {}


async def test_what_may_not_be_taken_out_of_the_table_is_at_least_held_by_nobody() -> None:
    class Undeletable(ReferenceStore):
        """As an account without the right to DELETE."""

        async def cancel(self, task_ids: Sequence[int]) -> list[Any]:
            raise StoreUnavailable("cancel", "denied")

        async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
            if any(isinstance(one.outcome, Complete) for one in settlements):
                raise StoreUnavailable("settle", "denied")
            return await super().settle(settlements)

    store = Undeletable(StoreOptions())
    report = await run_selftest(store)
    assert (report.failed, len(report.notes)) == ("settle", 1)
    assert "may be there still" in report.notes[0]
    for row in store.tables.active.values():
        assert row.lease_owner == Sentinel.YIELD
        assert (row.lease_expires or 0) > row.date_created + 300_000_000
    assert len(store.tables.active) == 3


async def test_the_loop_tells_readiness_how_the_last_one_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "AGAIN_SECONDS", 0.01)
    store = FaultyStore(open_reference())
    store.refuse("renew", times=3)
    lifecycle = Lifecycle()
    loop = SelftestLoop(store, lifecycle)
    await loop.once()
    assert lifecycle.faults["selftest"].startswith("renew failed: the store does not answer")
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(loop.run, stop)
        await until(lambda: not lifecycle.faults)
        stop.set()
    assert loop.last is not None
    assert loop.last.ok


class Slow(ReferenceStore):
    """Takes its time before it enqueues, as a connection that is made first, and after it."""

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        await anyio.sleep(1.1)
        rows = await super().enqueue(tasks)
        await anyio.sleep(1.1)
        return rows


async def test_a_store_that_is_slow_to_enqueue_passes_too() -> None:
    assert (await run_selftest(Slow(StoreOptions()))).ok


async def test_one_that_goes_on_failing_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try leaves a row in the archive."""
    waits: list[float] = []

    async def pause(stop: anyio.Event, seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) < 12

    monkeypatch.setattr(selftest, "pause", pause)
    store = FaultyStore(open_reference())
    store.refuse("renew", times=9)
    await SelftestLoop(store, Lifecycle()).run(anyio.Event())
    assert waits[0] == 0
    assert 2.5 <= waits[1] <= 5
    assert 30 <= waits[9] <= 60
    assert waits[10:] == [300, 300]

"""A row that somebody else has locked holds up its own outcome, and no other."""

import asyncio
from collections.abc import Sequence

import pytest

from queue_runtime import settler as module
from queue_runtime.errors import StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import Settler
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Settled, Settlement, Verdict
from tests.reference_store import ReferenceStore
from tests.runtime.harness import ended, until
from tests.runtime.test_settler import Answers, leased, serving


class LockedRows(ReferenceStore):
    """A store in which somebody has locked some rows."""

    def __init__(self) -> None:
        super().__init__(StoreOptions())
        self.locked: set[int] = set()
        self.refusals = 0

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        free = iter(await super().settle([one for one in settlements if one.task_id not in self.locked]))
        self.refusals += sum(one.task_id in self.locked for one in settlements)
        return [Settled(Verdict.BUSY) if one.task_id in self.locked else next(free) for one in settlements]


async def test_an_outcome_waits_for_its_locked_row_while_the_others_are_written() -> None:
    store = LockedRows()
    first, second, third = await leased(store, 3)
    store.locked = {first.task_id}
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(first)
        answers.submit(second)
        await until(lambda: second.task_id in answers.verdicts and store.refusals > 1)
        answers.submit(third)
        await until(lambda: third.task_id in answers.verdicts)
        assert first.task_id not in answers.verdicts
        assert settler.unwritten_ids == [first.task_id]
        store.locked = set()
        await until(lambda: first.task_id in answers.verdicts)
        assert settler.waiting == 0
    assert set(answers.verdicts.values()) == {Verdict.SETTLED}


async def test_a_caller_gets_all_answers_in_order_once_the_locked_row_is_free() -> None:
    store = LockedRows()
    leases = await leased(store, 3)
    store.locked = {leases[1].task_id}
    round_ = [Settlement.held(lease, Complete()) for lease in leases]
    async with serving(Settler(store)) as settler:
        asking = asyncio.create_task(settler.settle([*round_, round_[1]]))
        await until(lambda: store.refusals > 3)
        assert not asking.done()
        store.locked = set()
        verdicts = [settled.verdict for settled in await asking]
    assert verdicts == [Verdict.SETTLED, Verdict.SETTLED, Verdict.SETTLED, Verdict.REPLAYED]


async def test_a_caller_is_told_which_row_stays_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.2)
    store = LockedRows()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    async with serving(Settler(store)) as settler:
        with pytest.raises(StoreUnavailable, match=f"task {lease.task_id} is locked"):
            await settler.settle([Settlement.held(lease, Complete())])
    assert ended(store, lease.task_id) is None


async def test_a_caller_hears_at_once_when_the_server_closes() -> None:
    """It waits until then: the row may come free while the handlers finish."""
    store, lifecycle = LockedRows(), Lifecycle()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    async with serving(Settler(store, lifecycle=lifecycle)) as settler:
        asking = asyncio.create_task(settler.settle([Settlement.held(lease, Complete())]))
        lifecycle.stopping.set()
        await until(lambda: store.refusals > 2)
        assert not asking.done()
        lifecycle.closing.set()
        with pytest.raises(StoreUnavailable, match=f"task {lease.task_id} is locked"):
            await asking


async def test_a_stop_does_not_wait_for_a_locked_row_and_names_it() -> None:
    store = LockedRows()
    (lease,) = await leased(store, 1)
    store.locked = {lease.task_id}
    async with serving(Settler(store)) as settler:
        Answers(settler).submit(lease)
        await until(lambda: store.refusals > 0)
        assert await settler.drain(seconds=0.1, bound=0.3) == [lease.task_id]

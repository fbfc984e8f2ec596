"""Whatever a store answers, and whatever happens meanwhile, each outcome gets its own answer and none is lost."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from queue_runtime.errors import InvalidRequest, StoreFull, StoreUnavailable
from queue_runtime.settle_part import brings_tasks
from queue_runtime.settler import Settler
from queue_runtime.store import StoreOptions
from queue_runtime.task import (
    ArchivedTask,
    Complete,
    Lease,
    Outcome,
    Result,
    Settled,
    Settlement,
    Verdict,
    Yield,
)
from tests.reference_store import ReferenceStore
from tests.runtime.harness import new
from tests.runtime.settling import REFUSED, Seconds

TASKS = 8
ENOUGH = 300
"""Outcomes in a history. While each is tried alone more may arrive than are written."""

LOST = "lost:"
"""Owners of leases that are not valid begin so."""


class MoodyStore(ReferenceStore):
    """Answers as chance has it. Outcomes are told apart by the owner of their lease, and so are the answers."""

    def __init__(self, chance: random.Random, *, reliable: bool) -> None:
        super().__init__(StoreOptions())
        self._chance = chance
        self.reliable = reliable
        self.calm = False
        self.full = False
        self.locked: set[int] = set()
        self.written: list[Settlement] = []
        self.answered: set[str] = set()
        self.twice: list[str] = []
        """outcomes that were twice in one call, or sent again after their answer"""
        self.meanwhile: Callable[[], None] = lambda: None

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        owners = [owner_of(one) for one in settlements]
        # noted and not raised: whoever calls takes an error for the store's own
        self.twice += [owner for owner in owners if owner in self.answered or owners.count(owner) > 1]
        await self._time_passes()
        mood = 0.5 if self.calm or self.reliable else self._chance.random()
        if mood < 0.05:
            raise StoreUnavailable("settle", "away")
        if any(one.outcome == REFUSED for one in settlements):
            raise InvalidRequest("wait", "not here")
        if self.full and any(brings_tasks(one) for one in settlements):
            raise StoreFull("settle", "no room")
        answers = [self._write(one) for one in settlements]
        if mood > 0.95:
            raise StoreUnavailable("settle", "reply lost")
        if not self.reliable:
            await self._time_passes()  # and the round may be cut off when all is written
        self.answered.update(
            owner for owner, settled in zip(owners, answers, strict=True) if settled.verdict is not Verdict.BUSY
        )
        return answers

    async def _time_passes(self) -> None:
        for _ in range(self._chance.randrange(4)):
            self.meanwhile()
            await asyncio.sleep(0)

    def _write(self, settlement: Settlement) -> Settled:
        owner = owner_of(settlement)
        if settlement.task_id in self.locked:
            return Settled(Verdict.BUSY)
        if owner.startswith(LOST):
            return Settled(Verdict.LOST)
        verdict = Verdict.SETTLED
        if any(owner_of(one) == owner for one in self.written):
            verdict = Verdict.REPLAYED if isinstance(settlement.outcome, Complete) else Verdict.LOST
        else:
            self.written.append(settlement)
        return Settled(verdict, archived(settlement) if isinstance(settlement.outcome, Complete) else None)


class History:
    """One life of a settler, with everything that can happen to it."""

    def __init__(self, seed: int, *, reliable: bool) -> None:
        self.chance = random.Random(seed)
        self.reliable = reliable
        self.clock = Seconds()
        self.store = MoodyStore(self.chance, reliable=reliable)
        self.store.meanwhile = self.something
        self.settler = Settler(self.store, clock=self.clock)
        self.held: dict[str, Settlement] = {}
        self.answers: dict[str, Settled] = {}
        self.calls: list[tuple[list[Settlement], asyncio.Task[list[Settled]]]] = []
        self.drains: list[asyncio.Task[list[int]]] = []
        self._number = 0

    async def play(self) -> None:
        for _ in range(50):
            self.something()
            await asyncio.sleep(0)
            round_ = asyncio.create_task(self.settler.round())
            if not self.reliable and self.chance.random() < 0.05:
                for _ in range(self.chance.randrange(8)):
                    await asyncio.sleep(0)
                round_.cancel()
            with suppress(asyncio.CancelledError):
                await round_
        self.store.calm, self.store.full, self.store.locked = True, False, set()
        self.store.meanwhile = lambda: None
        for _ in range(100):
            self.clock.advance(0.3)
            await asyncio.sleep(0)
            await self.settler.round()

    def something(self) -> None:
        """One thing happens, or a few."""
        for _ in range(self.chance.randrange(3)):
            match self.chance.randrange(8):
                case 0 | 1 if self._number < ENOUGH:
                    self._submit()
                case 2 | 3 if self._number < ENOUGH:
                    settlements = [self._settlement() for _ in range(self.chance.randint(1, 4))]
                    self.calls.append((settlements, asyncio.create_task(self.settler.settle(settlements))))
                case 4:
                    self.store.locked ^= {self.chance.randrange(1, TASKS + 1)}
                case 5:
                    self.clock.advance(self.chance.choice((0.01, 0.06, 0.06, 0.3, 1.0)))
                case 6 if self.calls and self.chance.random() < 0.5:
                    self.chance.choice(self.calls)[1].cancel()
                case 7 if not self.reliable:
                    self.store.full = self.chance.random() < 0.5
                case 7 if all(drain.done() for drain in self.drains):
                    self.drains.append(asyncio.create_task(self.settler.drain(seconds=2, bound=5)))

    def _submit(self) -> None:
        settlement = self._settlement()
        owner = owner_of(settlement)
        self.held[owner] = settlement

        def done(settled: Settled) -> None:
            assert owner not in self.answers, "told twice"
            self.answers[owner] = settled

        self.settler.submit(settlement, done)

    def _settlement(self) -> Settlement:
        self._number += 1
        kind = self.chance.random()
        outcome: Outcome = Complete(0, [new("Child")]) if kind < 0.3 else Complete() if kind < 0.7 else Yield()
        if self.chance.random() < 0.05:
            outcome = REFUSED
        valid = self.chance.random() < 0.8
        lease = Lease(self.chance.randint(1, TASKS), f"{'' if valid else LOST}{self._number}")
        return Settlement.held(lease, outcome)

    def check(self) -> None:
        assert self.store.twice == []
        assert self.settler.waiting == 0
        assert self.settler.unwritten_ids == []
        assert set(self.answers) == set(self.held)
        for owner, settlement in self.held.items():
            self._check_answer(settlement, self.answers[owner], unsure=not self.reliable)
        for settlements, call in self.calls:
            assert call.done()
            if call.cancelled():
                continue
            error = call.exception()
            if error is None:
                for settlement, settled in zip(settlements, call.result(), strict=True):
                    self._check_answer(settlement, settled, unsure=False)
            elif isinstance(error, InvalidRequest):
                assert any(one.outcome == REFUSED for one in settlements)
            elif isinstance(error, StoreFull):
                assert any(brings_tasks(one) for one in settlements)
            else:
                assert isinstance(error, StoreUnavailable)
                assert error.reason in ("away", "reply lost", "the round was cut off")
                assert not self.reliable

    def _check_answer(self, settlement: Settlement, settled: Settled, *, unsure: bool) -> None:
        owner = owner_of(settlement)
        if owner.startswith(LOST):
            assert settled.verdict is Verdict.LOST or (unsure and settled == Settled(Verdict.REPLAYED))
            return
        assert settled.verdict is Verdict.SETTLED or (unsure and settled.verdict is Verdict.REPLAYED)
        assert any(owner_of(one) == owner for one in self.store.written)
        if isinstance(settlement.outcome, Complete) and settled.archived is not None:
            assert settled.archived.lease_owner == owner

    def order_of(self, task_id: int, *, held: bool) -> list[int]:
        """The outcomes of a task in the order in which they were written, by number of arrival."""
        owners = [owner_of(one) for one in self.store.written if one.task_id == task_id]
        return [int(owner) for owner in owners if (owner in self.held) is held]


def owner_of(settlement: Settlement) -> str:
    assert settlement.lease is not None
    return settlement.lease.owner


def archived(settlement: Settlement) -> ArchivedTask:
    return ArchivedTask(
        id=settlement.task_id,
        task_class="A",
        data_id=1,
        priority=1,
        date_created=1,
        date_modified=1,
        result=Result.SUCCESS,
        duration_us=0,
        archived_epoch=1,
        lease_owner=owner_of(settlement),
    )


async def played(seed: int, monkeypatch: pytest.MonkeyPatch, *, reliable: bool) -> History:
    history = History(seed, reliable=reliable)
    monkeypatch.setattr("queue_runtime.backoff.random", history.chance)
    await history.play()
    history.check()
    await asyncio.gather(*history.drains)
    return history


@pytest.mark.parametrize("seed", range(80))
async def test_each_gets_its_own_answer_whatever_the_store_answers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locked rows, no room, refusals, outages, lost replies, rounds cut off, callers that go away, slow calls."""
    await played(seed, monkeypatch, reliable=False)


@pytest.mark.parametrize("seed", range(80))
async def test_outcomes_of_a_task_are_written_in_their_order_however_long_its_row_is_locked(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusals, callers that go away and drains change nothing about it."""
    history = await played(seed, monkeypatch, reliable=True)
    for task_id in range(1, TASKS + 1):
        for held in (False, True):
            order = history.order_of(task_id, held=held)
            assert order == sorted(order)

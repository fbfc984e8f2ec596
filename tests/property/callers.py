"""Callers that follow the rules, on a line that refuses calls and loses replies.

Keyed enqueues, renewals and outcomes are sent again until they are answered; a lease never is.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, TypeVar

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store
from queue_runtime.task import (
    Complete,
    Fail,
    Lease,
    NewTask,
    Outcome,
    Release,
    Result,
    Retry,
    Settlement,
    Task,
    Unknown,
    Verdict,
    Yield,
)
from tests.clock import Clock
from tests.faulty_store import Fault, FaultyStore
from tests.property.dice import Dice

T = TypeVar("T")
FAULTS = (None, None, None, Fault.LOSE_REPLY, Fault.REFUSE)


class Callers:
    """A producer and two workers (one of ours, one over HTTP), and what they know."""

    def __init__(self, store: Store, clock: Clock, faults: bytes) -> None:
        dice = Dice(faults)
        self._store = store
        self._line = FaultyStore(store, lambda _: dice.choose(FAULTS))
        self._clock = clock
        self._names = count(1)
        self._running: list[tuple[Task, Lease]] = []
        self._produced: list[str] = []
        self._retries_sent: Counter[int] = Counter()
        self._retries_confirmed: Counter[int] = Counter()

    async def play(self, steps: list[bytes]) -> None:
        """Take every step, mend the line, let everything run to its end, and count."""
        for step in steps:
            dice = Dice(step)
            await dice.choose(STEPS)(self, dice)
        await self._run_dry()
        await self._check()

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Send it again until there is an answer. The faults run out before the test's patience does."""
        while True:
            try:
                return await call()
            except StoreUnavailable:
                continue

    # ---- steps

    async def produce(self, dice: Dice) -> None:
        name = f"task {next(self._names)}"
        self._produced.append(name)
        if dice.chance(2):
            await self._until_answered(lambda: self._line.enqueue_once(name, NewTask(task_class="A", data=name)))
        else:
            keyed = NewTask(task_class="A", data=name, idempotency_key=name)
            await self._until_answered(lambda: self._line.enqueue([keyed]))

    async def lease(self, dice: Dice) -> None:
        over_http = dice.chance(2)
        owner = "web1:1" if over_http else f"qr:0:{next(self._names)}:1@h"
        try:
            tasks = await self._line.lease(owner, 1 + dice.below(3), 10, due_first=dice.chance(2))
        except StoreUnavailable:
            return  # nobody knows what was taken: it comes back when the lease ends
        self._running += [(task, Lease(task.id, owner, task.lease_expires if over_http else None)) for task in tasks]

    async def renew(self, dice: Dice) -> None:
        """By our worker alone: a receipt that has moved cannot be sent again (F13)."""
        ours = [lease for _, lease in self._running if lease.expires is None]
        if ours:
            await self._until_answered(lambda: self._line.renew(ours, 10))

    async def finish(self, dice: Dice) -> None:
        if self._running:
            task, lease = self._running.pop(dice.below(len(self._running)))
            await self._settle(task, lease, self._outcome(task, dice))

    async def _settle(self, task: Task, lease: Lease, outcome: Outcome) -> None:
        if isinstance(outcome, Retry):
            self._retries_sent[task.id] += 1
        (settled,) = await self._until_answered(lambda: self._line.settle([Settlement.held(lease, outcome)]))
        if isinstance(outcome, Retry) and settled.verdict is Verdict.SETTLED:
            self._retries_confirmed[task.id] += 1

    def _outcome(self, task: Task, dice: Dice) -> Outcome:
        if task.task_class == "Child":
            return Complete()
        ends: tuple[Outcome, ...] = (_with_children(task), Fail(), Retry(1), Yield(1), Unknown(1), Release())
        return dice.choose(ends)

    async def crash(self, dice: Dice) -> None:
        self._running.clear()

    async def advance(self, dice: Dice) -> None:
        self._clock.advance(dice.choose((1, 5, 12, 40)))

    # ---- the end

    async def _run_dry(self) -> None:
        """Everybody who still runs is forgotten; healthy workers finish the rest."""
        while (await self._store.stats()).active:
            self._clock.advance(100)
            for task in await self._store.lease(f"qr:0:{next(self._names)}:1@h", 100, 10):
                assert task.lease_owner is not None
                outcome = Complete() if task.task_class == "Child" else _with_children(task)
                (settled,) = await self._store.settle([Settlement.held(Lease(task.id, task.lease_owner), outcome)])
                assert settled.verdict is Verdict.SETTLED

    async def _check(self) -> None:
        """Everything that was produced ended once, with its children exactly when it succeeded."""
        ids = [row.id for row in await self._store.list_archived(5000)]
        archived = [row for row in await self._store.get_archived(ids) if row is not None]
        parents = [row for row in archived if row.task_class == "A"]
        assert sorted(row.data or "" for row in parents) == sorted(self._produced)

        children = Counter(row.data for row in archived if row.task_class == "Child")
        wanted = {_child(row.id): 2 for row in parents if row.result is Result.SUCCESS}
        assert dict(children) == wanted
        for row in parents:
            assert self._retries_confirmed[row.id] <= row.failure_count <= self._retries_sent[row.id]


def _with_children(task: Task) -> Complete:
    return Complete(followups=[NewTask(task_class="Child", data=_child(task.id))] * 2)


def _child(parent: int) -> str:
    return f"child of {parent}"


Step = Callable[[Callers, Dice], Any]

STEPS: tuple[Step, ...] = (
    *[Callers.produce] * 3,
    *[Callers.lease] * 4,
    *[Callers.finish] * 5,
    Callers.renew,
    Callers.crash,
    *[Callers.advance] * 3,
)

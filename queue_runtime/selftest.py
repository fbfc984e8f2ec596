"""Tries the store with tasks of its own: enqueue, read, lease, renew, every common ending, and away with them."""

import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

import anyio
import structlog
from msgspec import Struct, field

from queue_runtime.backoff import Backoff, pause
from queue_runtime.errors import InvalidRequest, StoreFull, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.owner import Owners
from queue_runtime.store import Store
from queue_runtime.task import (
    MAX_LEASE_SECONDS,
    MAX_LIST,
    U32,
    Complete,
    Failure,
    Lease,
    NewTask,
    Outcome,
    Pause,
    PauseKind,
    Result,
    Retry,
    Sentinel,
    Settled,
    Settlement,
    State,
    Task,
    TaskFilter,
    Verdict,
    Yield,
)

log = structlog.get_logger()

Answer = TypeVar("Answer")

CANARY = "QueueRuntimeCanaryWorker"
"""A class that the extension for Phorge has: it does nothing there, and has no handler here."""

MARK = "queue-runtime:canary"
"""Container of each canary of `takeover check`, whatever its class: it marks them in both tables."""

PRIORITY = U32
"""Of the selftest's tasks alone: whoever leases by priority takes everything else first."""

FAR = U32
"""Delay of a task that nobody shall take: a taskmaster passes over a row with an owner and a time to come."""

DATA = '{"selftest":"\\u00e9 é 😀 \\\\ %s \'"}'

HELD_SECONDS = MAX_LEASE_SECONDS
"""Held, yielded and put off for a week, so that a selftest which was killed leaves nothing that comes due soon."""

PUT_OFF_SECONDS = 10 * 365 * 86400
"""How long those stay away that cannot be taken back. The next selftest tries again."""

BOUND_SECONDS = 30.0
TIDY_SECONDS = 5.0
TRIES = 3
BUSY_PAUSE = 0.05

LEFT_AFTER = 120
"""Seconds after which a task of a selftest belongs to nobody: its process is gone. Four times the bound."""

EVERY_SECONDS = 300.0
"""Each leaves an ended task, 288 a day, and these stay until their retention is over."""

AGAIN_SECONDS = 5.0
"""How soon it is tried again after it has failed; after each more failure twice as late, up to LONGEST_AGAIN."""

LONGEST_AGAIN = 60.0


class Step(Struct, frozen=True):
    """One step, and the time that it took."""

    name: str
    milliseconds: float


class Report(Struct, frozen=True):
    """What a selftest found. `trouble` None: every step was answered as it should be."""

    steps: tuple[Step, ...]
    failed: str | None = None
    """the step that went wrong"""

    trouble: str | None = None
    advice: str | None = None
    notes: tuple[str, ...] = ()
    task_ids: tuple[int, ...] = ()
    """ids that it used up"""

    at: float = field(default_factory=time.time)
    """when it ended, Unix seconds by the clock of this host"""

    @property
    def ok(self) -> bool:
        return self.trouble is None

    @property
    def sentence(self) -> str:
        """All of it, for people."""
        times = ", ".join(f"{one.name} {one.milliseconds:.1f} ms" for one in self.steps)
        if self.trouble is None:
            return times
        return f"{self.failed} failed: {self.trouble}" + (f". {self.advice}" if self.advice else "")


class _Trouble(Exception):
    """A step was not answered as it should be."""

    def __init__(self, trouble: str, advice: str) -> None:
        super().__init__(trouble)
        self.trouble = trouble
        self.advice = advice


class TakenByOthers(Exception):
    """Somebody else was quicker at a task in the moment in which it could be taken."""

    def __init__(self, owners: Sequence[str]) -> None:
        super().__init__(", ".join(owners))


_ODD = "Either somebody else changes these rows, or this is a fault of the program: `queue-runtime doctor --store`"
_DOCTOR = "`queue-runtime doctor --store` says what is wrong with the store"


async def take(store: Store, rows: Sequence[Task], owner: str, seconds: int, *, since: float) -> list[Task]:
    """Lease tasks that were enqueued with `delay_until=FAR`, all of them or none. Raises TakenByOthers.

    They are due in this very second, in which a native taskmaster does not take them yet (it wants a time that is
    past), and are leased with the next call. `since`: `time.monotonic()` of when they had been enqueued, and not
    before, so that the time reckoned by it is never ahead of the store's.
    """
    ids = [row.id for row in rows]
    now = rows[0].date_created + int(time.monotonic() - since)
    await store.delay(ids, now)
    taken = await store.lease(owner, len(ids), seconds, only=ids)
    if len(taken) == len(ids):
        return taken
    others = await _owners(store, [task_id for task_id in ids if task_id not in {task.id for task in taken}])
    if taken:  # what is held here is ended as never run
        await store.cancel([task.id for task in taken])
    raise TakenByOthers(others)


async def _owners(store: Store, ids: Sequence[int]) -> list[str]:
    rows = [*await store.get(ids), *await store.get_archived(ids)]
    return sorted({row.lease_owner or "nobody" for row in rows if row is not None})


def stops(pause: Pause, task_class: str, queue: str) -> bool:
    """Whether this pause keeps such a task from being leased."""
    match pause.kind:
        case PauseKind.ALL:
            return True
        case PauseKind.CLASS:
            return pause.name == task_class
        case PauseKind.QUEUE:
            return pause.name == queue


def pause_words(pause: Pause) -> str:
    """A pause for people."""
    what = {PauseKind.ALL: "for everybody", PauseKind.CLASS: f"for the class {pause.name}"}
    return f"leasing is paused {what.get(pause.kind, f'for the queue {pause.name}')}"


async def take_back_canaries(store: Store, before: int) -> list[int]:
    """Cancel the canaries that a killed `takeover check` has left, and return their ids.

    They have its mark, nobody holds them, and they were enqueued at `before` or earlier (Unix seconds).
    """
    free = frozenset({State.READY, State.WAITING})
    found = await store.list_active(MAX_LIST, where=TaskFilter(container_phid=MARK, states=free))
    left = [row.id for row in found if row.date_created <= before]
    if left:
        await store.cancel(left)
    return left


async def run_selftest(store: Store, *, brief: bool = False) -> Report:
    """Try the store; `brief` uses one task and leaves out the endings other than success. Never raises on trouble.

    Whatever happens, its own tasks are taken back, also when it is cancelled.
    """
    return await _Selftest(store, brief=brief).run()


class _Selftest:
    """One run. Each step checks the whole answer, not just that there is one."""

    def __init__(self, store: Store, *, brief: bool) -> None:
        self._store = store
        self._brief = brief
        self._owners = Owners()
        self._steps: list[Step] = []
        self._notes: list[str] = []
        self._now = "enqueue"
        self._ids: list[int] = []
        self._open: set[int] = set()
        """tasks that are, or may be, active still"""

        self._leases: list[Lease] = []
        """of those that are held"""

    async def run(self) -> Report:
        failed = trouble = advice = None
        try:
            with anyio.fail_after(BOUND_SECONDS):
                await self._tries()
        except _Trouble as error:
            failed, trouble, advice = self._now, error.trouble, error.advice
        except StoreFull as error:
            failed, trouble, advice = self._now, f"the store has no room ({error})", "Make room"
        except StoreUnavailable as error:
            failed, trouble, advice = self._now, f"the store does not answer ({error})", _DOCTOR
        except InvalidRequest as error:
            failed, trouble, advice = self._now, f"the store refused it ({error})", _ODD
        except TimeoutError:
            failed, trouble, advice = self._now, f"no answer within {BOUND_SECONDS:.0f} s", _DOCTOR
        except Exception as error:  # to find such a thing is what this is for; its text may hold a secret
            log.exception("the selftest met an error that no store should raise", step=self._now)
            failed, trouble, advice = self._now, f"the store raised {type(error).__name__}; the log says why", _ODD
        finally:
            if self._open:
                await self._tidy()
        if failed is not None and self._open:
            self._notes.append(f"tasks {sorted(self._open)} may be there still; the next selftest takes them back")
        return Report(tuple(self._steps), failed, trouble, advice, tuple(self._notes), tuple(self._ids))

    async def _tidy(self) -> None:
        """Take back what is active, also while this is being cancelled; what cannot be is left to the next run."""
        with anyio.move_on_after(TIDY_SECONDS, shield=True):
            try:
                await self._store.cancel(sorted(self._open))
            except Exception as error:  # noqa: BLE001  what went wrong before is what is told
                log.warning(
                    "tasks of the selftest were not taken back", task_ids=sorted(self._open), reason=repr(error)
                )
                await self._put_off()
                return
            self._open.clear()

    async def _put_off(self) -> None:
        """What cannot be taken out of the table, for want of a right perhaps, is at least held by nobody."""
        if self._leases:
            with suppress(Exception):
                await self._store.settle([Settlement.held(lease, Yield(PUT_OFF_SECONDS)) for lease in self._leases])

    async def _tries(self) -> None:
        for left in reversed(range(TRIES)):
            self._steps.clear()
            try:
                await self._try()
            except TakenByOthers as error:
                await self._tidy()
                if not left:
                    raise _Trouble(
                        f"{error} took the task of the selftest each time",
                        f"Somebody leases tasks of every class, {CANARY} too: stop that worker for a moment, or narrow"
                        " what it takes",
                    ) from None
            else:
                return

    async def _try(self) -> None:
        rows, since = await self._enqueue()
        ids = [row.id for row in rows]
        await self._step("read", self._read(rows))
        if not await self._may_lease(rows[0]):
            await self._step("cancel", self._cancel(ids))
            return
        owner = self._owners.next()
        self._now = "lease"
        held = await self._step("lease", take(self._store, rows, owner, HELD_SECONDS // 2, since=since))
        self._expect({task.id for task in held} == set(ids), f"other tasks came: {[task.id for task in held]}")
        self._expect(all(task.lease_owner == owner and task.data == DATA for task in held), f"not as taken: {held}")
        self._leases = leases = [Lease(task_id, owner) for task_id in ids]
        await self._step("renew", self._renew(leases, held))
        outcomes: list[Outcome] = [Complete(duration_us=1)]
        if not self._brief:
            outcomes += [Yield(HELD_SECONDS), Retry(HELD_SECONDS, Failure("a selftest"))]
        settlements = [Settlement.held(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)]
        await self._step("settle", self._settle(settlements))
        self._leases = []
        await self._step("fence", self._fence(settlements))
        await self._step("archive", self._look_at_ends(ids))
        if not self._brief:
            await self._step("cancel", self._cancel(ids[1:]))
        await self._step("clean up", self._take_back_leftovers(rows[0]))

    async def _step(self, name: str, work: Awaitable[Answer]) -> Answer:
        self._now = name
        began = time.perf_counter()
        answer = await work
        self._steps.append(Step(name, (time.perf_counter() - began) * 1000))
        return answer

    def _expect(self, right: bool, otherwise: str) -> None:
        if not right:
            raise _Trouble(otherwise, _ODD)

    # ---- the steps

    async def _enqueue(self) -> tuple[list[Task], float]:
        count = 1 if self._brief else 3
        new = [NewTask(task_class=CANARY, data=DATA, priority=PRIORITY, delay_until=FAR)] * count
        with anyio.fail_after(BOUND_SECONDS, shield=True):  # cut off, nobody would know what has to be taken back
            rows = await self._step("enqueue", self._store.enqueue(new))
            since = time.monotonic()
            ids = [row.id for row in rows]
            self._ids += ids
            self._open.update(ids)
        self._expect(len(ids) == count and ids == sorted(set(ids)), f"the ids are {ids}")
        self._expect(all((row.task_class, row.priority) == (CANARY, PRIORITY) for row in rows), f"the rows are {rows}")
        return rows, since

    async def _read(self, rows: Sequence[Task]) -> None:
        found = await self._store.get([row.id for row in rows])
        self._expect([row and row.data for row in found] == [DATA] * len(rows), f"what was stored reads as {found}")

    async def _may_lease(self, row: Task) -> bool:
        stopped = [one for one in await self._store.paused() if stops(one, row.task_class, row.queue)]
        if stopped:
            self._notes.append(f"{pause_words(stopped[0])}, so lease, renew and settle were not tried")
        return not stopped

    async def _renew(self, leases: Sequence[Lease], held: Sequence[Task]) -> None:
        renewed = await self._store.renew(leases, HELD_SECONDS)
        before = {task.id: task.lease_expires or 0 for task in held}
        longer = [row is not None and (row.lease_expires or 0) > before[row.id] for row in renewed]
        self._expect(all(longer), f"the leases were not made longer: {renewed}")

    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        for settlement, how in zip(settlements, await self._answers(settlements), strict=True):
            self._expect(how.verdict is Verdict.SETTLED, f"{settlement.outcome} was answered {how.verdict}")

    async def _fence(self, settlements: Sequence[Settlement]) -> None:
        """The same again: the success is known, and a lease that was given back ends nothing any more."""
        again = [one.verdict for one in await self._answers(settlements)]
        right = [Verdict.REPLAYED, *[Verdict.LOST] * (len(settlements) - 1)]
        self._expect(again == right, f"outcomes that were sent twice were answered {[str(one) for one in again]}")

    async def _answers(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """What the store says. A row that somebody else has locked just now is asked for again."""
        answers = await self._store.settle(settlements)
        while busy := [at for at, one in enumerate(answers) if one.verdict is Verdict.BUSY]:
            await anyio.sleep(BUSY_PAUSE)
            again = await self._store.settle([settlements[at] for at in busy])
            for at, one in zip(busy, again, strict=True):
                answers[at] = one
        return answers

    async def _look_at_ends(self, ids: Sequence[int]) -> None:
        (archived,) = await self._store.get_archived(ids[:1])
        self._expect(
            archived is not None and archived.result is Result.SUCCESS,
            f"what succeeded is in the archive as {archived}",
        )
        self._open.discard(ids[0])
        found = [None if row is None else (row.lease_owner, row.failure_count) for row in await self._store.get(ids)]
        right = [None, (Sentinel.YIELD, 0), (Sentinel.RETRY, 1)][: len(ids)]
        self._expect(found == right, f"the rows stand as {found}, and not as {right}")

    async def _cancel(self, ids: Sequence[int]) -> None:
        results = [row and row.result for row in await self._store.cancel(ids)]
        self._expect(results == [Result.CANCELLED] * len(ids), f"cancelled tasks are in the archive as {results}")
        self._open.difference_update(ids)

    async def _take_back_leftovers(self, own: Task) -> None:
        """Cancel what a selftest has left that was killed. One that runs elsewhere now is let alone."""
        # they are the last of all lists, and `after` goes there: no store reads the rows before them
        ours = TaskFilter(classes=frozenset({CANARY}))
        found = await self._store.list_active(MAX_LIST, after=(PRIORITY - 1, U32), where=ours)
        left = [row.id for row in found if row.date_created <= own.date_created - LEFT_AFTER]
        if left:
            await self._store.cancel(left)
            self._notes.append(f"took back tasks {left}, which an earlier selftest had left")
        # no index finds them on some stores, so readiness does not look for them again and again
        if not self._brief and (left := await take_back_canaries(self._store, own.date_created - LEFT_AFTER)):
            self._notes.append(f"took back tasks {left}, which an earlier takeover check had left")


class SelftestLoop:
    """Runs a short selftest every few minutes, and lets readiness say how the last one went."""

    def __init__(self, store: Store, lifecycle: Lifecycle) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self.last: Report | None = None

    async def run(self, stop: anyio.Event) -> None:
        """Try until told to stop; sooner again while it fails."""
        backoff = Backoff(AGAIN_SECONDS, LONGEST_AGAIN)
        wait = 0.0
        while await pause(stop, wait):
            await self.once()
            wait = backoff.next()
            if self.last is not None and self.last.ok:
                backoff.reset()
                wait = EVERY_SECONDS

    async def once(self) -> None:
        """One selftest, and its word for readiness."""
        self.last = await run_selftest(self._store, brief=True)
        self._lifecycle.fault("selftest", None if self.last.ok else self.last.sentence)

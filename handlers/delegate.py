"""The fallback: a task class without a handler here is run by Phorge, through Conduit's `worker.execute`."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from msgspec import Raw

from conduit.client import ConduitClient
from conduit.errors import ConduitError, OutcomeUnknown, ReplyTooLarge, TimedOut
from handlers.came_back import NOT_RUN_WAIT, CameBack
from handlers.execution import (
    METHOD,
    Answer,
    Terms,
    Unreadable,
    number,
    phase_call,
    plain_call,
    read_answer,
)
from handlers.followups import read_followups
from handlers.phorge import Phorge
from queue_runtime.errors import InvalidRequest, StoreUnavailable
from queue_runtime.registry import Context, PermanentFailure, Retry, Yield
from queue_runtime.task import MAX_LEASE_SECONDS, YIELD_FLOOR, Task

CLASS_SECONDS = 7200
"""Phorge's own lease, where the class asks for no other: so long a run may take."""

PREPARE_SECONDS = 60.0
PREPARED_FOR = 600.0
"""How long an answer to `prepare` is taken for all tasks of its class, where `execute` looks at all else again."""

MAX_CLASSES = 10_000
"""Of so many classes at most it is remembered what PHP said of them, whatever names come in."""

RETRY_FLOOR = 1
"""Seconds that a failed task waits at least, whatever its class says."""

_OUTCOMES = frozenset({"success", "yield", "failure", "permanent-failure"})


class _Prepared(NamedTuple):
    """What PHP said of a class."""

    terms: Terms
    seconds: int
    until: float


class _LeaseEnd:
    """When the lease of a run ends, by the store's clock: PHP refuses a run whose lease has ended."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._deadline_then = context.deadline

    @property
    def expires(self) -> int:
        """The store's own word, and the time by which renewals have moved the end since."""
        return (self._context.task.lease_expires or 0) + int(self._context.deadline - self._deadline_then)


class Delegate:
    """Handler of every class without one of its own, and the gate that says which of them may be leased, and when.

    Nothing that did not run counts as a failure, and nothing that ran is run again for a mistake in the answer. A
    call whose answer was lost ends as Unknown: PHP may be running the task now, so it comes back after the lease of
    its class, which is also as long as the row is held before the call. Our short lease will do where PHP locks the
    task while it runs, so that a second call is told that it is busy, and nobody leases the row who would not call: a
    native taskmaster would, which knows nothing of that lock.
    """

    def __init__(self, client: ConduitClient, phorge: Phorge, *, patterns: Sequence[str], lease_seconds: int) -> None:
        self._client = client
        self._phorge = phorge
        self.patterns = tuple(patterns)
        self._prepared: dict[str, _Prepared] = {}
        self._came_back = CameBack(phorge, lease_seconds=lease_seconds)

    @property
    def open(self) -> bool:
        """Whether Phorge has said that it can run tasks, and nothing has made that doubtful since."""
        return self._phorge.open

    @property
    def calls(self) -> Mapping[str, int]:
        """Calls of Phorge by how they ended."""
        return self._client.calls

    @property
    def seconds(self) -> float:
        """Time that they took."""
        return self._client.seconds

    @property
    def running(self) -> int:
        """Tasks that Phorge runs for us now."""
        return self._client.running

    @property
    def held(self) -> Mapping[str, str]:
        """Classes that are not leased just now, and why."""
        return self._phorge.brakes.held

    @property
    def setbacks(self) -> Mapping[str, int]:
        """Tasks that came back without an outcome, by why."""
        return self._came_back.counts

    async def __call__(self, context: Context, data: str) -> None:
        """Have one task run by Phorge. `data` is passed on as it is."""
        task = context.task
        if not any(fnmatchcase(task.task_class, pattern) for pattern in self.patterns):
            self._came_back.refused(task, "class", "QUEUE_RUNTIME_CONDUIT_CLASSES does not let Phorge run this class")
        lease = _LeaseEnd(context)
        async with self._client.slot:
            terms = self._phorge.terms
            if terms is None:
                self._came_back.too_early(task, NOT_RUN_WAIT)
            if (left := self._phorge.brakes.left(task.task_class)) > 0:  # it was leased before its class had to wait
                self._came_back.too_early(task, math.ceil(left))
            seconds = await self._seconds_of(context, terms, lease)
            if seconds is None:
                context.worked(0)
                return
            # a class's lease may differ from task to task, and where PHP locks them it is not asked for each
            longest = max(seconds, CLASS_SECONDS) if terms.locks else seconds
            if not terms.short:
                await _hold(context, longest)
            answer = await self._execute(context, terms, longest, lease)
        if answer.result == "busy":
            hold = None if terms.short else longest
            self._came_back.busy(context.task, number(answer.retry), answer, hold=hold)
        self._end(context, terms, answer)

    async def _seconds_of(self, context: Context, terms: Terms, lease: _LeaseEnd) -> int | None:
        """How long a run of this class may take; None: there is nothing to run."""
        if terms.version == 0:
            return CLASS_SECONDS
        known = self._prepared.get(context.task.task_class)
        if known is not None and known.terms == terms and time.monotonic() < known.until:
            return known.seconds
        return await self._prepare(context, terms, lease)

    async def _prepare(self, context: Context, terms: Terms, lease: _LeaseEnd) -> int | None:
        task = context.task
        asked = phase_call("prepare", task, lease.expires)
        began = time.monotonic()
        try:
            answer = self._read(await self._client.call(METHOD, asked, seconds=PREPARE_SECONDS), terms)
        except OutcomeUnknown as error:  # but nothing is run in this phase
            self._came_back.not_run(task, "lost before the run", error, began=began)
        except (ConduitError, Unreadable) as error:
            self._came_back.failed(task, terms, error, began=began)
        if answer.result == "skipped":
            self._came_back.fine(task)
            return None
        if answer.result in {"failure", "permanent-failure"}:
            self._end(context, terms, answer)
        if answer.result != "prepared":
            unknown = answer.result[:100]
            self._came_back.odd(task, f"{METHOD} gave a result of `prepare` that is not known here: {unknown!r}")
        wanted = number(answer.lease_duration)
        seconds = CLASS_SECONDS if wanted is None or wanted <= 0 else min(wanted, MAX_LEASE_SECONDS)
        # The extension, which locks, looks at everything again when it executes. The fork's method does not: there
        # `prepare` alone may say that the next task of the class is needless or not to be run.
        if terms.locks:
            if len(self._prepared) >= MAX_CLASSES:
                self._prepared.clear()
            self._prepared[task.task_class] = _Prepared(terms, seconds, time.monotonic() + PREPARED_FOR)
        return seconds

    async def _execute(self, context: Context, terms: Terms, seconds: int, lease: _LeaseEnd) -> Answer:
        task = context.task
        asked = phase_call("execute", task, lease.expires) if terms.version else plain_call(task)
        if terms.keeps and (lost := self._came_back.lost_owners(task)):
            asked["lostLeaseOwners"] = lost
        began = time.monotonic()
        try:
            return self._read(await self._call(asked, seconds), terms)
        except OutcomeUnknown as error:
            if isinstance(error, TimedOut):  # this task may take longer than the one for which the class was asked
                self._prepared.pop(task.task_class, None)
            # native taskmasters may have been switched on since the call began
            wait = None if terms.short and self._phorge.alone else seconds
            self._came_back.lost(task, error, wait, longest=seconds, began=began)
        except ReplyTooLarge as error:
            self._came_back.fine(task)
            raise PermanentFailure(f"it ran, but {error}") from None
        except (ConduitError, Unreadable) as error:
            if isinstance(error, Unreadable) and error.ran:
                self._phorge.doubt()  # it is of another version now
                raise PermanentFailure(f"it ran, but {error}") from None
            self._came_back.failed(task, terms, error, began=began)

    def _read(self, raw: Raw, terms: Terms) -> Answer:
        answer = read_answer(raw, terms)
        if terms.version and (answer.task_lock is True) != terms.locks:
            self._phorge.doubt()  # another method has taken that one's place: the next runs go by what it says
        return answer

    async def _call(self, asked: dict[str, object], seconds: int) -> Raw:
        try:
            return await self._client.call(METHOD, asked, seconds=seconds)
        except asyncio.CancelledError:
            # It ends this run all the same. But PHP goes on, so the task must not be given back as if it had not run.
            raise OutcomeUnknown("this process stopped waiting for it") from None

    def _end(self, context: Context, terms: Terms, answer: Answer) -> None:
        """End the run as PHP says."""
        task = context.task
        duration = number(answer.duration)
        if duration is not None:
            context.worked(duration)
        retry = number(answer.retry)
        if answer.result not in _OUTCOMES:
            self._came_back.odd(task, f"{METHOD} gave a result that is not known here: {answer.result[:100]!r}")
        self._came_back.fine(task)
        match answer.result:
            case "success":
                _take_followups(context, answer)
            case "yield":
                raise Yield(max(retry or 0, YIELD_FLOOR))
            case "failure":
                wait = None if retry is None or not terms.version else max(retry, RETRY_FLOOR)
                raise Retry(wait, answer.reason)
            case _:
                self._keep_what_php_cannot_read(task, terms, answer)
                raise PermanentFailure(answer.reason)

    def _keep_what_php_cannot_read(self, task: Task, terms: Terms, answer: Answer) -> None:
        """The fork's own method takes maps and lists alone, and a mail task carries a bare number: no mail ends so."""
        scalar = not (task.data or "[").lstrip().startswith(("{", "["))
        if scalar and not terms.locks and "not valid JSON" in answer.reason:
            self._came_back.refused(task, "data", "Phorge's worker.execute cannot read the data of this class")


async def _hold(context: Context, seconds: int) -> None:
    """Hold the row for a whole run: this process may die, and PHP would go on."""
    try:
        held = await context.renew(seconds)
    except StoreUnavailable as error:  # nothing has run, so an outage is no failure of the task
        raise Yield(YIELD_FLOOR) from error
    if not held:
        raise Yield(YIELD_FLOOR)  # lost: this outcome is refused


def _take_followups(context: Context, answer: Answer) -> None:
    try:
        for child in read_followups(answer):
            context.enqueue(child)
    except InvalidRequest as error:
        raise PermanentFailure(f"it ran, but its follow-ups cannot be stored: {error}") from None
    except Unreadable as error:
        raise PermanentFailure(f"it ran, but {error}") from None

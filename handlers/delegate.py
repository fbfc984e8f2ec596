"""The fallback: a task class without a handler here is run by Phorge, through Conduit's `worker.execute`."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, NoReturn

import structlog
from msgspec import Raw

from conduit.client import ConduitClient
from conduit.errors import CallFailed, ConduitError, OutcomeUnknown, UnknownParameters
from handlers.execution import (
    METHOD,
    Answer,
    Terms,
    Unreadable,
    number,
    phase_call,
    plain_call,
    read_answer,
    read_followups,
)
from handlers.phorge import Phorge
from queue_runtime.errors import InvalidRequest, StoreUnavailable
from queue_runtime.registry import Context, PermanentFailure, Retry, Unknown, Yield
from queue_runtime.task import MAX_LEASE_SECONDS, YIELD_FLOOR, Task

CLASS_SECONDS = 7200
"""Phorge's own lease, where the class asks for no other: so long a run may take."""

PREPARE_SECONDS = 60.0
PREPARED_FOR = 600.0
"""How long an answer to `prepare` is taken for all tasks of its class."""

MAX_CLASSES = 10_000
"""Of so many classes at most it is remembered what PHP said of them, whatever names come in."""

NOT_RUN_WAIT = 15
"""Wait of a task that Phorge did not get to see, or turned away unread. Leasing has stopped by then."""

NOT_FOR_PHP_WAIT = 300
"""Wait of a task that this Phorge will not run, or cannot take. Another process may, or an administrator sees to it."""


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

    Nothing that did not run counts as a failure. A call whose answer was lost ends as Unknown: PHP may be running
    the task now, so it comes back after the lease of its class, which is also as long as the row is held before
    the call. Where PHP locks the task while it runs, our short lease will do, because a second call is told that
    it is busy.
    """

    def __init__(self, client: ConduitClient, phorge: Phorge, *, patterns: Sequence[str], lease_seconds: int) -> None:
        self._client = client
        self._phorge = phorge
        self.patterns = tuple(patterns)
        self._lease_seconds = lease_seconds
        self._prepared: dict[str, _Prepared] = {}
        self._said: set[tuple[str, str]] = set()
        self._log = structlog.get_logger().bind()

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

    async def __call__(self, context: Context, data: str) -> None:
        """Have one task run by Phorge. `data` is passed on as it is."""
        task = context.task
        if not any(fnmatchcase(task.task_class, pattern) for pattern in self.patterns):
            self._say_once("this class may not be run by Phorge (QUEUE_RUNTIME_CONDUIT_CLASSES); put off", task)
            raise Yield(NOT_FOR_PHP_WAIT)
        lease = _LeaseEnd(context)
        async with self._client.slot:
            terms = self._phorge.terms
            if terms is None:
                raise Yield(NOT_RUN_WAIT)
            seconds = await self._seconds_of(context, terms, lease)
            if seconds is None:
                context.worked(0)
                return
            if not terms.locks:
                await _hold(context, seconds)
            answer = await self._execute(context, terms, seconds, lease)
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
        try:
            answer = self._read(await self._client.call(METHOD, asked, seconds=PREPARE_SECONDS), terms)
        except OutcomeUnknown as error:
            self._phorge.doubt()  # but nothing is run in this phase
            self._log.warning("Phorge was lost before the run; put off", reason=str(error), task_id=task.id)
            raise Yield(NOT_RUN_WAIT) from None
        except (ConduitError, Unreadable) as error:
            self._failed(context, terms, error)
        if answer.result == "skipped":
            return None
        if answer.result in {"failure", "permanent-failure"}:
            self._end(context, terms, answer)
        if answer.result != "prepared":
            raise Retry(reason=f"{METHOD} gave a result of `prepare` that is not known here: {answer.result!r}")
        wanted = number(answer.lease_duration)
        seconds = CLASS_SECONDS if wanted is None or wanted <= 0 else min(wanted, MAX_LEASE_SECONDS)
        if len(self._prepared) >= MAX_CLASSES:
            self._prepared.clear()
        self._prepared[task.task_class] = _Prepared(terms, seconds, time.monotonic() + PREPARED_FOR)
        return seconds

    async def _execute(self, context: Context, terms: Terms, seconds: int, lease: _LeaseEnd) -> Answer:
        task = context.task
        asked = phase_call("execute", task, lease.expires) if terms.version else plain_call(task)
        try:
            return self._read(await self._call(asked, seconds), terms)
        except OutcomeUnknown as error:
            self._phorge.doubt()
            wait = self._lease_seconds if terms.locks else seconds
            self._log.warning(
                "nobody knows how a run in PHP ended, and it may still go on",
                reason=str(error),
                task_id=task.id,
                task_class=task.task_class,
                object_phid=task.object_phid,
                owner=task.lease_owner,
                wait=wait,
            )
            raise Unknown(wait) from None
        except (ConduitError, Unreadable) as error:
            self._failed(context, terms, error)

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

    def _failed(self, context: Context, terms: Terms, error: ConduitError | Unreadable) -> NoReturn:
        """Phorge answered, but not about the work; or it was not reached."""
        self._phorge.doubt()
        code = error.code if isinstance(error, CallFailed) else ""
        if code == "ERR-WORKER-CLASS":
            self._say_once(f"Phorge does not allow this class here ({error}); put off", context.task)
            raise Yield(NOT_FOR_PHP_WAIT)
        if code == "ERR-WORKER-CONTEXT" and terms.version:
            # the fork's own method compares the lease with PHP's clock
            self._say_once(f"Phorge refuses this call unread ({error}); put off. Do the clocks differ?", context.task)
            raise Yield(NOT_FOR_PHP_WAIT)
        changed = terms.version == 1 if isinstance(error, UnknownParameters) else code == "ERR-WORKER-CONTEXT"
        # turned away unread, by no fault of the task: the method is asked anew what version it is
        if changed or not isinstance(error, CallFailed | Unreadable):
            raise Yield(NOT_RUN_WAIT)
        raise Retry(reason=str(error))

    def _end(self, context: Context, terms: Terms, answer: Answer) -> None:
        """End the run as PHP says."""
        duration = number(answer.duration)
        if duration is not None:
            context.worked(duration)
        retry = number(answer.retry)
        match answer.result:
            case "success":
                self._phorge.fine()
                _take_followups(context, answer)
            case "yield":
                self._phorge.fine()
                raise Yield(max(retry or 0, YIELD_FLOOR))
            case "failure":
                self._phorge.fine()
                raise Retry(retry if terms.version else None, answer.reason)
            case "permanent-failure":
                self._phorge.fine()
                self._keep_what_php_cannot_read(context.task, terms, answer)
                raise PermanentFailure(answer.reason)
            case "busy":
                raise Unknown(retry or self._lease_seconds)
            case other:
                raise Retry(reason=f"{METHOD} gave a result that is not known here: {other!r}")

    def _keep_what_php_cannot_read(self, task: Task, terms: Terms, answer: Answer) -> None:
        """The fork's own method takes maps and lists alone, and a mail task carries a bare number: no mail ends so."""
        scalar = not (task.data or "[").lstrip().startswith(("{", "["))
        if scalar and not terms.locks and "not valid JSON" in answer.reason:
            self._say_once("Phorge's worker.execute cannot read the data of this class; put off, not failed", task)
            raise Yield(NOT_FOR_PHP_WAIT)

    def _say_once(self, what: str, task: Task) -> None:
        if (what, task.task_class) not in self._said:
            self._said.add((what, task.task_class))
            self._log.error(what, task_class=task.task_class, task_id=task.id)


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
        raise Retry(reason=f"it ran, but {error}") from None

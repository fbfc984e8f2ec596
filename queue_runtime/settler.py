"""Writes outcomes in batches, and keeps trying while the store is away."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import anyio
import structlog
from msgspec.structs import replace

from queue_runtime.backoff import Outage
from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.store import Store
from queue_runtime.task import MAX_MESSAGE, MAX_TRACE, Complete, Fail, Failure, Retry, Settled, Settlement, Verdict

Done = Callable[[Settled], None]

MAX_SETTLEMENTS = 1000
MAX_BYTES = 8 * 2**20

BUSY_PAUSE = 0.05
"""Seconds until an outcome whose row somebody else had locked is sent again."""

BUSY_SECONDS = 50.0
"""How long an HTTP caller waits for such a row, where its request may take so long: as long as MySQL's own clients do.

The outcomes of our own runs wait as long as it takes.
"""

DRAIN_TRIES = 5
DRAIN_SECONDS = 10.0
DRAIN_BOUND = 30.0


class _Part:
    """The settlements of one caller: of a request, or the one outcome of one of our own runs."""

    __slots__ = ("answer", "busy_until", "done", "results", "settlements", "size", "unsure")

    def __init__(
        self, settlements: Sequence[Settlement], done: Done | None, answer: asyncio.Future[list[Settled]] | None
    ) -> None:
        self.settlements = settlements
        self.done = done
        self.answer = answer
        self.unsure = False
        """an earlier round with it may have happened: its reply was lost"""
        self.results: list[Settled | None] = [None] * len(settlements)
        self.busy_until: float | None = None
        """when to give up a row that somebody else has locked"""
        self.size = 0
        for settlement in settlements:
            outcome = settlement.outcome
            if type(outcome) is Complete:
                if outcome.followups:
                    self.size += sum(len(task.data) for task in outcome.followups)
            elif isinstance(outcome, Fail | Retry):
                self.size += len(outcome.failure.message[:MAX_MESSAGE]) + len(outcome.failure.trace[:MAX_TRACE])

    @property
    def task_id(self) -> int:
        return self.settlements[0].task_id

    @property
    def left(self) -> list[Settlement]:
        """What has no answer yet: all of it, or after a round the rest whose rows somebody else had locked."""
        return [one for one, result in zip(self.settlements, self.results, strict=True) if result is None]

    def take(self, results: Iterator[Settled]) -> list[Settled] | None:
        """Take the answers to what was left; all of them once they are complete."""
        for place, result in enumerate(self.results):
            if result is None:
                settled = next(results)
                self.results[place] = None if settled.verdict is Verdict.BUSY else settled
        complete = [result for result in self.results if result is not None]
        return complete if len(complete) == len(self.results) else None

    @property
    def needs_room(self) -> bool:
        """Whether it brings new tasks, for which a full store has no room."""
        return any(isinstance(one.outcome, Complete) and one.outcome.followups for one in self.left)

    @property
    def open(self) -> bool:
        """Whether nobody knows yet what became of it."""
        return self.done is not None if self.answer is None else not self.answer.done()

    def fail(self, error: BaseException) -> None:
        if self.answer is not None and not self.answer.done():  # a caller that has gone away cancelled it
            self.answer.set_exception(error)


class Settler:
    """Gathers outcomes while a round is in flight, and sends them as the next round. No wait when idle.

    An HTTP caller hears of an outage at once and decides for itself. The outcomes of our own runs stay, and are
    sent again until they are SETTLED, REPLAYED or LOST, past the end of their lease too: the fence makes a late
    one safe. LOST after a round whose reply was lost means that this round very likely wrote it; it is passed
    on as REPLAYED. On a full store outcomes with follow-ups wait for room alone, and the others go through. A round
    refused for anything but an outage changed nothing, and each part is tried alone.
    """

    def __init__(self, store: Store, *, bound: int = 1000, lifecycle: Lifecycle | None = None) -> None:
        self._store = store
        self._bound = bound
        self._outage = Outage("settler", lifecycle)
        self._room = Outage("follow-ups", lifecycle)
        self._lifecycle = lifecycle
        self._log = structlog.get_logger().bind()
        self._calls: deque[_Part] = deque()
        self._outcomes: deque[_Part] = deque()
        self._in_flight: list[_Part] = []
        self._busy: list[_Part] = []
        self._unwritten = 0
        self._retry_at = 0.0
        self._failed_rounds = 0
        self.rounds = 0
        """rounds that have ended"""
        self._arrived = asyncio.Event()
        self._round_over: anyio.Event | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Outcomes of our own runs that are not known to be written."""
        return self._unwritten

    @property
    def unwritten_ids(self) -> list[int]:
        """The tasks of these outcomes."""
        parts = (*self._in_flight, *self._busy, *self._outcomes)
        return sorted({part.task_id for part in parts if part.done is not None})

    @property
    def full(self) -> bool:
        """Too many outcomes wait: no new work should be started."""
        return self._unwritten >= self._bound

    @property
    def busy(self) -> bool:
        """Whether outcomes of our own runs are being written at this moment."""
        return self._unwritten > 0 and not self._outage.on

    def submit(self, settlement: Settlement, done: Done) -> None:
        """Take the outcome of one of our own runs. `done` is told what became of it, and must not raise."""
        self._outcomes.append(_Part((settlement,), done, None))
        self._unwritten += 1
        self._arrived.set()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes for an HTTP caller, with others in one round; the results in the order of the input."""
        if self._closed:
            raise StoreUnavailable("settle", "the process is stopping")
        if not settlements:
            return []
        answer: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        self._calls.append(_Part(settlements, None, answer))
        self._arrived.set()
        return await answer

    async def run(self, stop: anyio.Event) -> None:
        """Serve until told to stop, and then the calls that have arrived by then."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._wake_at, stop)
                while not stop.is_set():
                    await self._wait()
                    await self.round()
                group.cancel_scope.cancel()
            while self._calls:
                await self.round()
        finally:
            self._closed = True
            while self._calls:
                self._calls.popleft().fail(StoreUnavailable("settle", "the process is stopping"))
            for part in self._busy:
                part.fail(StoreUnavailable("settle", "the process is stopping"))
            self._tell_drain()

    async def drain(
        self, *, tries: int = DRAIN_TRIES, seconds: float = DRAIN_SECONDS, bound: float = DRAIN_BOUND
    ) -> list[int]:
        """Wait until all outcomes are written; the ids of those that are not.

        Gives up after `seconds` in which at least `tries` rounds failed, or after `bound` when rounds do not
        even fail. Where `run` has crashed each outcome gets one last try on its own.
        """
        began = time.monotonic()
        enough = self._failed_rounds + tries
        self._outage.hurry()
        self._room.hurry()
        self._retry_at = 0.0
        self._arrived.set()
        while self._unwritten and not self._closed:
            spent = time.monotonic() - began
            if (spent >= seconds and self._failed_rounds >= enough) or spent >= bound:
                break
            self._round_over = anyio.Event()
            with anyio.move_on_after(min(1.0, seconds, bound)):
                await self._round_over.wait()
        if self._closed:
            with anyio.move_on_after(seconds):
                await self._last_try()
        return self.unwritten_ids

    async def _wake_at(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._arrived.set()

    async def _wait(self) -> None:
        """Wait for something to send: a call at once, an outcome not before the end of the back-off."""
        if not self._arrived.is_set() and self._outcomes and self._outage.on:
            with anyio.move_on_after(max(self._retry_at - time.monotonic(), 0)):
                await self._arrived.wait()
        else:
            await self._arrived.wait()

    async def round(self) -> None:
        """One round of what waits and is due, if anything is."""
        parts = self._in_flight = self._take()
        if not parts:
            return
        try:
            results = await self._send(parts)
        except StoreFull as error:
            await self._settle_without_room(parts, error)
        except StoreUnavailable as error:
            self._unavailable(parts, error)
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to one part: find out to which
            await self._settle_each(parts, error)
        else:
            self._deliver(parts, results)
        finally:
            self._keep([part for part in parts if part.open and part not in self._busy])
            self._in_flight = []
            self.rounds += 1
            self._tell_drain()

    def _take(self) -> list[_Part]:
        self._arrived.clear()
        parts: list[_Part] = []
        outcomes_due = bool(self._outcomes) and not (self._outage.on and time.monotonic() < self._retry_at)
        # neither kind can crowd out the other
        room = _fill(parts, self._calls, MAX_SETTLEMENTS // 2 if outcomes_due else MAX_SETTLEMENTS, MAX_BYTES)
        if outcomes_due:
            _fill(parts, self._outcomes, MAX_SETTLEMENTS // 2 + room[0], room[1])
        if self._calls or (self._outcomes and not self._outage.on):
            self._arrived.set()
        return parts

    async def _send(self, parts: list[_Part]) -> list[Settled]:
        return await self._store.settle([settlement for part in parts for settlement in part.left])

    def _deliver(self, parts: list[_Part], results: list[Settled]) -> None:
        self._outage.over()
        if self._room.on and any(part.needs_room for part in parts):
            self._room.over()
        answers = iter(results)
        for part in parts:
            complete = part.take(answers)
            if complete is None:
                self._send_again(part)
            else:
                self._resolve(part, complete)
        if self._outcomes:
            self._arrived.set()

    async def _settle_without_room(self, parts: list[_Part], error: StoreFull) -> None:
        """Nothing happened. What brings new tasks waits for room; the others may need none, and are tried alone."""
        needy = [part for part in parts if part.needs_room]
        others = [part for part in parts if not part.needs_room]
        if not needy:
            self._unavailable(parts, error)
            return
        if others:
            try:
                results = await self._send(others)
            except StoreUnavailable as away:
                self._unavailable(parts, away)
                return
            except Exception as own:  # noqa: BLE001  it belongs to one part
                await self._settle_each(others, own)
            else:
                self._deliver(others, results)
        self._wait_for_room(needy, error)

    def _wait_for_room(self, parts: list[_Part], error: StoreFull) -> None:
        """Callers hear of it; our own outcomes are sent again after a while, and hold up nobody meanwhile."""
        waiting = [part for part in parts if part.answer is None]
        for part in parts:
            part.fail(_copy_of(error))
        if not waiting:
            return
        self._failed_rounds += 1
        pause = self._room.failed(error)
        for part in waiting:
            self._busy.append(part)
            asyncio.get_running_loop().call_later(pause, self._return, part)

    def _send_again(self, part: _Part) -> None:
        """Somebody else has rows of it locked: they go into a later round, and hold up nobody."""
        now = time.monotonic()
        if part.busy_until is None:
            part.busy_until = now + BUSY_SECONDS
        # the HTTP server waits for its callers when it closes, and so long it cannot
        closing = self._lifecycle is not None and self._lifecycle.closing.is_set()
        if part.answer is not None and (closing or now > part.busy_until):
            part.fail(StoreUnavailable("settle", f"task {part.left[0].task_id} is locked by somebody else"))
            return
        self._busy.append(part)
        asyncio.get_running_loop().call_later(BUSY_PAUSE, self._return, part)

    def _return(self, part: _Part) -> None:
        self._busy.remove(part)
        (self._outcomes if part.answer is None else self._calls).appendleft(part)
        self._arrived.set()

    def _resolve(self, part: _Part, results: list[Settled]) -> None:
        if part.answer is not None:
            if not part.answer.done():
                part.answer.set_result(results)
            return
        done, part.done = part.done, None
        if done is None:
            return
        self._unwritten -= 1
        settled = results[0]
        if part.unsure and settled.verdict is Verdict.LOST:
            self._log.info("outcome was probably written by a round whose reply was lost", task_id=part.task_id)
            settled = Settled(Verdict.REPLAYED)
        done(settled)

    async def _settle_each(self, parts: list[_Part], error: Exception) -> None:
        for part in parts:
            cause = error
            if len(parts) > 1:
                try:
                    results = await self._send([part])
                except StoreUnavailable as away:
                    self._unavailable([part], away)
                    continue
                except Exception as own:  # noqa: BLE001  it is this part's own
                    cause = own
                else:
                    self._deliver([part], results)
                    continue
            if part.answer is not None:
                part.fail(cause)
            else:
                await self._replace(part, cause)

    async def _replace(self, part: _Part, error: Exception) -> None:
        """The store will not have this outcome (a follow-up it cannot hold, say): a failure takes its place.

        If that is refused too, it is no fault of the outcome, and the process ends with the error.
        """
        (settlement,) = part.settlements
        self._log.error("outcome refused by the store", task_id=part.task_id, reason=repr(error))
        failure = Failure(f"the outcome could not be stored: {type(error).__name__}: {error}")
        outcome = settlement.outcome
        plain = Retry(failure=failure)
        if isinstance(outcome, Retry):
            plain = Retry(outcome.wait, failure, outcome.max_attempts)
        part.settlements = (replace(settlement, outcome=plain),)
        part.size = 0
        try:
            results = await self._send([part])
        except StoreUnavailable as away:
            self._unavailable([part], away)
        else:
            self._deliver([part], results)

    def _unavailable(self, parts: list[_Part], error: StoreUnavailable) -> None:
        """Callers hear of it; outcomes stay open."""
        with_outcomes = False
        for part in parts:
            if part.answer is not None:
                part.fail(_copy_of(error))
            else:
                with_outcomes = True
        # A round of calls alone says nothing for the outcomes, and nobody would ever try it again.
        if with_outcomes:
            self._failed_rounds += 1
            self._retry_at = time.monotonic() + self._outage.failed(error)

    def _keep(self, parts: list[_Part]) -> None:
        """Put outcomes back in front. Calls are still open only where the round was cut off."""
        for part in parts:
            part.unsure = True
            part.fail(StoreUnavailable("settle", "the round was cut off"))
        self._outcomes.extendleft(reversed([part for part in parts if part.answer is None]))

    async def _last_try(self) -> None:
        for part in list(self._outcomes):
            try:
                results = await self._send([part])
            except Exception as error:  # noqa: BLE001  the process is going down: all that is left is to say it
                self._log.error("outcome not written", task_id=part.task_id, reason=repr(error))
            else:
                self._outcomes.remove(part)
                self._deliver([part], results)

    def _tell_drain(self) -> None:
        if self._round_over is not None:
            self._round_over.set()
            self._round_over = None


def _copy_of(error: StoreUnavailable) -> StoreUnavailable:
    """An exception object of its own for each caller: a raised one carries the traceback of who raised it."""
    copy = type(error)(error.operation, error.reason)
    copy.__cause__ = error
    return copy


def _fill(parts: list[_Part], source: deque[_Part], count: int, size: int) -> tuple[int, int]:
    """Move parts from the source while they fit (one always does when there is room); the room that is left."""
    while source and count > 0:
        part = source[0]
        if parts and (len(part.settlements) > count or part.size > size):
            break
        source.popleft()
        if part.answer is not None and part.answer.done():
            continue  # its caller has gone away before anything was promised
        parts.append(part)
        count -= len(part.settlements)
        size -= part.size
    return max(count, 0), max(size, 0)

"""Writes outcomes in batches, and keeps trying while the store is away."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

import anyio
import structlog

from queue_runtime.backoff import Outage
from queue_runtime.errors import InvalidRequest, StoreFull, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settle_part import Done, Part, brings_tasks
from queue_runtime.store import Store
from queue_runtime.task import MAX_ATTEMPTS, Complete, Fail, Failure, Outcome, Retry, Settled, Settlement, Verdict
from queue_runtime.unsettled import Asks, Unsettled

BUSY_PAUSE = 0.05
"""Seconds until an outcome whose row somebody else had locked is sent again."""

BUSY_SECONDS = 50.0
"""How long an HTTP caller waits for such a row, where its request may take so long: as long as MySQL's own clients do.

The outcomes of our own runs wait as long as it takes.
"""

_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What our own code raises over a value, and no server. Where it stays it is about this very outcome."""

DRAIN_TRIES = 5
DRAIN_SECONDS = 10.0
DRAIN_BOUND = 30.0


class StillLocked(StoreUnavailable):
    """Rows of a call stay locked by somebody else. `results` has all answers, in order: theirs are BUSY."""

    def __init__(self, task_id: int, results: Sequence[Settled | None]) -> None:
        super().__init__("settle", f"task {task_id} is locked by somebody else")
        self.results = [Settled(Verdict.BUSY) if result is None else result for result in results]


class Settler:
    """Gathers outcomes while a round is in flight, and sends them as the next round. No wait when idle.

    An HTTP caller hears of an outage at once and decides for itself. The outcomes of our own runs stay, and are
    sent again until they are SETTLED, REPLAYED or LOST, past the end of their lease too: the fence makes a late
    one safe. LOST after a round whose reply was lost means that this round very likely wrote it; it is passed
    on as REPLAYED. On a full store outcomes with follow-ups wait for room alone, and the others go through. A round
    refused for anything but an outage changed nothing, and each part is tried alone. A failure takes the place of an
    outcome only where the store refuses that very outcome; any other error that stays ends `run`. `clock` is monotonic.
    """

    def __init__(
        self,
        store: Store,
        *,
        bound: int = 1000,
        lifecycle: Lifecycle | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._bound = bound
        self._outage = Outage("settler", lifecycle)
        self._room = Outage("follow-ups", lifecycle)
        self._lifecycle = lifecycle
        self._clock = clock
        self._log = structlog.get_logger().bind()
        self._parts = Unsettled()
        self._retry_at = 0.0
        """when outcomes are sent again in an outage"""
        self._room_at = 0.0
        """when one of those without room is sent again"""
        self._failed_rounds = 0
        self.rounds = 0
        """rounds that have ended"""
        self._arrived = asyncio.Event()
        self._round_over: anyio.Event | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Outcomes of our own runs that are not known to be written."""
        return self._parts.own

    @property
    def unwritten_ids(self) -> list[int]:
        """The tasks of these outcomes."""
        return sorted({part.task_id for part in self._parts.all() if part.own})

    @property
    def full(self) -> bool:
        """Too many outcomes wait: no new work should be started."""
        return self._parts.own >= self._bound

    @property
    def busy(self) -> bool:
        """Whether outcomes of our own runs are being written at this moment, beside those that wait for something."""
        return self._parts.own > self._parts.own_set_aside and not self._outage.on

    def submit(self, settlement: Settlement, done: Done) -> None:
        """Take the outcome of one of our own runs. `done` is told what became of it, and must not raise."""
        self._parts.add(Part((settlement,), done=done))
        self._arrived.set()

    async def settle(self, settlements: Sequence[Settlement], *, patience: float | None = None) -> list[Settled]:
        """Write outcomes for an HTTP caller, with others in one round; the results in the order of the input.

        Raises StillLocked where rows stay locked by somebody else for BUSY_SECONDS, or for so many from now on.
        """
        if self._closed:
            raise StoreUnavailable("settle", "the process is stopping")
        if not settlements:
            return []
        answer: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        part = Part(settlements, answer=answer)
        part.busy_until = None if patience is None else self._clock() + patience
        self._parts.add(part)
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
            while self._parts.calls_wait:
                await self.round()
        finally:
            self._closed = True
            for part in self._parts.all():
                if not part.own:
                    self._fail(part, StoreUnavailable("settle", "the process is stopping"))
            self._tell_drain()

    async def drain(
        self, *, tries: int = DRAIN_TRIES, seconds: float = DRAIN_SECONDS, bound: float = DRAIN_BOUND
    ) -> list[int]:
        """Wait until all outcomes are written; the ids of those that are not.

        Gives up after `seconds` in which at least `tries` rounds failed, or after `bound` when rounds do not
        even fail. Where `run` has crashed each outcome gets one last try on its own.
        """
        began = self._clock()
        enough = self._failed_rounds + tries
        self._hurry()
        while self._parts.own and not self._closed:
            spent = self._clock() - began
            if (spent >= seconds and self._failed_rounds >= enough) or spent >= bound:
                break
            self._round_over = anyio.Event()
            with anyio.move_on_after(min(1.0, seconds, bound)):
                await self._round_over.wait()
        if self._closed:
            with anyio.move_on_after(seconds):
                await self._last_try()
        return self.unwritten_ids

    def _hurry(self) -> None:
        """Whatever outcomes wait for, they are sent now, and the waits begin again with short ones."""
        self._outage.hurry()
        self._room.hurry()
        self._retry_at = self._room_at = 0.0
        self._parts.wake_locked(math.inf)
        self._arrived.set()

    async def _wake_at(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._arrived.set()

    async def _wait(self) -> None:
        """Wait for something to send: a call at once, an outcome not before the end of the back-off."""
        due = self._due()
        if due == math.inf:
            self._arrived.clear()
            await self._arrived.wait()
        elif (pause := due - self._clock()) > 0:
            self._arrived.clear()
            with anyio.move_on_after(pause):
                await self._arrived.wait()

    def _due(self) -> float:
        """When the next round is worth while, by the clock."""
        if self._parts.calls_wait:
            return 0.0
        due = self._parts.locked_until
        outcomes_due = self._retry_at if self._outage.on else 0.0
        if self._parts.outcomes_wait:
            due = min(due, outcomes_due)
        if self._parts.any_without_room:
            due = min(due, max(outcomes_due, self._room_at if self._room.on else 0.0))
        return due

    def _take(self) -> list[Part]:
        now = self._clock()
        outcomes = not self._outage.on or now >= self._retry_at
        self._parts.wake_locked(now)
        if outcomes and (not self._room.on or now >= self._room_at):
            self._parts.wake_for_room(every=not self._room.on)
        return self._parts.take(outcomes=outcomes)

    async def round(self) -> None:
        """One round of what waits and is due, if anything is."""
        parts = self._take()
        if not parts:
            return
        try:
            await self._settle(parts)
        finally:
            self._put_back()
            self.rounds += 1
            self._tell_drain()

    def _put_back(self) -> None:
        """What is still in flight waits again. A call is only where the round was cut off."""
        for part in self._parts.put_back():
            if not part.own:
                self._fail(part, StoreUnavailable("settle", "the round was cut off"))

    async def _settle(self, parts: list[Part]) -> None:
        match await self._send(parts):
            case None:
                pass
            case StoreFull() as error:
                await self._settle_without_room(parts, error)
            case StoreUnavailable() as error:
                self._unavailable(parts, error)
            case error:  # whatever it is, it belongs to one part: find out to which
                await self._settle_each(parts, error)

    async def _send(self, parts: list[Part]) -> Exception | None:
        """Send them together and pass on the answers, or return the error with which the store refused them all."""
        asks = self._parts.asks(parts)
        results: list[Settled] = []
        if asks:
            known = False
            try:
                results = await self._store.settle([part.settlements[place] for part, place in asks])
                known = True
            except Exception as error:  # noqa: BLE001  who sent them decides what it means
                known = not isinstance(error, StoreUnavailable) or error.nothing_happened
                return error
            finally:
                if not known:
                    for part, _ in asks:
                        part.unsure = True
            self._outage.over()
        self._deliver(parts, asks, results)
        return None

    def _deliver(self, parts: list[Part], asks: Asks, results: list[Settled]) -> None:
        answered = list(zip(asks, results, strict=True))
        for (part, place), settled in answered:
            if settled.verdict is not Verdict.BUSY:
                part.take(place, settled)
                if self._room.on and brings_tasks(part.settlements[place]):
                    self._room.over()
        for part in parts:
            if part.left:
                self._send_again(part)
            else:
                self._resolve(part)

    async def _settle_without_room(self, parts: list[Part], error: StoreFull) -> None:
        """Nothing happened. What brings new tasks waits for room; the others may need none, and are tried alone."""
        needy = [part for part in parts if part.needs_room]
        others = [part for part in parts if not part.needs_room]
        if not needy:
            self._unavailable(parts, error)
            return
        self._wait_for_room(needy, error)
        if others:
            await self._settle(others)

    def _wait_for_room(self, parts: list[Part], error: StoreFull) -> None:
        """Callers hear of it; our own outcomes are sent again after a while, and hold up nobody meanwhile."""
        outcomes = [part for part in parts if part.own]
        for part in parts:
            if part.own:
                self._parts.wait_for_room(part)
            else:
                self._fail(part, _copy_of(error))
        if outcomes:
            self._failed_rounds += 1
            pause = self._room.failed(error)
            # those that are refused meanwhile do not put off the ones that wait
            if self._clock() >= self._room_at:
                self._room_at = self._clock() + pause

    def _send_again(self, part: Part) -> None:
        """Somebody else has rows of it locked: they go into a later round, and hold up nobody."""
        now = self._clock()
        if part.busy_until is None:
            part.busy_until = now + BUSY_SECONDS
        # the HTTP server waits for its callers when it closes, and so long it cannot
        closing = self._lifecycle is not None and self._lifecycle.closing.is_set()
        if not part.own and (closing or part.gone or now > part.busy_until):
            task_id = part.settlements[part.open_places[0]].task_id
            self._fail(part, StillLocked(task_id, part.results))
            return
        self._parts.lock_out(part, now + BUSY_PAUSE)

    def _resolve(self, part: Part) -> None:
        self._parts.finish(part)
        if self._room.on and not self._parts.short_of_room:
            self._room.over()  # nobody needs it any more
        results = [result for result in part.results if result is not None]
        if part.answer is not None:
            if not part.gone:
                part.answer.set_result(results)
            return
        (settled,) = results
        if part.unsure and settled.verdict is Verdict.LOST:
            self._log.info("outcome was probably written by a round whose reply was lost", task_id=part.task_id)
            settled = Settled(Verdict.REPLAYED)
        if part.done is not None:
            part.done(settled)

    def _fail(self, part: Part, error: Exception) -> None:
        """Tell a caller that nothing is known to be written."""
        self._parts.finish(part)
        if part.answer is not None and not part.gone:
            part.answer.set_exception(error)

    async def _settle_each(self, parts: list[Part], error: Exception) -> None:
        for at, part in enumerate(parts):
            cause = await self._send([part]) if len(parts) > 1 else error
            if part.own and not (cause is None or isinstance(cause, StoreUnavailable | InvalidRequest)):
                cause = await self._send([part])  # it may be a whim of the server that no store knows
            match cause:
                case None:
                    pass
                case StoreFull() if part.needs_room:
                    self._wait_for_room([part], cause)
                case StoreUnavailable():
                    self._unavailable(parts[at:], cause)
                    return
                case _ if not part.own:
                    self._fail(part, cause)
                case _ if isinstance(cause, (InvalidRequest, *_FAULTS)):
                    await self._replace(part, cause)
                case _:  # not a word about this outcome: a success must not become a failure for it
                    raise cause

    async def _replace(self, part: Part, error: Exception) -> None:
        """The store will never have this outcome (a follow-up it cannot hold, say): a failure takes its place.

        What ran to its end is not run again for that. If the failure is refused too, it is no fault of the outcome, and
        the process ends with the error.
        """
        self._log.error("outcome refused by the store", task_id=part.task_id, reason=repr(error))
        part.end_otherwise(_in_place_of(part.settlements[0].outcome, f"{type(error).__name__}: {error}"))
        match await self._send([part]):
            case None:
                pass
            case StoreUnavailable() as away:
                self._unavailable([part], away)
            case own:
                raise own

    def _unavailable(self, parts: list[Part], error: StoreUnavailable) -> None:
        """Callers hear of it; outcomes stay in flight, and wait again after the round."""
        with_outcomes = False
        for part in parts:
            if part.own:
                with_outcomes = True
            else:
                self._fail(part, _copy_of(error))
        # A round of calls alone says nothing for the outcomes, and nobody would ever try it again.
        if with_outcomes:
            self._failed_rounds += 1
            self._retry_at = self._clock() + self._outage.failed(error)

    async def _last_try(self) -> None:
        self._parts.dissolve_lines()
        for part in self._parts.all():
            self._parts.take_alone(part)
            try:
                error = await self._send([part])
            finally:
                self._put_back()
            if error is not None:  # the process is going down: all that is left is to say it
                self._log.error("outcome not written", task_id=part.task_id, reason=repr(error))

    def _tell_drain(self) -> None:
        if self._round_over is not None:
            self._round_over.set()
            self._round_over = None


def _in_place_of(outcome: Outcome, reason: str) -> Outcome:
    """The failure that says that the store refused this outcome."""
    refused = f"the outcome could not be stored: {reason}"
    match outcome:
        case Complete(duration_us):
            return Fail(Failure(f"it ran, but {refused}", duration_us=duration_us))
        case Fail(failure):
            return Fail(Failure(f"it failed for good, but {refused}", duration_us=failure.duration_us))
        case Retry(wait, _, maximum):  # which may be what was refused
            fits = type(maximum) is int and 1 <= maximum <= MAX_ATTEMPTS
            return Retry(wait, Failure(refused), maximum if fits else None)
        case _:
            return Retry(failure=Failure(refused))


def _copy_of(error: StoreUnavailable) -> StoreUnavailable:
    """An exception object of its own for each caller: a raised one carries the traceback of who raised it."""
    copy = type(error)(error.operation, error.reason)
    copy.__cause__ = error
    return copy

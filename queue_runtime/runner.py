"""Runs handlers: each an asyncio task of its own that is watched from its start to its stored outcome."""

import asyncio
import math
import time
from collections.abc import Callable

import anyio
import structlog

from queue_runtime.context import Context
from queue_runtime.endings import Endings
from queue_runtime.handler_spec import HandlerSpec
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.run import Run, Stop
from queue_runtime.settler import Settler
from queue_runtime.stats import Ending, WorkerStats
from queue_runtime.task import (
    Complete,
    Fail,
    Lease,
    Outcome,
    Release,
    Retry,
    Settled,
    Settlement,
    Task,
    Unknown,
    Verdict,
    Yield,
)
from queue_runtime.threads import call_in_thread

STOP_SECONDS = 3.0
"""A run told to stop is told again after this time, and abandoned after as long once more."""

ENDINGS: dict[type[Outcome], Ending] = {
    Complete: Ending.SUCCEEDED,
    Fail: Ending.FAILED,
    Retry: Ending.RETRIED,
    Yield: Ending.YIELDED,
    Unknown: Ending.UNKNOWN,
    Release: Ending.RELEASED,
}


class Runner:
    """The slots of the worker and what runs in them.

    A slot is free when its handler has ended, not when the outcome is written. One timer serves all time-outs:
    it rings at the earliest alarm and then looks at every run, which costs a task no more than a comparison.
    """

    def __init__(
        self,
        settler: Settler,
        heartbeat: Heartbeat,
        stats: WorkerStats,
        *,
        slots: int,
        retry_seconds: float,
        changed: Callable[[], None],
        enqueued: Callable[[], None],
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._settler = settler
        self._heartbeat = heartbeat
        self._stats = stats
        self._slots = slots
        self._changed = changed
        self._enqueued = enqueued
        self._stop_seconds = stop_seconds
        self._endings = Endings(retry_seconds=retry_seconds)
        self._limiter = anyio.CapacityLimiter(slots)
        self._log = structlog.get_logger().bind()
        self._running: set[Run] = set()
        self._abandoned: set[Run] = set()
        self._by_spec: dict[HandlerSpec, int] = {}
        """how many run; of all, because a cap may come while they do"""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._idle: anyio.Event | None = None

    @property
    def free(self) -> int:
        """Slots in which nothing runs."""
        return max(self._slots - len(self._running), 0)

    def configure(self, *, slots: int, retry_seconds: float) -> None:
        """Work with these from now on. Where more runs than there are slots now, all of it goes on to its end."""
        self._slots = slots
        self._limiter.total_tokens = slots
        self._endings.retry_seconds = retry_seconds

    @property
    def abandoned_ids(self) -> list[int]:
        """Tasks that were given up although their handlers still run."""
        return sorted(run.task.id for run in self._abandoned)

    @property
    def abandoned_leases(self) -> list[Lease]:
        """Their leases, which nobody renews any more."""
        return [run.lease for run in self._abandoned]

    def room(self, spec: HandlerSpec) -> int:
        """How many more runs the cap of this handler allows."""
        return self._slots if spec.concurrency is None else spec.concurrency - self._by_spec.get(spec, 0)

    def start(self, task: Task, spec: HandlerSpec, owner: str, lease_until: float) -> Run:
        """Run a task that was just leased."""
        counts = self._stats.of(task.task_class)
        run = Run(self, task, spec, Lease(task.id, owner), lease_until=lease_until, counts=counts)
        self._heartbeat.hold(run)
        self._running.add(run)
        counts.running += 1
        self._by_spec[spec] = self._by_spec.get(spec, 0) + 1
        # The name is what the watchdog reports when the handler blocks the event loop.
        name = f"{task.task_class} {task.id}"
        run.handle = asyncio.get_running_loop().create_task(self._work(run), name=name)
        run.handle.add_done_callback(run.on_done)
        return run

    async def _work(self, run: Run) -> None:
        # noted here and not returned: a handler that cancels its own asyncio task would take the result with it
        run.outcome = await self._outcome(run)

    async def _outcome(self, run: Run) -> Outcome:
        run.began = time.monotonic()
        spec, task = run.spec, run.task
        if spec.timeout is not None:
            run.stop_at = run.began + spec.timeout
            self._set_alarm(run, run.stop_at)
        try:
            self._endings.check_attempts(run)
            context = Context(task, run)
            data = spec.read(task.data)
            if spec.is_async:
                result = await spec.function(context, data)  # type: ignore[misc]  # is_async says it is awaitable
            else:
                result, error = await call_in_thread(spec.function, context, data, limiter=self._limiter)
                if error is not None:
                    raise error  # noqa: TRY301  judged below like any other
            return self._endings.returned(run, result)
        except BaseException as error:  # noqa: BLE001  SystemExit and all: a handler never ends the loop
            return self._endings.raised(run, error)
        finally:
            run.followups = None

    def on_done(self, run: Run, handle: asyncio.Task[None]) -> None:
        """The handler has really ended."""
        run.ended = True
        run.handle = None
        if run.began:
            run.counts.observe(time.monotonic() - run.began)
        if run.abandoned:
            self._abandoned.discard(run)
            self._stats.abandoned_now -= 1
            self._log.warning("abandoned run ended at last; its outcome is dropped", **run.facts())
            return
        self._vacate(run)
        if run.stop is Stop.LOST:
            self._heartbeat.drop(run)
            run.counts.endings[Ending.LOST] += 1
        else:
            if run.outcome is None:
                run.outcome = Release()  # told to stop before its first step
            self._settler.submit(Settlement.held(run.lease, run.outcome), run.on_settled)
        self._changed()

    def _vacate(self, run: Run) -> None:
        """Give the slot back."""
        self._running.discard(run)
        run.counts.running -= 1
        run.alarm = math.inf
        self._by_spec[run.spec] -= 1
        if self._idle is not None and not self._running:
            self._idle.set()

    def on_settled(self, run: Run, settled: Settled) -> None:
        """The store has answered for this outcome."""
        self._heartbeat.drop(run)
        outcome = run.outcome
        assert outcome is not None
        if settled.verdict is Verdict.LOST:
            run.counts.endings[Ending.LOST] += 1
            self._log.warning("outcome refused: the lease was lost", outcome=ENDINGS[type(outcome)], **run.facts())
        elif type(outcome) is Complete:
            run.counts.endings[Ending.SUCCEEDED] += 1
            self._log.debug("task succeeded", task_id=run.task.id, task_class=run.task.task_class)
            if outcome.followups:
                self._enqueued()
        else:
            self._count_other(run, outcome, settled)
        self._changed()

    def _count_other(self, run: Run, outcome: Outcome, settled: Settled) -> None:
        ending = ENDINGS[type(outcome)]
        match outcome:
            case Fail(failure):
                self._log.error("task failed for good", reason=failure.message, **run.facts())
            case Retry(wait, failure):
                if settled.archived is not None:
                    ending = Ending.FAILED
                    self._log.error("task failed for good: last attempt", reason=failure.message, **run.facts())
                else:
                    self._log.warning("task failed for now", reason=failure.message, wait=wait, **run.facts())
            case _:
                stop = {} if run.stop is None else {"reason": run.stop}
                self._log.info(f"task {ending}", **stop, **run.facts())
        run.counts.endings[ending] += 1

    # ---- leases

    async def renew(self, run: Run, seconds: int) -> bool:
        """Hold the lease of this run longer."""
        return not run.ended and await self._heartbeat.extend(run, seconds) and run.stop is not Stop.LOST

    def on_lost(self, run: Run) -> None:
        """Somebody else has the task: stop the handler, and never report its outcome."""
        if run.ended or run.stop is Stop.LOST:
            return  # an outcome that waits for the settler is judged by the store alone
        self._log.warning("lease lost; the handler is stopped, a side effect may have happened", **run.facts())
        self.stop(run, Stop.LOST)

    # ---- stopping

    def stop(self, run: Run, reason: Stop) -> None:
        """Tell a run to stop. A lost lease outweighs every other reason."""
        if run.handle is None or run.ended:
            return
        first = run.stop is None
        if first or reason is Stop.LOST:
            run.stop = reason
        if first:
            run.handle.cancel()
            self._set_alarm(run, time.monotonic() + self._stop_seconds)

    async def finish(self, grace: float, hurry: anyio.Event) -> None:
        """Let the runs end within the grace, or until `hurry`; stop the rest and wait for them.

        A run that does not obey is abandoned to its lease after twice the stop time, so this always ends.
        """
        with anyio.move_on_after(grace):
            async with anyio.create_task_group() as group:
                group.start_soon(self._end_when_idle, group.cancel_scope)
                await hurry.wait()
                group.cancel_scope.cancel()
        for run in list(self._running):
            self.stop(run, Stop.SHUTDOWN)
        await self._wait_idle()

    async def _end_when_idle(self, scope: anyio.CancelScope) -> None:
        await self._wait_idle()
        scope.cancel()

    async def _wait_idle(self) -> None:
        while self._running:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _set_alarm(self, run: Run, when: float) -> None:
        run.alarm = when
        if when < self._timer_at:
            self._set_timer(when)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        loop = asyncio.get_running_loop()
        self._timer = None if when == math.inf else loop.call_later(max(when - time.monotonic(), 0), self._on_timer)

    def _on_timer(self) -> None:
        now = time.monotonic()
        for run in [run for run in self._running if run.alarm <= now]:
            self._on_alarm(run, now)
        self._set_timer(min((run.alarm for run in self._running), default=math.inf))

    def _on_alarm(self, run: Run, now: float) -> None:
        run.alarm = math.inf
        if run.stop is None:
            self.stop(run, Stop.TIMEOUT)
        elif run.told_twice:
            self._abandon(run)
        else:
            run.told_twice = True
            run.alarm = now + self._stop_seconds
            self._log.warning("handler does not stop; telling it again", reason=run.stop, **run.facts())
            if run.handle is not None:
                run.handle.cancel()

    def _abandon(self, run: Run) -> None:
        """Give the slot back although the handler still runs: no outcome, no renewal, its lease runs out."""
        self._log.error("run abandoned: its handler does not stop", reason=run.stop, **run.facts())
        self._vacate(run)
        run.abandoned = True
        self._abandoned.add(run)
        self._heartbeat.drop(run)
        self._stats.abandoned_now += 1
        run.counts.endings[Ending.ABANDONED] += 1
        self._changed()

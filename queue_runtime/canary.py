"""Sends one task that does nothing the whole way to the archive, and says who ended it, and how."""

import time
from collections.abc import Collection
from fnmatch import fnmatchcase

import anyio
from msgspec import Struct

from queue_runtime.findings import Finding, fault, ok, warning
from queue_runtime.handler_spec import ANY_CLASS, HandlerSpec
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.owner import Owners
from queue_runtime.runner import Runner
from queue_runtime.selftest import CANARY, FAR, TakenByOthers, take
from queue_runtime.settler import Settler
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Store
from queue_runtime.takeover import CANARY_PRIORITY, TEST_CLASS, Who, who
from queue_runtime.task import RETRY_SECONDS, ArchivedTask, NewTask, Result, Task, is_sentinel

TEST_DATA = '{"duration":0.01}'
"""Ten milliseconds of work, so that the archived duration shows that somebody did it."""

POLL = 0.2
STOP_SECONDS = 5.0


class Canary(Struct, frozen=True):
    """What is sent, and how long to wait for its end (seconds)."""

    task_class: str
    seconds: float
    by_phorge: bool = False
    """Phorge is to run it, and not a handler here"""

    @property
    def data(self) -> str:
        return TEST_DATA if self.task_class == TEST_CLASS else "{}"

    def new(self, *, delay_until: int | None = None) -> NewTask:
        return NewTask(task_class=self.task_class, data=self.data, priority=CANARY_PRIORITY, delay_until=delay_until)


def choose(task_class: str | None, seconds: float, *, by_phorge: bool, extension: bool) -> Canary:
    """The class to send: the extension's own, which no worker has a handler for, else the one that every Phorge has."""
    usual = CANARY if by_phorge and extension else TEST_CLASS
    return Canary(task_class or usual, seconds, by_phorge)


def goes_through(canary: Canary, supported: Collection[str]) -> bool:
    """Whether a running worker that leases these classes would take the canary, and by the way that is to be tried."""
    if canary.task_class in supported:
        return not canary.by_phorge  # its own handler would run it
    return any(one == ANY_CLASS or fnmatchcase(canary.task_class, one) for one in supported)


async def send(store: Store, canary: Canary) -> Finding:
    """Enqueue it, and see who takes it. One that nobody ends in time is cancelled."""
    (row,) = await store.enqueue([canary.new()])
    began = time.monotonic()
    while (left := canary.seconds - (time.monotonic() - began)) > 0:
        (ended,) = await store.get_archived([row.id])
        if ended is not None:
            return await _judge(store, canary, ended, time.monotonic() - began)
        if reason := await _last_error(store, row.id):
            await store.cancel([row.id])
            return fault("canary", f"task {row.id} ({canary.task_class}) failed: {reason}")
        await anyio.sleep(min(POLL, left))
    await store.cancel([row.id])
    return fault(
        "canary",
        f"nobody ended task {row.id} ({canary.task_class}) within {canary.seconds:.0f} s, so it is cancelled: does "
        "`queue-runtime serve` run on this queue, and may it run this class (TASK_CLASSES, CONDUIT_CLASSES)?",
    )


async def run_here(store: Store, canary: Canary, handler: HandlerSpec, *, lease_seconds: int, patience: int) -> Finding:
    """Run it in this process, from a real row of the store, by the handler and the loops that a worker has.

    Nobody else can take it: it is hidden until it is leased here. However it ends, no row of it stays active.
    """
    began = time.monotonic()
    (row,) = await store.enqueue([canary.new(delay_until=FAR)])
    hidden_at = time.monotonic()
    owner = Owners().next()
    try:
        asked_at = time.monotonic()
        (task,) = await take(store, [row], owner, lease_seconds, since=hidden_at)
        worker = _OneTask(store, lease_seconds=lease_seconds, patience=patience)
        in_time = await worker.run(task, handler, owner, asked_at + lease_seconds, seconds=canary.seconds)
        (ended,) = await store.get_archived([row.id])
        if ended is not None:
            return await _judge(store, canary, ended, time.monotonic() - began)
        return fault("canary", await _why_not(store, canary, row.id, in_time=in_time))
    except TakenByOthers as error:
        return warning("canary", f"task {row.id} was taken by somebody else ({error}): try again")
    finally:
        with anyio.move_on_after(STOP_SECONDS, shield=True):
            await store.cancel([row.id])


class _OneTask:
    """A worker for one task: what runs it, keeps its lease and writes its outcome is what `serve` has."""

    def __init__(self, store: Store, *, lease_seconds: int, patience: int) -> None:
        self._settler = Settler(store)
        self._heartbeat = Heartbeat(store, Lifecycle(), lease_seconds=lease_seconds, patience=patience)
        self._changed = anyio.Event()
        self._runner = Runner(
            self._settler,
            self._heartbeat,
            WorkerStats(),
            slots=1,
            retry_seconds=RETRY_SECONDS,
            changed=self._wake,
            enqueued=self._wake,
        )

    def _wake(self) -> None:
        self._changed.set()

    async def run(self, task: Task, handler: HandlerSpec, owner: str, lease_until: float, *, seconds: float) -> bool:
        """Whether it ended, and its outcome was stored, within this time."""
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._settler.run, stop)
            group.start_soon(self._heartbeat.run, stop)
            self._runner.start(task, handler, owner, lease_until)
            with anyio.move_on_after(seconds) as bound:
                while self._heartbeat.task_ids:
                    await self._changed.wait()
                    self._changed = anyio.Event()
            await self._runner.finish(0, stop)
            await self._settler.drain(seconds=STOP_SECONDS)
            stop.set()
        return not bound.cancelled_caught


async def _judge(store: Store, canary: Canary, ended: ArchivedTask, seconds: float) -> Finding:
    """What the archived row says."""
    task = f"task {ended.id} ({canary.task_class})"
    if who(ended.lease_owner) is not Who.OURS:
        return warning("canary", f"{task} was ended by {who(ended.lease_owner)}: {ended.lease_owner}; try again")
    if ended.result is not Result.SUCCESS:
        reason = await _last_error(store, ended.id) or "no reason is known"
        return fault("canary", f"{task} failed: {reason}")
    where = "Phorge" if canary.by_phorge else "a handler here"
    return ok(
        "canary",
        f"{task} was run by {where}, ended by {ended.lease_owner} and came back as done after {seconds:.1f} s, of which"
        f" {ended.duration_us} µs were work",
    )


async def _why_not(store: Store, canary: Canary, task_id: int, *, in_time: bool) -> str:
    task = f"task {task_id} ({canary.task_class})"
    if not in_time:
        return f"{task} did not end within {canary.seconds:.0f} s"
    if reason := await _last_error(store, task_id):
        return f"{task} failed: {reason}"
    (row,) = await store.get([task_id])
    state = "gone" if row is None else row.lease_owner if is_sentinel(row.lease_owner) else "given back"
    return (
        f"{task} was not run, or nobody knows how that ended: it is {state} now, and is cancelled. What Phorge said is"
        " above, or in its own log"
    )


async def _last_error(store: Store, task_id: int) -> str | None:
    (attempts,) = await store.history([task_id])
    return attempts[-1].message if attempts else None

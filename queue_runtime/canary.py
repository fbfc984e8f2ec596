"""Sends one task that does nothing the whole way to the archive, and says who ended it, and how."""

import time
from collections.abc import Callable, Sequence

import anyio
from msgspec import Struct

from queue_runtime.errors import InvalidRequest
from queue_runtime.findings import Finding, fault, ok, warning
from queue_runtime.handler_spec import HandlerSpec
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.owner import Owners
from queue_runtime.runner import Runner
from queue_runtime.selftest import FAR, MARK, TakenByOthers, pause_words, stops, take
from queue_runtime.settler import Settler
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Store
from queue_runtime.takeover import Who, who
from queue_runtime.task import RETRY_SECONDS, ArchivedTask, NewTask, Result, Sentinel, Task, is_sentinel

TEST_CLASS = "PhabricatorTestWorker"
"""Every Phorge has it, and so has this runtime, as a handler of its own."""

TEST_DATA = '{"duration":0.01}'
"""Ten milliseconds of work, so that the archived duration shows that somebody did it."""

PRIORITY = 1000
TRIES = 3
"""So often it is sent, where others than a worker of ours are quicker."""

POLL = 0.2
STOP_SECONDS = 5.0

Heard = Callable[[], Sequence[str]]
"""What the log said meanwhile, from warnings on."""


class Canary(Struct, frozen=True):
    """What is sent, and how long to wait for its end (seconds)."""

    task_class: str
    seconds: float
    by_phorge: bool = False
    """Phorge is to run it, and not a handler here"""

    queue: str | None = None
    """None: as the class is routed"""

    @property
    def data(self) -> str:
        return TEST_DATA if self.task_class == TEST_CLASS else "{}"

    def new(self, *, delay_until: int | None = None) -> NewTask:
        return NewTask(
            task_class=self.task_class,
            data=self.data,
            priority=PRIORITY,
            container_phid=MARK,
            queue=self.queue,
            delay_until=delay_until,
        )


async def stopped(store: Store, canary: Canary, queue: str) -> Finding | None:
    """A fault where a pause keeps it from being leased. `queue`: the one that it would be in."""
    for pause in await store.paused():
        if stops(pause, canary.task_class, queue):
            return fault("canary", f"{pause_words(pause)}, so no {canary.task_class} would be run: resume that first")
    return None


async def send(store: Store, canary: Canary) -> Finding:
    """Enqueue it, and see who takes it: ok where a worker of ours has ended it.

    One that nobody ends in time is cancelled. Should others be quicker each time, that is a fault too: it shows
    nothing of our workers.
    """
    for left in reversed(range(TRIES)):
        found, again = await _send_once(store, canary)
        if not again or not left:
            break
    return found


async def _send_once(store: Store, canary: Canary) -> tuple[Finding, bool]:
    """What came of it, and whether another try is worth it."""
    try:
        row = await _enqueue(store, canary.new())
    except InvalidRequest as error:
        return fault("canary", f"{canary.task_class} cannot be enqueued: {error}"), False
    began = time.monotonic()
    try:
        while (left := canary.seconds - (time.monotonic() - began)) > 0:
            (ended,) = await store.get_archived([row.id])
            if ended is not None:
                foreign = who(ended.lease_owner) not in {Who.OURS, Who.NOBODY}
                return await _judge(store, canary, ended, time.monotonic() - began), foreign
            if reason := await _last_error(store, row.id):
                return fault("canary", f"task {row.id} ({canary.task_class}) failed: {reason}"), False
            if put_off := await _put_off(store, canary, row.id, left):
                return fault("canary", put_off), False
            await anyio.sleep(min(POLL, left))
        return fault("canary", await _not_in_time(store, canary, row.id)), False
    finally:
        await _take_back(store, row.id)


async def _put_off(store: Store, canary: Canary, task_id: int, left: float) -> str | None:
    """How it stands with one that nobody may run before the time is over, however long that is waited for."""
    (row,) = await store.get([task_id])
    if row is None or row.lease_expires is None or not is_sentinel(row.lease_owner):
        return None
    wait = row.lease_expires - row.date_modified  # both by the store's clock
    if wait < left:
        return None
    php = " PHP may still be running it." if row.lease_owner == Sentinel.UNKNOWN else ""
    return (
        f"task {task_id} ({canary.task_class}) was taken, and put off for {wait} s, so it is cancelled: it was"
        f" {row.lease_owner}.{php} The log of that worker says why"
    )


async def _not_in_time(store: Store, canary: Canary, task_id: int) -> str:
    """How it stands with one that did not end."""
    task = f"task {task_id} ({canary.task_class})"
    (row,) = await store.get([task_id])
    owner = None if row is None else row.lease_owner
    late = f"within {canary.seconds:.0f} s, so it is cancelled"
    if owner is None:
        return (
            f"nobody took {task} {late}: does `queue-runtime serve` run on this queue, and may it run this class"
            " (TASK_CLASSES, QUEUES, CONDUIT_CLASSES)?"
        )
    php = " PHP may still be running it." if canary.by_phorge else ""
    if is_sentinel(owner):
        return f"{task} did not end {late}: it was run, and is {owner}.{php} The log of that worker says why"
    return f"{task} did not end {late}: {owner} holds it.{php}"


async def run_here(
    store: Store,
    canary: Canary,
    handler: HandlerSpec,
    *,
    lease_seconds: int,
    patience: int,
    heard: Heard = tuple,
) -> Finding:
    """Run it in this process, from a real row of the store, by the handler and the loops that a worker has.

    Nobody else can take it: it is hidden until it is leased here. However it ends, no row of it stays active.
    """
    began = time.monotonic()
    try:
        row = await _enqueue(store, canary.new(delay_until=FAR))
    except InvalidRequest as error:
        return fault("canary", f"{canary.task_class} cannot be enqueued: {error}")
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
        return fault("canary", await _why_not(store, canary, row.id, heard(), in_time=in_time))
    except TakenByOthers as error:
        return warning("canary", f"task {row.id} was taken by somebody else ({error}): try again")
    finally:
        await _take_back(store, row.id)


async def _enqueue(store: Store, new: NewTask) -> Task:
    """Never cut off: nobody would know the id of what has to be taken back."""
    with anyio.CancelScope(shield=True):
        (row,) = await store.enqueue([new])
    return row


async def _take_back(store: Store, task_id: int) -> None:
    """Whatever has happened, no row of it stays active, also when this is being cancelled."""
    with anyio.move_on_after(STOP_SECONDS, shield=True):
        await store.cancel([task_id])


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
    whose = who(ended.lease_owner)
    if whose is Who.NOBODY:
        return fault("canary", f"{task} was ended by {whose}, which shows nothing of our workers: try again")
    if whose is not Who.OURS:
        return fault(
            "canary",
            f"{task} was ended by {whose}, {ended.lease_owner}, which shows nothing of our workers. They were quicker"
            " each time: try again when they have less to do",
        )
    if ended.result is not Result.SUCCESS:
        reason = await _last_error(store, ended.id) or "no reason is known"
        return fault("canary", f"{task} failed: {reason}")
    where = "Phorge" if canary.by_phorge else "a handler here"
    return ok(
        "canary",
        f"{task} was run by {where}, ended by {ended.lease_owner} and came back as done after {seconds:.1f} s, of which"
        f" {ended.duration_us} µs were work",
    )


async def _why_not(store: Store, canary: Canary, task_id: int, heard: Sequence[str], *, in_time: bool) -> str:
    """How it stands with one that was run here and did not end."""
    task = f"task {task_id} ({canary.task_class})"
    said = "".join(f"; {line}" for line in dict.fromkeys(heard))
    if not in_time:
        php = ". PHP may still be running it" if canary.by_phorge else ""
        return f"{task} did not end within {canary.seconds:.0f} s, so it is cancelled{php}{said}"
    if reason := await _last_error(store, task_id):
        return f"{task} failed: {reason}"
    (row,) = await store.get([task_id])
    owner = None if row is None else row.lease_owner
    match owner:
        case Sentinel.UNKNOWN:
            how = "PHP may be running it still"
        case Sentinel.YIELD:
            how = "it was put off"
        case _:
            how = "it was not run"
    state = "gone" if row is None else owner or "given back"
    return f"{task} did not end: {how}{said}. It is {state} now, and is cancelled"


async def _last_error(store: Store, task_id: int) -> str | None:
    (attempts,) = await store.history([task_id])
    return attempts[-1].message if attempts else None

"""A whole worker in one test: the loops of the runtime around a store, and nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from queue_runtime.doorbell import Doorbell
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.intake import Intake
from queue_runtime.lease_loop import LeaseLoop
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.registry import Registry
from queue_runtime.settler import Settler
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import NewTask, Result
from tests.reference_store import ReferenceStore

BOUND = 10.0
"""Seconds after which a test stops to believe that something still comes."""


async def until(condition: Callable[[], object], *, seconds: float = BOUND) -> None:
    """Wait until the condition holds; fail after a bound."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  what is waited for is a fact of a store, which rings no event
            await anyio.sleep(0.005)


def open_reference(*, patience: int = 1, max_lost: int = 5) -> ReferenceStore:
    """A reference store on the real clock."""
    return ReferenceStore(StoreOptions(patience=patience, max_lost=max_lost))


class Worker:
    """The loops of one process, not started yet."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        slots: int = 4,
        lease_seconds: int = 20,
        patience: int = 10,
        retry_seconds: float = 0,
        classes: frozenset[str] | None = None,
        queues: frozenset[str] | None = None,
        stop_seconds: float = 0.1,
        bound: int = 1000,
    ) -> None:
        self.store = store
        self.lifecycle = Lifecycle()
        self.stats = WorkerStats()
        self.doorbell = Doorbell()
        self.intake = Intake(store)
        self.settler = Settler(store, bound=bound, lifecycle=self.lifecycle)
        self.heartbeat = Heartbeat(store, self.lifecycle, lease_seconds=lease_seconds, patience=patience)
        self.lease_loop = LeaseLoop(
            store,
            registry,
            self.settler,
            self.heartbeat,
            self.doorbell,
            self.lifecycle,
            self.stats,
            slots=slots,
            lease_seconds=lease_seconds,
            patience=patience,
            retry_seconds=retry_seconds,
            classes=classes,
            queues=queues,
            stop_seconds=stop_seconds,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Worker"]:
        """All loops at work; at the end handlers are stopped and outcomes written."""
        last_stop = anyio.Event()
        now = anyio.Event()
        now.set()
        async with anyio.create_task_group() as group:
            group.start_soon(self.settler.run, last_stop)
            group.start_soon(self.heartbeat.run, last_stop)
            group.start_soon(self.doorbell.listen, self.store, self.lifecycle.stopping)
            group.start_soon(self.lease_loop.run, self.lifecycle.stopping)
            try:
                yield self
            finally:
                self.lifecycle.stopping.set()
                with anyio.move_on_after(BOUND, shield=True):
                    await self.lease_loop.finish(0, now)
                    await self.settler.drain(seconds=0.2)
                last_stop.set()


def new(task_class: str, data: str = "", **options: int | str | None) -> NewTask:
    """A task to enqueue."""
    return NewTask(task_class=task_class, data=data, **options)  # type: ignore[arg-type]  # mixed on purpose


async def enqueue(store: Store, task_class: str, count: int = 1, data: str = "") -> list[int]:
    """Enqueue tasks and return their ids."""
    return [task.id for task in await store.enqueue([new(task_class, data) for _ in range(count)])]


def ended(store: ReferenceStore, task_id: int) -> Result | None:
    """How the task ended, or None while it is active."""
    row = store.tables.archived.get(task_id)
    return None if row is None else row.result


def all_succeeded(store: ReferenceStore, task_ids: list[int]) -> bool:
    """Whether all of them are archived as successes."""
    return all(ended(store, task_id) is Result.SUCCESS for task_id in task_ids)


def failures(store: ReferenceStore, task_id: int) -> list[str]:
    """The messages of the task's error history."""
    return [attempt.message for attempt in store.tables.history.get(task_id, [])]


async def stubborn_sleep(release: asyncio.Event) -> None:
    """Sleep on in spite of the runtime, which cancels twice; a third time is the test's own end, and is obeyed."""
    for _ in range(2):
        try:
            await release.wait()
        except asyncio.CancelledError:
            continue
    await release.wait()


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

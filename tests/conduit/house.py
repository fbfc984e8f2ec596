"""A worker that delegates to the stub: the loops of the runtime around a store, and the looking after Phorge."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio

from conduit.client import MAX_REPLY, ConduitClient
from handlers.delegate import Delegate
from handlers.phorge import Phorge
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.registry import Registry
from queue_runtime.task import ArchivedTask, NewTask, Task
from tests.conduit import stub
from tests.reference_store import ReferenceStore
from tests.runtime.harness import Worker, failures, open_reference, until


class HasUrl(Protocol):
    """A PHP that can be called, a stub or a real one."""

    url: str


class House:
    """Everything of one worker, and the store it works on."""

    def __init__(
        self,
        php: HasUrl,
        *,
        token: str = stub.TOKEN,
        store: ReferenceStore | None = None,
        registry: Registry | None = None,
        patterns: tuple[str, ...] = ("*",),
        concurrency: int = 4,
        max_reply: int = MAX_REPLY,
        lease_seconds: int = 20,
        classes: frozenset[str] | None = None,
        natives: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.store = open_reference() if store is None else store
        self.lifecycle = Lifecycle()
        self.client = ConduitClient(php.url, token=token, host=stub.HOST, concurrency=concurrency, max_reply=max_reply)
        self.phorge = Phorge(self.client, self.lifecycle, opened=self._ring, natives=natives)
        self.delegate = Delegate(self.client, self.phorge, patterns=patterns, lease_seconds=lease_seconds)
        registry = Registry() if registry is None else registry
        registry.fallback(self.delegate, concurrency=concurrency, finish_unsure=True, gate=self.delegate)
        self.worker = Worker(
            self.store, registry, slots=8, lease_seconds=lease_seconds, retry_seconds=300, classes=classes
        )

    def _ring(self) -> None:
        self.worker.doorbell.ring()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["House"]:
        """All loops at work."""
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self.phorge.run, stop)
            try:
                async with self.worker.running():
                    yield self
            finally:
                stop.set()

    async def add(self, task_class: str = "PhpWorker", data: str = "{}", **options: int | str | None) -> int:
        """Enqueue one task; its id."""
        new = NewTask(task_class=task_class, data=data, **options)  # type: ignore[arg-type]  # mixed on purpose
        (task,) = await self.store.enqueue([new])
        self._ring()
        return task.id

    def active(self, task_id: int) -> Task:
        """Its row, as long as it has not ended."""
        return self.store.tables.active[task_id]

    def archived(self, task_id: int) -> ArchivedTask | None:
        """Its archived row, once it has ended."""
        return self.store.tables.archived.get(task_id)

    async def end_of(self, task_id: int) -> ArchivedTask:
        """Its archived row, waited for."""
        await until(lambda: self.archived(task_id))
        row = self.archived(task_id)
        assert row is not None
        return row

    async def waiting(self, task_id: int, owner: str) -> Task:
        """Its row, once it was given back under this owner."""
        await until(lambda: self.active(task_id).lease_owner == owner)
        return self.active(task_id)

    async def wait_of(self, task_id: int, owner: str) -> int:
        """Seconds for which it was given back under this owner."""
        row = await self.waiting(task_id, owner)
        assert row.lease_expires is not None
        return row.lease_expires - row.date_modified

    async def hurry(self, task_id: int) -> None:
        """Have it come due now, whatever it waits for."""
        await self.store.free([task_id])
        self._ring()

    def history(self, task_id: int) -> list[str]:
        """The messages of its error history."""
        return failures(self.store, task_id)

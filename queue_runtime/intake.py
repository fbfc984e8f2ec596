"""Group commit for enqueues: a hundred concurrent callers share one round, each with its own answer."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.store import Store
from queue_runtime.task import NewTask, Task

MAX_TASKS = 1000
MAX_BYTES = 8 * 2**20

ROUNDS_IN_FLIGHT = 3
"""While one round is being committed, others are on their way, and the loop need not idle through a commit.

Three and not two: of what waits in front of SQLite's writer all is committed at once, so a third makes for fewer
and larger commits.
"""

ROW_BYTES = 200
"""What a row weighs beside its data, roughly."""


class _Part:
    """The tasks of one caller, which are enqueued all or not at all."""

    __slots__ = ("answer", "size", "tasks")

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self.tasks = tasks
        self.size = sum(len(task.data) + ROW_BYTES for task in tasks)
        self.answer: asyncio.Future[list[Task]] = asyncio.get_running_loop().create_future()

    def succeed(self, rows: list[Task]) -> None:
        if not self.answer.done():  # a caller that has gone away cancelled it
            self.answer.set_result(rows)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Intake:
    """Gathers what arrives while rounds are in flight, and sends it as the next round. No wait when idle.

    A round that is refused for anything but an outage changed nothing: each caller's part is tried alone, so
    that a bad part fails nobody else. `enqueued` is called after each round that added something.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_tasks: int = MAX_TASKS,
        max_bytes: int = MAX_BYTES,
        enqueued: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._enqueued = enqueued
        self._parts: deque[_Part] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        self._closed = False

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        """Add tasks, all or none, and return their rows without data."""
        if self._closed:
            raise StoreUnavailable("enqueue", "the process is stopping")
        if not tasks:
            return []
        part = _Part(tasks)
        self._parts.append(part)
        self._arrived.set()
        return await part.answer

    async def run(self, stop: anyio.Event) -> None:
        """Serve until told to stop, and then what has arrived by then."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._wake_at, stop)
                for _ in range(ROUNDS_IN_FLIGHT):
                    group.start_soon(self._serve)
            while self._parts:
                await self.round()
        finally:
            self._closed = True
            for part in self._parts:
                part.fail(StoreUnavailable("enqueue", "the process is stopping"))
            self._parts.clear()

    async def _serve(self) -> None:
        while not self._stopping:
            await self._arrived.wait()
            await self.round()

    async def _wake_at(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._stopping = True
        self._arrived.set()

    async def round(self) -> None:
        """One round of what has arrived, if anything has."""
        parts = self._take()
        if not parts:
            return
        try:
            await self._enqueue_together(parts)
        except StoreUnavailable as error:
            _fail_all(parts, error)
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to a caller: find out to which
            if len(parts) == 1:
                parts[0].fail(error)
            else:
                await self._enqueue_each(parts)
        finally:
            # only a round that was cut off leaves somebody without an answer
            _fail_all(parts, StoreUnavailable("enqueue", "the round was cut off"))

    def _take(self) -> list[_Part]:
        taken: list[_Part] = []
        count = size = 0
        while self._parts:
            part = self._parts[0]
            full = count + len(part.tasks) > self._max_tasks or size + part.size > self._max_bytes
            if taken and full:
                break
            self._parts.popleft()
            if not part.answer.done():  # its caller has gone away before anything was promised
                taken.append(part)
                count += len(part.tasks)
                size += part.size
        if not self._parts and not self._stopping:
            self._arrived.clear()
        return taken

    async def _enqueue_together(self, parts: list[_Part]) -> None:
        rows = await self._store.enqueue([task for part in parts for task in part.tasks])
        start = 0
        for part in parts:
            end = start + len(part.tasks)
            part.succeed(rows[start:end])
            start = end
        if self._enqueued is not None:
            self._enqueued()

    async def _enqueue_each(self, parts: list[_Part]) -> None:
        for at, part in enumerate(parts):
            try:
                await self._enqueue_together([part])
            except StoreUnavailable as error:
                if not isinstance(error, StoreFull):  # for a smaller part there may be room
                    _fail_all(parts[at:], error)  # each try may take seconds, and would end the same
                    return
                part.fail(error)
            except Exception as error:  # noqa: BLE001  the caller's own error, whatever it is
                part.fail(error)


def _fail_all(parts: list[_Part], error: StoreUnavailable) -> None:
    """Each caller gets an exception object of its own: a raised one carries the traceback of who raised it."""
    for part in parts:
        if not part.answer.done():
            copy = type(error)(error.operation, error.reason)
            copy.__cause__ = error
            part.fail(copy)

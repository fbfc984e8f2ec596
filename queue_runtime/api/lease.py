"""Leasing over HTTP, at once or by long poll. Nobody who has hung up is left holding a task."""

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import structlog

from queue_runtime.api.errors import ClientGone, bad_request
from queue_runtime.api.query import MAX_NAMES
from queue_runtime.api.reply import Reply, data
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route, post
from queue_runtime.api.taking import Taker
from queue_runtime.current import Current
from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import InvalidRequest
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import Settler
from queue_runtime.store import Store
from queue_runtime.task import (
    MAX_LEASE_BYTES,
    MAX_LEASE_LIMIT,
    MAX_LEASE_SECONDS,
    WORKER_PREFIX,
    Task,
    check_owner,
    check_range,
    is_worker,
)
from queue_runtime.wire import LeaseBody, task_json

log = structlog.get_logger()

MAX_WAIT = 30
LOOK_SECONDS = 5.0
"""A long poll looks this often even when nobody rings."""

CUT = MAX_LEASE_BYTES // 8
"""From so many characters on (of up to four bytes) a reply may have ended at its size, and more tasks are there."""

Take = Callable[[], Awaitable[list[Task]]]
Filter = tuple[frozenset[str] | None, frozenset[str] | None]


class Gate:
    """Lets one long poll of a filter look at a time. Where it finds all that there is, the others need not look.

    Without it one enqueue would send every waiting caller to the store.
    """

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._lock = asyncio.Lock()
        self._empty_at = -1

    async def look(self, take: Take, limit: int) -> list[Task]:
        """What `take` finds, or nothing when somebody found that out since the last ring."""
        async with self._lock:
            if self._empty_at == self._doorbell.count:
                return []
            count = self._doorbell.count
            tasks = await take()
            if len(tasks) < limit and sum(len(task.data or "") for task in tasks) < CUT:
                self._empty_at = count
            return tasks


class LeaseFace:
    """`POST lease`."""

    def __init__(
        self, *, store: Store, settler: Settler, doorbell: Doorbell, lifecycle: Lifecycle, current: Current
    ) -> None:
        self._store = store
        self._taker = Taker(settler)
        self._doorbell = doorbell
        self._lifecycle = lifecycle
        self._current = current
        self._gates: WeakValueDictionary[Filter, Gate] = WeakValueDictionary()

    def routes(self) -> list[Route]:
        return [post("/api/queue/lease", LeaseBody, self.lease, bounded=False)]

    async def lease(self, request: Request, body: LeaseBody) -> Reply:
        owner = _owner(request)
        limit = min(max(body.limit or 1, 1), MAX_LEASE_LIMIT)
        seconds = self._current.config.http_lease_seconds if body.duration is None else body.duration
        check_range("duration", seconds, 1, MAX_LEASE_SECONDS)
        wait = body.waitSeconds or 0
        check_range("waitSeconds", wait, 0, MAX_WAIT)
        wanted = _names("taskClasses", body.taskClasses), _names("queues", body.queues)

        async def take() -> list[Task]:
            if gone.done():
                raise ClientGone
            lease = self._store.lease(owner, limit, seconds, classes=wanted[0], queues=wanted[1])
            return await self._taker.take(lease, owner, request.seconds)

        gone = asyncio.create_task(request.disconnected())
        try:
            await asyncio.sleep(0)  # a client that hung up after its last byte is seen now
            tasks = await self._poll(take, limit, wait, wanted, gone)
            if gone.done():
                await self._taker.give_back(tasks, owner)
                raise ClientGone
        finally:
            gone.cancel()
        return data([task_json(task, data=True) for task in tasks])

    async def _poll(self, take: Take, limit: int, wait: int, wanted: Filter, gone: asyncio.Task[None]) -> list[Task]:
        now = asyncio.get_running_loop().time
        end = now() + wait
        gate = self._gate(wanted) if wait else None
        rung = False
        while not self._lifecycle.stopping.is_set():
            count = self._doorbell.count
            tasks = await gate.look(take, limit) if gate and rung else await take()
            remaining = end - now()
            if tasks or remaining <= 0 or gone.done():
                return tasks
            rung = await self._pause(count, min(remaining, LOOK_SECONDS), gone)
        return []

    async def _pause(self, count: int, seconds: float, gone: asyncio.Task[None]) -> bool:
        """Wait for a ring; True when there was one."""
        bell = asyncio.create_task(self._doorbell.wait(count, seconds))
        stop = asyncio.create_task(self._lifecycle.stopping.wait())
        try:
            await asyncio.wait((bell, stop, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            bell.cancel()
            stop.cancel()
        return self._doorbell.count != count

    def _gate(self, wanted: Filter) -> Gate:
        gate = self._gates.get(wanted)
        if gate is None:
            gate = self._gates[wanted] = Gate(self._doorbell)
        return gate


def _owner(request: Request) -> str:
    """Who leases: X-Lease-Owner as it was sent, else the caller's address as the Go service writes it."""
    given = request.headers.get(b"x-lease-owner", b"")
    if not given:
        return f"{request.client[:46]}:gorge-taskqueue"
    try:
        owner = given.decode()
    except UnicodeDecodeError:
        raise bad_request("X-Lease-Owner: must be UTF-8") from None
    try:
        check_owner(owner)
    except InvalidRequest as error:
        raise bad_request(f"X-Lease-Owner: {error.reason}") from None
    if is_worker(owner):
        raise bad_request(f"X-Lease-Owner: {WORKER_PREFIX} begins the names of this service's own workers")
    return owner


def _names(field: str, names: list[str] | None) -> frozenset[str] | None:
    """The names of a filter; absent, null and empty let everything through."""
    if not names:
        return None
    if len(names) > MAX_NAMES:
        raise InvalidRequest(field, f"must be at most {MAX_NAMES} names, not {len(names)}")
    return frozenset(names)

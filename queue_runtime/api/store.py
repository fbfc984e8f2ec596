"""The Store protocol over HTTP, for workers that run where no database is reachable (stores/remote.py)."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog

from queue_runtime import store_wire as wire
from queue_runtime.api.errors import INTERNAL, ApiError, ClientGone, not_found, too_slow
from queue_runtime.api.reply import Reply
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route
from queue_runtime.api.taking import Taker
from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import StoreUnavailable
from queue_runtime.intake import Intake
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import Settler
from queue_runtime.store import Store
from queue_runtime.store_wire import Bell, Code, Heard, Method, Refusal
from queue_runtime.task import Task

log = structlog.get_logger()

Call = TypeVar("Call")
Answer = TypeVar("Answer")
Serve = Callable[[Request, bytes], Awaitable[bytes]]
"""From the body of a request to the answer, both as JSON."""

_VERSION_KEY = wire.VERSION_HEADER.lower().encode()
_VERSION = str(wire.VERSION).encode()


class StoreFace:
    """One route for all methods. Each is passed on to the store as it is, but for these three:

    enqueues share rounds with those of other callers, a lease whose caller has hung up is given back, and `changed`
    waits for the bell of this process, because a store has one caller of it. Outcomes go to the store itself: the
    caller has a settler of its own, which batches them, and which has to hear which rows are locked just now.
    """

    def __init__(
        self,
        *,
        store: Store,
        intake: Intake,
        settler: Settler,
        doorbell: Doorbell,
        lifecycle: Lifecycle,
        patience: int,
    ) -> None:
        self._store = store
        self._taker = Taker(settler)
        self._doorbell = doorbell
        self._lifecycle = lifecycle
        self._patience = patience
        self._process = secrets.token_hex(8)
        self.methods: dict[str, Serve] = dict(
            (
                _in_its_own_time(wire.LEASE, self.lease),
                _in_its_own_time(wire.CHANGED, self.changed),
                _bounded(wire.ENQUEUE, lambda call: intake.enqueue(call.tasks)),
                _bounded(
                    wire.ENQUEUE_ONCE, lambda call: store.enqueue_once(call.event_id, call.task, digest=call.digest)
                ),
                _bounded(wire.RENEW, lambda call: store.renew(call.leases, call.seconds)),
                _bounded(wire.SETTLE, lambda call: store.settle(call.settlements)),
                _left(wire.CANCEL, lambda call: store.cancel(call.task_ids)),
                _left(wire.AWAKEN, lambda call: store.awaken(call.task_ids)),
                _left(wire.FREE, lambda call: store.free(call.task_ids)),
                _left(wire.PRIORITY, lambda call: store.priority(call.task_ids, call.priority)),
                _left(wire.DELAY, lambda call: store.delay(call.task_ids, call.until)),
                _left(wire.RETRY, lambda call: store.retry(call.task_ids, repeat=call.repeat)),
                _bounded(wire.PAUSE, lambda call: store.pause(call.pause)),
                _bounded(wire.RESUME, lambda call: store.resume(call.pause)),
                _bounded(wire.PAUSED, lambda _: store.paused()),
                _bounded(wire.SWEEP, lambda call: store.sweep(call.limit)),
                _bounded(wire.GET, lambda call: store.get(call.task_ids)),
                _bounded(wire.GET_ARCHIVED, lambda call: store.get_archived(call.task_ids)),
                _left(
                    wire.LIST_ACTIVE,
                    lambda call: store.list_active(call.limit, offset=call.offset, after=call.after, where=call.where),
                ),
                _left(
                    wire.LIST_ARCHIVED,
                    lambda call: store.list_archived(call.limit, before=call.before, where=call.where),
                ),
                _bounded(wire.HISTORY, lambda call: store.history(call.task_ids)),
                _bounded(wire.STATS, lambda _: store.stats()),
                _bounded(wire.BACKLOG, lambda _: store.backlog()),
                _left(wire.OPERATIONS, lambda _: store.operations()),
                _bounded(wire.PING, lambda _: store.ping()),
            )
        )
        """what serves each method"""

    def routes(self) -> list[Route]:
        return [Route("POST", wire.PATH + "{method}", self.answer, takes_body=True)]

    async def answer(self, request: Request) -> Reply:
        """The reply to any call. Errors of the protocol travel whole: the caller has the token, and acts on them."""
        name = request.parameters["method"]
        given = request.headers.get(_VERSION_KEY)
        if given != _VERSION:
            return _refused(_another_version(given))
        serve = self.methods.get(name)
        if serve is None:
            raise not_found("the store has no such method")
        request.route = wire.PATH + name
        try:
            answer = await serve(request, await _read(request))
        except (ApiError, ClientGone):
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the caller gets an envelope
            return _refused(_refusal(error, name, request))
        return _reply(b'{"data":' + answer + b"}", 200)

    async def lease(self, request: Request, call: wire.LeaseCall) -> list[Task]:
        """What a caller leases who is still there at the end."""
        if self._lifecycle.stopping.is_set():
            return []
        gone = asyncio.create_task(request.disconnected())
        try:
            await asyncio.sleep(0)  # a caller that hung up after its last byte is seen now
            if gone.done():
                raise ClientGone
            lease = self._store.lease(
                call.owner,
                call.limit,
                call.seconds,
                classes=call.classes,
                without_classes=call.without_classes,
                queues=call.queues,
                only=call.only,
                without=call.without,
                due_first=call.due_first,
                order=call.order,
            )
            tasks = await self._taker.take(lease, call.owner, request.seconds)
            if gone.done():
                await self._taker.give_back(tasks, call.owner)
                raise ClientGone
        finally:
            gone.cancel()
        return tasks

    async def changed(self, request: Request, call: wire.ChangedCall) -> Heard:
        """The bell as soon as it differs from what the caller has seen. Nothing is done while it does not."""
        if call.seen == self._bell:
            await self._wait(request, self._doorbell.count, min(call.timeout, wire.MAX_WAIT))
        if self._lifecycle.stopping.is_set():
            # not an answer: its caller would ask again at once, for as long as the stop takes
            raise StoreUnavailable(wire.CHANGED.name, "the server is stopping")
        return Heard(self._bell, self._patience)

    @property
    def _bell(self) -> Bell:
        return Bell(self._process, self._doorbell.count)

    async def _wait(self, request: Request, seen: int, seconds: float) -> None:
        waits = (
            gone := asyncio.create_task(request.disconnected()),
            asyncio.create_task(self._doorbell.wait(seen, seconds)),
            asyncio.create_task(self._lifecycle.stopping.wait()),
        )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
        finally:
            for one in waits:
                one.cancel()


def _bounded(method: Method[Call, Answer], call_store: Callable[[Call], Awaitable[Answer]]) -> tuple[str, Serve]:
    """A method that may take as long as any request."""

    async def serve(request: Request, body: bytes) -> bytes:
        call = method.read_call(body)
        with request.bounded():
            return msgspec.json.encode(await call_store(call))

    return method.name, serve


def _left(method: Method[Call, Answer], call_store: Callable[[Call], Awaitable[Answer]]) -> tuple[str, Serve]:
    """The same, but it may take long (for rows that are locked, or many), and is left when its caller has gone."""

    async def serve(request: Request, body: bytes) -> bytes:
        call = method.read_call(body)
        with request.bounded():
            return msgspec.json.encode(await request.while_there(call_store(call)))

    return method.name, serve


def _in_its_own_time(
    method: Method[Call, Answer], answer: Callable[[Request, Call], Awaitable[Answer]]
) -> tuple[str, Serve]:
    """A method that keeps its time itself, and looks whether its caller is still there."""

    async def serve(request: Request, body: bytes) -> bytes:
        return msgspec.json.encode(await answer(request, method.read_call(body)))

    return method.name, serve


async def _read(request: Request) -> bytes:
    try:
        with request.bounded() as bound:
            return await request.read(bound, limit=wire.MAX_CALL_BYTES)
    except TimeoutError:
        raise too_slow() from None


def _another_version(given: bytes | None) -> Refusal:
    said = "does not say which" if given is None else f"speaks version {given.decode('latin-1')[:20]!r}"
    return Refusal(
        Code.VERSION,
        f"this server speaks version {wire.VERSION} of the store protocol, and the caller {said} "
        f"({wire.VERSION_HEADER})",
    )


def _refusal(error: Exception, method: str, request: Request) -> Refusal:
    if isinstance(error, TimeoutError):
        error = StoreUnavailable(method, f"it took longer than {request.seconds:g} s")
    if (found := wire.refusal(error)) is not None:
        return found
    log.exception("a store call failed", method=method, request_id=request.id, exc_info=error)
    return Refusal("ERR_INTERNAL", INTERNAL)


def _refused(refusal: Refusal) -> Reply:
    return _reply(b'{"error":' + msgspec.json.encode(refusal) + b"}", wire.STATUS.get(refusal.code, 500))


def _reply(body: bytes, status: int) -> Reply:
    return Reply(body, status, headers=[(_VERSION_KEY, _VERSION)])

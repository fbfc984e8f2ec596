"""One HTTP request as the faces see it: its headers, its query and its body, read within bounds."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TypeVar
from urllib.parse import parse_qsl

import anyio
from msgspec import Struct
from starlette.types import Receive, Scope

from queue_runtime.api.bounds import Bound, Bounds
from queue_runtime.api.errors import ApiError, ClientGone, bad_request, too_large

DISCARD_BYTES = 32 * 2**20
DISCARD_SECONDS = 5
"""So much of a refused body is read and dropped, so that the caller gets its reply and keeps its connection."""

UPLOAD_FACTOR = 10
"""A body that keeps arriving may take this many times as long as one may stand still."""

MOVES = 10
"""A body that keeps arriving moves its bound on this often, at most, in the time that one may stand still."""

MAX_REQUEST_ID = 128

LONG_SECONDS = 1.0
"""After so long a call that may wait for somebody else is left when its caller has gone."""

Answer = TypeVar("Answer")


class Limits(Struct, frozen=True):
    """What a request may ask of the server. `seconds`: for the work, and for a body that stands still."""

    max_body: int
    seconds: float


class Request:
    """One request. Its body is read once, by `read`; `discard` drops what was not read."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, bounds: Bounds) -> None:
        self._receive = receive
        self._limits = limits
        self._bounds = bounds
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.route = "(none)"
        """the template that the path was found to match"""
        self.parameters: dict[str, str] = {}
        """what the path names, such as the id in `tasks/{id}`"""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = _fit_id(self.headers.get(b"x-request-id"))
        """the caller's X-Request-Id when it is fit for a header and a log line, else one of our own"""
        self.complete = self._has_no_body()
        """whether the whole body has arrived"""
        self.ambiguous = b"content-length" in self.headers and b"transfer-encoding" in self.headers
        """two lengths: what follows on this connection may be a request that a proxy never saw as one"""

    @property
    def client(self) -> str:
        """Address of the caller; `local` for one that came by a Unix socket."""
        client = self.scope.get("client")
        return str(client[0]) if client else "local"

    @property
    def seconds(self) -> float:
        """How long the work for this request may take."""
        return self._limits.seconds

    @cached_property
    def query(self) -> dict[str, list[str]]:
        """The values of the query by name."""
        found: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(self.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
        except ValueError:
            raise bad_request("query: must be UTF-8, and percent-encoded") from None
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return found

    def check(self) -> None:
        """Refuse a request that two readers may take for two different ones."""
        if self.ambiguous:
            raise bad_request("Content-Length: must not come with Transfer-Encoding")

    def bounded(self) -> Bound:
        """A block that ends in TimeoutError when it takes longer than this request may."""
        return self._bounds.begin()

    async def read(self, bound: Bound, *, limit: int | None = None) -> bytes:
        """The whole body, which must be JSON by its content type and within the limits; `bound` follows it.

        `limit` replaces the size that the configuration allows.
        """
        media = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media != b"application/json":
            raise bad_request("Content-Type: must be application/json")
        if limit is None:
            limit = self._limits.max_body
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(limit)
        chunks: list[bytes] = []
        await self._take_chunks(chunks.append, limit, self._limits.seconds, bound.move)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def discard(self) -> None:
        """Read what has not arrived yet and drop it, within bounds; `complete` says whether that was all."""
        seconds = min(DISCARD_SECONDS, self._limits.seconds)
        try:
            async with asyncio.timeout(seconds) as bound:
                await self._take_chunks(_drop, DISCARD_BYTES, seconds, bound.reschedule)
        except (ApiError, TimeoutError):
            return  # too much or too slow: the connection closes after the reply instead

    async def drop_body(self) -> None:
        """Drop a body that nobody asked for, before the work begins: meanwhile a server may have to keep all of it.

        Raises ApiError where it does not end within the bounds of `discard`.
        """
        await self.discard()
        if not self.complete:
            raise bad_request("this request takes no body")

    async def disconnected(self) -> None:
        """Return when the caller has hung up. Only after the whole body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def while_there(self, call: Awaitable[Answer]) -> Answer:
        """What the call answers. Ends it with ClientGone where it takes long and the caller has hung up.

        A short call is brought to its end, as ever. Only after the whole body was read.
        """

        async def watch() -> None:
            await asyncio.sleep(LONG_SECONDS)
            await self.disconnected()
            scope.cancel()

        with anyio.CancelScope() as scope:
            watching = asyncio.create_task(watch())
            try:
                return await call
            finally:
                watching.cancel()
        raise ClientGone

    async def _take_chunks(
        self, take: Callable[[bytes], object], limit: int, seconds: float, move: Callable[[float], None]
    ) -> None:
        if self.complete:
            return
        now = asyncio.get_running_loop().time
        began = moved = now()
        size = 0
        while not self.complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            self.complete = not message.get("more_body", False)
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            if not chunk:
                continue
            take(chunk)
            if self.complete:
                return
            # Moving the bound costs more than reading a small body: only for one that takes its time.
            if (time := now()) - moved > seconds / MOVES:
                moved = time
                move(min(time + seconds, began + seconds * UPLOAD_FACTOR))

    def _has_no_body(self) -> bool:
        if self.scope["http_version"].startswith("1"):
            return self.headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in self.headers
        return False  # HTTP/2 needs no header to send one


def _fit_id(given: bytes | None) -> str:
    if given and len(given) <= MAX_REQUEST_ID and given.isascii():
        text = given.decode("ascii")
        if text.isprintable():
            return text
    return f"{random.getrandbits(64):016x}"


def _drop(chunk: bytes) -> None:
    """What becomes of a refused body."""

"""Passes Conduit calls on to Phorge: `/api/{method}`, request and reply streamed through untouched.

What the gateway itself refuses is told in Conduit's own words.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from urllib.parse import unquote

import anyio
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from conduit.buckets import Buckets
from conduit.exchange import Headers, Phone
from conduit.request_body import Gone, RequestBody, TooLarge, WrongLength
from conduit.tcp import Lost

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS = frozenset({b"host", b"x-conduit-gateway", b"expect"})
"""Headers that the gateway writes itself, whatever came in; of the last one the server here has seen to already."""

_ORIGIN = frozenset({b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"})
"""Who the caller says it is, beside all that begins with X-Forwarded-: Phorge hears that from the gateway alone."""

_FRAME = frozenset({b"content-length"})
"""Headers that hold a message together, so that nobody can have them dropped on the way."""

_SENDABLE = re.compile(rb"[\x21-\x7e]+")
"""What an address may consist of on its way to Phorge."""

UNBOUNDED = frozenset({"worker.execute"})
"""Methods that run a task: cutting one off would say nothing of the work, which goes on."""

OTHERS = frozenset({"queue", "worker"})
"""Prefixes of faces of ours; no method of Conduit is called so."""

Observe = Callable[[Scope, int | None, float], None]
"""Told of each call: its scope, the status it got (None: the caller hung up before) and the seconds it took."""


class _Reply:
    """What the caller is told."""

    def __init__(self, scope: Scope, send: Send, *, closing: bool) -> None:
        self._send = send
        self._is_http1: bool = scope["http_version"].startswith("1")
        self._closing = closing and self._is_http1
        self._headless = scope["method"] == "HEAD"
        self.status: int | None = None
        """None until it has begun"""

    def close(self) -> None:
        """Have the connection closed after this reply."""
        self._closing = self._is_http1

    async def begin(self, status: int, headers: Headers) -> None:
        self.status = status
        if self._closing:
            headers = [*headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def add(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self, chunk: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": b"" if self._headless else chunk})

    async def refuse(self, status: int, code: str, info: str) -> None:
        """Say no in Conduit's own words."""
        await self._tell(status, {"result": None, "error_code": code, "error_info": info})

    async def too_large(self, limit: int) -> None:
        """Say it in the platform's words, which is what callers know for this."""
        message = f"the request body must have at most {limit} bytes"
        await self._tell(413, {"error": {"code": "ERR_TOO_LARGE", "message": message}})

    async def _tell(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        await self.begin(status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))])
        await self.end(text)


class Gateway:
    """An ASGI app in front of another one: it takes `/api/{method}`, and leaves everything else to that.

    `allows` says whether a request carries the service token, `stopping` whether the process is on its way out.
    """

    def __init__(
        self,
        app: ASGIApp,
        url: str,
        allows: Callable[[Scope], bool],
        observe: Observe,
        stopping: Callable[[], bool],
        *,
        host: str = "",
        tls_ca: Path | None = None,
        seconds: float = 30.0,
        max_body: int = 10 * 2**20,
        rate: float = 0.0,
        burst: int = 20,
        exempt: Collection[str] = (),
    ) -> None:
        self._app = app
        self._allows = allows
        self._observe = observe
        self._stopping = stopping
        self._phone = Phone(url, tls_ca)
        self._host = host.encode("ascii") or self._phone.host
        self._seconds = seconds
        self._max_body = max_body
        self._buckets = Buckets(rate, burst) if rate > 0 else None
        self._exempt = frozenset(exempt)
        # of this process alone: a call may well pass another gateway on its way to Phorge
        self._name = b"queue-runtime-" + secrets.token_hex(8).encode()
        self._log = structlog.get_logger().bind()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = method_of(scope["path"]) if scope["type"] == "http" else None
        if method is None:
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        reply = _Reply(scope, send, closing=self._stopping())
        try:
            await self._answer(method, scope, receive, reply)
        finally:
            self._observe(scope, reply.status, time.monotonic() - began)

    async def _answer(self, method: str, scope: Scope, receive: Receive, reply: _Reply) -> None:
        if _has_two_lengths(scope):
            reply.close()  # or what follows might be read in a third way
            await reply.refuse(400, "ERR-CONDUIT-CORE", "Content-Length must not come with Transfer-Encoding")
        elif refusal := self._refusal(scope, method):
            await reply.refuse(*refusal)
        elif (length := _declared_length(scope)) is not None and length > self._max_body:
            await reply.too_large(self._max_body)
        else:
            await self._pass_on(method, scope, RequestBody(receive, self._max_body, length), reply)

    def _refusal(self, scope: Scope, method: str) -> tuple[int, str, str] | None:
        """Status, code and text where a call may not pass."""
        if scope["method"] == "CONNECT":
            return 405, "ERR-CONDUIT-CORE", "this is no proxy for connections"
        if not self._allows(scope):
            return 401, "ERR-CONDUIT-AUTH", "the service token is missing or wrong"
        if self._has_passed(scope):
            self._log.error("a Conduit call came back to the gateway that passed it on", method=method)
            return 508, "ERR-CONDUIT-PROXY", "this gateway's own address stands where Phorge's should: GATEWAY_URL"
        if not method:
            return 400, "ERR-CONDUIT-CORE", "no method is named: call /api/{method}"
        if not _SENDABLE.fullmatch(self._target(scope)):
            return 400, "ERR-CONDUIT-CORE", "the address has characters that must be escaped"
        if self._buckets is not None and method not in self._exempt and not self._buckets.take(_client(scope)):
            return 429, "ERR-RATE-LIMIT", "too many calls from this address; try again later"
        return None

    def _has_passed(self, scope: Scope) -> bool:
        """Whether this gateway has passed the call on before, and it came back."""
        return any(name == b"via" and self._name in value for name, value in scope["headers"])

    async def _pass_on(self, method: str, scope: Scope, body: RequestBody, reply: _Reply) -> None:
        async with anyio.create_task_group() as group:
            # a caller that hangs up ends the call to Phorge too
            group.start_soon(body.end_with_caller, group.cancel_scope)
            await self._relay(method, scope, body, reply)
            group.cancel_scope.cancel()

    async def _relay(self, method: str, scope: Scope, body: RequestBody, reply: _Reply) -> None:
        unbounded = method in UNBOUNDED or self._seconds <= 0
        try:
            async with asyncio.timeout(None if unbounded else self._seconds):
                async with self._phone.exchange(
                    scope["method"].encode("ascii"), self._target(scope), self._headers(scope), aiter(body)
                ) as answer:
                    # the server puts its own date
                    headers = [pair for pair in _end_to_end(answer.headers) if pair[0] != b"date"]
                    await reply.begin(answer.status, headers)
                    async for chunk in answer:
                        await reply.add(chunk)
                    await reply.end()
        except Gone:
            return
        except TooLarge:
            await body.pour_away()
            await reply.too_large(self._max_body)
        except WrongLength:
            if reply.status is None:
                await reply.refuse(400, "ERR-CONDUIT-CORE", "the body is not as long as Content-Length says")
        except (Lost, TimeoutError) as error:
            self._log.warning("a Conduit call was not answered by Phorge", method=method, reason=repr(error))
            if reply.status is None:
                await reply.refuse(502, "ERR-CONDUIT-PROXY", "Phorge did not answer this call")
            # else the reply ends here, unfinished: the server breaks the connection
        except Exception as error:  # noqa: BLE001  whatever Phorge says, the caller is told something
            self._log.exception("a reply of Phorge's was not expected", method=method, exc_info=error)
            if reply.status is None:
                await reply.refuse(502, "ERR-CONDUIT-PROXY", "Phorge's answer to this call makes no sense")

    def _target(self, scope: Scope) -> bytes:
        """Path and query as they came."""
        query: bytes = scope["query_string"]
        return self._phone.base + _raw_path(scope) + (b"?" + query if query else b"")

    def _headers(self, scope: Scope) -> Headers:
        """Those that Phorge gets."""
        given = dict(scope["headers"])
        headers = [pair for pair in _end_to_end(scope["headers"]) if not _is_ours(pair[0])]
        if b"content-length" not in given:
            chunked = b"transfer-encoding" in given or not scope["http_version"].startswith("1")
            headers.append((b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"0"))
        return [
            (b"host", self._host),
            *headers,
            (b"via", b"%s %s" % (scope["http_version"].encode(), self._name)),
            (b"x-forwarded-for", _client(scope).encode()),
            (b"x-forwarded-proto", scope.get("scheme", "http").encode()),
            (b"x-conduit-gateway", b"go-conduit"),  # what its callers and their logs look for
        ]


def method_of(path: str) -> str | None:
    """The method that a path calls; empty for `/api` itself, None where it is no call of Conduit's."""
    if path in {"/api", "/api/"}:
        return ""
    method = path.removeprefix("/api/")
    # decoded twice: what one more decoding on the way would take for another path is none
    if method == path or "/" in unquote(method) or unquote(method) in {".", ".."} or method in OTHERS:
        return None
    return method


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are meant for the other end."""
    found = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in found if name == b"connection" for part in value.split(b",")}
    named -= _FRAME
    if any(name == b"transfer-encoding" for name, _ in found):
        named |= _FRAME  # which counts for nothing beside it
    return [(name, value) for name, value in found if name not in HOP_BY_HOP and name not in named]


def _is_ours(name: bytes) -> bool:
    name = name.replace(b"_", b"-")  # PHP takes them for the same
    return name in _OURS or name in _ORIGIN or name.startswith(b"x-forwarded-")


def _declared_length(scope: Scope) -> int | None:
    length: bytes = dict(scope["headers"]).get(b"content-length", b"")
    return int(length) if length.isdigit() and len(length) < 20 else None


def _has_two_lengths(scope: Scope) -> bool:
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0]


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "local"

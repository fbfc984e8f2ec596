"""The way to the server of a remote store: one request for each call, and what its reply means."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx2
import msgspec
import structlog

from queue_runtime import store_wire as wire
from queue_runtime.errors import InvalidRequest, QueueRuntimeError, StoreUnavailable
from queue_runtime.store_wire import Method, Refusal
from stores.remote_address import read_address
from stores.remote_text import encode

log = structlog.get_logger()

CONNECTIONS = 20
"""Most connections to the server. A call that finds none free waits for one."""

KEEP_SECONDS = 30.0
"""How long a connection may idle: less than any server or proxy keeps it, or requests would meet a closed door."""

CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
"""How long the server may be silent before the call counts as lost."""

WHOLE = 2
"""A reply that comes by and by is given up after so many times that silence, counted from the call's begin."""

MAX_REPLY_BYTES = wire.MAX_CALL_BYTES + 2 * 2**20
"""Largest reply that is read: as large as a call may be, and a margin for its envelope and escapes."""

LoginNow = Callable[[], tuple[str, str]]
"""URL of the server and token, as they are now. The URL names the same server always."""

Call = TypeVar("Call", bound=msgspec.Struct)
Answer = TypeVar("Answer")


class _Readiness(msgspec.Struct):
    reason: str


class _Reply(msgspec.Struct, frozen=True):
    """A reply that was read to its end."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class _Envelope(msgspec.Struct, frozen=True):
    """The envelope, where what is missing can be told from what is null."""

    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: Refusal | None = None


class ServerFault(QueueRuntimeError):
    """The server met an error that nobody foresaw. It is no outage: the same call would meet it again."""


class Line:
    """Sends calls, each once: whether one whose reply is missing has acted, nobody knows.

    What is wrong with the way or with the settings of both ends is StoreUnavailable, because only people can mend it,
    while this process waits; it is logged as an error, once until a call succeeds.
    """

    def __init__(self, client: httpx2.AsyncClient, login_now: LoginNow, *, seconds: float) -> None:
        self._client = client
        self._login_now = login_now
        self._login = ("", "")
        self._headers: Mapping[str, str] = {}
        self._base = self._where = ""
        self._seconds = seconds
        self._said = ""
        self._take_login()

    def _take_login(self) -> None:
        login = self._login_now()
        if login != self._login:
            self._login = login
            url, token = login
            address = read_address(url)
            self._base, self._where = address.base, address.name
            self._headers = {"X-Service-Token": token} if token else {}

    async def call(self, method: Method[Call, Answer], call: Call, *, wait: float = 0.0) -> Answer:
        """The server's answer. `wait`: seconds for which it may hold the call open."""
        body = encode(call)
        if len(body) > wire.MAX_CALL_BYTES:
            raise InvalidRequest("body", f"has {len(body)} bytes, and a call takes at most {wire.MAX_CALL_BYTES}")
        self._take_login()
        reply = await self._ask(method.name, "POST", wire.PATH + method.name, body, wait=wait)
        return self._read(method, reply)

    def bad_count(self, operation: str, asked: int, answered: int) -> StoreUnavailable:
        """What it means when an answer has not one value for each that was asked. The server has acted, perhaps."""
        return self._misconfigured(operation, f"answered {answered} values where {asked} were asked for")

    async def readiness(self) -> str:
        """Why the server should get no work just now; empty: it is ready. Raises StoreUnavailable."""
        self._take_login()
        reply = await self._ask("readyz", "GET", "/readyz", b"")
        if reply.status == 200:
            return ""
        try:
            return msgspec.json.decode(reply.content, type=_Readiness).reason
        except _UNREADABLE:
            return f"{self._where} answered {reply.status}"

    async def _ask(self, operation: str, verb: str, path: str, body: bytes, *, wait: float = 0.0) -> _Reply:
        """One request and its whole reply, which has bounds in time and size. Raises StoreUnavailable."""
        silence = self._seconds + wait
        timeout = httpx2.Timeout(self._seconds, connect=min(CONNECT_SECONDS, self._seconds), read=silence)
        request = self._client.build_request(
            verb, self._base + path, content=body, headers=self._headers, timeout=timeout
        )
        longest = WHOLE * self._seconds + wait
        try:
            async with asyncio.timeout(longest):
                reply = await self._client.send(request, stream=True)
                try:
                    return _Reply(reply.status_code, reply.headers, await _content(reply))
                finally:
                    await reply.aclose()
        except _TooMuchError as error:
            raise self._misconfigured(operation, f"sent a reply that is not read: {error}") from error
        except TimeoutError as error:
            raise StoreUnavailable(operation, f"{self._where}: no whole reply within {longest:.1f} s") from error
        except httpx2.RequestError as error:
            raise StoreUnavailable(operation, f"{self._where}: {_words(error)}") from error

    def _read(self, method: Method[Call, Answer], reply: _Reply) -> Answer:
        version = reply.headers.get(wire.VERSION_HEADER)
        if version not in {None, str(wire.VERSION)}:
            raise self._misconfigured(
                method.name,
                f"speaks version {version[:20]!r} of the store protocol, and this process version '{wire.VERSION}': "
                "run the same release on both ends",
            )
        envelope = _envelope(reply.content)
        if reply.status == 200 and version is not None and envelope is not None and envelope.error is None:
            if envelope.data is msgspec.UNSET:
                raise self._misconfigured(method.name, "answered without data, which no queue-runtime does")
            try:
                answer = method.read_answer(envelope.data)
            except RecursionError as error:
                raise self._misconfigured(method.name, "answered what is nested too deeply to be read") from error
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ServerFault(f"{method.name}: {self._where} answered what it never may: {error}") from error
            self._said = ""
            return answer
        raise self._error(method.name, reply, envelope.error if envelope is not None else None)

    def _error(self, operation: str, reply: _Reply, refused: Refusal | None) -> QueueRuntimeError:
        """What a reply means that is no answer."""
        status = reply.status
        ours = wire.VERSION_HEADER in reply.headers
        if ours and refused is not None and status != 200:
            if (error := wire.raised(refused)) is not None:
                return error
            if status == 500:
                request = reply.headers.get("x-request-id", "?")
                return ServerFault(f"{operation}: {self._where} failed; its log says why (request {request})")
        match status:
            case 401 | 403:
                return self._misconfigured(operation, f"answered {status}: the token is missing or wrong")
            case 404 | 405:
                return self._misconfigured(
                    operation, f"answered {status}: no queue-runtime with the role api, or an older one, is at this URL"
                )
            case 413:
                return InvalidRequest("body", "is more than something on the way to the server lets through")
            case 408 | 425 | 429:
                return StoreUnavailable(operation, f"{self._where} answered {status}")
            case _ if status >= 500:
                return StoreUnavailable(operation, f"{self._where} answered {status}")
            case _:
                return self._misconfigured(operation, f"answered {status}, which no queue-runtime does")

    def _misconfigured(self, operation: str, fault: str) -> StoreUnavailable:
        reason = f"{self._where} {fault}"
        if reason != self._said:
            self._said = reason
            log.error("the server of the queue cannot be used as it is configured", reason=reason)
        return StoreUnavailable(operation, reason)


@asynccontextmanager
async def open_line(login_now: LoginNow, *, seconds: float) -> AsyncIterator[Line]:
    """A line that connects when it is used. Raises StoreUnusable where the URL is none."""
    address = read_address(login_now()[0])
    # httpx2 logs each request at INFO
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    transport = httpx2.AsyncHTTPTransport(
        verify=address.is_encrypted,  # where nothing is encrypted, reading all authorities would be for nothing
        uds=address.socket,
        limits=httpx2.Limits(
            max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=KEEP_SECONDS
        ),
    )
    headers = {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "queue-runtime",
        wire.VERSION_HEADER: str(wire.VERSION),
    }
    async with httpx2.AsyncClient(
        transport=transport,
        headers=headers,
        follow_redirects=False,
        trust_env=False,  # a proxy that is meant for the world outside would get the token
    ) as client:
        yield Line(client, login_now, seconds=seconds)


class _TooMuchError(Exception):
    """A reply that is larger than any of ours, or may become so."""


async def _content(reply: httpx2.Response) -> bytes:
    """The body of a reply as it was sent. A packed one is not unpacked: a few bytes may stand for very many."""
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise _TooMuchError("it is packed, though nobody asked for that")
    parts = []
    size = 0
    async for part in reply.aiter_raw():
        size += len(part)
        if size > MAX_REPLY_BYTES:
            raise _TooMuchError(f"it has more than {MAX_REPLY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _envelope(content: bytes) -> _Envelope | None:
    try:
        return _ENVELOPES.decode(content)
    except _UNREADABLE:
        return None


_ENVELOPES = msgspec.json.Decoder(_Envelope)


def _words(error: httpx2.RequestError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

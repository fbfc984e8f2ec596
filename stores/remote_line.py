"""The way to the server of a remote store: one request for each call, and what its reply means."""

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

LoginNow = Callable[[], tuple[str, str]]
"""URL of the server and token, as they are now. The URL names the same server always."""

Call = TypeVar("Call", bound=msgspec.Struct)
Answer = TypeVar("Answer")


class _Readiness(msgspec.Struct):
    reason: str


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
        timeout = httpx2.Timeout(self._seconds, connect=min(CONNECT_SECONDS, self._seconds), read=self._seconds + wait)
        self._take_login()
        address = self._base + wire.PATH + method.name
        try:
            reply = await self._client.post(address, content=body, headers=self._headers, timeout=timeout)
        except httpx2.RequestError as error:
            reason = f"{self._where}: {_words(error)}"
            raise StoreUnavailable(method.name, reason) from error
        return self._read(method, reply)

    async def readiness(self) -> str:
        """Why the server should get no work just now; empty: it is ready. Raises StoreUnavailable."""
        self._take_login()
        try:
            reply = await self._client.get(self._base + "/readyz", headers=self._headers)
        except httpx2.RequestError as error:
            raise StoreUnavailable("readyz", f"{self._where}: {_words(error)}") from error
        if reply.status_code == 200:
            return ""
        try:
            return msgspec.json.decode(reply.content, type=_Readiness).reason
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return f"{self._where} answered {reply.status_code}"

    def _read(self, method: Method[Call, Answer], reply: httpx2.Response) -> Answer:
        version = reply.headers.get(wire.VERSION_HEADER)
        if version not in {None, str(wire.VERSION)}:
            raise self._misconfigured(
                method.name,
                f"speaks version {version[:20]!r} of the store protocol, and this process version '{wire.VERSION}': "
                "run the same release on both ends",
            )
        envelope = _envelope(reply)
        if reply.status_code == 200 and version is not None and envelope is not None:
            try:
                answer = method.read_answer(envelope.data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ServerFault(f"{method.name}: {self._where} answered what it never may: {error}") from error
            self._said = ""
            return answer
        raise self._error(method.name, reply, envelope.error if envelope is not None else None)

    def _error(self, operation: str, reply: httpx2.Response, refused: Refusal | None) -> QueueRuntimeError:
        """What a reply means that is no answer."""
        status = reply.status_code
        ours = wire.VERSION_HEADER in reply.headers
        if ours and refused is not None:
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


def _envelope(reply: httpx2.Response) -> wire.Envelope | None:
    try:
        return _ENVELOPES.decode(reply.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


_ENVELOPES = msgspec.json.Decoder(wire.Envelope)


def _words(error: httpx2.RequestError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

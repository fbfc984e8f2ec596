"""Calls methods of Phorge's Conduit over HTTP."""

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
from msgspec import Raw

from conduit.errors import CallFailed, ConduitError, Misconfigured, NotReached, OutcomeUnknown
from conduit.params import CONTENT_TYPE, form
from conduit.replies import read_reply

CONNECT_SECONDS = 10.0
MAX_REPLY = 64 * 2**20
MAX_PAGE = 64 * 2**10
"""So much is read of a reply that is no answer anyway."""

SENDING = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
"""Errors before the first byte of the request has left."""


# A call may be silent for a day: a peer that died, or a firewall that forgot, shall be noticed all the same.
_KEEP_ALIVE: list[tuple[int, int, int]] = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    ),
]


def open_transport(url: str, tls_ca: Path | None) -> httpx2.AsyncHTTPTransport:
    """The way to Phorge: a connection for each call, without proxies.

    On a connection that was kept, a call that meets the server's closing is lost in a way that cannot be told from
    a run cut off in the middle.
    """
    return httpx2.AsyncHTTPTransport(
        verify=ssl.create_default_context(cafile=tls_ca) if url.startswith("https") else False,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        trust_env=False,
        socket_options=_KEEP_ALIVE,
    )


class ConduitClient:
    """One Phorge. `slot` bounds how many calls the owner of the client has under way at once.

    It stands on the bare transport: that knows no cookies (Phorge sends one with each anonymous reply, and they
    would break later calls), follows no redirects and reads no proxy from the environment.
    """

    def __init__(
        self, url: str, *, token: str = "", host: str = "", concurrency: int = 4, tls_ca: Path | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._addresses: dict[str, httpx2.URL] = {}
        """taking one apart costs as much as all the rest that is done here for a call"""
        self._token = token
        self._headers = [
            (b"Host", (host or urlsplit(self._url).netloc).encode("ascii")),
            (b"Accept", b"application/json"),
            (b"Content-Type", CONTENT_TYPE),
            (b"User-Agent", b"queue-runtime"),
            *([(b"X-Service-Token", token.encode("ascii"))] if token else []),
        ]
        self._transport = open_transport(self._url, tls_ca)
        self.slot = anyio.CapacityLimiter(concurrency)
        self.calls: Counter[str] = Counter()
        """calls by how they ended"""
        self.seconds = 0.0
        # httpx2 logs the address of every request at INFO
        logging.getLogger("httpx2").setLevel(logging.WARNING)

    async def call(self, method: str, params: Mapping[str, object], *, seconds: float) -> Raw:
        """The result of the method as JSON text. Raises one of the errors of `errors.py`.

        `seconds` bounds the whole call. A caller that is cancelled knows nothing of the work either: PHP goes on.
        """
        began = time.monotonic()
        ending = "cancelled"
        try:
            result = await self._exchange(method, form(params, token=self._token), seconds)
            ending = "answered"
        except ConduitError as error:
            ending = _NAMES[next(kind for kind in _NAMES if isinstance(error, kind))]
            raise
        finally:
            self.calls[ending] += 1
            self.seconds += time.monotonic() - began
        return result

    @property
    def running(self) -> int:
        """Slots that are taken now."""
        return self.slot.borrowed_tokens

    def _address_of(self, method: str) -> httpx2.URL:
        if method not in self._addresses:
            self._addresses[method] = httpx2.URL(f"{self._url}/api/{method}")
        return self._addresses[method]

    async def _exchange(self, method: str, body: bytes, seconds: float) -> Raw:
        request = httpx2.Request(
            "POST",
            self._address_of(method),
            headers=[*self._headers, (b"Content-Length", b"%d" % len(body))],
            stream=httpx2.ByteStream(body),
            extensions={"timeout": {"connect": CONNECT_SECONDS, "pool": None, "read": None, "write": None}},
        )
        try:
            async with asyncio.timeout(seconds):
                reply = await self._transport.handle_async_request(request)
                try:
                    text = await _read(reply)
                finally:
                    await reply.aclose()
        except SENDING as error:
            raise _not_reached(error) from error
        except TimeoutError as error:
            raise OutcomeUnknown(f"no answer within {seconds:.0f} s") from error
        except httpx2.RequestError as error:
            raise OutcomeUnknown(f"the connection was lost: {_words(error)}") from error
        return read_reply(reply.status_code, reply.headers, text)


_NAMES: Mapping[type[ConduitError], str] = {
    NotReached: "not_reached",
    Misconfigured: "misconfigured",
    OutcomeUnknown: "unknown",
    CallFailed: "failed",
}


async def _read(reply: httpx2.Response) -> bytes:
    limit = MAX_REPLY if reply.status_code == 200 else MAX_PAGE
    chunks: list[bytes] = []
    size = 0
    async for chunk in reply.aiter_bytes():
        size += len(chunk)
        if size > limit and limit == MAX_REPLY:
            raise CallFailed(f"the reply has more than {MAX_REPLY} bytes")
        chunks.append(chunk)
        if size > limit:
            break
    return b"".join(chunks)


def _not_reached(error: httpx2.TransportError) -> ConduitError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            fix = "name the authority that signed it by QUEUE_RUNTIME_CONDUIT_TLS_CA"
            return Misconfigured(f"the certificate is not trusted ({cause.verify_message})", fix)
        cause = cause.__cause__ or cause.__context__
    return NotReached(f"Phorge was not reached: {_words(error)}")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

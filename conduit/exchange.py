"""One HTTP exchange with Phorge, on a connection of its own: by httpcore, the engine below httpx, without its pool."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpcore2

from conduit.tcp import PlainTcp

CONNECT_SECONDS = 10.0

Headers = list[tuple[bytes, bytes]]

LOST = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
"""Whatever may become of an exchange but its reply."""

NOT_BEGUN = (httpcore2.ConnectError, httpcore2.ConnectTimeout)
"""Those of them that come before the first byte of the request has left."""

# A call may be silent for a day: a peer that died, or a firewall that forgot, shall be noticed all the same.
_KEEP_ALIVE: list[tuple[int, int, int]] = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    ),
]

_EXTENSIONS: dict[str, object] = {"timeout": {"connect": CONNECT_SECONDS}}


class Phone:
    """Reaches the web server of one address. Raises OSError where the file of authorities cannot be used.

    Each exchange has a new connection. On one that was kept, a call that meets the server's closing is lost in a way
    that cannot be told from a run cut off in the middle (decision 0007). There are no proxies, cookies or redirects.
    """

    def __init__(self, url: str, tls_ca: Path | None = None) -> None:
        parts = urlsplit(url)
        scheme, host = parts.scheme.encode(), (parts.hostname or "").encode()
        port = parts.port or (443 if scheme == b"https" else 80)
        self.base = parts.path.rstrip("/").encode()
        """what stands before /api in the path"""
        self.host = parts.netloc.encode("ascii")
        self._scheme, self._host, self._port = scheme, host, port
        self._origin = httpcore2.Origin(scheme, host, port)
        self._ssl = ssl.create_default_context(cafile=tls_ca) if scheme == b"https" else None
        # the other one knows TLS, beside which it costs little
        self._network = httpcore2.AnyIOBackend() if self._ssl else PlainTcp()

    @asynccontextmanager
    async def exchange(
        self, method: bytes, target: bytes, headers: Headers, body: bytes | AsyncIterator[bytes]
    ) -> AsyncIterator[httpcore2.Response]:
        """Send a request; the reply, of which the body is read in the block. Raises one of LOST.

        The target is sent as it is. No time is bounded but that of connecting.
        """
        request = httpcore2.Request(
            method,
            httpcore2.URL(scheme=self._scheme, host=self._host, port=self._port, target=target),
            headers=headers,
            content=body,
            extensions=_EXTENSIONS,
        )
        connection = httpcore2.AsyncHTTPConnection(
            self._origin, self._ssl, network_backend=self._network, socket_options=_KEEP_ALIVE
        )
        try:
            yield await _begin(connection, request)
        finally:
            await connection.aclose()


async def _begin(connection: httpcore2.AsyncHTTPConnection, request: httpcore2.Request) -> httpcore2.Response:
    try:
        return await connection.handle_async_request(request)
    except UnicodeError as error:  # a host that no resolver can be asked for, which httpcore does not expect
        raise httpcore2.ConnectError(f"the host name cannot be looked up: {error}") from error

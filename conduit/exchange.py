"""One HTTP exchange with Phorge, on a connection of its own: h11 says what is sent, and what has come."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import h11

from conduit.tcp import Address, Connection, Lost

MAX_HEAD = 100 * 2**10
"""So many bytes the head of a reply may have."""

Headers = list[tuple[bytes, bytes]]


class Reply:
    """Status and headers of a reply. It is iterated for its body, once; that raises Lost."""

    status: int
    headers: Headers

    def __init__(self, http: h11.Connection, connection: Connection) -> None:
        self._http = http
        self._connection = connection

    async def begin(self) -> "Reply":
        """Wait until it begins. Raises Lost."""
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):  # news on the way to it
            event = await self._next()
        assert isinstance(event, h11.Response)  # nothing else can come first
        self.status = event.status_code
        self.headers = event.headers.raw_items()
        return self

    def __aiter__(self) -> "Reply":
        return self

    async def __anext__(self) -> bytes:
        event = await self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        raise StopAsyncIteration

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise Lost(str(error)) from error
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # the line before has excluded the third
            data = await self._connection.read()
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise Lost("the server closed it without a reply")
            self._http.receive_data(data)


class Phone:
    """Reaches the web server of one address. Raises OSError where the file of authorities cannot be used.

    Each exchange has a new connection. On one that was kept, a call that meets the server's closing is lost in a way
    that cannot be told from a run cut off in the middle (decision 0007). There are no proxies, cookies or redirects.
    """

    def __init__(self, url: str, tls_ca: Path | None = None) -> None:
        parts = urlsplit(url)
        tls = _tls(tls_ca) if parts.scheme == "https" else None
        self.base = parts.path.rstrip("/").encode()
        """what stands before /api in the path"""
        self.host = parts.netloc.encode("ascii")
        self._address = Address(parts.hostname or "", parts.port or (80 if tls is None else 443), tls)

    @asynccontextmanager
    async def exchange(
        self, method: bytes, target: bytes, headers: Headers, body: bytes | AsyncGenerator[bytes, None]
    ) -> AsyncIterator[Reply]:
        """Send a request; the reply, of which the body is read in the block.

        The target is sent as it is. No time is bounded but that of connecting. Raises Lost, and ConnectError (which is
        one) while nothing has been sent.
        """
        http = h11.Connection(h11.CLIENT, MAX_HEAD)
        connection = await self._address.connect()
        try:
            try:
                await _send(http, connection, h11.Request(method=method, target=target, headers=headers), body)
            except h11.LocalProtocolError as error:  # it is no HTTP
                raise Lost(str(error)) from error
            yield await Reply(http, connection).begin()
        finally:
            connection.close()


async def _send(
    http: h11.Connection, connection: Connection, head: h11.Request, body: bytes | AsyncGenerator[bytes, None]
) -> None:
    """Send it all; the head leaves together with what follows it.

    A server that hangs up meanwhile may have said before why it does not listen: its reply is read all the same.
    """
    with suppress(Lost):
        if isinstance(body, bytes):
            await connection.write(_encoded(http, head, h11.Data(body), h11.EndOfMessage()))
            return
        waiting = _encoded(http, head)
        async with aclosing(body):
            async for chunk in body:
                await connection.write(waiting + _encoded(http, h11.Data(chunk)))
                waiting = b""
        await connection.write(waiting + _encoded(http, h11.EndOfMessage()))


def _encoded(http: h11.Connection, *events: h11.Event) -> bytes:
    return b"".join([http.send(event) or b"" for event in events])


def _tls(authorities: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities)
    context.set_alpn_protocols(["http/1.1"])
    return context

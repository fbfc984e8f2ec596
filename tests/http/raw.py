"""An HTTP client by hand, for what well-behaved clients do not do."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.http.house import Running


class RawReply(NamedTuple):
    """A reply as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, *, head: bool = False) -> RawReply:
        """Read one reply; `head`: it was asked for by HEAD and has no body."""
        async with asyncio.timeout(10):
            status_line, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = b"" if head else await self._reader.readexactly(int(headers.get("content-length", "0")))
        return RawReply(int(status_line.split()[1]), headers, body)

    async def ask(self, data: bytes) -> RawReply:
        """Send a request and read its reply."""
        await self.send(data)
        return await self.reply()

    async def ended(self) -> bytes:
        """What comes until the server closes the connection."""
        async with asyncio.timeout(10):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    def end_sending(self) -> None:
        """Close our half of the connection."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Hang up the hard way: the server gets a RST."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


@asynccontextmanager
async def connect(running: Running) -> AsyncIterator[RawClient]:
    """A connection to a running server."""
    client = RawClient(*await asyncio.open_connection(running.host, running.port))
    try:
        yield client
    finally:
        await client.close()


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """A request without a body."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: test", *headers, "", "")).encode()


def post(path: str, body: object, *headers: str) -> bytes:
    """A request with a JSON body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(content)}", *headers)
    return get(path, *lines, method="POST") + content

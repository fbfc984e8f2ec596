"""A web server behind the gateway, which can wait, stream, break off and send on to another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from tests.listener import Serve, listening


@asynccontextmanager
async def serving(handle: Serve) -> AsyncIterator[str]:
    """A server that does as it likes with each connection; yields its address."""
    async with listening(handle) as port:
        yield f"http://127.0.0.1:{port}"


class Request(Struct, frozen=True):
    """One request as it arrived; header names in lower case."""

    line: str
    pairs: list[tuple[str, str]]
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.pairs)

    def all(self, name: str) -> list[str]:
        """Each value of a header that may come more than once."""
        return [value for found, value in self.pairs if found == name]


class Upstream:
    """One web server. Tests say how it answers."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.reply: tuple[int, list[tuple[str, str]], bytes] = (200, [], b'{"result":null}')
        self.wait = 0.0
        self.pieces: list[bytes] = []
        """sent one by one, in place of the reply; each but the first waits for `go_on`"""
        self.break_off = False
        self.raw: bytes | None = None
        """sent as it is, in place of the reply"""
        self.forward = ""
        """host and port of a server that answers in place of this one"""
        self.go_on = asyncio.Event()
        self.arrived = b""
        """what has come of the body under way"""
        self.open = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Upstream"]:
        """Serve on a free port."""
        async with listening(self._accept) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self._serve(reader, writer)
        finally:
            self.open -= 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = await reader.readuntil(b"\r\n\r\n")
        head = text.decode("latin-1").split("\r\n")
        pairs = [(name.lower(), value) for name, value in (line.split(": ", 1) for line in head[1:] if line)]
        headers = dict(pairs)
        self.arrived = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\n"), 16):
                self.arrived += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            self.arrived = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(Request(head[0], pairs, self.arrived))
        if self.forward:
            await self._forward(text + self.arrived, reader, writer)
            return
        if self.wait and await self._hung_up(reader):
            return
        if self.raw is not None:
            writer.write(self.raw)
            await writer.drain()
            return
        if self.pieces:
            await self._stream(writer)
            return
        status, more, body = self.reply
        lines = [f"HTTP/1.1 {status} X", "Date: yesterday", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in more]
        shown = b"" if head[0].startswith("HEAD") else body
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + shown)
        await writer.drain()

    async def _forward(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.forward.rpartition(":")
        answer, asking = await asyncio.open_connection(host, int(port))
        asking.write(request)

        async def pass_back() -> None:
            while chunk := await answer.read(65536):
                writer.write(chunk)

        ends = [asyncio.create_task(pass_back()), asyncio.create_task(reader.read())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        asking.close()

    async def _hung_up(self, reader: asyncio.StreamReader) -> bool:
        """Wait as long as it takes; whether the caller has gone meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.wait):
                await reader.read()
                return True
        return False

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number, piece in enumerate(self.pieces):
            if number:
                await self.go_on.wait()
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        if not self.break_off:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

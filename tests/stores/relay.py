"""A bad line: a TCP relay on the loopback that delays replies, loses them, or leads somewhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.listener import listening


class Relay:
    """Passes everything on. What goes wrong is set while it runs."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.delay = 0.0
        """seconds before a piece of a reply is passed on"""
        self.lose_replies = 0
        """so many pieces of replies are thrown away, each with its connection"""
        self.cut_replies_after: int | None = None
        """the next reply ends after so many bytes, and its connection with it"""
        self.opened = 0
        """connections so far"""
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """A Redis server at the other end."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until one of its two ends is gone."""
        self.opened += 1
        ends = {writer}
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            ends.add(far_writer)
            self._writers.add(far_writer)
            async with asyncio.TaskGroup() as group:
                there = group.create_task(self._pass_on(reader, far_writer))
                back = group.create_task(self._pass_back(far_reader, writer))
                await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
        finally:
            for end in ends:
                end.transport.abort()
            self._writers -= ends

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(2**16):
                writer.write(piece)
                await writer.drain()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(2**16):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.lose_replies:
                    self.lose_replies -= 1
                    return
                if self.cut_replies_after is not None:
                    writer.write(piece[: self.cut_replies_after])
                    self.cut_replies_after = None
                    await writer.drain()
                    await asyncio.sleep(0.01)  # for the end of the connection to come after these bytes
                    return
                writer.write(piece)
                await writer.drain()


@asynccontextmanager
async def relay_to(host: str, port: int) -> AsyncIterator[Relay]:
    """A relay to this server, on a port of its own."""
    relay = Relay(host, port)
    async with listening(relay.serve) as relay.port:
        yield relay

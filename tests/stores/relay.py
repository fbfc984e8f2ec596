"""A bad line: a TCP relay on the loopback that delays replies, loses them, or leads somewhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


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
        self._writers.add(writer)
        ends = [writer]
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            ends.append(far_writer)
            self._writers.add(far_writer)
            there = asyncio.create_task(self._pass_on(reader, far_writer))
            back = asyncio.create_task(self._pass_back(far_reader, writer))
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        for end in ends:
            end.transport.abort()
            self._writers.discard(end)

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
    running: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not server.is_serving():  # it was on its way when the relay was closed
            writer.transport.abort()
            return
        task = asyncio.create_task(relay.serve(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await asyncio.sleep(0)
        while running:
            relay.cut()
            await asyncio.wait(running, timeout=0.1)

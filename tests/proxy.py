"""A line to a server that a test can break: cut, stalled, slowed, deaf in one direction, or broken at one exact trip.

async with Proxy(server.socket) as proxy:
    store = open_store(socket=proxy.socket)            # or host and proxy.port
    proxy.break_at({2: Fault.LOSE_REPLY})              # the second trip from now on
    proxy.break_at({2: After(1)})                      # of that trip, after its first statement
"""

import asyncio
import os
import socket
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.listener import HOST, Listener
from tests.scratch import new_folder
from tests.statements import first

CHUNK = 2**16


class Fault(Enum):
    """What happens at one trip. A trip is a request and its reply, whatever the protocol: the two sides take turns."""

    LOSE_REQUEST = auto()
    """the server never sees it, and both sides see the line break"""

    STRAND_REQUEST = auto()
    """the server never sees it, and does not learn that the client is gone"""

    LOSE_REPLY = auto()
    """the server begins to answer, then both sides see the line break"""

    STRAND_REPLY = auto()
    """the server does everything, and does not learn that the client is gone"""

    LATE = auto()
    """the client sees the line break; the server gets the request when the test says `deliver`"""

    HOLD = auto()
    """nothing breaks: the request waits until the test says `deliver`"""

    @property
    def strands(self) -> bool:
        """Whether the server's side stays open without a client."""
        return self in {Fault.STRAND_REQUEST, Fault.STRAND_REPLY, Fault.LATE}


class After(NamedTuple):
    """The server does only the first so many statements of the trip (a query of MySQL); then both see the line break.

    Nothing happens at a trip that has no more statements than that.
    """

    statements: int


class Way(Enum):
    """A direction."""

    REQUESTS = auto()
    REPLIES = auto()


class Proxy:
    """Listens on a Unix socket and a port of its own, and passes everything on to the socket or address of a server."""

    host = HOST

    def __init__(self, server: str | tuple[str, int]) -> None:
        self._server = server
        self.socket = str(new_folder("proxy") / "socket")
        self.port = 0
        self.delay = 0.0
        """seconds that each chunk takes, in both directions"""
        self.refusing = False
        """whether new lines are closed at once"""
        self.deaf: set[Way] = set()
        """directions in which everything is swallowed"""
        self.opened = 0
        """lines opened so far"""
        self.trips = 0
        """trips begun so far"""
        self.fired: list[int] = []
        """trips of the plan that were broken"""
        self._plan: dict[int, Fault | After] = {}
        self._armed_at = 0
        self._word: tuple[bytes, Fault] | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delivered = asyncio.Event()
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = Listener(self._accept)

    async def __aenter__(self) -> Self:
        await self._listener.on_socket(self.socket)
        os.chmod(self.socket, 0o777)  # noqa: PTH101  clients may run under another account
        self.port = await self._listener.on_port()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._listener.close()
        for task in self._tasks:
            task.cancel()
        for link in self._links:
            link.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- what a test does to the line

    def break_at(self, plan: Mapping[int, Fault | After]) -> None:
        """Break these trips, counted from 1 and from now on over all lines. Forgets an earlier plan."""
        self._plan = dict(plan)
        self._armed_at = self.trips
        self.fired = []
        self._delivered = asyncio.Event()

    def break_when(self, request: bytes, fault: Fault) -> None:
        """Break the next trip whose request has this in it."""
        self.break_at({})
        self._word = request, fault

    def deliver(self) -> None:
        """Let requests go that are LATE or on HOLD."""
        self._delivered.set()

    def cut(self) -> int:
        """Break all lines that are open; how many."""
        links = [link for link in self._links if not link.closed]
        for link in links:
            link.close()
        return len(links)

    def stall(self) -> None:
        """Pass nothing on, in either direction. The lines stay open."""
        self._flowing.clear()

    def flow(self) -> None:
        """End of the stall: what was held back goes on, in order."""
        self._flowing.set()

    @property
    def open(self) -> int:
        """Lines that the client has open."""
        return sum(not link.closed for link in self._links)

    # ---- the inside

    def next_trip(self, request: bytes) -> Fault | After | None:
        """A trip begins; what happens to it."""
        self.trips += 1
        number = self.trips - self._armed_at
        fault = self._plan.get(number)
        if self._word is not None and self._word[0] in request:
            fault = self._word[1]
            self._word = None
        if isinstance(fault, After) and first(request, fault.statements) is None:
            return None
        if fault is not None:
            self.fired.append(number)
        return fault

    async def hold(self) -> None:
        """Wait for `deliver`."""
        await self._delivered.wait()

    async def passes(self, way: Way) -> bool:
        """Wait as the line is slow or stalled; whether the chunk goes on."""
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._flowing.wait()
        return way not in self.deaf

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        if self.refusing:
            writer.transport.abort()
            return
        try:
            if isinstance(self._server, str):
                server = await asyncio.open_unix_connection(self._server, limit=CHUNK)
            else:
                server = await asyncio.open_connection(*self._server, limit=CHUNK)
        except OSError:
            writer.transport.abort()
            return
        _without_delay(writer)
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        pumps = [self._start(link.pass_requests()), self._start(link.pass_replies())]
        await asyncio.wait(pumps)
        link.close_server()
        self._links.discard(link)

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Link:
    """One line: the client's side and the server's."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._answered = True
        self._fault: Fault | After | None = None
        self.closed = False

    async def pass_requests(self) -> None:
        """From the client to the server, until one of them is gone."""
        with suppress(OSError):
            while data := await self._from_client.read(CHUNK):
                if self._answered:
                    self._answered = False
                    self._fault = self._proxy.next_trip(data)
                if isinstance(self._fault, After):
                    self._send_last(first(data, self._fault.statements) or b"")
                    return
                if not await self._request_goes_on():
                    return
                if await self._proxy.passes(Way.REQUESTS):
                    self._to_server.write(data)
                    await self._to_server.drain()
                if self._fault is Fault.LATE:
                    return
        if not isinstance(self._fault, Fault) or not self._fault.strands:
            self.close()

    def _send_last(self, request: bytes) -> None:
        """Send this and no more: the server does it, answers, and then sees the end of the line."""
        self._to_server.write(request)
        self._to_server.write_eof()

    async def _request_goes_on(self) -> bool:
        match self._fault:
            case Fault.LOSE_REQUEST:
                self.close()
                return False
            case Fault.STRAND_REQUEST:
                self.close_client()
                return False
            case Fault.LATE:
                self.close_client()
                await self._proxy.hold()
            case Fault.HOLD:
                await self._proxy.hold()
        return True

    async def pass_replies(self) -> None:
        """From the server to the client, until one of them is gone."""
        with suppress(OSError):
            while data := await self._from_server.read(CHUNK):
                self._answered = True
                match self._fault:
                    case After():
                        continue
                    case Fault.LOSE_REPLY:
                        break
                    case Fault.STRAND_REPLY:
                        self.close_client()
                if not self.closed and await self._proxy.passes(Way.REPLIES):
                    self._to_client.write(data)
                    await self._to_client.drain()
        self.close()

    def close(self) -> None:
        """Break the line for both."""
        self.close_client()
        self.close_server()

    def close_client(self) -> None:
        """The client sees that the line is broken; the server does not."""
        self.closed = True
        self._to_client.transport.abort()

    def close_server(self) -> None:
        """The server sees that the line is broken."""
        self._to_server.transport.abort()


def _without_delay(writer: asyncio.StreamWriter) -> None:
    line = writer.get_extra_info("socket")
    if line is not None and line.family == socket.AF_INET:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

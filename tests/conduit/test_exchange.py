"""One exchange on the wire: by a socket where an address was given, by streams where a name was."""

import asyncio
import socket
from collections.abc import AsyncGenerator

import pytest

from conduit.client import Slots
from conduit.exchange import Phone
from conduit.tcp import ConnectError, Lost
from tests.conduit.upstream import serving
from tests.listener import Serve
from tests.runtime.harness import until

LARGE = 8 * 2**20
"""More than fits into the buffers of both ends."""

OK = b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nOK"


@pytest.fixture(params=["127.0.0.1", "localhost"])
def host(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def sent(url: str, host: str, body: bytes | AsyncGenerator[bytes, None]) -> tuple[int, bytes]:
    """Status and body of the reply to a POST."""
    length = (b"Content-Length", b"%d" % len(body)) if isinstance(body, bytes) else (b"Transfer-Encoding", b"chunked")
    phone = Phone(url.replace("127.0.0.1", host))
    async with asyncio.timeout(30), phone.exchange(b"POST", b"/", [(b"Host", b"a"), length], body) as reply:
        return reply.status, b"".join([piece async for piece in reply])


async def test_a_large_body_arrives_whole_and_so_does_a_large_reply(host: str) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(LARGE)
        writer.write(b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%s" % (LARGE, body[::-1]))
        await writer.drain()
        await reader.read()

    body = bytes(range(256)) * (LARGE // 256)
    async with serving(echo) as url:
        assert await sent(url, host, body) == (200, body[::-1])


async def test_a_body_in_pieces_is_sent_in_chunks(host: str) -> None:
    arrived = b""

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        arrived = (await reader.readuntil(b"0\r\n\r\n")).partition(b"\r\n\r\n")[2]
        writer.write(OK)
        await reader.read()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"one"
        await asyncio.sleep(0)
        yield b"three"

    async with serving(note) as url:
        assert await sent(url, host, pieces()) == (200, b"OK")
    assert arrived == b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\n"


async def test_a_body_without_a_piece_is_sent_too(host: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n0\r\n\r\n")
        writer.write(OK)
        await reader.read()

    async def nothing() -> AsyncGenerator[bytes, None]:
        no_pieces: list[bytes] = []
        for piece in no_pieces:
            yield piece

    async with serving(answer) as url:
        assert await sent(url, host, nothing()) == (200, b"OK")


async def test_a_server_that_says_why_it_reads_no_more_is_heard(host: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await reader.read()

    async with serving(refuse) as url:
        assert await sent(url, host, bytes(LARGE)) == (413, b"big")


async def hang_up_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End before anything was read."""


async def hang_up_while_it_is_sent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def hang_up_in_the_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(LARGE)
    writer.write(OK[:-1])
    writer.write_eof()
    await reader.read()


@pytest.mark.parametrize("handle", [hang_up_at_once, hang_up_while_it_is_sent, hang_up_in_the_reply])
async def test_a_server_that_hangs_up_leaves_a_lost_exchange(host: str, handle: Serve) -> None:
    async with serving(handle) as url:
        with pytest.raises(Lost) as caught:
            await sent(url, host, bytes(LARGE))
    assert not isinstance(caught.value, ConnectError)
    assert str(caught.value)


async def test_where_nobody_listens_nothing_is_sent(host: str) -> None:
    async with serving(hang_up_at_once) as url:
        pass
    with pytest.raises(ConnectError, match="Connect call failed"):
        await sent(url, host, b"x")


async def test_a_header_that_would_be_two_is_not_sent(host: str) -> None:
    arrived: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.read())

    async with serving(note) as url:
        phone = Phone(url.replace("127.0.0.1", host))
        with pytest.raises(Lost):
            async with phone.exchange(b"GET", b"/", [(b"Host", b"a"), (b"X", b"1\r\nY: 2")], b""):
                pass
        await until(lambda: bool(arrived))
    assert arrived == [b""]


async def test_a_peer_that_died_is_noticed_by_the_system(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may be silent for a day."""
    chosen: dict[tuple[int, int], int] = {}
    choose = socket.socket.setsockopt

    def noted(self: socket.socket, level: int, name: int, value: int) -> None:
        chosen[level, name] = value
        choose(self, level, name, value)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\nx")
        writer.write(OK)
        await reader.read()

    async with serving(answer) as url:
        monkeypatch.setattr(socket.socket, "setsockopt", noted)
        assert await sent(url, host, b"x") == (200, b"OK")
    assert chosen[socket.SOL_SOCKET, socket.SO_KEEPALIVE] == 1
    assert chosen[socket.IPPROTO_TCP, socket.TCP_KEEPIDLE] == 60


async def test_of_slots_no_more_are_taken_than_there_are_and_the_next_gets_the_first_that_is_free() -> None:
    slots = Slots(2)
    go_on = asyncio.Event()
    began: list[int] = []

    async def take(number: int) -> None:
        async with slots:
            began.append(number)
            await go_on.wait()

    takers = [asyncio.create_task(take(number)) for number in range(4)]
    await until(lambda: slots.taken == 2)
    takers[2].cancel()  # one that waits
    takers[0].cancel()  # one that has a slot
    await until(lambda: began == [0, 1, 3])
    assert slots.taken == 2
    go_on.set()
    await asyncio.wait(takers)
    assert slots.taken == 0

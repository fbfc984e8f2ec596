"""Replies that no server of ours sends: each is an outage, within a bound in time and memory."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from queue_runtime import store_wire as wire
from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store
from queue_runtime.task import Complete, Lease, NewTask, Settlement
from stores import remote
from stores.remote import RemoteStore
from stores.remote_line import MAX_REPLY_BYTES
from tests.listener import listening

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

LEASE = Lease(1, "qr:0:1:1@h")

OURS = f"{wire.VERSION_HEADER}: {wire.VERSION}".encode()

COUNTED: dict[str, Callable[[Store], Awaitable[object]]] = {
    "enqueue": lambda store: store.enqueue([NewTask(task_class="A")] * 2),
    "renew": lambda store: store.renew([LEASE] * 2, 60),
    "settle": lambda store: store.settle([Settlement.held(LEASE, Complete())] * 2),
    "cancel": lambda store: store.cancel([1, 2]),
    "retry": lambda store: store.retry([1, 2]),
    "get": lambda store: store.get([1, 2]),
    "get_archived": lambda store: store.get_archived([1, 2]),
    "history": lambda store: store.history([1, 2]),
}


def reply(body: bytes, *, status: int = 200, headers: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 %d X\r\n%s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, OURS, headers, size, body)


@asynccontextmanager
async def answering(answer: bytes | Answer, *, seconds: float = 5.0) -> AsyncIterator[RemoteStore]:
    """A store whose server answers every call with this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length))
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
        else:
            await answer(writer)

    async with (
        listening(serve) as port,
        remote.open_store(f"http://127.0.0.1:{port}", "", seconds=seconds) as store,
    ):
        yield store


@pytest.mark.parametrize(
    "body",
    [
        b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000,
        b'{"data":null,"error":' + b'{"a":' * 100_000 + b"}" * 100_001,
        b'{"data":null,"error":{"code":"ERR_STORE_UNAVAILABLE","message":"x"}}',
        b'{"data":null,"error":{"code":"ERR_EVENT_CONFLICT","message":"x","event_id":"e"}}',
        b"{}",
        b'{"error":null}',
        b"null",
    ],
    ids=["deep data", "deep", "deep error", "an error", "a conflict", "empty", "no data", "null"],
)
async def test_an_envelope_that_is_none_of_ours_is_an_outage(body: bytes) -> None:
    async with answering(reply(body)) as store:
        for call in (store.ping, store.stats, lambda: store.lease("qr:0:1:1@h", 1, 60)):
            with pytest.raises(StoreUnavailable, match="answered"):
                await call()


async def test_an_envelope_with_data_alone_is_an_answer() -> None:
    async with answering(reply(b'{"data":null}')) as store:
        await store.ping()


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("method", COUNTED)
async def test_an_answer_with_another_number_of_values_is_no_answer(method: str, number: int) -> None:
    """None of them can be told from the others."""
    value = {"enqueue": TASK, "settle": b'{"verdict":"lost"}', "history": b"[]"}.get(method, b"null")
    body = b'{"data":[' + b",".join([value] * number) + b"]}"
    async with answering(reply(body)) as store:
        with pytest.raises(StoreUnavailable, match=f"{method}: .* answered {number} values where 2 were asked for"):
            await COUNTED[method](store)


async def test_a_lease_of_more_than_was_asked_for_is_no_answer() -> None:
    async with answering(reply(b'{"data":[' + TASK + b"," + TASK + b"]}")) as store:
        with pytest.raises(StoreUnavailable, match="answered 2 values where 1 were asked for"):
            await store.lease("qr:0:1:1@h", 1, 60)
        assert len(await store.lease("qr:0:1:1@h", 2, 60)) == 2


TASK = b'{"id":1,"task_class":"A","data_id":1,"priority":1,"date_created":1,"date_modified":1}'


async def test_a_reply_that_comes_by_drops_is_given_up() -> None:
    """The server is never silent for as long as it may be."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"", length=100_000))
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with answering(drip, seconds=0.3) as store:
        began = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailable, match=r"no whole reply within 0\.6 s"):
            await store.ping()
        with pytest.raises(StoreUnavailable, match=r"no whole reply within 0\.7 s"):
            await store.changed(0.1)
        assert asyncio.get_running_loop().time() - began < 3


@pytest.mark.parametrize("head", [b"Content-Length: 400000000", b"Transfer-Encoding: chunked"])
async def test_a_reply_without_an_end_is_not_kept(head: bytes) -> None:
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 X\r\n" + OURS + b"\r\n" + head + b"\r\n\r\n")
        part = b" " * 2**20
        for _ in range(400):
            writer.write(part if head.startswith(b"Content") else b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            sent += len(part)

    async with answering(flood) as store:
        with pytest.raises(StoreUnavailable, match=f"it has more than {MAX_REPLY_BYTES} bytes"):
            await store.ping()
    assert sent < MAX_REPLY_BYTES + 32 * 2**20  # and what the sockets hold


async def test_a_packed_reply_is_not_unpacked() -> None:
    async with answering(reply(b"\x1f\x8b", headers=b"Content-Encoding: gzip\r\n")) as store:
        with pytest.raises(StoreUnavailable, match="it is packed"):
            await store.ping()


async def test_what_people_must_mend_is_logged_once() -> None:
    async with answering(reply(b"{}")) as store:
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await store.ping()
    assert [line["log_level"] for line in lines] == ["error"]

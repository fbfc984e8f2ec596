"""Clients that send what is no request, or no end of one: both servers answer in the envelope and within bounds."""

import asyncio
import json
import os
import socket
import struct
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from queue_runtime import descriptors as descriptors_module
from queue_runtime import engine as engine_module
from queue_runtime import server as server_module
from queue_runtime import store_wire, uvicorn_engine
from queue_runtime.api import request as request_module
from queue_runtime.listen import BACKLOG, open_all
from queue_runtime.server import Kind
from tests.backends import Opened
from tests.faulty_store import FaultyStore
from tests.http.house import House, Running, serve, serve_with, until
from tests.http.raw import connect, get, post
from tests.http.test_disconnects import http_tasks

pytestmark = [
    pytest.mark.parametrize("opened", ["reference"], indirect=True),
    pytest.mark.usefixtures("no_traceback"),
]

ALIVE = get("/healthz")
JSON = "Content-Type: application/json"
H2C = get("/healthz", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
PRIOR_KNOWLEDGE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
SOMAXCONN = int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii"))


@pytest.mark.parametrize(
    "malformed",
    [
        b"\x00\xff\xfe\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /healthz HTTP/3.7\r\nHost: a\r\n\r\n",
        PRIOR_KNOWLEDGE,
        b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 2_000_000,
        b"GET /" + b"a" * 2_000_000,
        get("/api/queue/enqueue", JSON, "Content-Length: abc", method="POST") + b"{}",
        get("/api/queue/enqueue", JSON, "Content-Length: -5", method="POST") + b"{}",
        get("/api/queue/enqueue", JSON, "Content-Length: 2", "Content-Length: 3", method="POST") + b"{}a",
        get("/api/queue/enqueue", JSON, "Transfer-Encoding: chunked", method="POST") + b"zz\r\n{}\r\n0\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_in_the_envelope(running: Running, malformed: bytes) -> None:
    async with connect(running) as client:
        sending = asyncio.create_task(client.send(malformed))
        head, _, body = (await client.ended()).partition(b"\r\n\r\n")
        await asyncio.gather(sending, return_exceptions=True)
        if head:  # a reset may take the reply away while the client still sends
            status = int(head.split()[1])
            assert status in (400, 431, 501, 505)
            assert b"content-type: application/json" in head
            assert b"connection: close" in head
            assert json.loads(body)["error"]["code"] == "ERR_BAD_REQUEST"
        else:
            assert len(malformed) > 1_000_000
    async with connect(running) as client:
        assert (await client.ask(ALIVE)).status == 200


async def test_a_client_that_asks_for_another_protocol_is_answered_in_http_1(running: Running) -> None:
    websocket = get("/healthz", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    for asks in (H2C, websocket):
        async with connect(running) as client:
            reply = await client.ask(asks)
            assert (reply.status, reply.body) == (200, b'{"status":"ok"}')


async def test_clients_that_ask_for_http_2_and_leave_leave_nothing_behind(running: Running) -> None:
    before = http_tasks()
    for asks in (H2C, PRIOR_KNOWLEDGE):
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(running)) for _ in range(20)]
            for number, client in enumerate(clients):
                await client.send(asks)
                if number % 2:
                    await client.reply()
    await until(lambda: http_tasks() <= before)


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHo"])
async def test_a_connection_without_a_whole_head_ends_with_the_keep_alive_time(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    for module in (engine_module, uvicorn_engine):
        monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.3)
    async with serve(house, kind) as running, connect(running) as client, connect(running) as used:
        await used.ask(ALIVE)
        for one in (client, used):
            await one.send(begun)
            assert await one.ended() == b""


# ---- bodies that nobody asked for

NO_BODY_WANTED = [
    "GET /readyz",
    "GET /metrics",
    "GET /api/queue/stats",
    "GET /api/queue/tasks",
    "POST /api/queue/reload",
]


@pytest.mark.parametrize("asks", NO_BODY_WANTED)
async def test_a_body_that_nobody_asked_for_is_dropped_and_costs_nothing(running: Running, asks: str) -> None:
    method, path = asks.split()
    async with connect(running) as client:
        for headers, body in (
            (("Content-Length: 300000",), b"x" * 300_000),
            (("Transfer-Encoding: chunked",), b"3000\r\n%s\r\n0\r\n\r\n" % (b"x" * 0x3000)),
        ):
            reply = await client.ask(get(path, *headers, method=method) + body)
            assert reply.status == 200
            assert "connection" not in reply.headers


@pytest.mark.parametrize("asks", NO_BODY_WANTED)
@pytest.mark.parametrize("endless", [True, False])
async def test_one_that_does_not_end_is_refused_before_the_work_begins(
    opened: Opened, kind: Kind, monkeypatch: pytest.MonkeyPatch, asks: str, endless: bool
) -> None:
    monkeypatch.setattr(request_module, "DISCARD_BYTES" if endless else "DISCARD_SECONDS", 100_000 if endless else 0.1)
    method, path = asks.split()
    store = FaultyStore(opened.store)
    async with serve_with(store, kind) as running, connect(running) as client:
        before = sum(count for name, count in store.calls.items() if name != "changed")
        chunk = b"1000\r\n%s\r\n" % (b"x" * 0x1000)
        await client.send(get(path, "Transfer-Encoding: chunked", method=method) + chunk * (100 if endless else 1))
        reply = await client.reply()
        assert (reply.status, reply.json["error"]["code"]) == (400, "ERR_BAD_REQUEST")
        assert reply.headers["connection"] == "close"
        await client.ended()
        assert sum(count for name, count in store.calls.items() if name != "changed") == before


# ---- more connections than there are file descriptors


async def test_the_last_file_descriptors_are_not_for_connections(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = os.dup(0)
    os.close(free)
    monkeypatch.setattr(descriptors_module, "_raised_limit", lambda: (free + 40) * 8 // 7)
    with capture_logs() as lines:
        async with serve(house, kind) as running:
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(connect(running)) for _ in range(40)]
                replies = [await client.ended() for client in clients[-10:]]
                assert {reply.partition(b"\r\n")[0] for reply in replies} == {b"HTTP/1.1 503 Service Unavailable"}
                body = json.loads(replies[0].partition(b"\r\n\r\n")[2])
                assert body["error"]["code"] == "ERR_INTERNAL"
                assert (await clients[0].ask(ALIVE)).status == 200
            async with asyncio.timeout(10):
                while True:
                    async with connect(running) as client:
                        if (await client.ask(ALIVE)).status == 200:
                            break
    assert len([line for line in lines if "new connections are refused" in line["event"]]) == 1


async def test_the_kernel_keeps_as_many_connections_as_ever(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[socket.socket] = []

    def remember(addresses: list[str]) -> list[socket.socket]:
        opened.extend(open_all(addresses))
        return opened

    monkeypatch.setattr(server_module, "open_all", remember)
    async with serve(house, kind) as running, connect(running) as client:
        await client.ask(ALIVE)
        (listening,) = opened
        (kept,) = struct.unpack_from("I", listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)
    assert kept == min(BACKLOG, SOMAXCONN)


# ---- callers who hang up while the store reads for them


class SlowLists(FaultyStore):
    """Never answers a list."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened.store)
        self.reading = 0

    async def list_active(self, *_: Any, **__: Any) -> Any:
        self.reading += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.reading -= 1
        return []

    list_archived = operations = list_active


VERSION = f"{store_wire.VERSION_HEADER}: {store_wire.VERSION}"
LISTS = [
    get("/api/queue/tasks"),
    get("/api/queue/archive"),
    get("/api/queue/operations"),
    post(store_wire.PATH + "list_active", {"limit": 5, "offset": 0, "after": None, "where": {}}, VERSION),
    post(store_wire.PATH + "list_archived", {"limit": 5, "before": None, "where": {}}, VERSION),
    post(store_wire.PATH + "operations", {}, VERSION),
]


@pytest.mark.parametrize("asks", LISTS)
async def test_a_list_is_left_when_its_caller_has_gone(
    opened: Opened, kind: Kind, monkeypatch: pytest.MonkeyPatch, asks: bytes
) -> None:
    monkeypatch.setattr(request_module, "LONG_SECONDS", 0.01)
    store = SlowLists(opened)
    async with serve_with(store, kind) as running:
        async with connect(running) as client:
            await client.send(asks)
            await until(lambda: store.reading == 1)
        await until(lambda: store.reading == 0)

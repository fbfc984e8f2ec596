"""How the two servers behave on real sockets: bodies, disconnects, drain and close. Both pass all of it."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from queue_runtime import engine as engine_module
from queue_runtime import server as server_module
from queue_runtime import uvicorn_engine
from queue_runtime.api import request as request_module
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.listen import ListenError
from queue_runtime.server import Kind, Server
from queue_runtime.task import QueueStats
from tests.backends import Opened
from tests.faulty_store import FaultyStore
from tests.http.house import House, Running, serve, serve_with, until
from tests.http.raw import RawClient, connect, get, post

pytestmark = [
    pytest.mark.parametrize("opened", ["reference"], indirect=True),
    pytest.mark.usefixtures("no_traceback"),
]

STATS = get("/api/queue/stats")
ENQUEUE = post("/api/queue/enqueue", {"taskClass": "Work"})
LEASE = post("/api/queue/lease", {"limit": 5})
LONG_POLL = post("/api/queue/lease", {"limit": 5, "waitSeconds": 30})


async def test_a_connection_is_used_again(running: Running) -> None:
    async with connect(running) as client:
        for task_id in (1, 2, 3):
            reply = await client.ask(ENQUEUE)
            assert (reply.status, reply.json["data"]["id"]) == (200, task_id)
            assert "connection" not in reply.headers
            assert "server" not in reply.headers


async def test_more_requests_than_a_library_allows_by_default(running: Running) -> None:
    async with connect(running) as client:
        for _ in range(1100):
            assert (await client.ask(get("/healthz"))).status == 200


async def test_an_idle_connection_ends_after_the_keep_alive_time_and_a_busy_one_does_not(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (engine_module, uvicorn_engine):
        monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.5)
    now = asyncio.get_running_loop().time
    async with serve(house, kind) as running, connect(running) as idle, connect(running) as busy:
        began = now()
        assert (await idle.ask(STATS)).status == 200
        while now() - began < 1.2:
            assert (await busy.ask(STATS)).status == 200
            await asyncio.sleep(0.05)
        assert await idle.ended() == b""
        assert (await busy.ask(STATS)).status == 200
        assert await busy.ended() == b""
        assert 1.6 < now() - began < 8


async def test_a_request_at_the_keep_alive_limit_is_answered_whole_or_not_at_all(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R122: where the server was quicker its caller finds a clean end, and may ask again on a new connection."""
    for module in (engine_module, uvicorn_engine):
        monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.2)

    async def reuse(wait: float) -> bytes:
        async with connect(running) as client:
            assert (await client.ask(STATS)).status == 200
            await asyncio.sleep(wait)
            try:
                await client.send(get("/healthz", "Connection: close"))
            except ConnectionError:
                return b""
            return await client.ended()

    async with serve(house, kind) as running:
        replies = await asyncio.gather(*[reuse(0.15 + number / 1000) for number in range(100)])
    whole = [reply for reply in replies if reply.endswith(b'{"status":"ok"}') and b" 200 " in reply]
    assert 0 < len(whole) < 100
    assert {reply for reply in replies if reply not in whole} == {b""}


async def test_pipelined_requests_are_answered_in_order(running: Running) -> None:
    async with connect(running) as client:
        await client.send(ENQUEUE + ENQUEUE + STATS)
        replies = [await client.reply() for _ in range(3)]
        assert [reply.json["data"].get("id") for reply in replies] == [1, 2, None]
        assert replies[2].json["data"]["activeCount"] == 2


@pytest.mark.parametrize("path", ["/healthz", "/api/queue/stats", "/api/queue/tasks/9", "/nothing"])
async def test_head_sends_no_body(running: Running, path: str) -> None:
    async with connect(running) as client:
        await client.send(get(path, method="HEAD"))
        assert (await client.reply(head=True)).status in (200, 404)
        assert (await client.ask(get("/healthz"))).body == b'{"status":"ok"}'


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x01\x02\r\n\r\n", b"HELLO\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"],
)
async def test_garbage_ends_its_connection_and_nothing_else(running: Running, garbage: bytes) -> None:
    async with connect(running) as bad, connect(running) as good:
        await bad.send(garbage + b"\r\n\r\n")
        assert b" 400 " in await bad.ended()
        assert (await good.ask(STATS)).status == 200


async def test_an_unknown_method_is_answered_in_the_envelope_or_refused(running: Running) -> None:
    async with connect(running) as client:
        await client.send(get("/api/queue/stats", method="PROPFIND"))
        assert (await client.reply()).json["error"]["code"] == "ERR_METHOD_NOT_ALLOWED"


async def test_a_body_in_chunks_is_taken(running: Running) -> None:
    async with connect(running) as client:
        headers = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        await client.send(get("/api/queue/enqueue", *headers, method="POST"))
        for part in (b'{"taskCl', b'ass":"A"', b"}"):
            await client.send(b"%x\r\n%s\r\n" % (len(part), part))
        assert (await client.ask(b"0\r\n\r\n")).json["data"]["taskClass"] == "A"


async def test_two_lengths_are_refused_and_nothing_behind_them_is_served(running: Running) -> None:
    async with connect(running) as client:
        headers = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Content-Length: 5")
        hidden = get("/api/queue/enqueue", "Content-Type: application/json", "Content-Length: 17", method="POST")
        await client.send(
            get("/api/queue/enqueue", *headers, method="POST") + b"0\r\n\r\n" + hidden + b'{"taskClass":"A"}'
        )
        assert (await client.ended()).count(b"HTTP/1.1 ") == 1
    async with connect(running) as client:
        assert (await client.ask(STATS)).json["data"]["activeCount"] == 0


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(running: Running) -> None:
    async with connect(running) as client:
        head, _, body = post("/api/queue/enqueue", {"taskClass": "A"}, "Expect: 100-continue").partition(b"\r\n\r\n")
        assert (await client.ask(head + b"\r\n\r\n")).status == 100
        assert (await client.ask(body)).status == 200


async def test_a_slow_upload_that_moves_is_taken(opened: Opened, kind: Kind) -> None:
    async with serve_with(opened.store, kind, request_seconds=0.5) as running, connect(running) as client:
        data = post("/api/queue/enqueue", {"taskClass": "A", "data": "x" * 1000})
        for start in range(0, len(data), 150):
            await client.send(data[start : start + 150])
            await asyncio.sleep(0.15)
        assert (await client.reply()).status == 200


async def test_an_upload_that_stands_still_is_408(opened: Opened, kind: Kind) -> None:
    async with serve_with(opened.store, kind, request_seconds=0.2) as running, connect(running) as client:
        await client.send(ENQUEUE[:-5])
        reply = await client.reply()
        assert (reply.status, reply.json["error"]["code"]) == (408, "ERR_BAD_REQUEST")
        assert reply.headers["connection"] == "close"
        await client.ended()
        assert (await running.house.get("stats")).data["activeCount"] == 0


async def test_an_upload_that_crawls_for_ever_is_408(
    opened: Opened, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "UPLOAD_FACTOR", 2)
    async with serve_with(opened.store, kind, request_seconds=0.2) as running, connect(running) as client:
        await client.send(
            get("/api/queue/enqueue", "Content-Type: application/json", "Content-Length: 900", method="POST")
        )
        for _ in range(8):
            await client.send(b" ")
            await asyncio.sleep(0.1)
        assert (await client.reply()).status == 408


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_and_the_connection_stays_usable(
    opened: Opened, kind: Kind, chunked: bool
) -> None:
    async with serve_with(opened.store, kind, max_body=5000) as running, connect(running) as client:
        for size, status in ((4000, 200), (200_000, 413), (4000, 200)):
            reply = await client.ask(_upload(size, chunked=chunked))
            assert reply.status == status
            if status == 413:
                assert reply.json["error"]["code"] == "ERR_TOO_LARGE"
        assert (await running.house.get("stats")).data["activeCount"] == 2


async def test_a_body_far_over_the_limit_is_answered_and_its_connection_closed(
    opened: Opened, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "DISCARD_BYTES", 100_000)
    async with serve_with(opened.store, kind, max_body=5000) as running, connect(running) as client:
        sending = asyncio.create_task(client.send(_upload(10_000_000)))
        reply = await client.reply()
        assert reply.status == 413
        assert reply.headers["connection"] == "close"
        await client.ended()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_refused_token_does_not_cost_the_connection(opened: Opened, kind: Kind) -> None:
    async with serve_with(opened.store, kind, token="right") as running, connect(running) as client:
        assert (await client.ask(_upload(300_000))).status == 401
        assert (await client.ask(get("/api/queue/stats", "X-Service-Token: right"))).status == 200


def _upload(size: int, *, chunked: bool = False) -> bytes:
    request = post("/api/queue/enqueue", {"taskClass": "A", "data": "x" * size})
    if not chunked:
        return request
    body = request.partition(b"\r\n\r\n")[2]
    head = get("/api/queue/enqueue", "Content-Type: application/json", "Transfer-Encoding: chunked", method="POST")
    parts = [body[start : start + 3000] for start in range(0, len(body), 3000)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def test_while_stopping_new_connections_are_served_and_closed(running: Running) -> None:
    running.house.lifecycle.stopping.set()
    for _ in range(3):
        async with connect(running) as client:
            reply = await client.ask(LEASE)
            assert (reply.status, reply.json) == (200, {"data": []})
            assert reply.headers["connection"] == "close"
            assert await client.ended() == b""


async def test_open_long_polls_are_answered_when_the_process_stops(opened: Opened, kind: Kind) -> None:
    store = FaultyStore(opened.store)
    async with serve_with(store, kind) as running, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(running)) for _ in range(20)]
        for client in clients:
            await client.send(LONG_POLL)
        await until(lambda: store.calls["lease"] == 20)
        running.house.lifecycle.stopping.set()
        for client in clients:
            reply = await client.reply()
            assert (reply.status, reply.json) == (200, {"data": []})
            assert reply.headers["connection"] == "close"


async def test_idle_connections_do_not_hold_the_end(running: Running) -> None:
    async with AsyncExitStack() as stack:
        used = [await stack.enter_async_context(connect(running)) for _ in range(30)]
        for client in used:
            await client.ask(STATS)
        unused = [await stack.enter_async_context(connect(running)) for _ in range(20)]
        half = await stack.enter_async_context(connect(running))
        await half.send(b"GET /api/queue/stats HTTP/1.1\r\nHost: te")
        async with asyncio.timeout(server_module.CLOSE_SECONDS / 2):
            await running.close()
        for client in (*used, *unused, half):
            assert await client.ended() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(running.host, running.port)


class SlowStore(FaultyStore):
    """Answers `stats` when it is told to."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened.store)
        self.asked = 0
        self.go_on = asyncio.Event()

    async def stats(self) -> QueueStats:
        self.asked += 1
        await self.go_on.wait()
        return await super().stats()


async def test_requests_that_are_open_at_the_end_are_still_answered(opened: Opened, kind: Kind) -> None:
    store = SlowStore(opened)
    async with serve_with(store, kind) as running, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(running)) for _ in range(20)]
        for client in clients:
            await client.send(STATS)
        await until(lambda: store.asked == 20)
        running.house.lifecycle.stopping.set()
        running.house.lifecycle.closing.set()
        await until(lambda: not _accepts(running))
        store.go_on.set()
        for client in clients:
            assert (await client.reply()).status == 200
            assert await client.ended() == b""


def _accepts(running: Running) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((running.host, running.port)) == 0


async def test_requests_that_do_not_end_are_cut_off_within_the_bound(
    opened: Opened, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.3)
    store = SlowStore(opened)
    async with serve_with(store, kind) as running, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(running)) for _ in range(5)]
        for client in clients:
            await client.send(STATS)
        await until(lambda: store.asked == 5)
        async with asyncio.timeout(2):
            await running.close()
        for client in clients:
            assert b" 200 " not in await client.ended()


async def test_a_client_that_never_pauses_does_not_hold_the_end(running: Running) -> None:
    answered = 0

    async def hurry() -> None:
        nonlocal answered
        async with connect(running) as client:
            while (await client.ask(ENQUEUE)).status == 200:
                answered += 1

    busy = [asyncio.create_task(hurry()) for _ in range(5)]
    await until(lambda: answered > 20)
    async with asyncio.timeout(2):
        await running.close()
    results = await asyncio.gather(*busy, return_exceptions=True)
    assert all(isinstance(result, asyncio.IncompleteReadError | ConnectionError) for result in results)


async def test_a_client_that_does_not_read_does_not_hold_the_end(
    house: House, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.5)
    await house.post("enqueue-batch", {"tasks": [{"taskClass": "A", "data": "x" * 8000}] * 200})
    async with serve(house, kind) as running:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, (running.host, running.port))
            for _ in range(20):
                await loop.sock_sendall(deaf, get("/api/queue/tasks?limit=5000"))
            await loop.sock_recv(deaf, 1000)
            async with asyncio.timeout(4):
                await running.close()


async def test_the_server_ends_when_it_is_cancelled(house: House, kind: Kind) -> None:
    started: asyncio.Event = asyncio.Event()
    server = Server(house.app, listen=["127.0.0.1:0"], kind=kind, lifecycle=house.lifecycle)
    serving = asyncio.create_task(server.run(lambda names: started.set()))
    await started.wait()
    serving.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_a_port_in_use_is_an_error_that_names_it(running: Running) -> None:
    address = f"{running.host}:{running.port}"
    with pytest.raises(ListenError, match=f"cannot listen on {address}: "):
        await Server(running.house.app, listen=[address], kind="hypercorn", lifecycle=Lifecycle()).run()


@pytest.mark.parametrize("address", ["no.such.host.invalid:80", "203.0.113.1:0", "unix:/no/such/folder/socket"])
async def test_an_address_that_is_not_ours_is_an_error_that_names_it(house: House, address: str) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {address}: "):
        await Server(house.app, listen=[address], kind="hypercorn", lifecycle=Lifecycle()).run()


async def test_one_bad_address_opens_none(running: Running) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{probe.getsockname()[1]}"
    taken = f"{running.host}:{running.port}"
    with pytest.raises(ListenError):
        await Server(running.house.app, listen=[free, taken], kind="hypercorn", lifecycle=Lifecycle()).run()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(free.rpartition(":")[2]))


async def test_several_addresses_and_a_unix_socket(house: House, kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    names: list[str] = []
    server = Server(
        house.app, listen=["127.0.0.1:0", f"unix:{path}", "127.0.0.1:0"], kind=kind, lifecycle=house.lifecycle
    )
    serving = asyncio.create_task(server.run(names.extend))
    await until(lambda: len(names) == 3)
    assert names[1] == f"unix:{path}"
    client = RawClient(*await asyncio.open_unix_connection(path))
    await client.ask(ENQUEUE)
    (task,) = (await client.ask(LEASE)).json["data"]
    assert task["leaseOwner"] == "local:gorge-taskqueue"
    await client.close()
    house.lifecycle.closing.set()
    await serving
    assert not path.exists()

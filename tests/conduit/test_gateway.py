"""The gateway on a real socket: what goes through it, and what it says itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from conduit.gateway import Gateway, method_of
from queue_runtime.api.auth import Guard
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.server import Kind, Server
from tests.conduit.upstream import Upstream
from tests.runtime.harness import until

TOKEN = {"X-Service-Token": "gate-token"}


class Front:
    """A gateway that serves, and a client of it."""

    def __init__(self, client: httpx2.AsyncClient, lifecycle: Lifecycle) -> None:
        self.client = client
        self.lifecycle = lifecycle
        self.seen: list[int | None] = []


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    """The app behind the gateway: says that the request was not for Conduit."""
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"inner"})


@asynccontextmanager
async def front(
    upstream: Upstream, *, token: str = "", kind: Kind = "hypercorn", **settings: Any
) -> AsyncIterator[Front]:
    lifecycle = Lifecycle()
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    shown: list[Front] = []
    app = Gateway(
        inner,
        upstream.url,
        Guard(token).allows,
        lambda scope, status, seconds: shown[0].seen.append(status),
        lifecycle.stopping.is_set,
        **settings,
    )
    server = Server(app, listen=("127.0.0.1:0",), kind=kind, lifecycle=lifecycle)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run, lambda names: started.set_result(names[0]))
        try:
            async with httpx2.AsyncClient(base_url=f"http://{await started}", timeout=20) as client:
                shown.append(Front(client, lifecycle))
                yield shown[0]
        finally:
            lifecycle.closing.set()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream().listening() as served:
        yield served


def own(reply: httpx2.Response) -> tuple[int, str]:
    """Status and code of a failure in Conduit's own words."""
    body = reply.json()
    assert body.keys() == {"result", "error_code", "error_info"}
    assert body["result"] is None
    return reply.status_code, body["error_code"]


@pytest.mark.parametrize("kind", ["hypercorn", "uvicorn"])
async def test_a_call_goes_through_as_it_is_and_so_does_its_reply(upstream: Upstream, kind: Kind) -> None:
    upstream.reply = (418, [("X-Upstream", "yes"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")], b'{"result":"pong"}')
    async with front(upstream, kind=kind, host="phorge.test") as gate:
        reply = await gate.client.post(
            "/api/conduit.ping?x=%20y&token=t",
            content=b"params=%7B%7D",
            headers={"X-Mine": "1", "X-Forwarded-For": "6.6.6.6"},
        )
    assert (reply.status_code, reply.content) == (418, b'{"result":"pong"}')
    assert reply.headers["x-upstream"] == "yes"
    assert reply.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert len(reply.headers.get_list("date")) == 1
    (request,) = upstream.requests
    assert request.line == "POST /api/conduit.ping?x=%20y&token=t HTTP/1.1"
    assert request.body == b"params=%7B%7D"
    assert request.headers["host"] == "phorge.test"
    assert request.headers["x-mine"] == "1"
    assert request.headers["x-forwarded-for"] == "127.0.0.1"
    assert request.headers["x-forwarded-proto"] == "http"
    assert request.headers["x-conduit-gateway"] == "go-conduit"
    assert gate.seen == [418]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS"])
async def test_any_http_method_goes_through(upstream: Upstream, method: str) -> None:
    async with front(upstream) as gate:
        reply = await gate.client.request(method, "/api/conduit.ping")
    assert reply.status_code == 200
    assert upstream.requests[0].line.startswith(f"{method} /api/conduit.ping ")
    assert upstream.requests[0].body == b""


async def test_the_service_token_travels_on_and_headers_of_the_hop_do_not(upstream: Upstream) -> None:
    upstream.reply = (200, [("Connection", "X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "timeout=5")], b"{}")
    async with front(upstream, token="gate-token") as gate:
        headers = TOKEN | {
            "Connection": "X-Secret",
            "X-Secret": "1",
            "TE": "trailers",
            "Proxy-Authorization": "Basic x",
        }
        reply = await gate.client.post("/api/conduit.ping", headers=headers)
    assert reply.status_code == 200
    assert "x-hop" not in reply.headers
    assert "keep-alive" not in reply.headers
    told = upstream.requests[0].headers
    assert told["x-service-token"] == "gate-token"
    assert not {"x-secret", "te", "proxy-authorization"} & told.keys()


async def test_a_redirect_is_passed_back_and_not_followed(upstream: Upstream) -> None:
    upstream.reply = (302, [("Location", "https://elsewhere.test/")], b"")
    async with front(upstream) as gate:
        reply = await gate.client.get("/api/conduit.ping")
    assert (reply.status_code, reply.headers["location"]) == (302, "https://elsewhere.test/")
    assert len(upstream.requests) == 1


# ---- its own words


async def test_without_the_token_nothing_passes(upstream: Upstream) -> None:
    async with front(upstream, token="gate-token") as gate:
        for path, headers in (
            ("/api/conduit.ping", {}),
            ("/api/conduit.ping", {"X-Service-Token": "wrong"}),
            ("/api/conduit.ping?token=gate-token", {"X-Service-Token": "wrong"}),
            ("/api/", {}),
        ):
            assert own(await gate.client.post(path, headers=headers)) == (401, "ERR-CONDUIT-AUTH")
        assert (await gate.client.get("/api/conduit.ping?token=gate-token")).status_code == 200
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/api", "/api/"])
async def test_a_call_that_names_no_method_is_refused(upstream: Upstream, path: str) -> None:
    async with front(upstream) as gate:
        assert own(await gate.client.post(path)) == (400, "ERR-CONDUIT-CORE")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/healthz",
        "/apix",
        "/api/queue",
        "/api/queue/stats",
        "/api/worker/meta",
        "/api/a/b",
        "/api/a%2Fb",
        "/api/%2e%2e",
    ],
)
async def test_everything_else_is_left_to_the_app_behind(upstream: Upstream, path: str) -> None:
    async with front(upstream) as gate:
        assert (await gate.client.get(path)).text == "inner"
    assert upstream.requests == []


def test_a_path_that_a_second_decoding_would_turn_into_another_is_no_call() -> None:
    assert method_of("/api/a%2Fb") is None
    assert method_of("/api/%2E%2E") is None
    assert method_of("/api/conduit.ping") == "conduit.ping"


async def test_a_phorge_that_is_away_is_a_502_in_conduits_words() -> None:
    gone = Upstream()
    async with gone.listening():
        pass
    async with front(gone) as gate:
        reply = await gate.client.post("/api/conduit.ping")
    assert own(reply) == (502, "ERR-CONDUIT-PROXY")
    assert gone.url.removeprefix("http://") not in reply.text


async def test_a_call_that_takes_too_long_is_a_502_but_a_run_of_a_task_has_all_the_time(upstream: Upstream) -> None:
    upstream.wait = 0.6
    async with front(upstream, seconds=0.2) as gate:
        assert own(await gate.client.post("/api/conduit.ping")) == (502, "ERR-CONDUIT-PROXY")
        assert (await gate.client.post("/api/worker.execute")).status_code == 200


async def test_without_a_bound_every_call_has_all_the_time(upstream: Upstream) -> None:
    upstream.wait = 0.3
    async with front(upstream, seconds=0) as gate:
        assert (await gate.client.post("/api/conduit.ping")).status_code == 200


async def test_an_address_that_calls_too_often_is_told_so_and_exempt_methods_pass(upstream: Upstream) -> None:
    async with front(upstream, rate=0.01, burst=2, exempt=("conduit.ping",)) as gate:
        statuses = [(await gate.client.post("/api/user.whoami")).status_code for _ in range(2)]
        assert statuses == [200, 200]
        assert own(await gate.client.post("/api/user.whoami")) == (429, "ERR-RATE-LIMIT")
        assert (await gate.client.post("/api/conduit.ping")).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused_in_the_platforms_words(upstream: Upstream, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with front(upstream, max_body=1024) as gate:
        reply = await gate.client.post("/api/file.upload", content=chunks() if chunked else b"x" * 2000)
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "ERR_TOO_LARGE"
        assert (await gate.client.post("/api/file.upload", content=b"x" * 1024)).status_code == 200


# ---- streaming


async def test_a_body_is_passed_on_while_it_arrives(upstream: Upstream) -> None:
    more = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await more.wait()
        yield b"last"

    async with front(upstream) as gate:
        call = asyncio.create_task(gate.client.post("/api/file.upload", content=chunks()))
        await until(lambda: upstream.arrived.endswith(b"first"))
        more.set()
        assert (await call).status_code == 200
    assert upstream.requests[0].body == b"firstlast"


async def test_a_reply_is_passed_back_while_it_arrives(upstream: Upstream) -> None:
    upstream.pieces = [b"one", b"two"]
    async with front(upstream) as gate, gate.client.stream("GET", "/api/file.download") as reply:
        got = reply.aiter_raw()
        assert await anext(got) == b"one"
        upstream.go_on.set()
        assert await anext(got) == b"two"


async def test_a_reply_that_breaks_off_breaks_off_here_too(upstream: Upstream) -> None:
    upstream.pieces = [b"one"]
    upstream.break_off = True
    upstream.go_on.set()
    async with front(upstream) as gate:
        with pytest.raises(httpx2.RemoteProtocolError):
            await gate.client.get("/api/file.download")


async def test_a_caller_that_hangs_up_ends_its_call_to_phorge(upstream: Upstream) -> None:
    """F23, R123: and it is nobody's error."""
    upstream.wait = 60
    async with front(upstream) as gate:
        call = asyncio.create_task(gate.client.post("/api/conduit.ping"))
        await until(lambda: upstream.open == 1)
        call.cancel()
        await until(lambda: upstream.open == 0)
        await until(lambda: gate.seen == [None])


async def test_a_stopping_process_closes_the_connection_after_the_reply(upstream: Upstream) -> None:
    async with front(upstream) as gate:
        gate.lifecycle.stopping.set()
        reply = await gate.client.get("/api/conduit.ping")
        assert reply.headers["connection"] == "close"


async def test_a_call_with_two_lengths_is_refused(upstream: Upstream) -> None:
    async with front(upstream) as gate:
        host, _, port = str(gate.client.base_url.netloc.decode()).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /api/conduit.ping HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0]
        writer.close()
    assert upstream.requests == []

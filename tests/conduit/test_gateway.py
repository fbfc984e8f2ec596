"""The gateway on a real socket: what goes through it, and what it says itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from conduit import exchange as exchange_module
from conduit import request_body
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
        self.address = client.base_url.netloc.decode()
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


async def test_a_caller_that_has_sent_all_of_too_large_a_body_is_not_waited_for(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "POUR_SECONDS", 60.0)
    async with front(upstream, max_body=1024) as gate:
        chunked = b"Transfer-Encoding: chunked\r\n\r\n800\r\n" + b"x" * 2048 + b"\r\n0\r\n\r\n"
        assert await say(gate, b"POST /api/conduit.ping HTTP/1.1\r\nHost: x\r\n" + chunked) == 413


# ---- calls that come back


@pytest.mark.parametrize("kind", ["hypercorn", "uvicorn"])
async def test_a_gateway_that_is_its_own_phorge_says_so_at_the_first_turn(kind: Kind) -> None:
    """It went round until the process had no socket left."""
    upstream = Upstream()
    async with upstream.listening():
        async with front(upstream, kind=kind, rate=0.01, burst=1) as gate:
            upstream.forward = gate.address
            reply = await gate.client.post("/api/conduit.ping")
            assert own(reply) == (508, "ERR-CONDUIT-PROXY")
            assert "GATEWAY_URL" in reply.json()["error_info"]
            await until(lambda: gate.seen == [508, 508])
        assert len(upstream.requests) == 1


async def test_a_call_may_go_through_other_proxies_and_gateways(upstream: Upstream) -> None:
    second = Upstream()
    async with second.listening(), front(upstream) as outer, front(second) as inner_gate:
        upstream.forward = inner_gate.address
        reply = await outer.client.post("/api/conduit.ping", headers={"Via": "1.0 fred"})
        assert reply.status_code == 200
    names = second.requests[0].all("via")
    assert names[0] == "1.0 fred"
    assert [name.split("-")[0] for name in names] == ["1.0 fred", "1.1 queue", "1.1 queue"]
    assert names[1] != names[2]


async def test_two_gateways_that_lead_to_each_other_end_at_the_first_round() -> None:
    one, two = Upstream(), Upstream()
    async with one.listening(), two.listening(), front(one) as first, front(two) as second:
        one.forward, two.forward = second.address, first.address
        assert own(await first.client.post("/api/conduit.ping")) == (508, "ERR-CONDUIT-PROXY")
        assert (len(one.requests), len(two.requests)) == (1, 1)


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


# ---- shapes that are meant to be read in two ways

KINDS: tuple[Kind, ...] = ("hypercorn", "uvicorn")
BODY = b"Content-Length: 2\r\n\r\n{}"


async def say(gate: Front, text: bytes) -> int:
    """Send these bytes; the status of the first reply, 0 where the connection is closed without one."""
    host, _, port = str(gate.client.base_url.netloc.decode()).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    try:
        with anyio.fail_after(10):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return 0
    finally:
        writer.close()
    return int(head.split()[1])


TWO_READINGS = {
    "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length with a sign": b"Content-Length: +2\r\n\r\n{}",
    "a length below zero": b"Content-Length: -1\r\n\r\n{}",
    "an encoding nobody knows": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": b"Content-Length : 2\r\n\r\n{}",
    "a header that is folded": b"X-A: 1\r\n Content-Length: 2\r\n\r\n",
    "a bare line feed": b"X-A: 1\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    "a nul": b"X-A: a\x00b\r\n" + BODY,
    "a chunk size that is none": b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", TWO_READINGS)
async def test_of_a_message_with_two_readings_phorge_gets_one_request_or_none(
    upstream: Upstream, case: str, kind: Kind
) -> None:
    """Request smuggling: the hidden second request must never become one."""
    hidden = b"POST /api/hidden.call HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    async with front(upstream, kind=kind) as gate:
        status = await say(gate, b"POST /api/conduit.ping HTTP/1.1\r\nHost: x\r\n" + TWO_READINGS[case] + hidden)
    assert status in {0, 200, 400, 408, 501, 502}
    paths = [request.line.split()[1] for request in upstream.requests]
    # two honest requests on one connection are none that was smuggled
    assert paths in ([], ["/api/conduit.ping"], ["/api/conduit.ping", "/api/hidden.call"])
    assert all(b"hidden" not in request.body for request in upstream.requests)
    for request in upstream.requests:
        framed = {"content-length", "transfer-encoding"} & request.headers.keys()
        assert len(framed) == 1, request.headers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", ["Content-Length", "content-length, x-a", "close, Content-Length"])
async def test_the_length_of_a_body_cannot_be_dropped_on_the_way(upstream: Upstream, kind: Kind, named: str) -> None:
    async with front(upstream, kind=kind) as gate:
        head = f"POST /api/conduit.ping HTTP/1.1\r\nHost: x\r\nConnection: {named}\r\n".encode()
        assert await say(gate, head + BODY) == 200
    (request,) = upstream.requests
    assert (request.headers["content-length"], request.body) == ("2", b"{}")


ODD_PATHS = {
    b"/api/a%2Fb": None,
    b"/api/%2e%2e": None,
    b"/api/..%2fadmin": None,
    b"/api/a%252Fb": None,
    b"//api/conduit.ping": None,
    b"/api/conduit.ping/": None,
    b"/api/./conduit.ping": None,
    b"/api/../admin": None,
    b"/API/conduit.ping": None,
    b"/api/a%00b": b"/api/a%00b",
    b"/api/a;b": b"/api/a;b",
    b"/api/a%zz": b"/api/a%zz",
    b"/api/a?b=/../c&d=%2F": b"/api/a?b=/../c&d=%2F",
    b"/api/a?b=%23&b=%23": b"/api/a?b=%23&b=%23",
    b"/api/a|b\\c": b"/api/a|b\\c",
    b"/api/" + b"m" * 3000: b"/api/" + b"m" * 3000,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ODD_PATHS, ids=lambda path: path[:24].decode())
async def test_a_path_gets_to_phorge_as_it_is_or_not_at_all(upstream: Upstream, path: bytes, kind: Kind) -> None:
    async with front(upstream, kind=kind) as gate:
        await say(gate, b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + BODY)
    wanted = ODD_PATHS[path]
    lines = [] if wanted is None else ["POST " + wanted.decode() + " HTTP/1.1"]
    assert [request.line for request in upstream.requests] == lines


@pytest.mark.parametrize("kind", KINDS)
async def test_an_address_with_another_host_in_it_leads_to_our_phorge_or_nowhere(
    upstream: Upstream, kind: Kind
) -> None:
    async with front(upstream, kind=kind, host="phorge.test") as gate:
        await say(gate, b"POST http://evil.test/api/conduit.ping HTTP/1.1\r\nHost: evil.test\r\n" + BODY)
    assert {request.line for request in upstream.requests} <= {"POST /api/conduit.ping HTTP/1.1"}
    assert {request.headers["host"] for request in upstream.requests} <= {"phorge.test"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", [b"h9", b"h2c", b"websocket"])
async def test_a_connection_is_not_switched_to_another_protocol_with_phorge(
    upstream: Upstream, protocol: bytes, kind: Kind
) -> None:
    async with front(upstream, kind=kind) as gate:
        head = b"POST /api/conduit.ping HTTP/1.1\r\nHost: x\r\nUpgrade: " + protocol + b"\r\nConnection: upgrade\r\n"
        status = await say(gate, head + BODY)
        assert (await gate.client.post("/api/conduit.ping")).status_code == 200
    assert status in {0, 101, 200, 400, 426}
    assert not [request for request in upstream.requests if {"upgrade", "connection"} & request.headers.keys()]
    assert {request.body for request in upstream.requests} <= {b"{}", b""}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [b"/api/a\xffb", b"/api/a?\xc3\xa4", b"/api/" + b"m" * 100_000, b"/api/a b"])
async def test_an_address_that_cannot_be_one_is_refused_and_nothing_breaks(
    upstream: Upstream, path: bytes, kind: Kind
) -> None:
    async with front(upstream, kind=kind) as gate:
        status = await say(gate, b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + BODY)
        assert (await gate.client.post("/api/conduit.ping")).status_code == 200
    assert status in {0, 200, 400, 414, 431, 502}
    assert all(len(request.line.split()) == 3 for request in upstream.requests)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", [b"Host: evil.test\r\n", b"Host: a\r\nHost: b\r\n", b"", b"Host: a b\r\n"])
async def test_phorge_is_asked_for_its_own_host_whatever_came_in(upstream: Upstream, hosts: bytes, kind: Kind) -> None:
    async with front(upstream, kind=kind, host="phorge.test") as gate:
        await say(gate, b"POST /api/conduit.ping HTTP/1.1\r\n" + hosts + BODY)
    assert {request.headers["host"] for request in upstream.requests} <= {"phorge.test"}


@pytest.mark.parametrize("kind", KINDS)
async def test_what_belongs_to_the_hop_or_to_us_is_not_passed_on(upstream: Upstream, kind: Kind) -> None:
    headers = (
        b"Host: x\r\nX-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 7.7.7.7\r\nX-Forwarded-Proto: gopher\r\n"
        b"X-Conduit-Gateway: me\r\nConnection: X-Hop\r\nX-Hop: 1\r\nExpect: 100-continue\r\n"
    )
    async with front(upstream, kind=kind) as gate:
        assert await say(gate, b"POST /api/conduit.ping HTTP/1.1\r\n" + headers + BODY) in {100, 200}
        await until(lambda: upstream.requests)
    (request,) = upstream.requests
    assert not {"connection", "x-hop", "expect"} & request.headers.keys()
    told = [request.headers[name] for name in ("x-forwarded-for", "x-forwarded-proto", "x-conduit-gateway")]
    assert told == ["127.0.0.1", "http", "go-conduit"]


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_tells_phorge_where_a_call_comes_from_but_the_gateway(upstream: Upstream, kind: Kind) -> None:
    headers = (
        b"Host: x\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\n"
        b"X-Forwarded-Host: evil.test\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Mine: 6.6.6.6\r\n"
    )
    async with front(upstream, kind=kind) as gate:
        await say(gate, b"POST /api/conduit.ping HTTP/1.1\r\n" + headers + BODY)
        await until(lambda: upstream.requests)
    (request,) = upstream.requests
    assert not [value for _, value in request.pairs if "6.6.6.6" in value or "evil" in value]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connect_is_refused_and_never_reaches_phorge(upstream: Upstream, kind: Kind) -> None:
    async with front(upstream, kind=kind) as gate:
        assert 400 <= await say(gate, b"CONNECT /api/conduit.ping HTTP/1.1\r\nHost: x\r\n\r\n") < 500
    assert upstream.requests == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [0, 1])
async def test_a_reply_with_a_length_and_chunks_is_passed_on_by_its_chunks(
    upstream: Upstream, order: int, kind: Kind
) -> None:
    both = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
    upstream.raw = b"HTTP/1.1 200 X\r\n" + both[order] + both[1 - order] + b"\r\n9\r\nnine char\r\n0\r\n\r\n"
    async with front(upstream, kind=kind) as gate:
        reply = await gate.client.post("/api/conduit.ping")
    assert (reply.status_code, reply.text) == (200, "nine char")


async def test_what_nobody_expected_is_a_502_and_is_counted(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(headers: object) -> None:
        raise ZeroDivisionError(headers)

    async with front(upstream) as gate:
        monkeypatch.setattr(exchange_module.Reply, "begin", broken)
        assert own(await gate.client.post("/api/conduit.ping")) == (502, "ERR-CONDUIT-PROXY")
        assert gate.seen == [502]


ODD_REPLIES = {
    "a switch of protocols": b"HTTP/1.1 101 X\r\nUpgrade: h9\r\nConnection: upgrade\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 X\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a status that is none": b"HTTP/1.1 2x0 X\r\n\r\n",
    "headers without an end": b"HTTP/1.1 200 X\r\n" + b"X-A: b\r\n" * 20_000,
    "nothing": b"",
}


@pytest.mark.parametrize("case", ODD_REPLIES)
async def test_a_reply_that_is_none_is_a_502_in_conduits_words(upstream: Upstream, case: str) -> None:
    upstream.raw = ODD_REPLIES[case]
    async with front(upstream) as gate:
        assert own(await gate.client.post("/api/conduit.ping")) == (502, "ERR-CONDUIT-PROXY")


async def test_news_on_the_way_to_a_reply_are_passed_over(upstream: Upstream) -> None:
    hints = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" * 3
    upstream.raw = b"HTTP/1.1 100 Go\r\n\r\n" + hints + b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nok"
    async with front(upstream) as gate:
        reply = await gate.client.post("/api/conduit.ping")
    assert (reply.status_code, reply.text) == (200, "ok")

"""What a call says on the wire, and what each reply to it is taken for (one test for each row of Phorge's table)."""

import asyncio
import gzip
import ssl
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from conduit import client as client_module
from conduit.client import ConduitClient
from conduit.errors import (
    CallFailed,
    ConduitError,
    Misconfigured,
    NotReached,
    OutcomeUnknown,
    ReplyTooLarge,
    RequestTooLarge,
    TimedOut,
    UnknownParameters,
)
from conduit.params import form
from tests.conduit import stub
from tests.conduit.stub import Http, StubPhp, error, page
from tests.conduit.upstream import Upstream, serving
from tests.listener import listening
from tests.runtime.harness import until


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        yield stubbed


def client_of(php: StubPhp) -> ConduitClient:
    return ConduitClient(php.url, token=stub.TOKEN, host=stub.HOST)


async def failure(php: StubPhp, reply: Http, *, seconds: float = 10) -> ConduitError:
    """What a call ends in that is answered so."""
    php.broken = reply
    with pytest.raises(ConduitError) as caught:
        await client_of(php).call("worker.execute", {"a": 1}, seconds=seconds)
    assert caught.type is not ConduitError
    return caught.value


async def test_a_call_is_a_form_with_json_in_it_and_has_the_host_that_was_chosen(php: StubPhp) -> None:
    answer = await client_of(php).call("conduit.ping", {"taskID": 7, "data": "[]"}, seconds=10)
    assert msgspec.json.decode(answer) == "conduit.ping was called"
    (call,) = php.calls
    assert call.line == "POST /api/conduit.ping HTTP/1.1"
    assert call.fields.keys() == {"params", "output"}
    assert call.params == {"taskID": 7, "data": "[]"}
    assert call.headers["host"] == stub.HOST
    assert call.headers["accept"] == "application/json"
    assert call.headers["x-service-token"] == stub.TOKEN
    assert call.headers["content-type"] == "application/x-www-form-urlencoded"


async def test_a_base_path_is_kept_and_a_token_that_is_not_set_is_not_sent(php: StubPhp) -> None:
    await ConduitClient(f"{php.url}/phorge/").call("conduit.ping", {}, seconds=10)
    (call,) = php.calls
    assert call.line == "POST /phorge/api/conduit.ping HTTP/1.1"
    assert call.headers["host"] == php.url.removeprefix("http://")
    assert "x-service-token" not in call.headers


async def test_cookies_are_not_kept(php: StubPhp) -> None:
    client = client_of(php)
    for _ in range(2):
        await client.call("conduit.ping", {}, seconds=10)
    assert all("cookie" not in call.headers for call in php.calls)


CONFIGURATION = {
    "the method is missing": (stub.NO_METHOD, "queue-runtime phorge install DIR"),
    "login is needed": (error("ERR-INVALID-SESSION", "Session key is not present."), "TOKEN"),
    "the user token is wrong": (error("ERR-INVALID-AUTH", "API token has the wrong length."), "TOKEN"),
    "the service token is wrong": (stub.BAD_TOKEN, "CONDUIT_TOKEN"),
    "no token is set": (
        error("ERR-WORKER-AUTH", "No service token is set, so that nobody may call this."),
        "clear_env",
    ),
    "the token of a gateway is wrong": (
        Http(401, b'{"result":null,"error_code":"ERR-CONDUIT-AUTH","error_info":"x"}'),
        "CONDUIT_TOKEN",
    ),
    "two classes have one method": (
        error("ERR-CONDUIT-CORE", 'Two objects (of classes "A" and "B") returned the same key ("worker.execute")'),
        "remove one",
    ),
    "the host is not Phorge's": (stub.SITE_NOT_FOUND, "CONDUIT_HOST"),
    "the host is not in a list that must not be overwritten": (stub.SITE_NOT_FOUND, "replaces the whole list"),
    "the set-up is not done": (stub.SETUP_ERROR, "in a browser"),
    "a page of the set-up with status 200": (page(200, "Setup Error"), "in a browser"),
    "https is required": (stub.HTTPS_ONLY, "redirects to https://phorge.test (HTTP 302)"),
    "an extension has a syntax error": (stub.PARSE_ERROR, "syntax error"),
    "it is another web site": (page(404, "404 Not Found"), "CONDUIT_URL"),
    "a web server forbids it": (page(403, "403 Forbidden"), "access rules"),
    "a web server asks for a password": (page(401, "401 Authorization Required"), "a password"),
    "a proxy does not know the method of HTTP": (page(501, "Not Implemented"), "CONDUIT_URL"),
    "a gateway of ours leads to itself": (
        Http(508, b'{"result":null,"error_code":"ERR-CONDUIT-PROXY","error_info":"its own address"}'),
        "its own address: QUEUE_RUNTIME_CONDUIT_URL",
    ),
    "a login page of the network": (page(511, "Network Authentication Required"), "CONDUIT_URL"),
    "a body too large for the web server": (page(413, "413 Request Entity Too Large"), "client_max_body_size"),
    "a body too large for our gateway": (
        Http(413, b'{"error":{"code":"ERR_TOO_LARGE","message":"at most 1024 bytes"}}'),
        "at most 1024 bytes",
    ),
    "a form too large for PHP": (stub.NO_FORM, "post_max_size above the largest payload"),
    "a web server forbids it, in a shape like Conduit's": (Http(403, b'{"error_code":"X"}'), "access rules"),
}


@pytest.mark.parametrize("case", CONFIGURATION)
async def test_what_only_an_administrator_can_put_right_says_how(php: StubPhp, case: str) -> None:
    reply, words = CONFIGURATION[case]
    found = await failure(php, reply)
    assert isinstance(found, Misconfigured)
    assert words in str(found)
    assert "secret" not in str(found)


UNKNOWN = {
    "a worker called exit()": stub.EXIT,
    "php-fpm ended the request": stub.PHP_CUT_OFF,
    "the web server lost patience": stub.NGINX_TIMEOUT,
    "the connection was closed": stub.HANG_UP,
    "the reply was cut off": Http(200, b'{"result":', cut=True),
    "the json is cut off": Http(200, b'{"result":{"a"'),
    "the json is cut off behind an inner object": Http(200, b'{"error_code":null,"result":{"a":1}'),
    "maintenance": page(503, "Service Unavailable"),
    "a proxy waited too long, it does not say for whom": page(408, "Request Timeout"),
    "made, as nothing of Phorge's says": Http(201, b'{"error_code":null,"result":1}'),
    "taken for later": page(202, "Accepted"),
    "nothing": Http(204, b""),
    "a part of it": Http(206, b'{"error_code":null'),
    "a proxy lost it": page(520, "Web server is returning an unknown error"),
    "a proxy found it down": page(521, "Web server is down"),
    "a proxy could not connect in time": page(522, "Connection timed out"),
    "a proxy found no way": page(523, "Origin is unreachable"),
    "a proxy lost patience": page(524, "A timeout occurred"),
    "a proxy had no more to read": page(598, "Network read timeout"),
}


@pytest.mark.parametrize("case", UNKNOWN)
async def test_a_lost_answer_says_nothing_of_the_work(php: StubPhp, case: str) -> None:
    assert isinstance(await failure(php, UNKNOWN[case]), OutcomeUnknown)


async def test_a_reply_that_stalls_ends_with_the_time_of_the_call(php: StubPhp) -> None:
    began = time.monotonic()
    found = await failure(php, Http(200, b'{"result":', stall=True), seconds=0.3)
    assert isinstance(found, TimedOut)
    assert 0.3 <= time.monotonic() - began < 5


FAILED = {
    "an uncaught exception": (error("ERR-CONDUIT-CORE", "Undefined index"), "Undefined index"),
    "the method's own error": (error("ERR-WORKER-CONTEXT", "expired"), "ERR-WORKER-CONTEXT: expired"),
    "a result that is not UTF-8": (error("Exception", "Failed to JSON encode value"), "Exception: Failed"),
    "out of memory": (stub.FATAL, "UNRECOVERABLE FATAL ERROR"),
    "a page with status 200": (page(200, "Welcome"), "a page titled 'Welcome'"),
    "json of somebody else": (Http(200, b'{"data":[]}'), "not a Conduit answer"),
    "json that is no object": (Http(200, b'["result"]'), "not a Conduit answer"),
    "any other 500": (page(500, "Internal Server Error"), "HTTP 500"),
}


@pytest.mark.parametrize("case", FAILED)
async def test_every_other_reply_is_a_failure_of_this_call(php: StubPhp, case: str) -> None:
    reply, words = FAILED[case]
    found = await failure(php, reply)
    assert isinstance(found, CallFailed)
    assert words in str(found)


DEEP = b"[" * 100_000 + b"]" * 100_000

MALFORMED = {
    "a list": Http(200, b"[]"),
    "a number that is none": Http(200, b'{"error_code":null,"result":{"duration":NaN}}'),
    "nested without end": Http(200, b'{"error_code":null,"result":' + DEEP + b"}"),
    "an explanation nested without end": Http(200, b'{"error_code":"X","error_info":' + DEEP + b"}"),
    "a code that is a number": Http(200, b'{"error_code":7}'),
    "a code that is a list": Http(200, b'{"error_code":[null]}'),
    "an empty code": Http(200, b'{"error_code":""}'),
    "no code": Http(200, b'{"result":1}'),
    "the last of two codes": Http(200, b'{"error_code":null,"error_code":"X"}'),
    "half a letter": Http(200, b'{"error_code":null,"error_info":"\\ud800"}'),
    "a mark before it": Http(200, b'\xef\xbb\xbf{"error_code":null}'),
    "text after it": Http(200, b'{"error_code":null}{}'),
    "bytes": Http(200, bytes(range(256)) * 40),
    "compressed, so it says": Http(200, b"no gzip", ("Content-Encoding: gzip",)),
    "compressed as nobody can read": Http(200, b"x", ("Content-Encoding: br",)),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_reply_that_makes_no_sense_is_a_bounded_failure_of_this_call(php: StubPhp, case: str) -> None:
    found = await failure(php, MALFORMED[case])
    assert type(found) is CallFailed
    assert 0 < len(str(found)) < 1000


async def test_a_refusal_nested_without_end_is_no_crash(php: StubPhp) -> None:
    assert isinstance(await failure(php, Http(403, b'{"error_code":' + DEEP + b"}")), Misconfigured)


async def test_of_a_key_that_stands_twice_the_last_one_counts_as_in_php(php: StubPhp) -> None:
    php.broken = Http(200, b'{"error_code":"X","result":1,"error_code":null,"result":2}')
    assert msgspec.json.decode(await client_of(php).call("conduit.ping", {}, seconds=10)) == 2


async def test_a_reply_that_some_proxy_compresses_is_read_all_the_same(php: StubPhp) -> None:
    text = b'{"error_code":null,"result":"%s"}' % (b"x" * 200_000)
    php.broken = Http(200, gzip.compress(text), ("Content-Encoding: gzip",))
    assert len(msgspec.json.decode(await client_of(php).call("conduit.ping", {}, seconds=10))) == 200_000
    assert php.calls[0].headers["accept-encoding"] == "identity"


async def test_a_reply_that_grows_without_end_when_it_is_unpacked_is_not_unpacked(php: StubPhp) -> None:
    bomb = gzip.compress(b" " * 100 * 2**20)
    php.broken = Http(200, bomb, ("Content-Encoding: gzip",))
    tracemalloc.start()
    try:
        with pytest.raises(CallFailed, match="more than"):
            await ConduitClient(php.url, max_reply=2**20).call("conduit.ping", {}, seconds=10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


async def test_a_reply_beyond_all_bounds_is_not_read_to_its_end(php: StubPhp) -> None:
    php.broken = Http(200, b" " * 3 * 2**20)
    with pytest.raises(ReplyTooLarge, match=f"more than {2**20} bytes .QUEUE_RUNTIME_CONDUIT_MAX_REPLY"):
        await ConduitClient(php.url, max_reply=2**20).call("conduit.ping", {}, seconds=10)
    page_found = await failure(php, Http(500, b"<title>Site Not Found</title>" + b" " * 3 * 2**20))
    assert isinstance(page_found, Misconfigured)


RAW = {
    "chunks cut off": b'HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"err',
    "a chunk size that is none": b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 X\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "headers without an end": b"HTTP/1.1 200 X\r\n" + b"X-A: b\r\n" * 20_000,
    "half a head": b"HTTP/1.1 200 X\r\nContent-Le",
}


@pytest.mark.parametrize("case", RAW)
async def test_what_breaks_off_or_is_no_http_says_nothing_of_the_work(case: str) -> None:
    async with Upstream().listening() as upstream:
        upstream.raw = RAW[case]
        with pytest.raises(OutcomeUnknown):
            await ConduitClient(upstream.url).call("worker.execute", {}, seconds=10)


async def test_news_on_the_way_to_an_answer_are_passed_over_and_a_switch_of_protocols_is_none() -> None:
    answer = b'{"error_code":null,"result":1}'
    async with Upstream().listening() as upstream:
        upstream.raw = (
            b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 X\r\n\r\nHTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%s"
            % (
                len(answer),
                answer,
            )
        )
        assert bytes(await ConduitClient(upstream.url).call("conduit.ping", {}, seconds=10)) == b"1"
        upstream.raw = b"HTTP/1.1 101 X\r\nUpgrade: h9\r\nConnection: upgrade\r\n\r\n"
        with pytest.raises(OutcomeUnknown):
            await ConduitClient(upstream.url).call("conduit.ping", {}, seconds=10)


async def test_a_server_that_answers_before_it_has_read_everything_is_heard() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\nContent-Length: 5\r\n\r\nlarge")
        await writer.drain()
        await reader.read()

    async with serving(refuse) as url:
        with pytest.raises(RequestTooLarge, match="413"):
            await ConduitClient(url).call("worker.execute", {"data": "x" * 2**20}, seconds=10)


async def test_a_server_that_hangs_up_in_the_middle_of_the_request_says_nothing_of_the_work() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    async with serving(hang_up) as url:
        with pytest.raises(OutcomeUnknown):
            await ConduitClient(url).call("worker.execute", {"data": "x" * 2**24}, seconds=10)


async def test_a_host_may_have_a_name(php: StubPhp) -> None:
    client = ConduitClient(php.url.replace("127.0.0.1", "localhost"), host=stub.HOST)
    assert msgspec.json.decode(await client.call("conduit.ping", {}, seconds=10)) == "conduit.ping was called"
    with pytest.raises(NotReached):
        await ConduitClient("http://no-such-host.invalid").call("conduit.ping", {}, seconds=10)


@pytest.mark.parametrize("host", ["a..b.example", "a" * 70 + ".example", "."])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_host_that_no_resolver_can_be_asked_for_is_not_reached(scheme: str, host: str) -> None:
    """The configuration refuses such a one; a client that got it all the same does not crash."""
    with pytest.raises(NotReached, match="was not reached"):
        await ConduitClient(f"{scheme}://{host}").call("conduit.ping", {}, seconds=10)


async def test_a_large_payload_is_encoded_beside_the_event_loop(php: StubPhp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leases of all other tasks are renewed meanwhile."""
    threads: list[threading.Thread] = []

    def noted(params: Mapping[str, object], *, token: str) -> bytes:
        threads.append(threading.current_thread())
        return form(params, token=token)

    monkeypatch.setattr(client_module, "form", noted)
    for size in (10, 2**17):
        await client_of(php).call("conduit.ping", {"data": "x" * size}, seconds=10)
        assert php.calls[-1].params == {"data": "x" * size}
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()


async def test_a_call_leaves_no_connection_behind() -> None:
    answer = b'{"error_code":null,"result":1}'
    open_now = 0
    silent = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        await reader.readuntil(b"output=json")
        if not silent:
            writer.write(b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
            await writer.drain()
        with suppress(ConnectionError):
            await reader.read()  # until the caller closes
        open_now -= 1

    async with serving(serve) as url:
        client = ConduitClient(url)
        for _ in range(10):
            await client.call("conduit.ping", {}, seconds=10)
        silent = True
        with pytest.raises(OutcomeUnknown):
            await client.call("conduit.ping", {}, seconds=0.1)
        await until(lambda: open_now == 0)


async def test_a_reply_that_drips_ends_with_the_time_of_the_call() -> None:
    async with Upstream().listening() as upstream:
        upstream.pieces = [b"{"] * 3
        with pytest.raises(OutcomeUnknown, match="no answer within"):
            await ConduitClient(upstream.url).call("conduit.ping", {}, seconds=0.3)


async def test_unknown_parameters_mean_another_version_of_the_method(php: StubPhp) -> None:
    info = "API Method \"worker.execute\" does not define these parameters: 'phase'."
    assert isinstance(await failure(php, error("ERR-CONDUIT-CALL", info)), UnknownParameters)


async def test_a_call_that_was_turned_away_did_not_run(php: StubPhp) -> None:
    assert isinstance(await failure(php, Http(429, b"slow down")), NotReached)


async def test_an_excerpt_of_a_strange_reply_is_bounded(php: StubPhp) -> None:
    assert len(str(await failure(php, Http(500, b"x" * 200_000)))) < 500


async def test_a_long_error_code_is_cut(php: StubPhp) -> None:
    assert len(str(await failure(php, error("A" * 10**6, "x" * 10**6)))) < 1500


@pytest.mark.parametrize(
    "location", ["http://[::1/", "https://[phorge]/x", "https://phorge.test:99999/", "//", "https://" + "a" * 50_000]
)
async def test_a_redirect_to_an_address_that_is_none_is_told_like_any_other(php: StubPhp, location: str) -> None:
    found = await failure(php, Http(302, b"", (f"Location: {location}",)))
    assert isinstance(found, Misconfigured)
    assert "CONDUIT_URL" in str(found)
    assert len(str(found)) < 500


async def test_of_the_target_of_a_redirect_host_and_port_are_told_alone(php: StubPhp) -> None:
    reply = Http(302, b"", ("Location: https://user:hunter2@phorge.test:8443/api?key=hunter2",))
    found = str(await failure(php, reply))
    assert "redirects to https://phorge.test:8443 (HTTP 302)" in found
    assert "hunter2" not in found


SHOWN = {
    "a header": f"X-Service-Token: {stub.TOKEN}",
    "cut in the middle": "x" * 290 + stub.TOKEN,
    "a title": f"<title>{'x' * 290}{stub.TOKEN}</title>",
    "the form": f"params=%7B%22token%22%3A%22{stub.TOKEN}%22",
}


@pytest.mark.parametrize("case", SHOWN)
@pytest.mark.parametrize("status", [200, 201, 401, 403, 408, 413, 500, 501, 502])
async def test_a_page_that_shows_the_request_does_not_bring_the_token_into_any_text(
    php: StubPhp, status: int, case: str
) -> None:
    found = str(await failure(php, Http(status, SHOWN[case].encode())))
    assert stub.TOKEN[:8] not in found


@pytest.mark.parametrize(
    "reply",
    [
        error("ERR-WORKER-AUTH", f"you sent {stub.TOKEN}"),
        error(stub.TOKEN),
        Http(403, b'{"error_code":"X","error_info":"%s"}' % stub.TOKEN.encode()),
        Http(302, b"", (f"Location: https://{stub.TOKEN}.test/",)),
        Http(200, b"x", (f"Broken {stub.TOKEN}",)),
    ],
)
async def test_an_answer_that_quotes_the_token_does_not_bring_it_into_any_text(php: StubPhp, reply: Http) -> None:
    found = await failure(php, reply)
    assert "****" in str(found)
    assert stub.TOKEN not in str(found) + getattr(found, "reason", "")


async def test_nobody_there_means_that_nothing_ran() -> None:
    php = StubPhp()
    async with php.listening():
        pass
    with pytest.raises(NotReached):
        await client_of(php).call("worker.execute", {}, seconds=10)


async def test_a_certificate_that_is_not_trusted_says_which_setting_names_the_authority(tmp_path: Path) -> None:
    key, certificate = await _self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with listening(_answer_once, tls=context) as port:
        url = f"https://localhost:{port}"
        with pytest.raises(Misconfigured, match="CONDUIT_TLS_CA"):
            await ConduitClient(url).call("conduit.ping", {}, seconds=10)
        answer = await ConduitClient(url, tls_ca=certificate).call("conduit.ping", {}, seconds=10)
        assert msgspec.json.decode(answer) == "pong"


async def _self_signed(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    maker = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await maker.wait() == 0
    return key, certificate


async def _answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"output=json")
    body = b'{"result":"pong","error_code":null,"error_info":null}'
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()


async def test_calls_are_counted_by_how_they_ended(php: StubPhp) -> None:
    client = client_of(php)
    await client.call("conduit.ping", {}, seconds=10)
    php.broken = stub.NGINX_TIMEOUT
    with pytest.raises(OutcomeUnknown):
        await client.call("conduit.ping", {}, seconds=10)
    assert client.calls == {"answered": 1, "unknown": 1}
    assert client.seconds > 0

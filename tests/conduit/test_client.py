"""What a call says on the wire, and what each reply to it is taken for (one test for each row of Phorge's table)."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from conduit.client import ConduitClient
from conduit.errors import CallFailed, ConduitError, Misconfigured, NotReached, OutcomeUnknown, UnknownParameters
from tests.conduit import stub
from tests.conduit.stub import Http, StubPhp, error, page


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
    "the method is missing": (stub.NO_METHOD, "src/extensions"),
    "login is needed": (error("ERR-INVALID-SESSION", "Session key is not present."), "TOKEN"),
    "the user token is wrong": (error("ERR-INVALID-AUTH", "API token has the wrong length."), "TOKEN"),
    "the service token is wrong": (stub.BAD_TOKEN, "CONDUIT_TOKEN"),
    "the token of a gateway is wrong": (
        Http(401, b'{"result":null,"error_code":"ERR-CONDUIT-AUTH","error_info":"x"}'),
        "CONDUIT_TOKEN",
    ),
    "two classes have one method": (
        error("ERR-CONDUIT-CORE", 'Two objects (of classes "A" and "B") returned the same key ("worker.execute")'),
        "remove one",
    ),
    "the host is not Phorge's": (stub.SITE_NOT_FOUND, "CONDUIT_HOST"),
    "the set-up is not done": (stub.SETUP_ERROR, "in a browser"),
    "a page of the set-up with status 200": (page(200, "Setup Error"), "in a browser"),
    "https is required": (stub.HTTPS_ONLY, "redirects to https://phorge.test (HTTP 302)"),
    "an extension has a syntax error": (stub.PARSE_ERROR, "syntax error"),
    "it is another web site": (page(404, "404 Not Found"), "CONDUIT_URL"),
    "a web server forbids it": (page(403, "403 Forbidden"), "CONDUIT_URL"),
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
}


@pytest.mark.parametrize("case", UNKNOWN)
async def test_a_lost_answer_says_nothing_of_the_work(php: StubPhp, case: str) -> None:
    assert isinstance(await failure(php, UNKNOWN[case]), OutcomeUnknown)


async def test_a_reply_that_stalls_ends_with_the_time_of_the_call(php: StubPhp) -> None:
    began = time.monotonic()
    found = await failure(php, Http(200, b'{"result":', stall=True), seconds=0.3)
    assert isinstance(found, OutcomeUnknown)
    assert 0.3 <= time.monotonic() - began < 5


FAILED = {
    "an uncaught exception": (error("ERR-CONDUIT-CORE", "Undefined index"), "Undefined index"),
    "the method's own error": (error("ERR-WORKER-CONTEXT", "expired"), "ERR-WORKER-CONTEXT: expired"),
    "a result that is not UTF-8": (error("Exception", "Failed to JSON encode value"), "Exception: Failed"),
    "out of memory": (stub.FATAL, "UNRECOVERABLE FATAL ERROR"),
    "a page with status 200": (page(200, "Welcome"), "a page titled 'Welcome'"),
    "json that is cut off": (Http(200, b'{"result":{"a"'), "not a Conduit answer"),
    "json of somebody else": (Http(200, b'{"data":[]}'), "not a Conduit answer"),
    "json that is no object": (Http(200, b'["result"]'), "not a Conduit answer"),
    "a body too large for the web server": (page(413, "413 Request Entity Too Large"), "413 Request Entity"),
    "any other 500": (page(500, "Internal Server Error"), "HTTP 500"),
    "maintenance": (page(503, "Service Unavailable"), "HTTP 503"),
}


@pytest.mark.parametrize("case", FAILED)
async def test_every_other_reply_is_a_failure_of_this_call(php: StubPhp, case: str) -> None:
    reply, words = FAILED[case]
    found = await failure(php, reply)
    assert isinstance(found, CallFailed)
    assert words in str(found)


async def test_unknown_parameters_mean_another_version_of_the_method(php: StubPhp) -> None:
    info = "API Method \"worker.execute\" does not define these parameters: 'phase'."
    assert isinstance(await failure(php, error("ERR-CONDUIT-CALL", info)), UnknownParameters)


async def test_a_call_that_was_turned_away_did_not_run(php: StubPhp) -> None:
    assert isinstance(await failure(php, Http(429, b"slow down")), NotReached)


async def test_an_excerpt_of_a_strange_reply_is_bounded(php: StubPhp) -> None:
    assert len(str(await failure(php, Http(500, b"x" * 200_000)))) < 500


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
    server = await asyncio.start_server(_answer_once, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
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
    try:
        await reader.readuntil(b"output=json")
        body = b'{"result":"pong","error_code":null,"error_info":null}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    writer.close()


async def test_calls_are_counted_by_how_they_ended(php: StubPhp) -> None:
    client = client_of(php)
    await client.call("conduit.ping", {}, seconds=10)
    php.broken = stub.NGINX_TIMEOUT
    with pytest.raises(OutcomeUnknown):
        await client.call("conduit.ping", {}, seconds=10)
    assert client.calls == {"answered": 1, "unknown": 1}
    assert client.seconds > 0

"""TLS that breaks after the handshake: the answer is lost, and nothing else is."""

import os
import ssl
from asyncio import Event, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conduit.client import ConduitClient
from conduit.errors import OutcomeUnknown
from conduit.gateway import Gateway
from handlers.phorge import Phorge
from queue_runtime.lifecycle import Lifecycle
from tests.authority import Authority
from tests.listener import listening

BREAKS = {
    "a record that cannot be decrypted": b"\x17\x03\x03\x00\x20" + b"\0" * 32,
    "plain text of a load balancer": b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
    "an alert in the clear": b"\x15\x03\x03\x00\x02\x02\x28",
    "the end of the connection": b"",
}


class Server(NamedTuple):
    """Where it is, and who vouches for it."""

    url: str
    authority: Path


@pytest.fixture(params=BREAKS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """One that reads a request, and goes wrong below TLS."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if text := BREAKS[request.param]:
            os.write(writer.get_extra_info("socket").fileno(), text)
        else:
            writer.transport.abort()

    authority = Authority()
    identity = authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    async with listening(serve, tls=context) as port:
        yield Server(f"https://127.0.0.1:{port}", authority.file)


async def test_the_outcome_of_a_call_is_unknown(server: Server) -> None:
    with pytest.raises(OutcomeUnknown, match="the connection was lost"):
        await ConduitClient(server.url, tls_ca=server.authority).call("worker.execute", {}, seconds=10)


async def test_a_question_about_phorge_ends_nothing(server: Server) -> None:
    phorge = Phorge(ConduitClient(server.url, tls_ca=server.authority), Lifecycle(), opened=lambda: None)
    assert await phorge.look() > 0
    assert "the connection was lost" in phorge.trouble


async def test_a_caller_of_the_gateway_is_told_and_the_call_is_counted(server: Server) -> None:
    statuses: list[int | None] = []
    gateway = Gateway(
        _nothing_else,
        server.url,
        lambda scope: True,
        lambda scope, status, seconds: statuses.append(status),
        lambda: False,
        tls_ca=server.authority,
    )
    assert await _asked(gateway) == 502
    assert statuses == [502]


async def _nothing_else(*_: object) -> None:
    raise AssertionError("this is a call of Conduit's")


async def _asked(gateway: Gateway) -> int:
    """The status that a caller gets."""
    sent: list[dict[str, Any]] = []
    body = [b"x=1"]

    async def receive() -> dict[str, object]:
        if not body:
            await Event().wait()
        return {"type": "http.request", "body": body.pop(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/api/conduit.ping",
        "raw_path": b"/api/conduit.ping", "query_string": b"", "headers": [(b"content-length", b"3")],
    }  # fmt: skip
    await gateway(scope, receive, send)
    return int(sent[0]["status"])

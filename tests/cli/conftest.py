"""Fixtures of these tests: a stand-in for a running queue, and an empty Phorge."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.backends import Servers
from tests.cli.takeovers import empty_phorge


class Answers(BaseHTTPRequestHandler):
    """A stand-in for a running queue."""

    status = 200
    body = b'{"status":"ok"}'
    seen: list[tuple[str, str | None, bytes]]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.path, self.headers.get("X-Service-Token"), body))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def queue() -> Iterator[type[Answers]]:
    """A server whose answers a test chooses; `address` is where it listens."""

    class Handler(Answers):
        seen = []  # noqa: RUF012 - one list for each fixture
        address: str

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Handler.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def settings(servers: Servers) -> dict[str, str]:
    """Of a command on an empty Phorge."""
    return empty_phorge(servers)


def address_of(queue: type[Answers]) -> str:
    return str(vars(queue)["address"])

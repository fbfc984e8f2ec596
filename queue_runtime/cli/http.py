"""One HTTP request to a running queue, for the commands that are its clients.

By the standard library: a container's health check starts this every few seconds, and one request needs no more.
"""

import http.client
import socket
from urllib.parse import urlsplit

from queue_runtime.cli.environment import fail

WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

LONGEST = 256 * 2**20
"""Bytes of an answer. Ours are shorter, and what else is there need not have an end."""


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a server that listens on a Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(
    address: str, method: str, path: str, *, body: bytes | None = None, token: str = "", seconds: float = 5
) -> tuple[int, str]:
    """Status and text of the answer. `address` is as in QUEUE_RUNTIME_LISTEN, or a base URL. Raises OSError."""
    connection, prefix = _connection(address, seconds)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if token:
        headers["X-Service-Token"] = token
    try:
        connection.request(method, prefix + path, body, headers)
        answer = connection.getresponse()
        text = answer.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise OSError(f"an answer of more than {LONGEST} bytes")
        return answer.status, text.decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {type(error).__name__}") from error
    finally:
        connection.close()


def _connection(address: str, seconds: float) -> tuple[http.client.HTTPConnection, str]:
    if address.startswith("unix:"):
        return _UnixConnection(address.removeprefix("unix:"), seconds), ""
    if "//" in address:
        url = urlsplit(address)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        return kind(url.netloc, timeout=seconds), url.path.rstrip("/")
    host, _, port = address.rpartition(":")
    if port == "0":
        fail("QUEUE_RUNTIME_LISTEN has port 0, which only the running process knows: give --url")
    return http.client.HTTPConnection(f"{WILDCARDS.get(host, host)}:{port}", timeout=seconds), ""

"""A whole process that is told to stop while callers have connections open (R120, R121)."""

import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest

from queue_runtime.server import Kind
from tests.faults.process import Served, check_clean_log, enqueue, ledger, wait_for

LONG_POLL = b'{"limit":1,"taskClasses":["Nobody"],"waitSeconds":30}'


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


ENQUEUE = post("/api/queue/enqueue", b'{"taskClass":"SleepWorker"}')


def connected(address: tuple[str, int]) -> socket.socket:
    line = socket.create_connection(address, timeout=10)
    line.settimeout(10)
    return line


def read_reply(line: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    while piece := line.recv(2**16):
        found += piece
    return found


@pytest.mark.parametrize("server", get_args(Kind))
def test_callers_are_served_while_a_task_ends_and_then_everything_closes_at_once(tmp_path: Path, server: Kind) -> None:
    with Served(tmp_path, SERVER=server, GRACE_SECONDS=60) as served, served.client() as client, ExitStack() as stack:
        host, port = client.base_url.host, client.base_url.port
        assert port is not None
        (task,) = enqueue(client, "SleepWorker", '{"seconds": 1}')
        wait_for("it runs", lambda: ledger(tmp_path), 10)
        idle = [stack.enter_context(connected((host, port))) for _ in range(50)]
        for line in idle[:25]:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            found = b""
            while not found.endswith(b'{"status":"ok"}'):
                found += line.recv(2**16)
        polls = [stack.enter_context(connected((host, port))) for _ in range(5)]
        for line in polls:
            line.sendall(post("/api/queue/lease", LONG_POLL))
        uploads = [stack.enter_context(connected((host, port))) for _ in range(20)]
        for line in uploads:
            line.sendall(ENQUEUE[:-1])

        served.tell(signal.SIGTERM)
        wait_for("it is not ready", lambda: client.get("/readyz").status_code == 503, 2)
        assert not ledger(tmp_path, "end")
        for line in polls:
            assert_is_closed_and_empty(read_reply(line))
        for line in uploads:
            line.sendall(ENQUEUE[-1:])
            assert b" 200 " in read_reply(line)
        answered = 0
        while (reply := lease_anew((host, port))) is not None:
            assert_is_closed_and_empty(reply)
            answered += 1
            time.sleep(0.1)  # as callers that come by
        assert answered > 2
        began = time.monotonic()
        for line in idle:
            assert read_reply(line) == b""
        assert served.wait(10) == 0, served.log
        assert time.monotonic() - began < 5  # far less than the grace
        check_clean_log(served)
    assert [line["id"] for line in ledger(tmp_path, "end")] == [task]


def lease_anew(address: tuple[str, int]) -> bytes | None:
    """What a caller with a new connection hears; None: nobody listens any more."""
    try:
        with connected(address) as line:
            line.sendall(post("/api/queue/lease", b'{"limit":1}'))
            return read_reply(line) or None
    except ConnectionError:
        return None


def assert_is_closed_and_empty(reply: bytes) -> None:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert b"connection: close" in head.lower()
    assert body == b'{"data":[]}'

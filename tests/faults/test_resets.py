"""A thousand clients that reset right after their request leave no transaction open and no lease stuck (R047)."""

import socket
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

from tests.faults.process import Served, enqueue, wait_for

RESETS = 1000
AT_ONCE_CLOSED = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing sends RST"""


def post(path: str, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


REQUESTS = (post("/api/queue/enqueue", b'{"taskClass": "Nobody"}'), post("/api/queue/lease", b'{"limit": 5}'))


def can_write(path: Path) -> bool:
    """Whether nobody has a transaction open that writes."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        other.execute("ROLLBACK")
        return True


LEASE_SECONDS = 5
"""A reply that was written before its client reset has been delivered, as far as a server can know: that lease ends by
time."""


def test_a_thousand_resets_leave_no_transaction_open_and_no_lease_stuck(tmp_path: Path) -> None:
    with Served(tmp_path, HTTP_LEASE_SECONDS=LEASE_SECONDS) as served, served.client() as client:
        enqueue(client, "Nobody", count=50)
        port = client.base_url.port
        assert port is not None
        for number in range(RESETS):
            with socket.create_connection(("127.0.0.1", port)) as hasty:
                hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE_CLOSED)
                hasty.sendall(REQUESTS[number % len(REQUESTS)])
        wait_for("no lease is stuck", lambda: client.get("/api/queue/stats").json()["data"]["leasedCount"] == 0, 30)
        # the last requests may be being written at this moment; a transaction that was left open would stay
        wait_for("no transaction is open", lambda: can_write(tmp_path / "queue.sqlite"), 5)
        assert len(client.post("/api/queue/lease", json={"limit": 5}).json()["data"]) == 5
        enqueue(client, "Nobody")
        served.tell_and_wait()

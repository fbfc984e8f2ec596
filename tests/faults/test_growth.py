"""Memory, descriptors and threads level off, however much work and however many hang-ups go through (R107, R108)."""

import socket
from pathlib import Path

import httpx2
import pytest

from tests.faults.process import Served, archived, wait_for

BATCH = 1000
HANG_UPS = 50
BODY = b'{"taskClasses": ["Nobody"], "waitSeconds": 9}'
LONG_POLL = (
    b"POST /api/queue/lease HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)


def run_one_round(client: httpx2.Client) -> None:
    """A batch of tasks about one object, run to its end, and clients that hang up in the middle of a long poll."""
    task = {"taskClass": "PhabricatorTestWorker", "data": "[]", "objectPHID": "PHID-TASK-one"}
    answer = client.post("/api/queue/enqueue-batch", json={"tasks": [task] * BATCH})
    assert answer.status_code == 200, answer.text
    last = answer.json()["data"][-1]["id"]
    host, port = client.base_url.host, client.base_url.port
    assert port is not None
    for _ in range(HANG_UPS):
        with socket.create_connection((host, port)) as hasty:
            hasty.sendall(LONG_POLL)
    wait_for("the last one is archived", lambda: archived(client, last), 60)
    wait_for("all are archived", lambda: not client.get("/api/queue/stats").json()["data"]["activeCount"], 60)


def weight(served: Served) -> tuple[float, int, int]:
    """MiB of memory, open descriptors and threads of the process."""
    process = Path(f"/proc/{served.inner_pid()}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    return int(status["VmRSS"].split()[0]) / 1024, len(list((process / "fd").iterdir())), int(status["Threads"])


@pytest.mark.parametrize(
    ("rounds", "slack"),
    [
        # MiB: SQLite's page cache, which fills up to 40 MiB, is still filling after so few tasks
        pytest.param(8, 8, id="8,000"),
        pytest.param(300, 2, id="300,000", marks=(pytest.mark.long, pytest.mark.timeout(1800))),
    ],
)
def test_a_process_that_has_done_much_is_no_bigger(tmp_path: Path, rounds: int, slack: float) -> None:
    with Served(tmp_path) as served:
        with served.client() as client:
            for _ in range(rounds):
                run_one_round(client)
            before, _, _ = weight(served)
            for _ in range(rounds):
                run_one_round(client)
            after, _, threads = weight(served)
            assert after < before * 1.05 + slack, f"{before:.1f} MiB, then {after:.1f} MiB"
            assert threads < 10
            wait_for("no connection is left over", lambda: weight(served)[1] < 40, 10)
        served.tell_and_wait()

"""Work that came due while nobody was there (R071)."""

import time
from collections import Counter
from pathlib import Path

from tests.faults.process import Served, ledger, wait_for

COUNT = 500


def test_what_came_due_while_all_were_down_runs_once_between_two_that_start_together(tmp_path: Path) -> None:
    due = int(time.time()) + 2
    with Served(tmp_path, ROLES="api") as served, served.client() as client:
        tasks = [
            {"taskClass": "SleepWorker", "data": "{}", "priority": 3000 - place % 3, "delayUntil": due}
            for place in range(COUNT)
        ]
        answer = client.post("/api/queue/enqueue-batch", json={"tasks": tasks})
        ids = {task["id"]: task["priority"] for task in answer.json()["data"]}
        served.tell_and_wait()
    wait_for("the tasks are due", lambda: time.time() >= due, 10)
    with Served(tmp_path) as one, Served(tmp_path) as other, one.client() as client, other.client():
        wait_for("all have run", lambda: len(ledger(tmp_path, "end")) >= COUNT, 30)
        wait_for("all are archived", lambda: not client.get("/api/queue/stats").json()["data"]["activeCount"], 10)
        one.tell_and_wait()
        other.tell_and_wait()
    starts = ledger(tmp_path)
    assert Counter(line["id"] for line in starts) == dict.fromkeys(ids, 1)
    for pid in {line["pid"] for line in starts}:
        ran = [ids[line["id"]] for line in starts if line["pid"] == pid]
        assert ran == sorted(ran), "each takes the more urgent first"

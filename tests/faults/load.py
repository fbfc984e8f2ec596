"""The load under which processes are killed, and what is left of it afterwards."""

import random
import threading

import httpx2

from queue_runtime.store import Store
from queue_runtime.task import ArchivedTask, Task
from tests.faults.process import Served, enqueue

CLASSES = ("SleepWorker", "ThreadWorker", "FollowWorker", "FlakyWorker")
PAGE = 1000


class Load(threading.Thread):
    """Enqueues, and leases and completes a class of its own over HTTP, until the server is gone."""

    def __init__(self, served: Served, seed: int) -> None:
        super().__init__()
        self._client = served.client()
        self._random = random.Random(seed)
        self.accepted: list[int] = []
        self.completed: list[int] = []

    def run(self) -> None:
        with self._client:
            while True:
                try:
                    self._step()
                except (httpx2.TransportError, AssertionError):
                    return  # cut off in mid-request: nobody knows, so it is not counted

    def _step(self) -> None:
        data = f'{{"seconds": {self._random.choice((0, 0.01, 0.2))}}}'
        self.accepted += enqueue(self._client, self._random.choice(CLASSES), data, self._random.choice((1, 1, 20)))
        self.accepted += enqueue(self._client, "CalledWorker", "x")
        answer = self._client.post("/api/queue/lease", json={"limit": 2, "taskClasses": ["CalledWorker"]})
        assert answer.status_code == 200
        for task in answer.json()["data"]:
            receipt = {"taskID": task["id"], "duration": 1}
            if self._client.post("/api/queue/complete", json=receipt).status_code == 200:
                self.completed.append(task["id"])


async def everything(store: Store) -> tuple[dict[int, Task], dict[int, ArchivedTask]]:
    """All active and all archived tasks, read while no process works on them."""
    active: dict[int, Task] = {}
    ended: dict[int, ArchivedTask] = {}
    after = None
    while rows := await store.list_active(PAGE, after=after):
        active |= {row.id: row for row in rows}
        after = (rows[-1].priority, rows[-1].id)
    before = None
    while old := await store.list_archived(PAGE, before=before):
        ended |= {row.id: row for row in old}
        before = old[-1].id
    return active, ended


def left(client: httpx2.Client) -> int:
    """Whether tasks of our handlers are active: some of them."""
    answer = client.get("/api/queue/tasks", params={"limit": 1, "taskClass": list(CLASSES)})
    assert answer.status_code == 200, answer.text
    return len(answer.json()["data"])

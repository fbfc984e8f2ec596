"""Everybody who uses Phorge's tables at once, each in a thread: PHP-like enqueuers, consumers and operators, and HTTP
callers. Each counts what it did; the server's own triggers count what went into the archive and out of it."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import pymysql
from pymysql.constants import ER

from tests.phorge_bin import BinWorker
from tests.phorge_php import Child, PermanentFailure, Php, PhpTask, Taskmaster, YieldTask
from tests.phorge_tables import PhorgeTables

AUDIT = """
CREATE OR REPLACE DATABASE audit;
CREATE TABLE audit.moves (task INT NOT NULL, step INT NOT NULL);
CREATE TRIGGER {worker}.audit_in AFTER INSERT ON {worker}.worker_archivetask FOR EACH ROW
    INSERT INTO audit.moves VALUES (NEW.id, 1);
CREATE TRIGGER {worker}.audit_out AFTER DELETE ON {worker}.worker_archivetask FOR EACH ROW
    INSERT INTO audit.moves VALUES (OLD.id, -1)
"""
NO_AUDIT = "DROP TRIGGER {worker}.audit_in; DROP TRIGGER {worker}.audit_out; DROP DATABASE audit"

ANSWER_SECONDS = 70.0
"""How long a caller waits: longer than the server lets a request take."""

CLASSES = ("SleepWorker", "SleepWorker", "SleepWorker", "ThreadWorker", "FollowWorker", "FlakyWorker")


@contextmanager
def audited(phorge: PhorgeTables) -> Iterator[PhorgeTables]:
    """The tables, with every move into the archive and out of it written down by the server itself."""
    phorge.execute(AUDIT.format(worker=phorge.worker))
    yield phorge
    phorge.execute(NO_AUDIT.format(worker=phorge.worker))


def new_task(chance: random.Random) -> tuple[str, str]:
    """Class and data of a short task for the handlers of tests/faults/tasks.py."""
    return chance.choice(CLASSES), f'{{"seconds": {chance.choice((0, 0, 0, 0.01, 0.1, 0.1, 2))}}}'


class Crowd:
    """The threads, what they have counted, and what went wrong in any of them."""

    def __init__(self, phorge: PhorgeTables, clients: Sequence[Callable[[], httpx2.Client]]) -> None:
        self._phorge = phorge
        self._clients = clients
        self._threads: list[threading.Thread] = []
        self.stop_making = threading.Event()
        self.stop_working = threading.Event()
        self.quiet = threading.Lock()
        """held by whoever must not meet another: a lock on a row, and a statement that changes all rows"""
        self.errors: list[BaseException] = []
        self.made: list[int] = []
        self.revived: list[int] = []
        """ids, once for each time that they were brought back; lists, because adding to them is safe in threads"""
        self.done_by_php: list[int] = []
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()

    def start(self, role: Callable[[int], None], number: int) -> None:
        """Start so many threads of a role."""
        for place in range(number):
            thread = threading.Thread(target=self._play, args=(role, place))
            self._threads.append(thread)
            thread.start()

    def _play(self, role: Callable[[int], None], place: int) -> None:
        try:
            role(place)
        except BaseException as error:  # noqa: BLE001  a thread's error is the test's: it is looked at in the end
            self.errors.append(error)

    def join(self) -> None:
        """Wait for all of them."""
        self.stop_making.set()
        self.stop_working.set()
        for thread in self._threads:
            thread.join(30)

    # ---- who makes work

    def php_enqueuer(self, place: int) -> None:
        """Mostly three statements for themselves; now and then a transaction that lasts."""
        chance = random.Random(place)
        with Php(self._phorge) as php:
            while not self.stop_making.wait(chance.uniform(0, 0.08)):
                task_class, data = new_task(chance)
                priority = chance.choice((1000, 2000, 4000))
                if chance.random() < 0.05:
                    with php.transaction():
                        ids = [php.schedule(task_class, data, priority=priority) for _ in range(3)]
                        time.sleep(0.05)  # a web request that goes on for a while, and holds the counter
                else:
                    ids = [php.schedule(task_class, data, priority=priority)]
                self.made += ids

    def http_enqueuer(self, place: int) -> None:
        """One or several tasks in a call."""
        chance = random.Random(100 + place)
        with self._client(place) as client:
            while not self.stop_making.wait(chance.uniform(0, 0.08)):
                task_class, data = new_task(chance)
                task = {"taskClass": task_class, "data": data, "priority": chance.choice((1000, 2000, 4000))}
                if chance.random() < 0.3:
                    self.made += [row["id"] for row in self._post(client, "enqueue-batch", {"tasks": [task] * 3})]
                else:
                    self.made.append(self._post(client, "enqueue", task)["id"])

    # ---- who works

    def consumer(self, place: int) -> None:
        """A native taskmaster. It sleeps when there is nothing, and after a lost race."""
        chance = random.Random(200 + place)

        def work(task: PhpTask) -> list[Child]:
            time.sleep(chance.choice((0, 0, 0.01, 0.1, 1)))
            if task.failure_count == 0 and task.task_class == "FlakyWorker":
                raise RuntimeError("the first run always fails")
            if (luck := chance.random()) < 0.05:
                raise YieldTask(5)
            if luck > 0.98:
                raise PermanentFailure
            return [("SleepWorker", '{"seconds": 0.01}')] if task.task_class == "FollowWorker" else []

        with Taskmaster(self._phorge) as php:
            while not self.stop_working.is_set():
                if not self._through_deadlocks(lambda: php.step(work)):
                    self.stop_working.wait(0.05)
            self.done_by_php += php.archived
            self.counts["php restarts"] += php.restarts

    # ---- who interferes

    def operator(self, place: int) -> None:
        """`bin/worker` in every form, on tasks in every state."""
        chance = random.Random(300 + place)
        with BinWorker(self._phorge) as php:
            while not self.stop_making.wait(chance.uniform(0, 0.1)):
                task_id = self._any(chance)
                match chance.choice(("cancel", "free", "priority", "retry", "retry")):
                    case "cancel":
                        self.counts["cancelled"] += self._through_deadlocks(lambda one=task_id: php.cancel(one))  # type: ignore[misc]
                    case "free":
                        self.counts["freed"] += php.free(task_id)
                    case "priority":
                        self.counts["moved"] += php.set_priority(task_id, chance.choice((1, 2500)))
                    case "retry":
                        if self._through_deadlocks(lambda one=task_id: php.retry(one, repeat=True)):  # type: ignore[misc]
                            self.revived.append(task_id)

    def http_operator(self, place: int) -> None:
        """The same over HTTP."""
        chance = random.Random(400 + place)
        with self._client(place) as client:
            while not self.stop_making.wait(chance.uniform(0, 0.1)):
                ids = sorted({self._any(chance) for _ in range(3)})
                match chance.choice(("cancel", "free", "priority", "retry", "retry")):
                    case "cancel":
                        self._post(client, "cancel", {"taskID": ids[0]})
                    case "free":
                        self._post(client, "free", {"taskIDs": ids})
                    case "priority":
                        self._post(client, "priority", {"taskIDs": ids, "priority": chance.choice((1, 2500))})
                    case "retry":
                        rows = self._post(client, "retry", {"taskIDs": ids, "repeat": True})
                        self.revived += [row["id"] for row in rows]

    def expire_everything(self, seconds: float) -> None:
        """`phd start`, every few seconds until the very end."""
        with Php(self._phorge) as php:
            while not self.stop_working.wait(seconds):
                with self.quiet:
                    self.counts["expired"] += self._through_deadlocks(php.expire_all_leases)

    def lock_a_row(self, _place: int) -> None:
        """Somebody holds the lock of an active row until a hundred other tasks have ended."""
        with Php(self._phorge) as php, Php(self._phorge) as watcher:
            while not self.stop_making.wait(0.5):
                found = watcher.query("SELECT id FROM worker_activetask ORDER BY RAND() LIMIT 1")
                with self.quiet, php.transaction():
                    if not found or not php.query(
                        "SELECT id FROM worker_activetask WHERE id = %s FOR UPDATE", found[0]
                    ):
                        continue
                    aim = self._ended(watcher) + 100
                    until = time.monotonic() + 20
                    while self._ended(watcher) < aim and not self.stop_making.is_set():
                        assert time.monotonic() < until, "one locked row stalls everybody"
                        time.sleep(0.05)
                    self.counts["rows locked"] += 1

    # ---- the inside

    @staticmethod
    def _ended(php: Php) -> int:
        ((number,),) = php.query("SELECT COUNT(*) FROM audit.moves WHERE step = 1")
        return int(number)

    def _client(self, place: int) -> httpx2.Client:
        client = self._clients[place % len(self._clients)]()
        client.timeout = httpx2.Timeout(ANSWER_SECONDS)
        return client

    def _any(self, chance: random.Random) -> int:
        while not self.made:
            time.sleep(0.01)
        return chance.choice(self.made[-300:])

    def _post(self, client: httpx2.Client, route: str, body: Mapping[str, object]) -> Any:
        answer = client.post(f"/api/queue/{route}", json=body)
        self.statuses[answer.status_code] += 1
        return answer.json().get("data", [])

    def _through_deadlocks(self, call: Callable[[], int]) -> int:
        """PHP's connection class tries a statement again that a deadlock has undone."""
        while True:
            try:
                return call()
            except pymysql.OperationalError as error:
                if error.args[0] != ER.LOCK_DEADLOCK:
                    raise
                self.counts["php deadlocks"] += 1

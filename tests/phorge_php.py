"""Phorge's PHP side of the queue, after spec sections 3 to 10: what enqueues, consumes and operates on the same tables
with plain SQL, knows nothing of us, and checks no owner."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

import pymysql
from msgspec import Struct

from tests.phorge_tables import PhorgeTables, Row, Values, connect

LEASE_SECONDS = 7200
RETRY_SECONDS = 300
YIELD_FLOOR = 5
AWAKEN_BACK = 3600
YIELD_OWNER = "(yield)"
DAY = 86400

_pids = count(23_001)


class Php:
    """One PHP process: a connection of its own, in autocommit, with the server's own isolation level."""

    def __init__(self, tables: PhorgeTables) -> None:
        self._connection = connect(tables.server, database=tables.worker)
        self.pid = next(_pids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End of the process. What it had not committed is rolled back."""
        self._connection.close()

    def query(self, statement: str, values: Values = ()) -> list[Row]:
        """The rows of one statement."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def write(self, statement: str, values: Values = ()) -> int:
        """Run one statement; the number of rows that it changed."""
        with closing(self._connection.cursor()) as cursor:
            return int(cursor.execute(statement, values or None))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """As a web request that has one open: everything inside is committed at its end, or not at all."""
        self._connection.begin()
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    # ---- enqueue and awaken, as web requests and workers do

    def schedule(
        self,
        task_class: str,
        data: str = "[]",
        *,
        priority: int = 2000,
        object_phid: str | bytes | None = None,
        container_phid: str | bytes | None = None,
        delay_until: int | None = None,
    ) -> int:
        """Enqueue: three statements, each for itself unless a transaction is open; the id."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute("INSERT INTO worker_taskdata (data) VALUES (%s)", (data,))
            data_id = cursor.lastrowid
            cursor.execute(
                "INSERT INTO lisk_counter (counterName, counterValue) VALUES ('worker_activetask', LAST_INSERT_ID(1))"
                " ON DUPLICATE KEY UPDATE counterValue = LAST_INSERT_ID(counterValue + 1)"
            )
            task_id = int(cursor.lastrowid)
            now = int(time.time())
            cursor.execute(
                "INSERT INTO worker_activetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID,"
                " failureTime, priority, objectPHID, containerPHID, dateCreated, dateModified)"
                " VALUES (%s, %s, NULL, %s, 0, %s, NULL, %s, %s, %s, %s, %s)",
                (task_id, task_class, delay_until, data_id, priority, object_phid, container_phid, now, now),
            )
        return task_id

    def awaken(self, task_ids: Sequence[int]) -> int:
        """Wake yields that never failed."""
        moment = int(time.time()) - AWAKEN_BACK
        return self.write(
            "UPDATE worker_activetask SET leaseExpires = %s WHERE id IN %s AND leaseOwner = '(yield)'"
            " AND leaseExpires > %s AND failureCount = 0",
            (moment, tuple(task_ids), moment),
        )

    # ---- bin/phd, bin/garbage

    def expire_all_leases(self) -> int:
        """`phd start` without --keep-leases: everything in the future is due now, whoever owns it."""
        return self.write(
            "UPDATE worker_activetask SET leaseExpires = UNIX_TIMESTAMP() WHERE leaseExpires > UNIX_TIMESTAMP()"
        )

    def collect_garbage(self, keep: int = 14 * DAY) -> int:
        """The collector `worker.tasks`: archived rows by the date of their creation, and then their payloads."""
        rows = self.query(
            "SELECT id, dataID FROM worker_archivetask WHERE dateCreated < %s ORDER BY id DESC LIMIT 100",
            (int(time.time()) - keep,),
        )
        if rows:
            self.write("DELETE FROM worker_taskdata WHERE id IN %s", (tuple(data_id for _, data_id in rows),))
            self.write("DELETE FROM worker_archivetask WHERE id IN %s", (tuple(task_id for task_id, _ in rows),))
        return len(rows)

    def insert_archived(
        self, task: "PhpTask", owner: str | None, expires: int | None, *, result: int, duration_us: int = 0
    ) -> None:
        """The second half of archiving. Error 1062 where the row is in the archive already."""
        now = int(time.time())
        values: tuple[Any, ...] = (
            task.id,
            task.task_class,
            owner,
            expires,
            task.failure_count,
            task.data_id,
            result,
            duration_us,
            task.priority,
            task.object_phid,
            task.container_phid,
            task.date_created,
            now,
            now,
        )
        self.write(
            "INSERT INTO worker_archivetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID, result,"
            " duration, priority, objectPHID, containerPHID, dateCreated, dateModified, archivedEpoch)"
            f" VALUES ({', '.join(['%s'] * len(values))})",
            values,
        )


class PhpTask(Struct, frozen=True):
    """What a native process knows of a task that it runs: the row as it was when it was leased."""

    id: int
    task_class: str
    lease_owner: str
    lease_expires: int
    failure_count: int
    data_id: int
    priority: int
    object_phid: bytes | None
    container_phid: bytes | None
    date_created: int
    data: str | None


class PermanentFailure(Exception):
    """The worker gives up."""


class YieldTask(Exception):
    """The worker wants to go on later."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"yield for {seconds} s")
        self.seconds = seconds


Child = tuple[str, str]
"""Class and data of a follow-up."""

Work = Callable[[PhpTask], Sequence[Child]]
"""A worker: returns its follow-ups or raises."""


class Taskmaster(Php):
    """A native consumer. It takes one task at a time, of any class."""

    def __init__(self, tables: PhorgeTables, *, lease_seconds: int = LEASE_SECONDS) -> None:
        super().__init__(tables)
        self._lease_seconds = lease_seconds
        self._sequence = 0
        self.archived: list[int] = []
        """ids that it archived as done"""
        self.restarts = 0
        """how often an error ended it; the overseer starts it again"""

    def lease(self, limit: int = 1) -> list[PhpTask]:
        """Two phases, in autocommit; then everything that has this call's owner."""
        self._sequence += 1
        owner = f"{self.pid}:{int(time.time())}:web1:{self._sequence}"
        won = 0
        picked = self.query(
            "SELECT id FROM worker_activetask WHERE leaseOwner IS NULL ORDER BY priority ASC, id ASC LIMIT %s", (limit,)
        )
        if picked:
            won += self.write(
                "UPDATE worker_activetask SET leaseOwner = %s, leaseExpires = UNIX_TIMESTAMP() + %s"
                " WHERE leaseOwner IS NULL AND id IN %s",
                (owner, self._lease_seconds, tuple(task_id for (task_id,) in picked)),
            )
        if won < limit:
            stale = self.query(
                "SELECT id, leaseOwner FROM worker_activetask WHERE leaseExpires < UNIX_TIMESTAMP()"
                " ORDER BY leaseExpires ASC LIMIT %s",
                (limit - won,),
            )
            if stale:
                guards = " OR ".join("(id = %s AND leaseOwner <=> %s)" for _ in stale)
                won += self.write(
                    "UPDATE worker_activetask SET leaseOwner = %s, leaseExpires = UNIX_TIMESTAMP() + %s"
                    f" WHERE {guards}",
                    (owner, self._lease_seconds, *(value for row in stale for value in row)),
                )
        if not won:
            return []
        rows = self.query(
            "SELECT a.id, a.taskClass, a.leaseOwner, a.leaseExpires, a.failureCount, a.dataID, a.priority,"
            " a.objectPHID, a.containerPHID, a.dateCreated, d.data FROM worker_activetask a"
            " LEFT JOIN worker_taskdata d ON d.id = a.dataID"
            " WHERE a.leaseOwner = %s AND a.leaseExpires > UNIX_TIMESTAMP() ORDER BY a.priority, a.id",
            (owner,),
        )
        return [PhpTask(*row) for row in rows]

    def step(self, work: Work) -> bool:
        """Lease a task and run it; whether there was one. A lost race sleeps, as the native pool does, but shorter."""
        tasks = self.lease()
        for task in tasks:
            self.run(task, work)
        return bool(tasks)

    def run(self, task: PhpTask, work: Work) -> None:
        """Run a task to its end. Every error is a temporary failure, also one that archiving meets.

        When the work has outlasted the lease, by its own arithmetic, nothing is written.
        """
        began = time.monotonic()
        try:
            children = work(task)
            if time.monotonic() - began > self._lease_seconds:
                self.restarts += 1
                return
            self.finish(task, began, children)
        except PermanentFailure:
            try:
                self.archive(task, result=1)
            except pymysql.IntegrityError:  # nothing catches this one: the process ends without another word
                self.restarts += 1
        except YieldTask as told:
            self._save(task, YIELD_OWNER, max(told.seconds, YIELD_FLOOR), failed=False)
        except Exception:  # noqa: BLE001  Phorge catches everything here: the failure is counted and the process ends
            self._save(task, task.lease_owner, RETRY_SECONDS, failed=True)
            self.restarts += 1

    def finish(self, task: PhpTask, began: float, children: Sequence[Child] = ()) -> None:
        """Archive it as done, and then enqueue its follow-ups one by one."""
        self.archive(task, result=0, duration_us=round((time.monotonic() - began) * 1e6))
        for task_class, data in children:
            self.schedule(task_class, data, priority=task.priority)

    def archive(self, task: PhpTask, *, result: int, duration_us: int = 0) -> None:
        """One transaction, without a look at the owner. Error 1062 where somebody else has archived it."""
        with self.transaction():
            self.write("DELETE FROM worker_activetask WHERE id = %s", (task.id,))
            self.insert_archived(task, task.lease_owner, task.lease_expires, result=result, duration_us=duration_us)
        if result == 0:
            self.archived.append(task.id)

    def _save(self, task: PhpTask, owner: str, wait: int, *, failed: bool) -> None:
        """Write the row back by its id alone: 0 rows where it is gone, and over whatever anybody else has written."""
        now = int(time.time())
        self.write(
            "UPDATE worker_activetask SET leaseOwner = %s, leaseExpires = %s, failureCount = %s,"
            " failureTime = IF(%s, %s, failureTime), priority = %s, dateModified = %s WHERE id = %s",
            (owner, now + wait, task.failure_count + failed, failed, now, task.priority, now, task.id),
        )

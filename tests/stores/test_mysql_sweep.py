"""The sweep on Phorge's tables: what goes with an ended task, what never goes, and who else may be at work on it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from threading import Timer
from typing import Any

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import SweepReport
from stores import mysql_sweep
from stores.mysql_session import Session, Sessions
from stores.mysql_sweep import Cursor, sweep
from tests.clock import START, Clock
from tests.phorge_tables import PhorgeTables, connect
from tests.stores.mysql_tables import (
    fill_active,
    fill_archived,
    insert,
    insert_archived,
    open_sessions,
    php_enqueue,
    plan,
    rows_read,
    scanned,
)

RETENTION = 100
OVER = START - RETENTION
"""When a task ended whose retention is just over."""


@pytest.fixture
async def sessions(phorge: PhorgeTables, clock: Clock) -> AsyncIterator[Sessions]:
    """Sessions on empty tables, on the test's clock, with a retention."""
    async with open_sessions(phorge.settings(), StoreOptions(now=clock, retention=RETENTION)) as sessions:
        await sessions.play("open", nothing)
        yield sessions


@pytest.fixture
async def keeping(phorge: PhorgeTables, clock: Clock) -> AsyncIterator[Sessions]:
    """The same without one: Phorge's own collector cares for the archive."""
    async with open_sessions(phorge.settings(), StoreOptions(now=clock, retention=None)) as sessions:
        await sessions.play("open", nothing)
        yield sessions


@pytest.fixture
def other(phorge: PhorgeTables) -> Iterator[Any]:
    """A cursor of somebody else's connection."""
    with closing(connect(phorge.server, database=phorge.worker)) as line, line.cursor() as cursor:
        yield cursor


async def nothing(session: Session) -> None:
    """Make the companion: whoever looks at the server first does."""


async def swept(sessions: Sessions, limit: int = 100, cursor: Cursor | None = None) -> SweepReport:
    return await sessions.play("sweep", lambda session: sweep(session, limit, cursor or Cursor()))


def add_extras(phorge: PhorgeTables, task_id: int, *, key: str | None = None, created: int = START) -> None:
    """All that the companion may know of a task."""
    place = {"task_id": task_id, "date_created": created}
    insert(phorge, f"{phorge.companion}.task_extra", place | {"queue": "q", "idempotency_key": key})
    entry = {"attempt": 1, "kind": "retry", "happened": 9, "duration_us": 1, "message": "m", "trace": ""}
    for _ in range(2):
        insert(phorge, f"{phorge.companion}.attempt", place | entry)
    if key is not None:
        insert(phorge, f"{phorge.companion}.idempotency", place | {"idempotency_key": key, "answer": "{}"})


def left(phorge: PhorgeTables) -> dict[str, list[int]]:
    """Ids of tasks that are still found, by table."""
    tables = {
        "active": "SELECT id FROM worker_activetask",
        "archive": "SELECT id FROM worker_archivetask",
        "payload": "SELECT t.id FROM worker_taskdata d JOIN (SELECT id, dataID FROM worker_activetask"
        " UNION ALL SELECT id, dataID FROM worker_archivetask) t ON t.dataID = d.id",
        "extra": f"SELECT task_id FROM {phorge.companion}.task_extra",
        "attempt": f"SELECT DISTINCT task_id FROM {phorge.companion}.attempt",
        "key": f"SELECT task_id FROM {phorge.companion}.idempotency",
    }
    return {name: sorted(row[0] for row in phorge.execute(statement)) for name, statement in tables.items()}


def payloads(phorge: PhorgeTables) -> int:
    return int(phorge.execute("SELECT COUNT(*) FROM worker_taskdata")[0][0])


# ---- retention


async def test_an_ended_task_goes_whole_and_nothing_of_any_other(phorge: PhorgeTables, sessions: Sessions) -> None:
    """The time of its end decides, as the row's last change; rows older than archivedEpoch too."""
    gone = insert_archived(phorge, dateModified=OVER, archivedEpoch=None)
    young = insert_archived(phorge, dateModified=OVER + 1, dateCreated=1)
    alive = php_enqueue(phorge, dateModified=1)
    add_extras(phorge, gone, key="g")
    add_extras(phorge, young, key="y", created=1)
    add_extras(phorge, alive, key="a")
    assert await swept(sessions) == SweepReport(expired=1)
    both = [young, alive]
    assert left(phorge) == {
        "active": [alive],
        "archive": [young],
        "payload": both,
        "extra": both,
        "attempt": both,
        "key": both,
    }
    assert payloads(phorge) == 2


async def test_a_key_that_was_given_to_a_newer_task_stays(phorge: PhorgeTables, sessions: Sessions) -> None:
    gone, alive = insert_archived(phorge, dateModified=OVER), php_enqueue(phorge)
    insert(
        phorge,
        f"{phorge.companion}.task_extra",
        {"task_id": gone, "date_created": START, "idempotency_key": "k"},
    )
    add_extras(phorge, alive, key="k")
    assert (await swept(sessions)).expired == 1
    assert left(phorge)["key"] == [alive]


async def test_without_a_retention_the_archive_is_left_to_phorge(phorge: PhorgeTables, keeping: Sessions) -> None:
    task_id = insert_archived(phorge, dateModified=1, dateCreated=1)
    add_extras(phorge, task_id, key="k", created=1)
    before = left(phorge)
    assert await swept(keeping) == SweepReport()
    assert left(phorge) == before


async def test_a_retention_longer_than_time_keeps_everything(phorge: PhorgeTables) -> None:
    """Numbers of the server's clock have no sign."""
    insert_archived(phorge, dateModified=1)
    async with open_sessions(phorge.settings(), StoreOptions(retention=2**40)) as sessions:
        assert await swept(sessions) == SweepReport()


async def test_a_sweep_keeps_to_its_limit_over_several_transactions(
    phorge: PhorgeTables, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_sweep, "BATCH", 10)
    fill_archived(phorge, 60, dateModified=str(OVER))
    assert await swept(sessions, 25) == SweepReport(expired=25, more=True)
    assert await swept(sessions, 35) == SweepReport(expired=35)
    assert await swept(sessions, 0) == SweepReport()
    assert left(phorge)["archive"] == []


async def test_a_row_that_somebody_has_locked_is_passed_over(
    phorge: PhorgeTables, sessions: Sessions, other: Any
) -> None:
    locked, free = insert_archived(phorge, dateModified=OVER), insert_archived(phorge, dateModified=OVER)
    other.execute("BEGIN")
    other.execute("SELECT * FROM worker_archivetask WHERE id = %s FOR UPDATE", (locked,))
    assert (await swept(sessions)).expired == 1
    other.execute("ROLLBACK")
    assert left(phorge)["archive"] == [locked]
    assert free != locked


async def test_servers_that_cannot_skip_locked_rows_are_swept_too(phorge: PhorgeTables, clock: Clock) -> None:
    insert_archived(phorge, dateModified=OVER)
    options = StoreOptions(now=clock, retention=RETENTION)
    async with open_sessions(phorge.settings(), options, skip_locked=False) as sessions:
        assert await swept(sessions) == SweepReport(expired=1)


async def test_a_task_that_is_active_too_is_left_alone(phorge: PhorgeTables, sessions: Sessions) -> None:
    """An id was given out twice: nobody knows which of them the payload belongs to."""
    both = insert_archived(phorge, dateModified=OVER)
    insert(
        phorge,
        "worker_activetask",
        {
            "id": both,
            "taskClass": "A",
            "failureCount": 0,
            "dataID": 1,
            "priority": 1,
            "dateCreated": START,
            "dateModified": START,
        },
    )
    insert_archived(phorge, dateModified=OVER)
    assert await swept(sessions) == SweepReport(expired=1)
    assert left(phorge)["archive"] == [both]


async def test_a_task_that_bin_worker_brings_back_meanwhile_survives_whole(
    phorge: PhorgeTables, sessions: Sessions, other: Any
) -> None:
    """`retry` inserts the active row, then deletes the archived one, in one transaction."""
    back, gone = insert_archived(phorge, dateModified=OVER), insert_archived(phorge, dateModified=OVER)
    for task_id in (back, gone):
        add_extras(phorge, task_id, key=str(task_id))
    ((payload,),) = phorge.execute("SELECT dataID FROM worker_archivetask WHERE id = %s", (back,))
    other.execute("BEGIN")
    other.execute(
        "INSERT INTO worker_activetask (id, taskClass, leaseExpires, failureCount, dataID, priority,"
        " dateCreated, dateModified) VALUES (%s, 'A', 0, 0, %s, 2000, %s, %s)",
        (back, payload, START, START),
    )

    def finish() -> None:
        other.execute("DELETE FROM worker_archivetask WHERE id = %s", (back,))
        other.execute("COMMIT")

    later = Timer(0.3, finish)
    later.start()
    report = await swept(sessions)
    later.join()
    assert report.expired + (await swept(sessions)).expired == 1
    assert left(phorge) == {
        "active": [back],
        "archive": [],
        "payload": [back],
        "extra": [back],
        "attempt": [back],
        "key": [back],
    }


# ---- what is left behind in the companion


async def test_what_phorge_s_collector_leaves_behind_goes(phorge: PhorgeTables, keeping: Sessions) -> None:
    alive, ended = php_enqueue(phorge), insert_archived(phorge)
    collected, reissued = insert_archived(phorge), php_enqueue(phorge)
    for task_id in (alive, ended, collected):
        add_extras(phorge, task_id, key=str(task_id))
    add_extras(phorge, reissued, key="old", created=START - 1)  # of a former task of that id
    phorge.execute("DELETE FROM worker_archivetask WHERE id = %s", (collected,))
    await swept(keeping)
    found = left(phorge)
    assert found["extra"] == found["attempt"] == found["key"] == [alive, ended]


async def test_the_companion_is_looked_through_stretch_by_stretch_again_and_again(
    phorge: PhorgeTables, keeping: Sessions
) -> None:
    cursor = Cursor()
    kept = [php_enqueue(phorge) for _ in range(25)]
    for task_id in kept:
        add_extras(phorge, task_id, key=str(task_id))
    for lost in (1000, 1001):
        add_extras(phorge, lost, key=f"z{lost}")
    sweeps = 0
    while left(phorge)["extra"] != kept or left(phorge)["attempt"] != kept or left(phorge)["key"] != kept:
        await swept(keeping, 10, cursor)
        sweeps += 1
        assert sweeps < 10
    assert sweeps > 1
    add_extras(phorge, 500, key="0")  # behind all cursors
    for _ in range(10):
        await swept(keeping, 10, cursor)
    found = left(phorge)
    assert found["extra"] == found["attempt"] == found["key"] == kept


async def test_it_goes_on_at_once_where_much_was_left_behind(phorge: PhorgeTables, keeping: Sessions) -> None:
    for task_id in range(1, 11):
        add_extras(phorge, task_id)
    assert (await swept(keeping, 20)).more
    assert left(phorge)["attempt"] == []
    assert not (await swept(keeping, 20)).more


async def test_without_a_companion_only_phorge_s_tables_are_swept(phorge: PhorgeTables, clock: Clock) -> None:
    phorge.execute(f"DROP DATABASE IF EXISTS {phorge.companion}")
    phorge.create_account("plain", "", [f"SELECT, INSERT, UPDATE, DELETE ON `{phorge.worker}`.*"])
    insert_archived(phorge, dateModified=OVER)
    options = StoreOptions(now=clock, retention=RETENTION)
    async with open_sessions(phorge.settings(user="plain"), options) as sessions:
        assert await swept(sessions) == SweepReport(expired=1)
    assert payloads(phorge) == 0


# ---- what it costs


async def test_a_sweep_costs_what_it_deletes_and_a_stretch_of_the_companion(
    phorge: PhorgeTables, sessions: Sessions
) -> None:
    fill_active(phorge, 20_000)
    fill_archived(phorge, 20_000, dateModified=str(OVER))
    phorge.execute("INSERT INTO worker_taskdata SELECT seq, '' FROM seq_1000001_to_1020000")
    fill_extras = f"INSERT INTO {phorge.companion}.task_extra (task_id, date_created) SELECT id, dateCreated FROM "
    phorge.execute(fill_extras + "worker_activetask")
    phorge.execute(fill_extras + "worker_archivetask")
    phorge.execute(
        f"INSERT INTO {phorge.companion}.attempt (task_id, date_created, attempt, kind, happened, duration_us, message,"
        " trace) SELECT id, dateCreated, 1, 'retry', 1, 1, '', '' FROM worker_archivetask;"
        f"INSERT INTO {phorge.companion}.idempotency SELECT id, id, dateCreated, '{{}}' FROM worker_archivetask;"
        f"UPDATE {phorge.companion}.task_extra SET idempotency_key = task_id"
    )

    async def work(session: Session) -> None:
        await sweep(session, 100, Cursor())

    assert await rows_read(sessions, work) < 4000
    assert scanned(await plan(sessions, work)) == []

"""Lanes come with new names and go with their last task, and what a lease costs does not grow with them."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, TaskFilter
from stores.sqlite import SqliteStore, open_store
from stores.sqlite_lane_sweep import LaneSweep
from stores.sqlite_session import Session
from tests.clock import Clock
from tests.stores.backdoor import execute

FULL = 300


@pytest.fixture
async def other(path: Path, store: SqliteStore, clock: Clock) -> AsyncIterator[SqliteStore]:
    """Another process on the same file."""
    async with open_store(path, StoreOptions(now=clock)) as opened:
        yield opened


async def enqueue(store: SqliteStore, *names: str) -> list[int]:
    return [task.id for task in await store.enqueue([NewTask(task_class=name) for name in names])]


async def lease(store: SqliteStore, *names: str) -> list[str]:
    tasks = await store.lease("qr:x:1", 100, 60, classes=frozenset(names) if names else None)
    return sorted(task.task_class for task in tasks)


async def end(store: SqliteStore, ids: list[int]) -> None:
    """End these tasks, and delete them as if their retention were over."""
    await store.cancel(ids)
    await store._writer.call("test", lambda session: session.many("delete_task", [(one,) for one in ids]))


async def sweep(store: SqliteStore, *, many: int = 0) -> int:
    return await LaneSweep(many=many).sweep(store._lister, store._writer)


def names_of(path: Path) -> list[str]:
    return sorted(name for (name,) in execute(path, "SELECT task_class FROM lane"))


async def test_only_lanes_without_a_row_go_and_never_the_newest(path: Path, store: SqliteStore) -> None:
    await enqueue(store, "Ready", "Held", "Waiting", "Parked")
    await lease(store, "Held")
    await store.enqueue([NewTask(task_class="Waiting", delay_until=4_000_000_000)])
    (parked,) = await enqueue(store, "Parked")
    execute(path, "UPDATE task SET owner = 'gorge-failure-pending', expires = 5 WHERE id = ?", (parked,))
    await store.cancel(await enqueue(store, "Archived"))
    await end(store, await enqueue(store, "Gone", "GoneToo", "Newest"))
    assert await sweep(store) == 2
    assert names_of(path) == ["Archived", "Held", "Newest", "Parked", "Ready", "Waiting"]
    assert await sweep(store) == 0


async def test_few_lanes_are_left_alone_and_the_next_look_is_an_hour_later(path: Path, store: SqliteStore) -> None:
    await end(store, await enqueue(store, "A", "B", "C"))
    assert await sweep(store, many=3) == 0
    now = 0.0
    looking = LaneSweep(many=2, clock=lambda: now)
    assert await looking.sweep(store._lister, store._writer) == 2
    await end(store, await enqueue(store, "D", "E"))
    now = 3599.0
    assert await looking.sweep(store._lister, store._writer) == 0
    now = 3600.0
    assert await looking.sweep(store._lister, store._writer) == 2


async def test_the_sweep_of_the_store_takes_them_away(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_lane_sweep", LaneSweep(many=1))
    await end(store, await enqueue(store, "A", "B"))
    await store.sweep(100)
    assert names_of(path) == ["B"]


async def test_a_process_that_knows_a_lane_that_another_took_away_writes_no_row_that_nobody_finds(
    path: Path, store: SqliteStore, other: SqliteStore
) -> None:
    for name in ("A", "Last"):
        await end(store, await enqueue(store, name))
    assert await lease(store, "A") == []  # it knows both lanes now
    assert await sweep(other) == 1
    await enqueue(store, "A")
    await enqueue(store, "B")
    assert await lease(other, "A") == ["A"]
    assert await lease(store, "B") == ["B"]
    assert execute(path, "SELECT count(*) FROM task WHERE lane NOT IN (SELECT id FROM lane)") == [(0,)]


async def test_a_lane_that_got_a_task_since_the_look_stays(store: SqliteStore, other: SqliteStore, path: Path) -> None:
    await end(store, await enqueue(store, "A", "B", "Last"))
    looking = LaneSweep(many=0)
    idle, last_id = await store._lister.call("test", looking._idle)
    await enqueue(other, "A")
    await end(other, await enqueue(other, "B"))  # came and went: nothing is lost with its lane

    def take_away(session: Session) -> int:
        return session.run("delete_lanes", (str(idle), last_id))

    assert await store._writer.call("test", take_away) == 1
    assert names_of(path) == ["A", "Last"]
    assert await lease(store, "A") == ["A"]


async def test_a_number_is_never_given_to_another_pair(path: Path, store: SqliteStore, other: SqliteStore) -> None:
    await end(store, await enqueue(store, "A", "B"))
    assert await lease(other, "B") == []
    await sweep(store)
    await enqueue(store, "C")
    await sweep(store)
    await enqueue(store, "D")
    assert await lease(other, "B") == []
    assert await lease(other, "D") == ["D"]
    numbers = dict(execute(path, "SELECT task_class, id FROM lane"))
    assert numbers["C"] == 3
    assert numbers["D"] == 4


async def test_what_a_rolled_back_round_has_learnt_is_forgotten(store: SqliteStore, other: SqliteStore) -> None:
    await enqueue(store, "A")
    await lease(store, "A")

    def make_learn_and_fail(session: Session) -> None:
        lane = session.lanes.id_of(session, "Gone", "default")
        session.lanes.refresh(session, lane)
        session.lanes.choose(frozenset({"Gone"}), (), None)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store._writer.call("test", make_learn_and_fail)
    await enqueue(other, "Other")  # is given the number
    assert await lease(store, "Gone") == []
    assert await lease(store, "Other") == ["Other"]


async def test_a_new_lane_is_learnt_without_reading_the_others_again(path: Path, store: SqliteStore) -> None:
    """By a lease, by a list, and after a round that was rolled back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO lane (task_class, queue) WITH RECURSIVE one (n) AS"
            " (SELECT 1 UNION ALL SELECT n + 1 FROM one WHERE n < ?) SELECT 'Job' || n, 'default' FROM one",
            (FULL,),
        )
    read: list[int] = []
    for thread in (store._writer, store._lister):
        session = thread._session
        rows = session.rows

        def counting(name: str, values: object = (), *, undecodable: str = "replace", rows=rows):  # type: ignore[no-untyped-def]
            found = rows(name, values, undecodable=undecodable)
            if name == "lanes":
                read.append(len(found))
            return found

        session.rows = counting  # type: ignore[method-assign]
    await lease(store, "Nope")
    await store.list_active(1, where=TaskFilter(classes=frozenset({"Nope"})))
    assert read == [FULL, FULL]
    read.clear()
    for number in range(5):
        await enqueue(store, f"New{number}")
        assert await lease(store, f"New{number}", "Nope") == [f"New{number}"]
        found = await store.list_active(9, where=TaskFilter(classes=frozenset({f"New{number}"})))
        assert [task.task_class for task in found] == [f"New{number}"]
        with pytest.raises(ZeroDivisionError):
            await store._writer.call("test", lambda session: 1 // 0)
    assert read == [1] * 10


async def test_lanes_that_come_and_go_without_an_end_do_not_fill_the_memory_of_other_processes(
    store: SqliteStore, other: SqliteStore
) -> None:
    most = 0
    for number in range(60):
        await end(store, await enqueue(store, *(f"C{number}-{one}" for one in range(100))))
        await sweep(store)
        assert await lease(other, "Nope") == []
        most = max(most, other._writer._session.lanes._count)
    assert most <= 1300

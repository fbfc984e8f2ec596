"""Counts and lists of large files, and the inventory."""

import asyncio
import threading
from pathlib import Path

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, QueueStats, State, TaskFilter
from stores import sqlite_lists, sqlite_session
from stores.sqlite import SqliteStore, open_store
from stores.sqlite_session import Session
from tests.clock import START, Clock
from tests.stores.backdoor import execute


async def test_counts_above_the_bound_are_the_kept_ones_and_say_so(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_lists, "EXACT", 5)
    tasks = await store.enqueue([NewTask(task_class="A")] * 20)
    await store.cancel([task.id for task in tasks[:8]])
    await store.retry([tasks[0].id])
    await store.lease("qr:1", 2, 60)
    execute(path, "UPDATE task SET owner = 'gorge-failure-pending', expires = 1 WHERE id = 20")
    assert await store.stats() == QueueStats(active=12, leased=2, archived=7, failed=0, estimated=True)


async def test_the_kept_counts_follow_every_way_in_and_out(path: Path, clock: Clock) -> None:
    async with open_store(path, StoreOptions(now=clock, retention=60, max_lost=1)) as store:
        tasks = await store.enqueue([NewTask(task_class="A")] * 6)
        await store.enqueue_once("event", NewTask(task_class="A"))
        await store.lease("qr:1", 1, 5, only={tasks[0].id})
        clock.advance(30)
        assert await store.lease("qr:2", 1, 5, only={tasks[0].id}) == []  # archived: lost too often
        await store.cancel([task.id for task in tasks[1:4]])
        await store.retry([tasks[1].id])
        clock.advance(100)
        await store.sweep(10)
    counted = execute(path, "SELECT max(id), sum(result IS NULL), sum(result IS NOT NULL) FROM task")
    assert execute(path, "SELECT last_id, active, archived FROM counter") == [(7, 4, 0)]
    assert counted == [(7, 4, 0)]


async def test_a_read_that_takes_too_long_is_stopped_and_holds_nobody_up(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await store.enqueue([NewTask(task_class="A")] * 1000)
    monkeypatch.setattr(sqlite_session, "READ_SECONDS", -1)
    with pytest.raises(StoreUnavailable, match=r"list_active: .*took too long"):
        await store.list_active(10, where=TaskFilter(object_phid="PHID-NONE"))
    assert len(await store.list_active(10)) == 10


ENDLESS = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT max(i) FROM c"


async def test_readiness_and_reads_by_id_do_not_wait_for_lists(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = await store.enqueue([NewTask(task_class="A")])
    begun, go_on = threading.Event(), threading.Event()

    def read(*_: object) -> list[object]:
        begun.set()
        assert go_on.wait(10)
        return []

    for name in ("list_active", "list_archived", "operations"):
        monkeypatch.setattr(sqlite_lists, name, read)
    slow = [asyncio.ensure_future(one) for one in (store.list_active(1), store.list_archived(1), store.operations())]
    assert await asyncio.to_thread(begun.wait, 10)
    async with asyncio.timeout(10):
        await store.ping()
        assert [found and found.id for found in await store.get([task.id])] == [task.id]
        assert (await store.stats()).active == 1
        assert await store.history([task.id]) == [[]]
    assert not any(one.done() for one in slow)
    go_on.set()
    await asyncio.gather(*slow)


async def test_a_list_that_nobody_waits_for_is_stopped(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def read_for_ever(session: Session, *_: object) -> list[object]:
        begun.set()
        return list(session.connection.execute(ENDLESS))

    monkeypatch.setattr(sqlite_session, "READ_SECONDS", 3600)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_lists, "list_active", read_for_ever)
        calls = [asyncio.ensure_future(store.list_active(1)) for _ in range(10)]
        assert await asyncio.to_thread(begun.wait, 10)
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    async with asyncio.timeout(10):
        assert await store.list_active(1) == []


async def test_held_and_parked_rows_are_listed_without_reading_the_ready_ones(path: Path, store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="A", priority=priority) for priority in (5, 4, 3, 2)])
    await store.lease("qr:1", 2, 60)
    execute(path, "UPDATE task SET owner = 'gorge-failure-pending', expires = 1 WHERE id = 2")
    execute(path, "UPDATE task SET owner = 'somebody', expires = NULL WHERE id = 1")

    async def listed(*states: State) -> list[int]:
        return [task.id for task in await store.list_active(10, where=TaskFilter(states=frozenset(states)))]

    assert await listed(State.LEASED) == [4, 3, 1]
    assert await listed(State.PARKED) == [2]
    assert await listed(State.LEASED, State.PARKED) == [4, 3, 2, 1]
    assert await listed(State.READY) == []


async def test_the_inventory_names_tables_and_sizes_and_no_payloads(path: Path, store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="A", data="secret")] * 3)
    facts = await store.operations()
    assert list(facts)[:3] == ["backend", "snapshot", "generatedEpoch"]
    assert (facts["backend"], facts["snapshot"], facts["generatedEpoch"]) == ("sqlite", "observational", START)
    assert {"table": "task (active)", "state": "observed", "records": 3} in facts["tables"]  # type: ignore[operator]
    assert "secret" not in str(facts)
    assert str(path) not in str(facts)

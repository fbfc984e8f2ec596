"""Payloads byte for byte, large ones, and rows that somebody else wrote."""

from pathlib import Path

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Fail, Failure, Lease, NewTask, Result, Settlement, TaskFilter, Verdict
from stores.sqlite import SqliteStore, open_store
from stores.sqlite_rows import INLINE_DATA
from tests.clock import Clock
from tests.stores.backdoor import execute

ODD = [
    "",
    "0",
    "[]",
    "{}",
    "null",
    "a\0b",
    "\0",
    "é" * 999,
    "\U0001f600",
    "\x01\x1f\x7f\u2028",
    "'; DROP TABLE task;--",
    ":x ?1",
]


@pytest.mark.parametrize("length", [0, INLINE_DATA])
async def test_odd_payloads_come_back_byte_for_byte(store: SqliteStore, length: int) -> None:
    payloads = [text + "~" * length for text in ODD]
    tasks = await store.enqueue([NewTask(task_class="A", data=data) for data in payloads])
    ids = [task.id for task in tasks]
    assert [task and task.data for task in await store.get(ids)] == payloads
    assert [task.data for task in await store.lease("qr:1", 100, 60)] == payloads
    await store.settle([Settlement.held(Lease(task_id, "qr:1"), Complete()) for task_id in ids])
    assert [task and task.data for task in await store.get_archived(ids)] == payloads


async def test_a_payload_of_several_mebibytes_survives_lease_end_and_retry(store: SqliteStore) -> None:
    data = "\0é" * 2**20
    (task,) = await store.enqueue([NewTask(task_class="A", data=data)])
    (leased,) = await store.lease("qr:1", 1, 60)
    assert leased.data == data
    await store.settle([Settlement.held(Lease(task.id, "qr:1"), Fail())])
    await store.retry([task.id])
    (again,) = await store.lease("qr:2", 1, 60)
    assert again.data == data


async def test_a_large_payload_is_not_rewritten_by_a_lease(path: Path, store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="A", data="x" * 2**20)])
    log = path.with_name(path.name + "-wal")
    execute(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    await store.lease("qr:1", 1, 60)
    assert log.stat().st_size < 100_000


async def spoil(path: Path, task_id: int, column: str) -> None:
    execute(path, f"UPDATE task SET {column} = CAST(x'ff41' AS TEXT) WHERE id = ?", (task_id,))


@pytest.mark.parametrize("column", ["data", "object_phid", "idempotency_key"])
async def test_a_row_that_is_not_utf8_fails_alone(path: Path, store: SqliteStore, column: str) -> None:
    tasks = await store.enqueue([NewTask(task_class="A", data=str(number)) for number in range(10)])
    bad = tasks[3].id
    await spoil(path, bad, column)
    leased = await store.lease("qr:1", 10, 60)
    assert [task.data for task in leased] == [str(number) for number in range(10) if number != 3]
    (archived,) = await store.get_archived([bad])
    assert archived is not None
    assert archived.result is Result.FAILURE
    ((entry,),) = await store.history([bad])
    assert "not UTF-8" in entry.message


async def test_a_lease_fills_up_behind_rows_that_are_not_utf8(path: Path, store: SqliteStore) -> None:
    tasks = await store.enqueue([NewTask(task_class="A") for _ in range(6)])
    for task in tasks[:4]:
        await spoil(path, task.id, "data")
    assert [task.id for task in await store.lease("qr:1", 2, 60)] == [task.id for task in tasks[4:]]


async def test_a_task_of_a_class_that_is_not_utf8_fails_alone(path: Path, store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="Bad"), NewTask(task_class="Good")])
    execute(path, "UPDATE lane SET task_class = CAST(x'ff' AS TEXT) WHERE task_class = 'Bad'")
    assert [task.task_class for task in await store.lease("qr:1", 10, 60)] == ["Good"]
    assert [task.result for task in await store.list_archived(10)] == [Result.FAILURE]


async def test_a_large_payload_that_is_missing_or_not_utf8_fails_alone(path: Path, store: SqliteStore) -> None:
    tasks = await store.enqueue([NewTask(task_class="A", data="x" * 5000) for _ in range(3)])
    execute(path, "DELETE FROM payload WHERE task_id = ?", (tasks[0].id,))
    execute(path, "UPDATE payload SET data = CAST(x'ff' AS TEXT) WHERE task_id = ?", (tasks[1].id,))
    assert [task.id for task in await store.lease("qr:1", 10, 60)] == [tasks[2].id]
    assert len(await store.list_archived(10)) == 2


async def test_lists_and_operators_get_along_with_rows_that_are_not_utf8(path: Path, store: SqliteStore) -> None:
    good, bad = await store.enqueue([NewTask(task_class="A", data="g"), NewTask(task_class="A", data="b")])
    await spoil(path, bad.id, "data")
    await spoil(path, bad.id, "object_phid")
    assert [task.object_phid for task in await store.list_active(10)] == [None, "\ufffdA"]
    assert [task and task.data for task in await store.get([good.id, bad.id])] == ["g", "\ufffdA"]
    assert await store.priority([bad.id], 1) == 1
    (cancelled,) = await store.cancel([bad.id])
    assert cancelled is not None
    assert len(await store.list_archived(10)) == 1


async def test_a_message_with_a_lone_surrogate_is_kept_readable(store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="A")])
    (task,) = await store.lease("qr:1", 1, 60)
    (settled,) = await store.settle(
        [Settlement.held(Lease(task.id, "qr:1"), Fail(Failure("file \udcff.txt", "é\udcff")))]
    )
    assert settled.verdict is Verdict.SETTLED
    ((entry,),) = await store.history([task.id])
    assert (entry.message, entry.trace) == ("file \\udcff.txt", "é\\udcff")


async def test_numbers_beyond_any_row_are_answered_and_not_an_error(store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="A")])
    huge = 2**70
    assert await store.get([huge, -1, 0]) == [None, None, None]
    assert await store.cancel([huge]) == [None]
    assert await store.list_active(huge, offset=huge) == []
    assert await store.list_active(10, after=(huge, huge)) == []
    assert len(await store.list_active(huge, after=(-huge, -huge), where=TaskFilter(max_priority=huge))) == 1
    assert await store.list_archived(10, before=-huge, where=TaskFilter(min_failures=huge)) == []
    assert await store.lease("qr:1", 10, 60, only={huge}, without={huge}) == []


async def test_a_payload_is_there_as_soon_as_its_task_is(path: Path, clock: Clock) -> None:
    async with open_store(path, StoreOptions(now=clock)) as store:
        for _ in range(200):
            (task,) = await store.enqueue([NewTask(task_class="A", data="x" * 3000)])
            (found,) = await store.get([task.id])
            assert found is not None
            assert found.data == "x" * 3000

"""Rows behind a remote store that are no text, and odd names: nothing of a batch is spoilt on the line (R086, R087)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from queue_runtime.task import Complete, Lease, Result, Settlement
from tests.stores.remote_house import add, far_store

OWNER = "qr:0badcafe:1:1@test"


@pytest.mark.parametrize("column", ["data", "object_phid"])
async def test_a_row_that_is_no_text_is_archived_and_the_nine_beside_it_arrive(tmp_path: Path, column: str) -> None:
    async with far_store(tmp_path) as far:
        ids = await add(far.store, 10)
        bad = ids[3]
        with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as connection, connection:
            connection.execute(f"UPDATE task SET {column} = CAST(x'ff41' AS TEXT) WHERE id = ?", (bad,))
        shown = {task.id: task for task in await far.store.list_active(20)}
        assert shown.keys() == set(ids)
        assert column == "data" or shown[bad].object_phid == "\ufffdA"
        tasks = await far.store.lease(OWNER, 10, 60)
        assert [task.id for task in tasks] == [task_id for task_id in ids if task_id != bad]
        await far.store.settle([Settlement.held(Lease(task.id, OWNER), Complete()) for task in tasks])
        rows = {row.id: row.result for row in await far.store.list_archived(20)}
        assert rows == {task_id: Result.FAILURE if task_id == bad else Result.SUCCESS for task_id in ids}
        assert "not UTF-8" in (await far.store.history([bad]))[0][0].message


async def test_a_class_that_is_no_text_ends_its_own_task_alone(tmp_path: Path) -> None:
    async with far_store(tmp_path) as far:
        (bad,) = await add(far.store, task_class="Bad")
        (good,) = await add(far.store)
        with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as connection, connection:
            connection.execute("UPDATE lane SET task_class = CAST(x'ff' AS TEXT) WHERE task_class = 'Bad'")
        assert {group.task_class for group in await far.store.backlog()} == {"A", "\ufffd"}
        assert [task.id for task in await far.store.lease(OWNER, 10, 60)] == [good]
        assert [(row.id, row.task_class) for row in await far.store.list_archived(20)] == [(bad, "\ufffd")]

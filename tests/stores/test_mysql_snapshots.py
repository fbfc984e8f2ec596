"""What a statement that locks rows reads beside them is no older than its last lock."""

import asyncio
from contextlib import closing

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask
from stores.mysql import MysqlStore, open_store
from stores.mysql_session import Session
from tests.phorge_tables import PhorgeTables, connect
from tests.stores.phorge_state import eventually


@pytest.mark.parametrize(("waits", "archive"), [("wait_rows", False), ("wait_archived", True)])
async def test_extras_are_those_of_the_moment_at_which_the_last_row_was_locked(
    phorge: PhorgeTables, waits: str, archive: bool
) -> None:
    async with open_store(phorge.settings(), StoreOptions()) as store:
        ids = [row.id for row in await store.enqueue([NewTask(task_class="A", max_attempts=1)] * 3)]
        if archive:
            await store.cancel(ids)
        table = "worker_archivetask" if archive else "worker_activetask"
        with closing(connect(phorge.server, database=phorge.worker)) as rival, rival.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"SELECT id FROM {table} WHERE id = %s FOR UPDATE", (ids[1],))
            read = asyncio.create_task(_read(store, waits, ids))
            await eventually(lambda: _waits(phorge), "it waits for the second row")
            cursor.execute(f"UPDATE `{phorge.companion}`.task_extra SET max_attempts = 9")
            cursor.execute("COMMIT")
        assert await read == [9, 9, 9]


async def _read(store: MysqlStore, statement: str, ids: list[int]) -> list[int]:
    async def work(session: Session) -> list[int]:
        (answer,) = await session.begin(session.fill(statement, ids=ids))
        return [row[-3] for row in answer.rows]

    return await store._sessions.play("read", work)


def _waits(phorge: PhorgeTables) -> bool:
    return bool(
        phorge.execute(
            "SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO LIKE '%FOR UPDATE%' AND ID <> CONNECTION_ID()"
        )
    )


@pytest.mark.parametrize("statement", ["lock_rows", "wait_rows", "lock_archived", "wait_archived"])
async def test_rows_are_locked_before_anything_else_is_read(phorge: PhorgeTables, statement: str) -> None:
    async with open_store(phorge.settings(), StoreOptions()) as store:
        await store.enqueue([NewTask(task_class="A", max_attempts=1)] * 3)

        async def plan(session: Session) -> list[str]:
            (answer,) = await session.trip("EXPLAIN " + session.fill(statement, ids=[1, 2, 3]))
            return [str(row[1]) for row in answer.rows]

        assert "DERIVED" in await store._sessions.play("plan", plan)

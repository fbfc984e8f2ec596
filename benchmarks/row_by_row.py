"""Drains the tables one row at a time, with the store's own statements: `python -m benchmarks.row_by_row CONNECTIONS`.

What the store's batches are compared with. Each connection leases one row and archives one row, each in a transaction
of its own with as few trips as the store needs, until nothing is left. Counts as a handler does.
"""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from benchmarks.payload import Payload
from benchmarks.tally import FOLDER_VARIABLE, Tally
from queue_runtime.compose import options_of
from queue_runtime.config import Config, load_config
from queue_runtime.task import Result
from stores import mysql_driver, mysql_server
from stores.ledger import ended_task
from stores.mysql_driver import Connection, Row
from stores.mysql_head import START
from stores.mysql_ledger import archived_literal
from stores.mysql_rows import ACTIVE_WIDTH, ID, PRIORITY, active_task, phids
from stores.mysql_settings import MysqlSettings
from stores.mysql_text import Sql, Value

LEASE_SECONDS = 20
_DATA = ACTIVE_WIDTH


class RowByRow:
    """One connection's loop."""

    def __init__(self, connection: Connection, config: Config, settings: MysqlSettings) -> None:
        self._connection = connection
        self._options = options_of(config)
        self._statements = mysql_server.statements(settings, self._options, companion=True, skips_locked=True)
        self._time = self._fill("time", now=Sql("UNIX_TIMESTAMP()"))
        self._front = START
        """goes on where it stopped, as the store does"""

    async def run(self, tally: Tally, name: str) -> int:
        """Until a lease finds nothing; how many it was."""
        count = 0
        while (row := await self._lease(f"qr:{name}")) is not None:
            msgspec.json.decode(row[_DATA], type=Payload)
            tally.hit()
            await self._archive(row[ID])
            count += 1
        return count

    async def _lease(self, owner: str) -> Row | None:
        priority, task_id = self._front
        take_ready = self._fill("take_ready", limit=1, without=(0,), front_priority=priority, front_id=task_id)
        _, time, picked = await self._connection.run(f"BEGIN;{self._time};{take_ready}")
        rows = picked.rows
        if not rows:
            await self._connection.run("ROLLBACK")
            if self._front == START:
                return None
            self._front = START
            return await self._lease(owner)
        self._front = (rows[0][PRIORITY], rows[0][ID])
        take = self._fill("take", owner=owner, expires=int(time.rows[0][0]) + LEASE_SECONDS, ids=[rows[0][ID]])
        await self._connection.run(f"{take};COMMIT")
        return rows[0]

    async def _archive(self, task_id: int) -> None:
        lock = self._fill("lock_rows", ids=[task_id])
        _, time, locked = await self._connection.run(f"BEGIN;{self._time};{lock}")
        (row,) = locked.rows
        ended = ended_task(active_task(row, self._options.routes), Result.SUCCESS, 1, int(time.rows[0][0]))
        insert = self._fill("insert_archived", rows=Sql(archived_literal(ended, phids(row))))
        delete = self._fill("delete_active", ids=[task_id], count=1)
        await self._connection.run(f"{insert};{delete};COMMIT")

    def _fill(self, statement: str, **values: Value) -> str:
        return self._statements[statement].fill(values)


async def main(connections: int) -> None:
    """All connections side by side; print how many tasks they drained."""
    config = load_config(os.environ)
    settings = MysqlSettings(
        socket=str(config.mysql_socket), user=config.mysql_user, namespace=config.namespace, driver=config.mysql_driver
    )
    tally = Tally(Path(os.environ[FOLDER_VARIABLE]))
    async with asyncio.TaskGroup() as group:
        runs = []
        for number in range(connections):
            connection = await mysql_driver.connect(settings)
            await connection.run(mysql_server.SESSION)
            runs.append(group.create_task(RowByRow(connection, config, settings).run(tally, str(number))))
    print(sum(run.result() for run in runs))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

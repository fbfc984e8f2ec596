"""Drains the tables by the store's bare statements and nothing else: `python -m benchmarks.bare_sql`.

What our drain on MySQL is compared with: how fast the server is at this work when nobody keeps it waiting. One
connection leases 100 rows at a time and another one archives them, by the statements of the store and in as few trips,
each batch as soon as it is leased. All rows are read and every statement is written before the first one is sent;
replies are read to their end and not decoded.

There is no runtime around it, and it is no queue either: it knows beforehand which rows each lease brings.
"""

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pymysql
from msgspec import Struct
from pymysql.constants import CLIENT, SERVER_STATUS

from benchmarks.tally import FOLDER_VARIABLE, Tally
from queue_runtime.compose import options_of
from queue_runtime.config import Config, load_config
from queue_runtime.task import Result
from stores import mysql_server
from stores.ledger import ended_task
from stores.mysql_head import START
from stores.mysql_ledger import archived_literal
from stores.mysql_rows import ID, PRIORITY, active_task, phids
from stores.mysql_settings import MysqlSettings
from stores.mysql_text import Sql, Value

BATCH = 100
LEASE_SECONDS = 20
TIMEOUT = 30.0

_QUERY = b"\x03"
_OK, _EOF, _ERROR = 0x00, 0xFE, 0xFF
_HEADER, _CHUNK = 4, 2**18

Row = tuple[Any, ...]


class Line:
    """One connection, whose replies are read but not decoded."""

    def __init__(self, config: Config) -> None:
        self._connection = pymysql.connect(
            unix_socket=str(config.mysql_socket),
            user=config.mysql_user,
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
        )
        self._socket = self._connection._sock
        self._socket.settimeout(TIMEOUT)
        self._data = b""
        self._place = 0
        self.run(mysql_server.SESSION)

    def table(self, sql: str) -> Sequence[Row]:
        """The rows of one statement, decoded by the driver."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            rows: Sequence[Row] = cursor.fetchall()
            return rows

    def run(self, sql: str) -> int:
        """Send statements in one trip; how many rows they answered, all together. Raises what the server refused."""
        packet = _QUERY + sql.encode()
        self._socket.sendall(len(packet).to_bytes(3, "little") + b"\0" + packet)
        rows = 0
        while True:
            last = self._packet()
            if last[0] == _OK:
                status = _status_of_ok(last)
            else:  # columns, a mark, rows, a mark
                while not _is_mark(self._packet()):
                    pass
                while not _is_mark(last := self._packet()):
                    rows += 1
                status = int.from_bytes(last[3:5], "little")
            if not status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
                return rows

    def _packet(self) -> bytes:
        size = int.from_bytes(self._read(_HEADER)[:3], "little")
        data = self._read(size)
        if data[0] == _ERROR:
            raise RuntimeError(data.decode(errors="replace"))
        return data

    def _read(self, size: int) -> bytes:
        while len(self._data) - self._place < size:
            more = self._socket.recv(_CHUNK)
            if not more:
                raise ConnectionError("the server has closed the connection")
            self._data, self._place = self._data[self._place :] + more, 0
        self._place += size
        return self._data[self._place - size : self._place]

    def close(self) -> None:
        """Let go."""
        self._connection.close()


def _is_mark(packet: bytes) -> bool:
    return packet[0] == _EOF and len(packet) == 5


def _status_of_ok(packet: bytes) -> int:
    place = 1
    for _ in range(2):  # affected rows and insert id, of one byte or with a mark of their width before them
        place += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(packet[place], 1)
    return int.from_bytes(packet[place : place + 2], "little")


class Batch(Struct, frozen=True):
    """The trips for some rows."""

    size: int
    pick: str
    take: str
    lock: str
    archive: str


def prepared(line: Line, config: Config) -> list[Batch]:
    """All trips that drain the tables."""
    settings = MysqlSettings(socket=str(config.mysql_socket), user=config.mysql_user, namespace=config.namespace)
    options = options_of(config)
    statements = mysql_server.statements(settings, options, companion=True, skips_locked=True)

    def fill(statement: str, **values: Value) -> str:
        return statements[statement].fill(values)

    now, clock = int(line.table("SELECT UNIX_TIMESTAMP()")[0][0]), fill("time", now=Sql("UNIX_TIMESTAMP()"))
    every = range(int(line.table(f"SELECT COUNT(*) FROM `{settings.worker_database}`.worker_activetask")[0][0]) + 1)
    rows = sorted(line.table(fill("see_rows", ids=every)), key=lambda row: (row[PRIORITY], row[ID]))
    batches, front = [], START
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        ids = [row[ID] for row in some]
        pick = fill("take_ready", limit=len(ids), without=(0,), front_priority=front[0], front_id=front[1])
        front = (some[-1][PRIORITY], some[-1][ID])
        take = fill("take", owner=f"qr:bare:{start}", expires=now + LEASE_SECONDS, ids=ids)
        ended = [
            archived_literal(ended_task(active_task(row, options.routes), Result.SUCCESS, 1, now), phids(row))
            for row in some
        ]
        insert = fill("insert_archived", rows=Sql(",".join(ended)))
        delete = fill("delete_active", ids=ids, count=len(ids))
        batches.append(
            Batch(
                len(ids),
                f"BEGIN;{clock};{fill('pauses')};{pick}",
                f"{take};COMMIT",
                f"BEGIN;{clock};{fill('lock_rows', ids=ids)}",
                f"{insert};{delete};COMMIT",
            )
        )
    return batches


def drain(config: Config, batches: Sequence[Batch], tally: Tally) -> int:
    """Lease on one connection and archive on another, side by side; how many were archived."""
    leased: SimpleQueue[Batch | None] = SimpleQueue()
    archived = 0

    def archive() -> None:
        nonlocal archived
        line = Line(config)
        while (batch := leased.get()) is not None:
            archived += line.run(batch.lock) - 1  # the first row is the time
            line.run(batch.archive)
            for _ in range(batch.size):
                tally.hit()
        line.close()

    archiver = threading.Thread(target=archive)
    archiver.start()
    line = Line(config)
    try:
        for batch in batches:
            line.run(batch.pick)
            line.run(batch.take)
            leased.put(batch)
    finally:
        leased.put(None)
        archiver.join()
        line.close()
    return archived


def main() -> None:
    """Drain; print how many were archived."""
    config = load_config(os.environ)
    line = Line(config)
    batches = prepared(line, config)
    line.close()
    archived = drain(config, batches, Tally(Path(os.environ[FOLDER_VARIABLE])))
    print(archived)
    if archived != sum(batch.size for batch in batches):
        sys.exit(f"{archived} archived of {sum(batch.size for batch in batches)}")


if __name__ == "__main__":
    main()

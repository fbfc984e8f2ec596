"""Looks at the SQLite file and at what is around it, for `queue-runtime doctor --store`. Changes nothing."""

import math
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio.to_thread

from queue_runtime.errors import StoreUnusable
from queue_runtime.findings import Finding, fault, note, ok, warning
from stores.sqlite_errors import translate_at_opening
from stores.sqlite_session import APPLICATION_ID, NETWORK, SCHEMA_VERSION, check_surroundings, filesystem_of
from stores.sqltext import load_statements

FREE_BYTES = 256 * 2**20
"""Less room than this is worth a warning: the WAL alone may take 64 MiB."""

WAL_BYTES = 256 * 2**20
"""A WAL beyond this was not cut for long, because somebody reads without end."""

LOOK_SECONDS = 20.0
"""How long one look at the rows may take; a file that is too large for it is left unread."""

_STEPS = 100_000


async def examine(path: Path, *, look_seconds: float = LOOK_SECONDS) -> list[Finding]:
    """Everything that can be said of the file at this path. The process that runs on it need not stop."""
    return await anyio.to_thread.run_sync(lambda: list(_examine(path.absolute(), look_seconds)))


def _examine(path: Path, look_seconds: float) -> Iterator[Finding]:
    try:
        check_surroundings(path)
    except StoreUnusable as error:
        yield fault("file", str(error))
        return
    except OSError as error:
        yield fault("file", f"{path} cannot be used: {error.strerror}")
        return
    yield from _disk(path)
    if not path.exists():
        yield note("file", f"{path} is not there yet; `queue-runtime init` or the first start makes it")
        return
    try:
        with closing(_connect(path, look_seconds)) as connection:
            yield from _content(path, _Reader(connection, look_seconds))
    except sqlite3.Error as error:
        yield fault("file", str(translate_at_opening(error, path)))


def _connect(path: Path, seconds: float) -> sqlite3.Connection:
    # rw, because a read-only connection leaves its side files behind
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=seconds, isolation_level=None)
    connection.execute("PRAGMA query_only=ON")
    return connection


class _Reader:
    """Runs the statements of sql/sqlite_doctor.sql."""

    def __init__(self, connection: sqlite3.Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._until = math.inf
        self._statements = load_statements("sqlite_doctor")
        connection.set_progress_handler(lambda: time.monotonic() > self._until, _STEPS)

    def rows(self, name: str) -> list[Any]:
        """The rows of a statement. Raises sqlite3.Error."""
        return self._connection.execute(self._statements[name]).fetchall()

    def rows_in_time(self, name: str) -> list[Any] | None:
        """The rows of one that reads the whole file; None: it took too long."""
        self._until = time.monotonic() + self._seconds
        try:
            return self.rows(name)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return None
        finally:
            self._until = math.inf

    def snapshot(self) -> None:
        """From now on read one state of the file, whoever writes."""
        self._connection.execute("BEGIN")


def _disk(path: Path) -> Iterator[Finding]:
    filesystem = filesystem_of(path.parent)
    if filesystem in NETWORK:
        yield warning(
            "disk", f"{path.parent} is on a network file system ({filesystem}), where SQLite can lose data: move it"
        )
    free = shutil.disk_usage(path.parent).free
    sentence = f"{path.parent} has {_size(free)} of room"
    yield warning("disk", f"{sentence}: make some") if free < FREE_BYTES else ok("disk", sentence)


def _content(path: Path, reader: _Reader) -> Iterator[Finding]:
    ((application, version, tables),) = reader.rows("identity")
    if application != APPLICATION_ID and (application or version or tables):
        yield fault("file", f"{path} is a database of another program; name another file")
        return
    yield ok("file", f"{path}, {_size(path.stat().st_size)}")
    if version != SCHEMA_VERSION:
        newer = f"schema version {version}, and this release knows {SCHEMA_VERSION}; start the newer release"
        older = f"schema version {version}; the next start brings it to {SCHEMA_VERSION}"
        yield fault("schema", newer) if version > SCHEMA_VERSION else note("schema", older)
        return
    yield ok("schema", f"version {version}")
    yield from _journal(path, reader)
    yield from _integrity(reader)
    yield from _counts(reader)


def _journal(path: Path, reader: _Reader) -> Iterator[Finding]:
    ((mode,),) = reader.rows("journal")
    if mode != "wal":
        yield warning("journal", f"mode {mode}, not wal; the next start turns it on")
        return
    wal = path.with_name(path.name + "-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > WAL_BYTES:
        yield warning("journal", f"{wal.name} has {_size(size)}: some program has been reading the file for very long")
    else:
        yield ok("journal", f"mode wal, {_size(size)}")


def _integrity(reader: _Reader) -> Iterator[Finding]:
    faults = reader.rows_in_time("integrity")
    if faults is None:
        yield note("integrity", "not checked to its end, the file is too large: run PRAGMA quick_check in a quiet hour")
    elif faults == [("ok",)]:
        yield ok("integrity", "SQLite's quick check finds nothing wrong")
    else:
        yield from (fault("integrity", str(text)) for (text,) in faults)


def _counts(reader: _Reader) -> Iterator[Finding]:
    reader.snapshot()
    ((kept_active, kept_archived),) = reader.rows("kept_counts")
    counted = reader.rows_in_time("real_counts")
    if counted is None:
        yield note(
            "counts", f"about {kept_active} active and {kept_archived} archived tasks; too many to count them now"
        )
        return
    ((active, archived, largest, last_id),) = counted
    if (active, archived) == (kept_active, kept_archived):
        yield ok("counts", f"{active} active and {archived} archived tasks, and the kept counts agree")
    else:
        yield warning(
            "counts",
            f"there are {active} active and {archived} archived tasks, and the kept counts say {kept_active} and"
            f" {kept_archived}: figures of large queues are wrong by that much, nothing else is",
        )
    if largest > last_id:
        yield fault("ids", f"a task has id {largest}, and the last id handed out is {last_id}: ids would be used twice")
    orphans = reader.rows_in_time("orphans")
    if orphans and orphans[0][0]:
        yield warning("payloads", f"{orphans[0][0]} large payloads belong to no task and take room")


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"

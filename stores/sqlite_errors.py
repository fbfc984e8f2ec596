"""What SQLite's errors mean for a caller, in one place."""

import errno
import os
import sqlite3
from pathlib import Path
from tempfile import TemporaryFile

from queue_runtime.errors import QueueRuntimeError, StoreFull, StoreUnavailable, StoreUnusable

UNDECODABLE = "Could not decode to UTF-8"
"""How the driver begins its message when text is not UTF-8; such an error has no code of SQLite's."""

_REASONS = {
    sqlite3.SQLITE_BUSY: "another process has held the file for too long",
    sqlite3.SQLITE_LOCKED: "another process has held the file for too long",
    sqlite3.SQLITE_PROTOCOL: "another process has held the file for too long",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it from a copy or run SQLite's .recover",
    sqlite3.SQLITE_NOTADB: "the file is not an SQLite database any more",
    sqlite3.SQLITE_READONLY: "the file or its folder has become read-only, or the file was replaced",
    sqlite3.SQLITE_PERM: "the file or its folder may not be written any more",
    sqlite3.SQLITE_CANTOPEN: "the file or one of its side files (-wal, -shm) cannot be opened",
    sqlite3.SQLITE_INTERRUPT: "it took too long and was stopped",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_IOERR: "the disk reported an error",
}
_FULL = "no room left on the disk"
_ROOM = 64 * 1024


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's error code without its details; None where the error is the driver's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def is_undecodable(error: sqlite3.Error) -> bool:
    """Whether a text cell was not UTF-8."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith(UNDECODABLE)


def translate(error: sqlite3.Error, operation: str, path: Path) -> QueueRuntimeError | None:
    """The error of the house that this one means; None: it is a fault of our own and should be seen as it is."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path)):
        return StoreFull(operation, f"{path}: {_FULL}")
    if code in _REASONS:
        return StoreUnavailable(operation, f"{path}: {_REASONS[code]} ({_name(error)})")
    return None


def translate_at_opening(error: sqlite3.Error, path: Path) -> QueueRuntimeError:
    """The same for the start, where waiting helps only against another process."""
    known = translate(error, "open", path)
    if primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL} and known:
        return known
    if primary_code(error) == sqlite3.SQLITE_NOTADB:
        return StoreUnusable(f"{path} is not an SQLite database; move it away or name another file")
    return StoreUnusable(str(known.reason if isinstance(known, StoreUnavailable) else f"{path}: {error}"))


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", "")) or type(error).__name__


def _is_full(path: Path) -> bool:
    """Whether there is no room: it is tried, because the free space of a disk says nothing about a quota on it."""
    try:
        with TemporaryFile(dir=path.parent) as file:
            file.write(bytes(_ROOM))
            file.flush()
            os.fsync(file.fileno())  # some file systems look at their room this late
    except OSError as error:
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    return False

"""One connection to the file: opens and checks it, and runs the named statements."""

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from random import uniform
from typing import Literal, TypeVar

import structlog

from queue_runtime.errors import StoreUnusable
from queue_runtime.store import StoreOptions
from stores.sqlite_errors import is_undecodable, primary_code, translate_at_opening
from stores.sqlite_lanes import Lanes
from stores.sqlite_rows import Row
from stores.sqltext import load_statements

T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL"]

SCHEMA_VERSION = 1
APPLICATION_ID = 0x71720001
"""Marks a file as ours (`qr`), so that somebody else's database is never written to."""

BUSY_SECONDS = 5.0
"""How long a write waits for another process before it gives up."""

READ_SECONDS = 10.0
"""How long one read may take, so that a list nobody waits for any more cannot hold up the others."""

_OLDEST_SQLITE = (3, 37, 0)
_STEPS = 200_000
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs"})

_log = structlog.get_logger()


class Session:
    """A connection with its statements. Used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, path: Path, options: StoreOptions) -> None:
        self.connection = connection
        self.path = path
        self.options = options
        self.statements = load_statements("sqlite")
        self.lanes = Lanes()
        self.undecodable = False
        """whether the last `rows` met text that is not UTF-8"""
        self._now = options.now
        self.unwanted: Callable[[], bool] = lambda: False
        """whether nobody waits for what is read now"""
        self._until = 0.0
        # the side files are made by the first look, where the file is a copy that was made without them
        patiently(lambda: connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall())
        main = os.path.realpath(path)  # SQLite follows links before it names them
        self._files = [(file, _identity(file)) for file in (str(path), f"{main}-wal", f"{main}-shm")]

    def now(self) -> int:
        """The store's time."""
        return int(time.time()) if self._now is None else self._now()

    def displaced(self) -> str | None:
        """Why these are not the files of their paths any more; None: they are. What is written here is lost otherwise.

        The side files (-wal, -shm) too: SQLite takes them away only when the last connection closes, and no other
        program can while this one is open.
        """
        for file, identity in self._files:
            try:
                found = _identity(file)
            except OSError as error:
                return f"{file}: the file was removed ({error.strerror}); restart the process"
            if found != identity:
                return f"{file}: the file was replaced; restart the process"
        return None

    def rows(self, name: str, values: object = (), *, undecodable: str = "replace") -> list[Row]:
        """All rows of a statement. Text that is not UTF-8 is decoded as `undecodable` says (an error handler)."""
        statement = self.statements[name]
        self.undecodable = False
        try:
            return self.connection.execute(statement, values).fetchall()  # type: ignore[arg-type]
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
        self.undecodable = True
        self.connection.text_factory = lambda raw: raw.decode(errors=undecodable)
        try:
            return self.connection.execute(statement, values).fetchall()  # type: ignore[arg-type]
        finally:
            self.connection.text_factory = str

    def row(self, name: str, values: object = ()) -> Row | None:
        """The one row of a statement, if there is one."""
        found = self.rows(name, values)
        return found[0] if found else None

    def run(self, name: str, values: object = ()) -> int:
        """Run a statement without rows; how many rows it changed."""
        return self.connection.execute(self.statements[name], values).rowcount  # type: ignore[arg-type]

    def many(self, name: str, values: Iterable[Collection[object]]) -> None:
        """Run a statement for each of these."""
        self.connection.executemany(self.statements[name], values)  # type: ignore[arg-type]

    def begin(self) -> None:
        """Take the write lock."""
        self.rollback()  # where an earlier one failed
        self.lanes.begin()
        patiently(lambda: self.connection.execute("BEGIN IMMEDIATE"))

    def rollback(self) -> None:
        """End the transaction, if SQLite has not done so by itself."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def begin_reading(self) -> None:
        """Begin a snapshot that may be used for READ_SECONDS."""
        self._until = time.monotonic() + READ_SECONDS
        self.rollback()  # where an earlier one failed
        self.lanes.begin()
        self.connection.execute("BEGIN")

    def limit_reading(self) -> None:
        """From now on stop statements that run beyond the time of `begin_reading`, or that are unwanted."""
        self.connection.set_progress_handler(lambda: self.unwanted() or time.monotonic() > self._until, _STEPS)


def _identity(file: str) -> tuple[int, int]:
    found = os.stat(file)  # noqa: PTH116  asked twice in every round, and a Path takes three times as long
    return found.st_dev, found.st_ino


def patiently(call: Callable[[], T]) -> T:
    """Call again while another process holds the file, for up to BUSY_SECONDS.

    In steps of about a millisecond: SQLite's own wait grows to 100 ms, and two busy processes would starve each other.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(uniform(0.0002, 0.002))


def open_sessions(path: Path, options: StoreOptions, synchronous: Synchronous) -> tuple[Session, Session]:
    """Open the file, make its tables where they are missing, and return a session that writes and one that reads."""
    path = path.absolute()
    try:
        check_surroundings(path)
    except OSError as error:  # a name that is too long, a folder that may not even be looked at
        raise StoreUnusable(f"{path} cannot be used: {error.strerror}") from error
    if options.read_only and not path.exists():
        raise StoreUnusable(f"{path} does not exist, and a process that only reads makes none")
    opened: list[sqlite3.Connection] = []
    try:
        writer = _connect(path)
        opened.append(writer)
        _prepare(writer, path)
        if options.read_only:
            writer.execute("PRAGMA query_only=ON")
        writer.execute(f"PRAGMA synchronous={synchronous}")
        writer.execute("PRAGMA cache_size=-32000")
        writer.execute("PRAGMA busy_timeout=0")  # see patiently
        writing = Session(writer, path, options)
        reading = _open_reading(path, options)
    except sqlite3.Error as error:
        _close(opened)
        raise translate_at_opening(error, path) from error
    except BaseException:
        _close(opened)
        raise
    return writing, reading


def open_reading(path: Path, options: StoreOptions) -> Session:
    """Another session that reads, for a file that `open_sessions` has opened. Raises StoreUnusable."""
    path = path.absolute()
    try:
        return _open_reading(path, options)
    except sqlite3.Error as error:
        raise translate_at_opening(error, path) from error


def _open_reading(path: Path, options: StoreOptions) -> Session:
    connection = _connect(path)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA cache_size=-8000")
        session = Session(connection, path, options)
    except BaseException:
        connection.close()
        raise
    session.limit_reading()
    return session


def _close(connections: Iterable[sqlite3.Connection]) -> None:
    for connection in connections:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA journal_size_limit=67108864")  # a WAL that a burst has grown is cut again
    return connection


def check_surroundings(path: Path) -> None:
    """Raise StoreUnusable where no file could work here; OSError where not even that can be found out."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreUnusable(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or newer is needed")
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnusable(f"the folder {folder} for {path.name} does not exist; make it, or name another file")
    if path.is_dir():
        raise StoreUnusable(f"{path} is a folder; name a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnusable(
            f"the folder {folder} is not writable for this user,"
            f" and SQLite keeps side files (-wal, -shm) beside {path.name}"
        )
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnusable(f"{path} is not writable for this user")
    filesystem = filesystem_of(folder)
    if filesystem in NETWORK:
        _log.warning(
            "SQLite on a network file system can lose data; use a local disk, or another store",
            path=str(path),
            filesystem=filesystem,
        )


def filesystem_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of the file system a folder is on, where the kernel tells."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place = folder.resolve()
    best, filesystem = -1, None
    for line in lines:
        left, _, right = line.partition(" - ")
        point = Path(left.split(" ")[4].encode().decode("unicode_escape"))
        # Of two mounts on one point the later one is on top.
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, filesystem = len(point.parts), right.split(" ")[0]
    return filesystem


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # another process may be making the tables just now
    application, version, tables = (
        connection.execute(question).fetchone()[0]
        for question in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    connection.execute("ROLLBACK")
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreUnusable(f"{path} is a database of another program; name another file")
    if version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path} has schema version {version}, this release knows {SCHEMA_VERSION}; start the newer release"
        )
    _use_wal(connection, path)
    if version < SCHEMA_VERSION:
        schema = load_statements("sqlite")["schema"]
        connection.executescript(
            f"BEGIN IMMEDIATE; {schema}; PRAGMA application_id={APPLICATION_ID};"
            f" PRAGMA user_version={SCHEMA_VERSION}; COMMIT"
        )


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    # The change of mode does not wait for other processes by itself.
    (mode,) = patiently(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone())
    if mode != "wal":
        raise StoreUnusable(f"{path}: this file system does not allow SQLite's WAL mode ({mode}); use a local disk")

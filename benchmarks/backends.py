"""The stores under test: where the queue of a measurement lives, always empty at first and on a real disk."""

import contextlib
import pwd
import shutil
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct
from redis import Redis

from benchmarks.processes import cpu_seconds
from benchmarks.sample import OURS
from tests.phorge_tables import PhorgeTables
from tests.servers import MariaDb, RedisServer, Server

S = TypeVar("S", bound=Server)

BUFFER_POOL = "1G"
"""What Phorge asks of whoever installs it is more; the default of 128 MB would not hold a backlog of a million."""

MARIADB = (
    "--innodb-flush-method=O_DIRECT",
    f"--innodb-buffer-pool-size={BUFFER_POOL}",
    "--innodb-log-file-size=512M",
)
"""What differs from the tests' server. A commit is on disk when it is answered, as by default."""

REDIS = ("--appendonly", "yes", "--appendfsync", "everysec")
"""A crash of the machine may take the last second; without a file of its own Redis would lose everything."""


class Backend(Protocol):
    """One store."""

    name: str

    def fresh(self, folder: Path) -> Mapping[str, str]:
        """Settings that lead to an empty queue; what the last measurement left is gone."""

    def cpu_seconds(self) -> float | None:
        """CPU that the database server has used so far; None where there is none."""


class Subject(Struct, frozen=True):
    """What is measured: a store, with settings, under the name that the report has for it."""

    backend: Backend
    contender: str = OURS
    settings: Mapping[str, str] = {}


class SqliteFiles:
    """A file for each measurement."""

    name = "sqlite"

    def fresh(self, folder: Path) -> Mapping[str, str]:
        return {"SQLITE_PATH": str(folder / "queue.sqlite")}

    def cpu_seconds(self) -> float | None:
        return None


class MariaDbTables:
    """Phorge's tables under a namespace for each measurement, on one server."""

    name = "mysql"

    def __init__(self, server: MariaDb) -> None:
        self._server = server
        self._numbers = count(1)
        self.tables: PhorgeTables | None = None

    def fresh(self, folder: Path) -> Mapping[str, str]:
        if self.tables is not None:
            self.tables.drop()
            self.tables.close()
        self.tables = PhorgeTables(self._server, f"bench{next(self._numbers)}")
        return {
            "MYSQL_SOCKET": self._server.socket,
            "MYSQL_USER": self._server.user,
            "NAMESPACE": self.tables.namespace,
        }

    def cpu_seconds(self) -> float | None:
        return cpu_seconds(self._server.pid)


class StreamsOverMysql(MariaDbTables):
    """Those tables as the record, and a Redis for the dispatch, which writes nothing to disk: all in it may be lost."""

    name = "streams"

    def __init__(self, server: MariaDb, redis: RedisServer) -> None:
        super().__init__(server)
        self._redis = redis

    def fresh(self, folder: Path) -> Mapping[str, str]:
        with Redis(host=self._redis.host, port=self._redis.port) as client:
            client.flushdb()
        return {**super().fresh(folder), "RECORD": "mysql", "REDIS_URL": self._redis.url}

    def cpu_seconds(self) -> float | None:
        return cpu_seconds(self._server.pid) + cpu_seconds(self._redis.pid)


class RecordAlone:
    """The record of the streams without them, for a comparison in one run."""

    name = "mysql"

    def __init__(self, streams: Backend) -> None:
        self.streams = streams

    def fresh(self, folder: Path) -> Mapping[str, str]:
        settings = self.streams.fresh(folder)
        return {name: value for name, value in settings.items() if name not in {"RECORD", "REDIS_URL"}}

    def cpu_seconds(self) -> float | None:
        return self.streams.cpu_seconds()


def questions(backend: Backend) -> int | None:
    """Statements that MariaDB has been sent so far; None on another store."""
    if isinstance(backend, RecordAlone):
        return questions(backend.streams)
    if not isinstance(backend, MariaDbTables) or backend.tables is None:
        return None
    ((_, number),) = backend.tables.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
    return int(number)


class RedisKeys:
    """Database 0 of one server; peers that are measured beside it use others."""

    name = "redis"

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.port = server.port

    def fresh(self, folder: Path) -> Mapping[str, str]:
        with Redis(host=self._server.host, port=self.port) as client:
            client.flushdb()
        return {"REDIS_URL": self._server.url}

    def cpu_seconds(self) -> float | None:
        return cpu_seconds(self._server.pid)


@contextlib.contextmanager
def open_backend(store: str, folder: Path) -> Iterator[Backend]:
    """The store of this name; its server, if it has one, keeps everything in the folder."""
    match store:
        case "mysql":
            with _in_folder(MariaDb(*MARIADB, durable=True), folder / "mariadb") as server:
                yield MariaDbTables(server)
        case "streams":
            with (
                _in_folder(MariaDb(*MARIADB, durable=True), folder / "mariadb") as server,
                RedisServer() as dispatch,
            ):
                yield StreamsOverMysql(server, dispatch)
        case "redis":
            with _in_folder(RedisServer(*REDIS), folder / "redis-store") as server:
                yield RedisKeys(server)
        case _:
            yield SqliteFiles()


def _in_folder(server: S, folder: Path) -> S:
    """The tests keep their servers in memory, where a commit costs nothing: this one goes to the disk."""
    account = pwd.getpwuid(server.folder.stat().st_uid).pw_name
    server.folder.rmdir()
    folder.parent.chmod(0o755)  # the server runs under an account of its own
    folder.mkdir()
    shutil.chown(folder, account)
    server.folder = folder
    server.socket = str(folder / "socket")
    return server

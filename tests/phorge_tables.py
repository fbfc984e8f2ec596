"""Phorge's queue database on a test's server: its tables, a way past every store, and a quick emptying."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql
from pymysql.constants import CLIENT, ER

from stores.mysql_settings import MysqlSettings
from tests.servers import MariaDb

DDL = Path(__file__).with_name("sql") / "phorge_worker.sql"
TABLES = ("worker_activetask", "worker_archivetask", "worker_taskdata", "lisk_counter")
KEPT = frozenset({"meta"})
"""Tables of the companion that emptying leaves alone: without them it would not be a companion any more."""

Row = tuple[Any, ...]
Values = Sequence[object]


def connect(
    server: MariaDb, *, user: str = "root", password: str = "", database: str | None = None, tcp: bool = False
) -> Any:
    """A PyMySQL connection in autocommit that may send several statements at once."""
    return pymysql.connect(
        host=server.host,
        port=server.port,
        unix_socket=None if tcp else server.socket,
        user=user,
        password=password,
        database=database,
        charset="utf8mb4",
        autocommit=True,
        client_flag=CLIENT.MULTI_STATEMENTS,
    )


class PhorgeTables:
    """`{namespace}_worker`, created at once, and one connection of root to it.

    A test that needs more connections opens its own: `connect(server, database=tables.worker)`.
    """

    def __init__(self, server: MariaDb, namespace: str = "phabricator") -> None:
        self.server = server
        self.namespace = namespace
        self.worker = f"{namespace}_worker"
        self.companion = f"{namespace}_queue_runtime"
        self._connection = connect(server)
        self.execute(f"CREATE DATABASE `{self.worker}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        self._connection.select_db(self.worker)
        self.execute(DDL.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.drop()
        self.close()

    def close(self) -> None:
        """Close the connection; the databases stay."""
        with suppress(pymysql.Error):  # the server may be gone
            self._connection.close()

    def drop(self) -> None:
        """Remove both databases."""
        for database in (self.worker, self.companion):
            self.execute(f"DROP DATABASE IF EXISTS `{database}`")

    def settings(self, **changes: Any) -> MysqlSettings:
        """How a store reaches these tables: by the socket, as root."""
        usual: dict[str, Any] = {
            "socket": self.server.socket,
            "host": self.server.host,
            "port": self.server.port,
            "user": self.server.user,
            "password": self.server.password,
            "namespace": self.namespace,
        }
        return MysqlSettings(**(usual | changes))

    def execute(self, statements: str, values: Values = ()) -> list[Row]:
        """Run one statement or several, committed; the rows of the last one."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statements, values or None)
            rows = cursor.fetchall()
            while cursor.nextset():
                rows = cursor.fetchall()
        return list(rows)

    def empty(self) -> None:
        """As if nothing had ever been enqueued, but for the payloads' AUTO_INCREMENT, which goes on."""
        tables = [f"`{self.worker}`.`{name}`" for name in TABLES]
        tables += [f"`{self.companion}`.`{name}`" for name in self._companion_tables() if name not in KEPT]
        counts = self.execute("SELECT " + ", ".join(f"EXISTS (SELECT 1 FROM {table})" for table in tables))[0]
        full = [table for table, is_full in zip(tables, counts, strict=True) if is_full]
        if full:
            self.execute("; ".join(["BEGIN", *(f"DELETE FROM {table}" for table in full), "COMMIT"]))

    def _companion_tables(self) -> list[str]:
        try:
            return [name for (name,) in self.execute(f"SHOW TABLES FROM `{self.companion}`")]
        except pymysql.Error as error:
            if error.args[0] != ER.BAD_DB_ERROR:
                raise
            return []

    def create_account(self, name: str, password: str, grants: Sequence[str] = ()) -> None:
        """An account with these rights and no others, such as "SELECT, INSERT ON `phabricator_worker`.*"."""
        self.execute("CREATE OR REPLACE USER %s@localhost IDENTIFIED BY %s", (name, password))
        for grant in grants:
            self.execute(f"GRANT {grant} TO %s@localhost", (name,))

"""How to reach the MySQL or MariaDB server that holds Phorge's queue."""

import re
from pathlib import Path
from typing import Literal

from msgspec import Struct

from queue_runtime.errors import InvalidRequest

DriverName = Literal["aiomysql", "asyncmy"]

_NAMESPACE = re.compile(r"\w{1,48}", re.ASCII)


class MysqlSettings(Struct, frozen=True, kw_only=True):
    """Address, account and namespace.

    `socket` (a path) wins over host and port. `tls_ca` turns TLS on and names the file of the authorities to trust.
    `namespace` is Phorge's `storage.default-namespace`: the queue lives in `{namespace}_worker`, the extras in
    `{namespace}_queue_runtime`. `connections` bounds what this process opens, so that Phorge keeps its room.
    """

    host: str = "127.0.0.1"
    port: int = 3306
    socket: str | None = None
    user: str = "root"
    password: str = ""
    namespace: str = "phabricator"
    tls_ca: Path | None = None
    connections: int = 8
    connect_seconds: float = 5.0
    driver: DriverName = "aiomysql"

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise InvalidRequest("namespace", "must be letters, digits and _, at most 48 of them")

    @property
    def worker_database(self) -> str:
        """Phorge's own database."""
        return f"{self.namespace}_worker"

    @property
    def companion_database(self) -> str:
        """The database of what has no column in Phorge's tables."""
        return f"{self.namespace}_queue_runtime"

    @property
    def address(self) -> str:
        """Where the server is, for messages."""
        return self.socket or f"{self.host}:{self.port}"

"""What a server can do and which tables are there: looked at when a connection opens after a failure, not per call."""

import re
from collections.abc import Mapping

import structlog
from msgspec import Struct

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from stores import mysql_companion
from stores.mysql_driver import Connection
from stores.mysql_settings import MysqlSettings
from stores.mysql_text import Statement, literal
from stores.sqltext import load_statements

LOCK_WAIT = 5
"""Seconds for which a statement waits for a row that somebody else has locked."""

IDLE_SESSION = 90
"""Seconds after which the server ends an idle connection of ours. The pool does so earlier."""

IDLE_TRANSACTION = 15
"""Seconds after which MariaDB ends a connection of ours that is idle in the middle of a transaction."""

WORKER_TABLES = frozenset({"worker_activetask", "worker_archivetask", "worker_taskdata", "lisk_counter"})
INBOX = "worker_gorgeinbox"

SESSION = (
    # whatever the server was told to do with the character set of a handshake, or by init_connect
    "SET NAMES utf8mb4; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; "
    # strict, as Phorge expects; and without NO_BACKSLASH_ESCAPES, which our escaping relies on
    f"SET SESSION sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = {LOCK_WAIT}"
    ", autocommit = 1, completion_type = 0, sql_select_limit = DEFAULT, sql_safe_updates = 0"
    # of a host that is gone without a word the server frees the rows soon
    f", wait_timeout = {IDLE_SESSION} /*M!100300 , idle_transaction_timeout = {IDLE_TRANSACTION} */"
)
"""What every session of ours is set to."""

SHADOW_SESSION = SESSION.replace("READ WRITE", "READ ONLY")
"""The same where nothing may be written: the server itself refuses it then."""

_FACTS = "SELECT VERSION(), @@max_allowed_packet, @@version_comment, @@GLOBAL.read_only, @@GLOBAL.innodb_read_only"

_log = structlog.get_logger()


class Server(Struct, frozen=True, kw_only=True):
    """Facts of one look at the server."""

    version: str
    is_mariadb: bool
    skips_locked: bool
    packet: int
    """max_allowed_packet, bytes"""

    companion: bool
    """whether the extras have a place"""

    read_only: bool
    """whether it takes writes from nobody but its administrators, as one that is a replica now"""

    inbox: bool
    """whether event receipts of the Go service are there (`worker_gorgeinbox`); then ours go there too"""

    worker_database: str
    companion_database: str
    statements: Mapping[str, Statement]


async def look(
    connection: Connection, settings: MysqlSettings, options: StoreOptions, *, skip_locked: bool, make: bool = True
) -> Server:
    """Look at the server behind a new connection. Raises StoreUnavailable where the queue's tables are not there.

    `make`: a companion that is missing is made.
    """
    (facts,) = (await connection.run(_FACTS))[0].rows
    version = str(facts[0])
    tables = await found_tables(connection, settings)
    read_only = any(str(fact) not in {"0", "OFF"} for fact in facts[3:])
    make = make and not (options.read_only or read_only)
    companion = await mysql_companion.prepare(connection, settings, make=make)
    skips_locked = skip_locked and can_skip_locked(version)
    filled = statements(settings, options, companion=companion, skips_locked=skips_locked)
    if not (options.read_only or read_only):
        await _lift_counter(connection, filled)
    if not skips_locked:
        _log.info("the server cannot skip locked rows: leases read first and lock then", version=version)
    return Server(
        version=version,
        is_mariadb="mariadb" in version.lower() or "mariadb" in str(facts[2]).lower(),
        skips_locked=skips_locked,
        packet=int(facts[1]),
        companion=companion,
        read_only=read_only,
        inbox=INBOX in tables,
        worker_database=settings.worker_database,
        companion_database=settings.companion_database,
        statements=filled,
    )


async def _lift_counter(connection: Connection, filled: Mapping[str, Statement]) -> None:
    """Move the id counter past every id in use: a restored backup may have left it behind."""
    (behind,) = await connection.run(filled["counter_behind"].fill({}))
    if behind.rows:
        await connection.run(filled["lift_counter"].fill({}))
        _log.warning("the id counter was behind the tables and has been moved past them", highest_id=behind.rows[0][0])


async def found_tables(connection: Connection, settings: MysqlSettings) -> set[str]:
    database = settings.worker_database
    (answer,) = await connection.run(
        f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = {literal(database)}"
    )
    tables = {str(name) for (name,) in answer.rows}
    if missing := WORKER_TABLES - tables:
        raise StoreUnavailable("open", await _what_is_missing(connection, settings, missing, absent=not tables))
    return tables


async def _what_is_missing(
    connection: Connection, settings: MysqlSettings, missing: set[str] | frozenset[str], *, absent: bool
) -> str:
    database = settings.worker_database
    if not absent:
        return f"{settings.address}: the database {database} has no table {', '.join(sorted(missing))}"
    (answer,) = await connection.run(
        "SELECT DISTINCT TABLE_SCHEMA FROM information_schema.TABLES WHERE TABLE_NAME = 'worker_activetask'"
    )
    (empty,) = await connection.run(
        f"SELECT COUNT(*) FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = {literal(database)}"
    )
    if empty.rows[0][0]:
        return f"{settings.address}: the database {database} has no table yet that this account may see"
    others = sorted(str(name).removesuffix("_worker") for (name,) in answer.rows)
    hint = (
        f"; queues of other namespaces are there: {', '.join(others)} (set QUEUE_RUNTIME_NAMESPACE)" if others else ""
    )
    return f"{settings.address}: there is no database {database} that this account may see{hint}"


def can_skip_locked(version: str) -> bool:
    """MariaDB from 10.6, MySQL from 8.0.1."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)-MariaDB", version, re.IGNORECASE)
    if found:
        return (int(found[1]), int(found[2])) >= (10, 6)
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2]), int(found[3])) >= (8, 0, 1)


def statements(
    settings: MysqlSettings, options: StoreOptions, *, companion: bool, skips_locked: bool
) -> dict[str, Statement]:
    """All statements, for this server."""
    fragments = {
        "worker": f"`{settings.worker_database}`",
        "companion": f"`{settings.companion_database}`",
        "skip_locked": "SKIP LOCKED" if skips_locked else "",
        "nowait": "NOWAIT" if skips_locked else "",
        "patience": str(options.patience),
    }
    if not companion:
        fragments |= {
            "extra_columns": "NULL, NULL, NULL, NULL, NULL",
            "queue_column": "NULL",
            "extras": "",
            "queues": "",
        }
    return {name: Statement(text) for name, text in load_statements("mysql", fragments).items()}

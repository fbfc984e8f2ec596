"""The companion database: what has no column in Phorge's tables. Never a table, column or index in Phorge's own.

Phorge's `bin/storage` neither sees nor backs it up. Its schema has a version of its own.
"""

import structlog

from queue_runtime.errors import StoreUnavailable, StoreUnusable
from stores.mysql_driver import Connection, connect
from stores.mysql_errors import DENIED, ServerError, for_caller
from stores.mysql_settings import MysqlSettings
from stores.sqltext import load_statements

SCHEMA_VERSION = 1
TABLES = frozenset({"task_extra", "attempt", "idempotency", "event", "pause", "meta"})

_log = structlog.get_logger()


async def prepare(connection: Connection, settings: MysqlSettings, *, make: bool = True) -> bool:
    """Make the companion where it is missing; False where this account cannot have one, or none shall be made.

    Raises StoreUnavailable where a newer release has made it.
    """
    try:
        version = await found_version(connection, settings)
        if version < SCHEMA_VERSION:
            if not make:
                return False
            await _create(connection, settings)
    except ServerError as error:
        if error.number not in DENIED:
            raise
        _log.warning(
            "no companion database: tasks have no queue, idempotency key or maximum of attempts, there is no error"
            " history, no pause, no event and no count of lost workers; run `queue-runtime init` with an account"
            " that may create it",
            database=settings.companion_database,
            reason=str(error),
        )
        return False
    if version > SCHEMA_VERSION:
        raise StoreUnavailable("open", _newer(settings, version))
    return True


def _newer(settings: MysqlSettings, version: int) -> str:
    return (
        f"the database {settings.companion_database} has schema version {version}, this release knows"
        f" {SCHEMA_VERSION}; start the newer release"
    )


async def found_version(connection: Connection, settings: MysqlSettings) -> int:
    """The schema version that is there; 0 where there is none or a table is missing. Raises ServerError."""
    (there,) = await connection.run(
        f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{settings.companion_database}'"
    )
    tables = {str(name) for (name,) in there.rows}
    if "meta" not in tables:
        return 0
    answers = await connection.run(f"SELECT value FROM `{settings.companion_database}`.meta WHERE name = 'version'")
    version = int(answers[0].rows[0][0]) if answers[0].rows else 0
    return version if version > SCHEMA_VERSION or tables >= TABLES else 0


async def _create(connection: Connection, settings: MysqlSettings) -> None:
    schema = load_statements("mysql", {"companion": f"`{settings.companion_database}`"}, only={"schema"})["schema"]
    await connection.run(schema)
    await connection.run(
        f"INSERT IGNORE INTO `{settings.companion_database}`.meta (name, value) VALUES ('version', '{SCHEMA_VERSION}')"
    )
    _log.info("made the companion database", database=settings.companion_database)


async def create(settings: MysqlSettings) -> bool:
    """Make the companion with this account, for `queue-runtime init`; whether it was missing.

    Raises StoreUnavailable where the server does not answer, StoreUnusable where the account may not.
    """
    try:
        connection = await connect(settings)
        try:
            version = await found_version(connection, settings)
            if version < SCHEMA_VERSION:
                await _create(connection, settings)
        finally:
            await connection.close()
    except ServerError as error:
        if error.number in DENIED:
            raise StoreUnusable(
                f"{settings.address}: the account {settings.user} may not create {settings.companion_database}: {error}"
            ) from error
        raise for_caller(error, "init", settings.address) from error
    if version > SCHEMA_VERSION:
        raise StoreUnusable(f"{settings.address}: {_newer(settings, version)}")
    return version < SCHEMA_VERSION

"""The only module that knows aiomysql and asyncmy, with mysql_aiomysql.py: one connection, one trip, the results of all
its statements.

Both drivers read rows in the text protocol. aiomysql is the default; asyncmy (extra `fast`) decodes them faster.
"""

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from secrets import token_hex
from typing import Any

from msgspec import Struct
from pymysql.constants import CLIENT

from stores.mysql_errors import Kind, ServerError, translate
from stores.mysql_settings import MysqlSettings

Row = tuple[Any, ...]
"""As the driver gives it: text as str, VARBINARY as bytes. Goes no further than the stores/mysql modules."""

TRIP_SECONDS = 30.0
"""Longest time for one trip. Beyond it the server hangs or the network swallows packets."""

_TLS_FAILED = 2026

_FLAGS = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS


class Answer(Struct, frozen=True):
    """What one statement answered. `insert_id` is LAST_INSERT_ID() of an insert."""

    rows: Sequence[Row]
    affected: int
    insert_id: int


class Connection:
    """One connection in autocommit. After any error or cancellation in `run` it is closed: nobody knows its state."""

    def __init__(
        self, raw: Any, ask: Callable[[str], Awaitable[list[Answer]]], transport: asyncio.WriteTransport
    ) -> None:
        self._raw = raw
        self._ask = ask
        self._transport = transport
        self.closed = False
        self.in_transaction = False
        self.old_at = math.inf
        """when it should be replaced, by the monotonic clock"""
        self.name = f"qr:{token_hex(12)}"

    async def run(self, sql: str, *, seconds: float = TRIP_SECONDS) -> list[Answer]:
        """Send statements, joined by `;`, in one trip. Raises ServerError.

        An error leaves earlier statements of the trip done, and a transaction open unless the connection closes.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(sql)
        except Exception as error:
            failure = translate(error)
            if failure is None:
                self.abort()
                raise
            if failure.connection_lost:
                self.abort()
            raise failure from error
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Close without a word: the server rolls back what was open."""
        if not self.closed:
            self.closed = True
            self._hang_up()

    async def close(self) -> None:
        """Say goodbye and close."""
        if not self.closed:
            self.closed = True
            try:
                async with asyncio.timeout(1):
                    await self._raw.ensure_closed()
            except (OSError, TimeoutError):
                pass
            finally:
                self._hang_up()

    def _hang_up(self) -> None:
        """Close, and drop what is left to be sent, which would keep it open as long as the server does not read."""
        self._transport.abort()
        self._raw.close()


async def connect(settings: MysqlSettings) -> Connection:
    """Open a connection. Raises ServerError."""
    try:
        async with asyncio.timeout(settings.connect_seconds):
            return await (_asyncmy(settings) if settings.driver == "asyncmy" else _aiomysql(settings))
    except Exception as error:
        failure = _of_tls(error, settings) or translate(error, connecting=True)
        if failure is None:
            raise
        raise failure from error


def _of_tls(error: BaseException, settings: MysqlSettings) -> ServerError | None:
    """What to say where TLS was asked for and could not be set up."""
    if settings.tls_ca is None:
        return None
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__
    if cause is None and not isinstance(error, _NoTlsError):
        return None
    sentence = f"TLS could not be set up: {cause or error} (QUEUE_RUNTIME_MYSQL_TLS_CA is {settings.tls_ca})"
    return ServerError(Kind.AWAY, _TLS_FAILED, sentence)


class _NoTlsError(Exception):
    """The server offers no TLS."""


@cache
def _never_plain(driver: type[Any]) -> type[Any]:
    """A driver's connection that would rather not log in than do it in the clear where TLS was asked for.

    aiomysql goes on without a word when the server, or somebody in between, says that it has no TLS.
    """

    class NeverPlain(driver):  # type: ignore[misc]
        async def _request_authentication(self) -> None:
            if self._ssl_context is not None and not self.server_capabilities & CLIENT.SSL:
                raise _NoTlsError("the server offers none")
            await super()._request_authentication()

    return NeverPlain


async def _aiomysql(settings: MysqlSettings) -> Connection:
    from stores.mysql_aiomysql import Connection as QuickConnection  # noqa: PLC0415  only the chosen driver is loaded

    raw = _never_plain(QuickConnection)(**_arguments(settings))
    try:
        await raw._connect()
    except BaseException:  # it closes after errors alone, and not when it is cancelled
        raw.close()
        raise
    return Connection(raw, raw.ask, raw._writer.transport)


async def _asyncmy(settings: MysqlSettings) -> Connection:
    from asyncmy.connection import Connection as AsyncmyConnection  # noqa: PLC0415
    from asyncmy.cursors import Cursor  # noqa: PLC0415

    class QuietCursor(Cursor):
        """Asks for no warnings: each would cost a trip."""

        async def _show_warnings(self, *_: object) -> None:
            return None

    raw = _never_plain(AsyncmyConnection)(**_arguments(settings))

    async def ask(sql: str) -> list[Answer]:
        cursor: Any = QuietCursor(raw)
        await cursor.execute(sql)
        answers = []
        while True:
            answers.append(Answer(await cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0))
            if not await cursor.nextset():
                return answers

    await raw.connect()
    return Connection(raw, ask, raw._transport)


def _arguments(settings: MysqlSettings) -> dict[str, Any]:
    """Without connect_timeout: ours is around it all, and the drivers' one swallows a cancellation on Python 3.11."""
    context = None
    if settings.tls_ca is not None:
        context = ssl.create_default_context(cafile=str(settings.tls_ca))
    return {
        "host": settings.host,
        "port": settings.port,
        "unix_socket": settings.socket,
        "user": settings.user,
        "password": settings.password,
        "charset": "utf8mb4",
        "client_flag": _FLAGS,
        "autocommit": True,
        "ssl": context,
    }

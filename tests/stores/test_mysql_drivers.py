"""Both drivers answer alike, however the reply is cut into pieces; aiomysql reads rows in a way of ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stores import mysql_aiomysql
from stores.mysql_driver import Answer, Connection, connect
from stores.mysql_errors import Kind, ServerError
from stores.mysql_server import SESSION
from stores.mysql_settings import DriverName
from tests.listener import listening
from tests.phorge_tables import PhorgeTables
from tests.runtime.harness import until
from tests.servers import MariaDb
from tests.transports import HIGH, open_transports, unsent

DRIVERS: tuple[DriverName, ...] = ("aiomysql", "asyncmy")
MEBIBYTE = 2**20

ODD = (
    "SELECT 1, -1, 18446744073709551615, NULL, '', 'a', REPEAT('b', 250), REPEAT('c', 251), REPEAT('d', 65535),"
    " REPEAT('e', 70000), X'00FF', CAST('f' AS BINARY), 1.50, SUM(2), 2.5e0, '\N{PILE OF POO}\N{EURO SIGN}'"
)
QUERIES = {
    "no statement that answers rows": "DO 1; SET @x = 1; DO 2",
    "no rows": "SELECT 1 FROM DUAL WHERE FALSE",
    "one row of every kind": ODD,
    "rows between others": f"DO 1; {ODD}; SELECT seq, REPEAT(seq MOD 10, seq) FROM mysql.seq_1_to_300; DO 2; {ODD}",
    "nothing but NULL": "SELECT NULL, NULL UNION ALL SELECT NULL, NULL",
    "the same columns again": "SELECT 1 AS a, 'b' AS b; SELECT 2 AS a, 'c' AS b; SELECT 1 AS b, 2 AS a",
    "a value of 16 MB and what follows it": "SELECT REPEAT('x', 16777215), 1 UNION ALL SELECT 'y', 2; SELECT 3",
}
PIECES = {"as they come": mysql_aiomysql.CHUNK, "of 200 bytes": 200, "of 7 bytes": 7}


@asynccontextmanager
async def connected(phorge: PhorgeTables, driver: DriverName) -> AsyncIterator[Connection]:
    connection = await connect(phorge.settings(driver=driver))
    try:
        await connection.run(SESSION)
        yield connection
    finally:
        await connection.close()


def plain(answers: list[Answer]) -> list[tuple[list[tuple[object, ...]], int]]:
    """Rows as they are, and how many others were touched: drivers count rows of an answer in their own way."""
    return [(list(answer.rows), 0 if answer.rows else max(answer.affected, 0)) for answer in answers]


@pytest.mark.parametrize("size", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
async def test_both_drivers_answer_alike(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch, query: str, size: int
) -> None:
    monkeypatch.setattr(mysql_aiomysql, "CHUNK", size)
    found = []
    for driver in DRIVERS:
        async with connected(phorge, driver) as connection:
            # twice: what was learnt of the columns is used from the second time on
            found += [plain(await connection.run(query)) for _ in range(2)]
    assert found == [found[0]] * 4


@pytest.mark.parametrize("count", [1, 250, 251, 70_000])
async def test_both_drivers_tell_alike_how_many_rows_were_written_and_the_first_id(
    phorge: PhorgeTables, count: int
) -> None:
    """In the reply each number has the width that it needs."""
    table = f"`{phorge.namespace}_worker`.numbers"
    for driver in DRIVERS:
        async with connected(phorge, driver) as connection:
            *_, inserted, deleted = await connection.run(
                f"CREATE TEMPORARY TABLE {table} (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, n INT);"
                f"ALTER TABLE {table} AUTO_INCREMENT = {2**24 * count};"
                f"INSERT INTO {table} (n) SELECT seq FROM mysql.seq_1_to_{count}; DELETE FROM {table}"
            )
        assert (inserted.affected, inserted.insert_id, deleted.affected) == (count, 2**24 * count, count)


async def test_a_reply_that_none_of_our_statements_has_ends_the_connection(phorge: PhorgeTables) -> None:
    """A server that asks for a file begins in the same way as one that has very many columns."""
    async with connected(phorge, "aiomysql") as connection:
        with pytest.raises(ServerError, match="malformed"):
            await connection.run(f"SELECT {', '.join(map(str, range(251)))}")
        assert connection.closed


async def test_a_value_beyond_16_mb_is_no_end_of_the_rows(phorge: PhorgeTables) -> None:
    """Its length begins with the byte that marks the end. (asyncmy 0.2 takes it for that; no payload is so large.)"""
    value = "x" * 20 * MEBIBYTE
    async with connected(phorge, "aiomysql") as connection:
        first, second = await connection.run(f"SELECT REPEAT('x', {len(value)}) UNION ALL SELECT 'y'; SELECT 3")
    assert [row[0] == value for row in first.rows] == [True, False]
    assert list(second.rows) == [(3,)]


@pytest.mark.parametrize("size", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("driver", DRIVERS)
async def test_an_error_behind_rows_is_raised_and_the_connection_can_be_used(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch, driver: DriverName, size: int
) -> None:
    monkeypatch.setattr(mysql_aiomysql, "CHUNK", size)
    async with connected(phorge, driver) as connection:
        with pytest.raises(ServerError, match="nothing"):
            await connection.run("SELECT seq FROM mysql.seq_1_to_9; SELECT nothing FROM mysql.seq_1_to_9; SELECT 3")
        (answer,) = await connection.run("SELECT 5")
        assert list(answer.rows) == [(5,)]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_an_error_among_rows_is_no_row(phorge: PhorgeTables, driver: DriverName) -> None:
    two = "(SELECT b.seq FROM mysql.seq_1_to_2 b WHERE b.seq + a.seq > 0)"
    async with connected(phorge, driver) as connection:
        with pytest.raises(Exception, match="more than 1 row"):
            await connection.run(f"SELECT IF(a.seq < 5, 0, {two}) FROM mysql.seq_1_to_9 a")
        assert connection.closed


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_connection_that_the_server_ends_is_lost(phorge: PhorgeTables, driver: DriverName) -> None:
    async with connected(phorge, driver) as connection:
        (answer,) = await connection.run("SELECT CONNECTION_ID()")
        phorge.execute(f"KILL {answer.rows[0][0]}")
        with pytest.raises(ServerError) as caught:
            await connection.run("SELECT 1")
        assert caught.value.kind is Kind.LOST
        assert connection.closed


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_call_that_is_given_up_holds_no_connection_to_a_server_that_does_not_read(driver: DriverName) -> None:
    with MariaDb() as server, PhorgeTables(server) as tables:
        connection = await connect(tables.settings(driver=driver))
        server.pause()
        try:
            call = asyncio.create_task(connection.run(f"SELECT LENGTH('{'x' * HIGH}')"))
            await until(lambda: unsent() > 0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert unsent() == 0
        finally:
            server.resume()


@pytest.mark.parametrize("how", ["cancelled", "out of time"])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_login_that_is_given_up_holds_no_connection(phorge: PhorgeTables, driver: DriverName, how: str) -> None:
    """The server accepts, and says nothing."""
    callers: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer)
        await reader.read()

    async with listening(say_nothing) as port:
        seconds = 60.0 if how == "cancelled" else 0.2
        settings = phorge.settings(socket=None, port=port, driver=driver, connect_seconds=seconds)
        before = open_transports()
        call = asyncio.create_task(connect(settings))
        await until(lambda: bool(callers))
        if how == "cancelled":
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        ours = [one for one in open_transports() - before if one.get_extra_info("peername") == ("127.0.0.1", port)]
        assert [one for one in ours if not one.is_closing()] == []

"""Where the queue is decides whether taskmasters of Phorge's own may lease what PHP is to run."""

from collections.abc import Iterator

import pytest

from queue_runtime.compose import natives_of
from queue_runtime.config import load_config
from queue_runtime.current import Current
from queue_runtime.settings import PREFIX
from tests.backends import Servers
from tests.cli.takeovers import empty_phorge
from tests.phorge_tables import PhorgeTables


def current(**variables: str) -> Current:
    return Current(load_config({PREFIX + name: text for name, text in variables.items()}))


@pytest.fixture
def book(servers: Servers) -> Iterator[PhorgeTables]:
    """Phorge's book of daemons, with a taskmaster that ended and another daemon that is alive."""
    tables = servers.phorge
    tables.execute(
        "CREATE DATABASE phabricator_daemon; CREATE TABLE phabricator_daemon.daemon_log"
        " (daemon VARCHAR(255), host VARCHAR(255), status VARCHAR(8), dateModified INT UNSIGNED)"
    )
    report(tables, "PhabricatorTaskmasterDaemon", "exit")
    report(tables, "PhabricatorTriggerDaemon", "run")
    yield tables
    tables.execute("DROP DATABASE phabricator_daemon")


def report(tables: PhorgeTables, daemon: str, status: str) -> None:
    tables.execute(
        "INSERT INTO phabricator_daemon.daemon_log VALUES (%s, 'web1', %s, UNIX_TIMESTAMP())", (daemon, status)
    )


@pytest.mark.parametrize("store", ["sqlite", "redis", "streams"])
def test_a_queue_that_is_in_no_table_of_phorges_has_no_natives(store: str) -> None:
    more = {"sqlite": {}, "redis": {}, "streams": {"RECORD": "sqlite"}}[store]
    assert natives_of(current(STORE=store, **more)) is None


async def test_of_the_queue_of_another_process_phorges_own_word_must_do() -> None:
    look = natives_of(current(STORE="remote", REMOTE_URL="http://queue", ROLES="worker", LISTEN=""))
    assert look is not None
    assert await look() is False


async def test_a_taskmaster_in_the_book_is_one_and_other_daemons_are_none(servers: Servers, book: PhorgeTables) -> None:
    look = natives_of(current(**empty_phorge(servers)))
    assert look is not None
    assert await look() is False
    report(book, "PhabricatorTaskmasterDaemon", "wait")
    assert await look() is True


async def test_where_the_book_cannot_be_read_there_may_be_some(servers: Servers) -> None:
    for settings in (empty_phorge(servers), {"STORE": "mysql", "MYSQL_SOCKET": "/nowhere/socket"}):
        look = natives_of(current(**settings))
        assert look is not None
        assert await look() is True

"""Where the queue is decides whether taskmasters of Phorge's own may lease what PHP is to run."""

import pytest

from queue_runtime.compose import book_of, natives_of
from queue_runtime.config import load_config
from queue_runtime.current import Current
from queue_runtime.settings import PREFIX
from tests.backends import Servers
from tests.cli.takeovers import TASKMASTER, book_of_daemons


def current(**variables: str) -> Current:
    return Current(load_config({PREFIX + name: text for name, text in variables.items()}))


@pytest.mark.parametrize("store", ["sqlite", "redis", "streams"])
def test_a_queue_that_is_in_no_table_of_phorges_has_no_natives(store: str) -> None:
    more = {"sqlite": {}, "redis": {}, "streams": {"RECORD": "sqlite"}}[store]
    assert natives_of(current(STORE=store, **more)) is None


async def test_of_the_queue_of_another_process_phorges_own_word_must_do() -> None:
    look = natives_of(current(STORE="remote", REMOTE_URL="http://queue", ROLES="worker", LISTEN=""))
    assert look is not None
    assert await look() is False


async def test_a_taskmaster_in_the_book_is_one_and_other_daemons_are_none(
    settings: dict[str, str], servers: Servers
) -> None:
    look, names = natives_of(current(**settings)), book_of(current(**settings))
    assert look is not None
    assert names is not None
    with book_of_daemons(servers.phorge) as report:
        report(TASKMASTER, "web1", "exit")
        report("PhabricatorTriggerDaemon", "web1", "run")
        assert (await look(), await names()) == (False, ())
        report(TASKMASTER, "web2", "wait")
        assert (await look(), await names()) == (True, ("web2",))


async def test_where_the_book_cannot_be_read_there_may_be_some(settings: dict[str, str]) -> None:
    for place in (settings, {"STORE": "mysql", "MYSQL_SOCKET": "/nowhere/socket"}):
        look = natives_of(current(**place))
        assert look is not None
        assert await look() is True

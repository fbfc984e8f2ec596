"""Fixtures that all parts of the test tree share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import Place, Servers
from tests.clock import Clock
from tests.phorge_tables import PhorgeTables
from tests.servers import MariaDb, RedisServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes minutes, so that no process is left with it at the end."""
    items.sort(key=lambda item: not {"mutants", "property"} & set(item.path.parts))


@pytest.fixture
def clock() -> Clock:
    """The time of this test."""
    return Clock()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this test process. Tests share them: one that kills a server starts its own."""
    with Servers() as servers:
        yield servers


@pytest.fixture
def place(servers: Servers, tmp_path: Path) -> Place:
    """Where this test may open a store (tests/backends.py)."""
    return Place(tmp_path, servers)


@pytest.fixture(scope="session")
def mariadb(servers: Servers) -> MariaDb:
    """The MariaDB server that all tests of this process share."""
    return servers.mariadb


@pytest.fixture(scope="session")
def redis_server(servers: Servers) -> RedisServer:
    """The Redis server that all tests of this process share."""
    return servers.redis


@pytest.fixture
def phorge(servers: Servers) -> PhorgeTables:
    """Phorge's queue tables on the shared server, empty."""
    servers.phorge.empty()
    return servers.phorge

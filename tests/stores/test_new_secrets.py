"""Secrets that are changed while a store is open: what is connected stays, the next connection has the new one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store
from queue_runtime.task import NewTask
from stores import mysql, redis, redis_calls, remote, sqlite
from stores.mysql_settings import DriverName
from stores.redis_address import Address
from tests.http.house import serve_with
from tests.listener import listening
from tests.phorge_tables import PhorgeTables
from tests.servers import RedisServer
from tests.stores.streams_house import over, take, until


class Secret:
    """What the settings say now."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self) -> str:
        return self.text


async def add(store: Store) -> None:
    await store.enqueue([NewTask(task_class="A")])


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
async def test_the_password_of_mysql(phorge: PhorgeTables, driver: DriverName) -> None:
    phorge.execute("CREATE OR REPLACE USER 'changing'@'%' IDENTIFIED BY 'one'")
    phorge.execute("GRANT ALL ON *.* TO 'changing'@'%'")
    password = Secret("one")
    settings = phorge.settings(user="changing", password="one", driver=driver)
    async with mysql.open_store(settings, password_now=password) as store:
        await add(store)
        phorge.execute("ALTER USER 'changing'@'%' IDENTIFIED BY 'two'")
        await add(store)
        phorge.execute("KILL USER 'changing'")
        with pytest.raises(StoreUnavailable, match="Access denied"):
            await add(store)
        password.text = "two"
        await add(store)
        assert (await store.stats()).active == 3


@contextmanager
def guarded(*arguments: str) -> Iterator[tuple[RedisServer, Redis]]:
    """A server with the password `one`, and a connection of somebody who may change it."""
    with RedisServer("--requirepass", "one", *arguments) as server:
        client = Redis(unix_socket_path=server.socket, password="one")
        try:
            yield server, client
        finally:
            client.close()


def url_of(server: RedisServer, password: str, user: str = "") -> str:
    return f"redis://{user}:{password}@{server.host}:{server.port}/0"


def throw_out(client: Redis) -> None:
    """End every other connection."""
    client.client_kill_filter(_type="normal", skipme=True)


async def test_the_password_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    with guarded() as (server, client):
        url = Secret(url_of(server, "one"))
        async with redis.open_store(url(), url_now=url) as store:
            await add(store)
            client.config_set("requirepass", "two")
            await add(store)
            throw_out(client)
            with pytest.raises(StoreUnavailable, match="password"):
                await add(store)
            url.text = url_of(server, "two")
            await add(store)
            assert (await store.stats()).active == 3


async def test_another_user_of_the_same_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    with guarded() as (server, client):
        for user in ("first", "second"):
            client.acl_setuser(user, enabled=True, passwords=[f"+{user}"], keys=["*"], categories=["+@all"])
        url = Secret(url_of(server, "first", "first"))
        async with redis.open_store(url(), url_now=url) as store:
            await add(store)
            client.acl_deluser("first")  # which ends its connections
            with pytest.raises(StoreUnavailable, match="password"):
                await add(store)
            url.text = url_of(server, "second", "second")
            await add(store)


async def test_the_password_of_the_redis_that_has_the_streams(tmp_path: Path) -> None:
    """The record works alone in between, and the dispatch comes back by itself."""
    with guarded() as (server, client):
        url = Secret(url_of(server, "one"))
        async with (
            sqlite.open_store(tmp_path / "queue.sqlite3") as record,
            over(record, url(), url_now=url) as store,
        ):
            await add(store)
            await store.changed(0)
            client.config_set("requirepass", "two")
            throw_out(client)
            await add(store)
            assert len(await take(store, 5)) == 2
            await until(lambda: store.dispatch.mode == "record")
            url.text = url_of(server, "two")
            await until(lambda: store.dispatch.mode == "streams")
            await add(store)
            assert len(await take(store, 5)) == 1


def test_the_login_of_sentinels_may_change_too() -> None:
    url = Secret("redis+sentinel://:one@127.0.0.1:1/queue/0?sentinel_password=one")
    address = Address(url(), url)
    url.text = url.text.replace("one", "two")
    address._take_login()
    assert address._settings["password"] == "two"
    assert address._sentinel_login == {"password": "two"}


async def test_the_token_of_a_remote_server(tmp_path: Path) -> None:
    token = Secret("one")
    async with (
        sqlite.open_store(tmp_path / "queue.sqlite3") as below,
        serve_with(below, "hypercorn", token="one") as running,
    ):
        url = f"http://{running.host}:{running.port}"
        async with remote.open_store(url, "one", login_now=lambda: (url, token())) as store:
            await add(store)
            running.house.guard.change("two")
            with pytest.raises(StoreUnavailable, match="token"):
                await add(store)
            token.text = "two"
            await add(store)
            assert (await store.stats()).active == 2


async def test_the_login_of_a_proxy_in_front_of_a_remote_server() -> None:
    """It is in the URL, and goes along with each request."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.extend(line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization"))
        writer.write(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    url = Secret("")
    async with listening(answer) as port:
        url.text = f"http://user:one@127.0.0.1:{port}"
        async with remote.open_store(url(), "t", login_now=lambda: (url(), "t")) as store:
            for password in ("one", "two"):
                url.text = f"http://user:{password}@127.0.0.1:{port}"
                with pytest.raises(StoreUnavailable):
                    await store.ping()
    assert seen == [b"Authorization: Basic dXNlcjpvbmU=", b"Authorization: Basic dXNlcjp0d28="]

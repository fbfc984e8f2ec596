"""Where the queue is: URLs, TLS, sentinels."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_runtime.errors import StoreUnavailable
from stores import redis_calls
from stores.redis import open_store
from stores.redis_address import Address
from tests.listener import listening
from tests.scratch import new_folder
from tests.servers import RedisServer, find_program
from tests.stores.redis_house import add, assert_whole, client_of, drain, soon


async def test_a_password_in_the_url_may_hold_any_character() -> None:
    with RedisServer("--requirepass", "p@ss:/ %wörd") as server:
        url = f"redis://:p%40ss%3A%2F%20%25w%C3%B6rd@{server.host}:{server.port}/3"
        async with open_store(url) as store:
            assert await add(store, 1) == [1]


async def test_the_database_of_the_url_is_used(redis_server: RedisServer) -> None:
    with client_of(redis_server) as client:
        client.flushall()
    for url in (redis_server.url.replace("/0", "/5"), redis_server.socket_url.replace("db=0", "db=6")):
        async with open_store(url) as store:
            assert await add(store, 1) == [1]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback, and its key, which the server's account can read."""
    certificate, private = folder / "cert.pem", folder / "key.pem"
    command = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [find_program("openssl", "openssl"), *command.split(), "-keyout", private, "-out", certificate],
        check=True,
        capture_output=True,
    )
    private.chmod(0o644)
    return certificate, private


async def test_an_encrypted_line_is_used_and_its_certificate_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    certificate, private = make_certificate(new_folder("tls"))
    server = RedisServer("--tls-cert-file", str(certificate), "--tls-key-file", str(private))
    server.arguments = (*server.arguments, "--tls-auth-clients", "no", "--port", "0", "--tls-port", str(server.port))
    with server:
        async with open_store(f"rediss://{server.host}:{server.port}/0?ssl_ca_certs={certificate}") as store:
            assert await add(store, 1) == [1]
            assert await drain(store) == [1]
        async with open_store(f"rediss://{server.host}:{server.port}/0") as store:
            with pytest.raises(StoreUnavailable, match="certificate"):
                await store.ping()


class Sentinel(RedisServer):
    """A sentinel that watches one master by itself."""

    name = "sentinel"

    def __init__(self, master: RedisServer) -> None:
        super().__init__()
        self._master = master

    def _options(self) -> list[str]:
        path = self.folder / "sentinel.conf"
        path.write_text(
            f"sentinel monitor queue {self._master.host} {self._master.port} 1\n"
            "sentinel down-after-milliseconds queue 500\nsentinel failover-timeout queue 2000\n"
        )
        path.chmod(0o666)
        self.folder.chmod(0o777)
        options = {"bind": self.host, "port": str(self.port), "unixsocket": self.socket, "unixsocketperm": "777"}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [str(path), "--sentinel", *words, "--dir", str(self.folder)]


@contextmanager
def watched() -> Iterator[tuple[RedisServer, RedisServer, Sentinel]]:
    """A master, its replica, and a sentinel that knows both."""
    fast = ("--repl-diskless-sync-delay", "0")
    with RedisServer(*fast) as master, RedisServer(*fast) as replica, client_of(replica) as client:
        client.replicaof(master.host, master.port)
        with Sentinel(master) as sentinel:
            yield master, replica, sentinel


async def test_the_sentinels_say_who_the_master_is_also_after_a_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    """R032: the master dies, and work goes on at the new one."""
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.2)
    with watched() as (master, replica, sentinel), client_of(replica) as client, client_of(sentinel) as watcher:
        await soon(lambda: client.info("replication").get("master_link_status") == "up")
        await soon(lambda: len(watcher.sentinel_slaves("queue")) == 1, 30)  # it asks the master every ten seconds
        url = f"redis+sentinel://127.0.0.1:1,{sentinel.host}:{sentinel.port}/queue/0"
        async with open_store(url) as store:
            ids = await add(store, 5)
            await soon(lambda: client.exists("{queue-runtime}:body"))
            master.kill()
            async with asyncio.timeout(30):
                while True:
                    try:
                        ids += await add(store, 1)
                        break
                    except StoreUnavailable:
                        await asyncio.sleep(0.05)
            assert client.info("replication")["role"] == "master"
            assert await drain(store) == ids
            await assert_whole(store)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the connection, and say nothing."""
    await reader.read()


async def test_a_sentinel_is_asked_though_those_before_it_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one attempt: they share the time, and some is left for the master."""
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.0)
    async with listening(silent) as first, listening(silent) as second:
        with RedisServer() as master, Sentinel(master) as sentinel:
            hosts = f"127.0.0.1:{first},127.0.0.1:{second},{sentinel.host}:{sentinel.port}"
            async with open_store(f"redis+sentinel://{hosts}/queue/0") as store:
                assert await add(store, 1) == [1]


async def test_a_cluster_node_on_a_socket_may_name_another_node(redis_server: RedisServer) -> None:
    """MOVED names a host and a port."""
    with client_of(redis_server) as client:
        client.flushall()
    address = Address("unix:///nowhere?db=0")
    address.moved_to = (redis_server.host, redis_server.port)
    connection = await address.open()
    await connection.send_command("PING")
    assert await connection.read_response() == b"PONG"
    await connection.disconnect()


async def test_a_service_that_no_sentinel_knows_is_an_outage(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    async with open_store(
        f"redis+sentinel://:secret@127.0.0.1:1,{redis_server.host}:{redis_server.port}/queue"
    ) as store:
        with pytest.raises(StoreUnavailable, match="no sentinel knows the master of queue") as caught:
            await store.ping()
    assert "secret" not in str(caught.value)

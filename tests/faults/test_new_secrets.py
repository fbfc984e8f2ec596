"""A real process whose passwords and tokens are changed, at the server and then in the file of the secret."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from tests.conduit import stub
from tests.conduit.stub import StubPhp
from tests.conduit.threaded import phorge as php_in_a_thread
from tests.faults.process import Served, archived, wait_for
from tests.faults.test_reload import reload
from tests.faults.test_remote_worker import server
from tests.faults.test_remote_worker import worker as worker_elsewhere
from tests.phorge_tables import PhorgeTables
from tests.servers import RedisServer

SECRETS = ("secret-one", "secret-two")


def run_one(client: httpx2.Client, task_class: str = "SleepWorker") -> None:
    """Enqueue a task, as soon as that can be done, and see it end well."""

    def enqueued() -> int:
        answer = client.post("/api/queue/enqueue", json={"taskClass": task_class, "data": "{}"})
        return int(answer.json()["data"]["id"]) if answer.status_code == 200 else 0

    task_id = wait_for("it is taken in", enqueued, 15)
    row = wait_for("it has ended", lambda: archived(client, task_id), 45)
    assert row is not None
    assert row["result"] == 0


def change_while_it_runs(served: Served, client: httpx2.Client, secret: Path, text: str, variable: str) -> None:
    """The server asks for the new secret already: the process learns it."""
    secret.write_text(f"{text}\n")
    done = reload(served)
    assert (done.returncode, done.stdout) == (0, f"changed: QUEUE_RUNTIME_{variable}\n"), done.stderr
    wait_for("it is ready", lambda: client.get("/readyz").status_code == 200, 15)


def stop(served: Served) -> None:
    served.tell_and_wait()
    assert not any(one in served.log for one in SECRETS)


def test_the_password_of_mysql(tmp_path: Path, phorge: PhorgeTables) -> None:
    old, new = SECRETS
    phorge.execute(f"CREATE OR REPLACE USER 'served'@'%' IDENTIFIED BY '{old}'")
    phorge.execute("GRANT ALL ON *.* TO 'served'@'%'")
    secret = tmp_path / "password"
    secret.write_text(old)
    settings: dict[str, Any] = {"MYSQL_SOCKET": phorge.server.socket, "MYSQL_PASSWORD_FILE": secret}
    with (
        Served(tmp_path, SQLITE_PATH="", STORE="mysql", MYSQL_USER="served", **settings) as served,
        served.client() as client,
    ):
        run_one(client)
        phorge.execute(f"ALTER USER 'served'@'%' IDENTIFIED BY '{new}'")
        phorge.execute("KILL USER 'served'")
        wait_for("it is refused", lambda: "Access denied" in client.get("/readyz").text, 15)
        change_while_it_runs(served, client, secret, new, "MYSQL_PASSWORD")
        run_one(client)
        stop(served)


def by_requirepass(admin: Redis, password: str) -> str:
    admin.config_set("requirepass", password)
    return f":{password}"


def by_acl(admin: Redis, password: str) -> str:
    rights: dict[str, Any] = {"keys": ["*"], "channels": ["*"], "categories": ["+@all"]}
    admin.acl_setuser("served", enabled=True, reset_passwords=True, passwords=[f"+{password}"], **rights)
    return f"served:{password}"


@pytest.mark.parametrize(("store", "set_password"), [("redis", by_requirepass), ("streams", by_acl)])
def test_the_password_of_redis(tmp_path: Path, store: str, set_password: Callable[[Redis, str], str]) -> None:
    secret = tmp_path / "url"
    settings: dict[str, Any] = {"STORE": "redis", "SQLITE_PATH": ""}
    if store == "streams":
        settings = {"STORE": "streams", "RECORD": "sqlite"}
    with RedisServer() as redis, Redis(unix_socket_path=redis.socket) as admin:

        def url(password: str) -> str:
            return f"redis://{set_password(admin, password)}@{redis.host}:{redis.port}/0"

        old, new = SECRETS
        secret.write_text(url(old))
        with Served(tmp_path, REDIS_URL_FILE=secret, **settings) as served, served.client() as client:
            run_one(client)
            changed = url(new)
            admin.client_kill_filter(_type="normal", skipme=True)
            change_while_it_runs(served, client, secret, changed, "REDIS_URL")
            run_one(client)
            if store == "streams":
                wait_for("the streams", lambda: '"mode":"streams"' in client.get("/readyz?verbose=1").text, 15)
            stop(served)


def test_the_token_of_a_remote_server(tmp_path: Path) -> None:
    far, token, remote_token = tmp_path / "far", tmp_path / "token", tmp_path / "remote_token"
    for file in (token, remote_token):
        file.write_text(SECRETS[0])
    with server(tmp_path, TOKEN="", TOKEN_FILE=token) as (serving, client):
        client.headers["X-Service-Token"] = SECRETS[0]
        with worker_elsewhere(far, client, REMOTE_TOKEN="", REMOTE_TOKEN_FILE=remote_token) as working:
            run_one(client)
            token.write_text(SECRETS[1])
            assert reload(serving, "--pid", str(serving.inner_pid())).returncode == 0
            client.headers["X-Service-Token"] = SECRETS[1]
            wait_for("the worker is refused", lambda: "token is missing or wrong" in working.log, 15)
            remote_token.write_text(SECRETS[1])
            assert reload(working, "--pid", str(working.inner_pid())).returncode == 0
            run_one(client)
            stop(working)
        stop(serving)


def test_the_token_of_phorge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed here first, which a Phorge that takes both for a while would let pass: the next call has it."""
    secret = tmp_path / "token"
    secret.write_text(SECRETS[0])
    monkeypatch.setattr(stub, "TOKEN", SECRETS[0])
    php = StubPhp()
    with (
        php_in_a_thread(php),
        Served(tmp_path, CONDUIT_URL=php.url, CONDUIT_TOKEN_FILE=secret) as served,
        served.client() as client,
    ):
        run_one(client, "PhpWorker")
        monkeypatch.setattr(stub, "TOKEN", SECRETS[1])
        change_while_it_runs(served, client, secret, SECRETS[1], "CONDUIT_TOKEN")
        run_one(client, "PhpWorker")
        assert php.calls[-1].headers["x-service-token"] == SECRETS[1]
        stop(served)


def test_another_server_is_refused_and_its_password_with_it(tmp_path: Path) -> None:
    """By a file of settings, as an operator would change it."""
    file = tmp_path / "q.env"
    text = "QUEUE_RUNTIME_REDIS_URL=redis://:{}@127.0.0.1:{}/0\n"
    with RedisServer("--requirepass", SECRETS[0]) as redis:
        file.write_text(text.format(SECRETS[0], redis.port))
        with Served(tmp_path, STORE="redis", SQLITE_PATH="", ENV_FILE=file) as served, served.client() as client:
            run_one(client)
            file.write_text(text.format(SECRETS[1], 1))
            done = reload(served)
            assert done.returncode == 1
            assert done.stderr == "needs a restart, the old value stays: QUEUE_RUNTIME_REDIS_URL\n"
            run_one(client)
            stop(served)

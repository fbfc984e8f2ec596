"""Servers that refuse: what it means for a caller, and that it passes when it passes."""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from redis import Redis
from redis.exceptions import RedisError

from queue_runtime.errors import InvalidRequest, QueueRuntimeError, StoreFull, StoreUnavailable, StoreUnusable
from queue_runtime.settler import Settler
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Outcome, Pause, PauseKind, Retry, Settlement, Yield
from stores import redis_calls, redis_link
from stores.redis import RedisStore, open_store
from stores.redis_doctor import examine
from stores.redis_errors import error_code, translate
from tests.clock import Clock
from tests.runtime.test_settler import Answers, serving
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, drain, emptied, key, settle, soon, worker
from tests.stores.relay import relay_to

STOP = Pause(PauseKind.ALL)


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


def replicate(client: Redis, master: RedisServer) -> None:
    """Make it a replica of the other server."""
    client.replicaof(master.host, master.port)


# ---- another server holds the queue


async def test_after_a_failover_calls_go_to_the_new_master_and_nobody_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R032: READONLY on the old connection is a lost connection."""
    met: list[str] = []

    def noted(operation: str, error: RedisError) -> QueueRuntimeError | None:
        met.append(error_code(error))
        return translate(operation, error)

    monkeypatch.setattr(redis_link, "translate", noted)
    fast = ("--repl-diskless-sync-delay", "0")
    with RedisServer(*fast) as old, RedisServer(*fast) as new, client_of(old) as to_old, client_of(new) as to_new:
        async with relay_to(old.host, old.port) as relay, open_store(relay.url) as store:
            ids = await add(store, 10)
            held = await store.lease(worker(), 5, 60)
            replicate(to_new, old)
            await soon(lambda: to_new.info("replication")["master_link_status"] == "up")
            to_old.wait(1, 5000)
            to_new.replicaof("NO", "ONE")
            replicate(to_old, new)
            relay.target = (new.host, new.port)

            ids += await add(store, 5)
            assert "READONLY" in met  # the old connection did meet it
            assert [one.verdict for one in await settle(store, held)] == ["settled"] * 5
            assert await drain(store) == ids[5:]
            await assert_whole(store)
            assert to_new.info("replication")["role"] == "master"


async def test_a_replica_is_an_outage_until_it_is_a_master_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    with RedisServer() as server, client_of(server) as client:
        async with open_store(server.url) as store:
            await add(store, 3)
            replicate(client, redis_server)
            for _ in range(2):  # on the old connection, and on a new one
                with pytest.raises(StoreUnavailable, match="replica"):
                    await add(store, 1)
            client.replicaof("NO", "ONE")
            client.flushall()
            assert len(await add(store, 1)) == 1


async def test_a_node_of_a_cluster_says_where_the_queue_is() -> None:
    """MOVED: all keys of a queue are in one slot, so there is one other server to ask."""
    with RedisServer.cluster_node() as one, RedisServer.cluster_node() as other:
        slot = int(ask(one, "CLUSTER", "KEYSLOT", "{queue-runtime}:"))
        ask(one, "CLUSTER", "ADDSLOTS", *[other for other in range(16384) if other != slot])
        ask(other, "CLUSTER", "ADDSLOTS", slot)
        ask(one, "CLUSTER", "MEET", other.host, other.port, other.bus_port)
        for server in (one, other):
            await soon(lambda server=server: "cluster_state:ok" in ask(server, "CLUSTER", "INFO"))
        async with open_store(one.url) as store:
            ids = await add(store, 5)
            assert await drain(store) == ids
            assert await store.changed(1.0) is True
            await assert_whole(store)
        assert int(ask(one, "DBSIZE")) == 0


def ask(server: RedisServer, *words: object) -> str:
    """What redis-cli prints."""
    command = ["redis-cli", "-s", server.socket, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# ---- the server cannot, for now


async def test_a_server_that_reads_its_data_says_so_until_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """R024: LOADING"""
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    slow = ("--key-load-delay", "200")  # microseconds for each command; it answers after every 1,024 of them
    with RedisServer(durable=True) as server:
        async with emptied(server) as store:
            ids = await add(store, 3)
        with client_of(server) as client, client.pipeline(transaction=False) as pipeline:
            for number in range(5000):
                pipeline.set(f"other:{number}", "x")
            pipeline.execute()
        server.kill()
        server.arguments = slow
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        async with open_store(server.url) as store:
            reasons = set()
            async with asyncio.timeout(60):
                while True:
                    try:
                        assert await drain(store) == ids
                        break
                    except StoreUnavailable as error:
                        reasons.add(error.reason)
            await starting
    assert "the server is reading its data from disk" in reasons


async def test_a_full_server_refuses_new_tasks_and_lets_work_end() -> None:
    """OOM with noeviction: outcomes can be written, and once there is room tasks are taken again."""
    with RedisServer() as server, client_of(server) as client:
        async with emptied(server) as store:
            ids = await add(store, 20)
            held = await store.lease(worker(), 10, 60)
            client.config_set("maxmemory", 1)
            with pytest.raises(StoreFull):
                await store.ping()
            with pytest.raises(StoreFull):
                await add(store, 1)
            with pytest.raises(StoreFull):
                await store.enqueue_once("event", NewTask(task_class="A"))
            with pytest.raises(StoreFull):
                await settle(store, held[:1], Complete(followups=[NewTask(task_class="Child")]))
            assert [one.verdict for one in await settle(store, held[:9])] == ["settled"] * 9
            assert [one.verdict for one in await settle(store, held[9:], Retry(wait=600))] == ["settled"]
            assert await drain(store) == ids[10:]
            await store.changed(0.01)
            await assert_whole(store)

            client.config_set("maxmemory", 0)
            await store.ping()
            assert len(await add(store, 1)) == 1
            await assert_whole(store)


async def test_on_a_full_server_followups_keep_no_other_outcome_from_being_written() -> None:
    with RedisServer() as server, client_of(server) as client:
        async with emptied(server) as store:
            await add(store, 3)
            first, second, third = [Lease(row.id, row.lease_owner or "") for row in await store.lease(worker(), 3, 60)]
            client.config_set("maxmemory", 1)
            async with serving(Settler(store)) as settler:
                answers = Answers(settler)
                answers.submit(first, Complete(followups=[NewTask(task_class="Child")]))
                answers.submit(second)
                await soon(lambda: second.task_id in answers.verdicts)
                answers.submit(third)
                await soon(lambda: third.task_id in answers.verdicts)
                assert settler.unwritten_ids == [first.task_id]
                client.config_set("maxmemory", 0)
                await soon(lambda: first.task_id in answers.verdicts)
            assert set(answers.verdicts.values()) == {"settled"}
            assert [row.task_class for row in await store.list_active(9)] == ["Child"]
            await assert_whole(store)


async def test_on_a_full_server_work_that_runs_goes_on(clock: Clock) -> None:
    """Whatever a call writes first, and also where it writes nothing."""
    with RedisServer() as server, client_of(server) as client:
        async with emptied(server, StoreOptions(now=clock, patience=0)) as store:
            known = NewTask(task_class="A", idempotency_key="k")
            ids = [row.id for row in await store.enqueue([known] + [NewTask(task_class="A")] * 9)]
            event = await store.enqueue_once("event", known)
            await store.lease(worker(), 3, 60)
            client.config_set("maxmemory", 1)

            clock.advance(62)
            held = await store.lease(worker(), 3, 60, due_first=True)  # from one worker's lease to another's
            assert [task.id for task in held] == ids[:3]
            for _ in range(3):
                clock.advance(30)
                rows = await store.renew([Lease(task.id, task.lease_owner or "") for task in held], 60)
                assert [row.lease_expires if row else None for row in rows] == [clock.now + 60] * 3
            strange = [Lease(task.id, "qr:0badcafe:0:1@test") for task in held]
            verdicts = await store.settle([Settlement.held(lease, Yield()) for lease in strange])
            assert [one.verdict for one in verdicts] == ["lost"] * 3
            assert await store.awaken(ids) == 0
            assert await store.delay(ids[:1], clock.now + 60) == 0
            await store.pause(STOP)
            assert await store.paused() == [STOP]
            assert await store.lease(worker(), 9, 60) == []
            assert await store.resume(STOP) is True
            assert await store.priority(ids[9:], 5) == 1
            assert await store.free(ids[2:3]) == 1
            assert [row.id for row in await store.enqueue([known])] == ids[:1]
            assert await store.enqueue_once("event", known) == event
            endings: tuple[Outcome, ...] = (Retry(wait=5), Yield(wait=5))
            settled = await store.settle(
                [
                    Settlement.held(Lease(task.id, task.lease_owner or ""), end)
                    for task, end in zip(held[:2], endings, strict=True)
                ]
            )
            assert [one.verdict for one in settled] == ["settled"] * 2
            assert len([row for row in await store.cancel(ids[8:]) if row]) == 2
            assert len([row for row in await store.retry(ids[8:]) if row]) == 2

            client.zrem(key("R:default/A"), f"{ids[9]:010d}")
            (memory,) = [one for one in await examine(store, mend=True) if one.subject == "memory"]
            assert (memory.level, "full" in memory.sentence) == ("fault", True)
            await assert_whole(store)
            clock.advance(600)
            assert sorted(await drain(store)) == ids


async def test_a_server_that_cannot_save_says_so_and_is_used_again_when_it_can() -> None:
    """MISCONF"""
    with RedisServer() as server, client_of(server) as client:
        async with emptied(server) as store:
            ids = await add(store, 3)
            client.config_set("save", "3600 1")
            server.folder.chmod(0o555)
            client.bgsave()
            await soon(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
            with pytest.raises(StoreUnavailable, match="cannot save to its disk"):
                await store.ping()
            with pytest.raises(StoreUnavailable, match="cannot save to its disk"):
                await add(store, 1)
            with pytest.raises(StoreUnavailable, match="cannot save to its disk"):
                await store.lease(worker(), 1, 60)
            assert (await store.stats()).active == 3

            server.folder.chmod(0o755)
            client.bgsave()
            await soon(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")
            await store.ping()
            assert await drain(store) == ids
            await assert_whole(store)


# ---- a queue cannot live there


async def test_a_server_that_begins_to_evict_is_refused_by_the_next_ping(redis_server: RedisServer) -> None:
    with RedisServer("--maxmemory", "100mb") as server, client_of(server) as client:
        async with open_store(server.url) as store:
            await add(store, 1)
            client.config_set("maxmemory-policy", "allkeys-lru")
            with pytest.raises(StoreUnavailable, match="maxmemory-policy is allkeys-lru"):
                await store.ping()
            with pytest.raises(StoreUnavailable, match="maxmemory-policy is allkeys-lru"):
                await add(store, 1)
            client.config_set("maxmemory-policy", "noeviction")
            await store.ping()
            assert len(await drain(store)) == 1


async def test_a_server_that_begins_to_evict_is_noticed_without_a_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_link, "FACTS_SECONDS", 0.1)
    with RedisServer("--maxmemory", "100mb") as server, client_of(server) as client:
        async with open_store(server.url) as store:
            await add(store, 1)
            client.config_set("maxmemory-policy", "allkeys-lru")
            await asyncio.sleep(0.11)
            with pytest.raises(StoreUnavailable, match="maxmemory-policy is allkeys-lru"):
                await store.stats()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
async def test_an_evicting_server_is_refused_unless_it_is_allowed(policy: str) -> None:
    """R035: it would delete tasks without a word."""
    with RedisServer("--maxmemory", "100mb", "--maxmemory-policy", policy) as server, client_of(server) as client:
        async with open_store(server.url) as store:
            for refused in (store.ping, store.stats, store.paused):
                with pytest.raises(StoreUnavailable, match=f"maxmemory-policy is {policy}"):
                    await refused()
            assert client.dbsize() == 0
            async with open_store(server.url, allow_eviction=True) as careless:
                assert await add(careless, 1) == [1]
            client.config_set("maxmemory-policy", "noeviction")
            assert await drain(store) == [1]


@pytest.mark.parametrize("password", ["", "wrong-secret"])
async def test_a_wrong_password_is_an_outage_whose_message_holds_no_password(password: str) -> None:
    """R116"""
    with RedisServer("--requirepass", "right-secret") as server:
        async with open_store(f"redis://:{password}@{server.host}:{server.port}/0") as store:
            with pytest.raises(StoreUnavailable, match="password") as caught:
                await add(store, 1)
            assert "secret" not in str(caught.value)
        async with open_store(f"redis://:right-secret@{server.host}:{server.port}/0") as store:
            assert await add(store, 1) == [1]


def account(server: RedisServer, *rights: str) -> str:
    """The URL of an account that may use the keys of the queue, and what else is said."""
    ask(server, "ACL", "SETUSER", "someone", "on", ">p", "~{queue-runtime}:*", "+@all", *rights)
    return f"redis://someone:p@{server.host}:{server.port}/0"


async def test_an_account_that_may_not_ask_info_can_use_the_queue() -> None:
    with RedisServer() as server:
        async with open_store(account(server, "allchannels", "-info")) as store:
            await add(store, 1)
            assert len(await drain(store)) == 1


async def test_an_account_without_the_channel_finds_work_by_looking() -> None:
    """New accounts of Redis 7 have no channels unless they are given."""
    with RedisServer() as server:
        url = account(server, "resetchannels")
        async with open_store(url) as store, open_store(url) as producer:
            while await store.changed(0.1):
                pass
            waiting = asyncio.create_task(store.changed(20))
            await asyncio.sleep(0.05)
            await add(producer, 1)
            async with asyncio.timeout(5):
                assert await waiting is True
            assert len(await drain(store)) == 1
            (found,) = [one for one in await examine(store) if one.subject == "channel"]
    assert found.level == "warning"
    assert "&{queue-runtime}:*" in found.sentence


# ---- nobody is there


async def test_opening_needs_no_server_and_the_first_call_after_its_start_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R111"""
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    server = RedisServer()
    async with open_store(server.url) as store:
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await store.ping()
        with server:
            await store.ping()
            assert await add(store, 1) == [1]


async def test_a_server_that_takes_the_connection_and_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_calls, "TRY_SECONDS", 0.1)
    monkeypatch.setattr("stores.redis_link.CONNECT_SECONDS", 0.1)
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with open_store(f"redis://127.0.0.1:{silent.getsockname()[1]}/0") as store:
            with pytest.raises(StoreUnavailable, match=r"cannot connect \(\w"):
                await store.ping()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://:secret@localhost/0?nonsense=1", "nonsense"),
        ("redis://:secret@localhost/0?ssl_ca_certs=/x", "ssl_ca_certs"),
        ("redis+sentinel://:secret@localhost/service?sentinel_foo=1", "sentinel_foo"),
        ("rediss+sentinel://:secret@localhost/service?sentinel_username=a&bar=1", "bar"),
    ],
)
async def test_a_setting_that_nobody_knows_is_named(url: str, name: str) -> None:
    with pytest.raises(StoreUnusable, match=f"nobody knows its setting {name}$") as caught:
        async with open_store(url):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://:secret@localhost/",
        "redis://:secret@localhost:notaport/0",
        "redis://:secret@localhost:99999999/0",
        "redis://:secret@localhost/0?nonsense=1",
        "redis://:secret@localhost/0?socket_timeout=soon",
        "redis+sentinel://:secret@localhost:26379",
        "redis+sentinel://:secret@localhost:x/service",
    ],
)
async def test_a_url_that_names_no_server_ends_the_start_without_telling_the_password(url: str) -> None:
    """R116"""
    with pytest.raises(StoreUnusable, match="the Redis URL must be") as caught:
        async with open_store(url):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b"])
async def test_a_prefix_that_would_break_the_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidRequest):
        async with open_store("redis://localhost", prefix=prefix):
            pass

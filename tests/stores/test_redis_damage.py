"""Keys that somebody else has written: nobody's process ends, the rest of the queue works, and the doctor mends it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from queue_runtime.errors import StoreUnavailable
from queue_runtime.findings import Level
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Fail, Lease, NewTask, Result, Retry
from stores import redis_changes
from stores.redis import RedisStore, open_store
from stores.redis_check import check, repair
from stores.redis_doctor import examine
from stores.redis_errors import Damaged
from tests.clock import Clock
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, drain, emptied, key, settle, worker

Call = Callable[[RedisStore], Awaitable[object]]


@pytest.fixture
async def store(redis_server: RedisServer, clock: Clock) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server, StoreOptions(now=clock, retention=1000)) as store:
        yield store


@pytest.fixture
def client(redis_server: RedisServer, store: RedisStore) -> Iterator[Redis]:
    with client_of(redis_server) as client:
        yield client


def one(task_id: int) -> str:
    return f"{task_id:010d}"


async def fill(store: RedisStore) -> None:
    """1 ready, 2 held, 3 failed once, 4 ended, 5 of an event, 6 with a long payload and a key."""
    await add(store, 4)
    await store.lease(worker(), 1, 60, only=[2])
    await settle(store, await store.lease(worker(), 1, 60, only=[3]), Retry())
    await settle(store, await store.lease(worker(), 1, 60, only=[4]))
    await store.enqueue_once("event", NewTask(task_class="A"))
    await add(store, 1, data="x" * 5000, idempotency_key="k")


EVERYTHING: dict[str, Call] = {
    "enqueue": lambda store: add(store, 1, idempotency_key="new"),
    "enqueue_once": lambda store: store.enqueue_once("event", NewTask(task_class="A")),
    "lease": lambda store: store.lease(worker(), 9, 60),
    "lease of due ones": lambda store: store.lease(worker(), 9, 60, due_first=True),
    "lease of some": lambda store: store.lease(worker(), 9, 60, only=[1, 2, 3, 4, 5, 6]),
    "renew": lambda store: store.renew([Lease(2, "x")], 60),
    "settle": lambda store: settle_all(store, Complete(followups=[NewTask(task_class="Child")])),
    "fail": lambda store: settle_all(store, Fail()),
    "cancel": lambda store: store.cancel([1]),
    "awaken": lambda store: store.awaken([1]),
    "free": lambda store: store.free([2]),
    "priority": lambda store: store.priority([1], 5),
    "delay": lambda store: store.delay([1], 2_000_000_000),
    "retry": lambda store: store.retry([4], repeat=True),
    "paused": lambda store: store.paused(),
    "sweep": lambda store: store.sweep(10),
    "get": lambda store: store.get([1, 2, 3, 4, 5, 6]),
    "get_archived": lambda store: store.get_archived([1, 2, 3, 4, 5, 6]),
    "list_active": lambda store: store.list_active(9),
    "list_archived": lambda store: store.list_archived(9),
    "history": lambda store: store.history([3]),
    "stats": lambda store: store.stats(),
    "backlog": lambda store: store.backlog(),
    "operations": lambda store: store.operations(),
    "changed": lambda store: store.changed(0.001),
    "ping": lambda store: store.ping(),
}


async def settle_all(store: RedisStore, outcome: Complete | Fail) -> None:
    tasks = [row for row in await store.get([2]) if row]
    await settle(store, tasks, outcome)


KEYS_OF_THE_QUEUE = (
    *("body", "data", "hold", "state", "ended", "keys", "events", "active", "archive", "over", "event_times"),
    *("odd", "failing", "pauses", "last_id", "version", "quiet"),
    *("heads:R", "heads:R:default", "heads:W", "heads:B:default", "lanes"),
    *("R:default/A", "W:default/A", "B:default/A", f"history:{one(3)}"),
)


@pytest.mark.parametrize("name", KEYS_OF_THE_QUEUE)
async def test_a_key_of_another_type_is_an_outage_that_the_doctor_ends(
    store: RedisStore, client: Redis, name: str
) -> None:
    """No call ends in a raw error, and none leaves a half behind."""
    await fill(store)
    client.delete(key(name))
    if name in ("pauses", "odd", "failing"):
        client.set(key(name), "x")
    else:
        client.sadd(key(name), "x")
    for call in EVERYTHING.values():
        try:
            await call(store)
        except Damaged as error:
            assert "doctor --store --repair" in error.reason  # noqa: PT017  either it works, or it says this
    sick = await examine(store)
    heals = name in ("last_id", "version", "quiet") and all(found.level is not Level.FAULT for found in sick)
    assert heals or any("holds a" in found.sentence for found in sick)
    await examine(store, mend=True)
    lost = {"has lost its payload": 1} if name == "data" else {}
    assert (await check(store)).differences == lost
    ids = await add(store, 1)
    assert ids[0] in await drain(store)
    await store.sweep(10)
    assert (await check(store)).differences == lost


JUNK: dict[str, Callable[[Redis], object]] = {
    "a short body": lambda client: client.hset(key("body"), one(1), "junk"),
    "a body whose lane is no lane": lambda client: client.hset(key("body"), one(1), b"\0" * 14 + b"\3\0\0abc"),
    "a body under no id": lambda client: client.hset(key("body"), "junk", "junk"),
    "a body of no task": lambda client: client.hset(key("body"), one(4), ""),
    "a short state": lambda client: client.hset(key("state"), one(3), "junk"),
    "a long state": lambda client: client.hset(key("state"), one(3), "x" * 23),
    "a strange hold": lambda client: client.hset(key("hold"), one(1), "nan"),
    "a short end": lambda client: client.hset(key("ended"), one(4), "junk"),
    "an end of another kind": lambda client: client.hset(key("ended"), one(4), b"\7" + b"\0" * 40),
    "an active entry": lambda client: client.zadd(key("active"), {"junk": 1}),
    "an archived entry": lambda client: client.zadd(key("archive"), {"junk": 2**40}),
    "an ended entry": lambda client: client.zadd(key("over"), {"junk": 1}),
    "a ready entry": lambda client: client.zadd(key("R:default/A"), {"junk": 1}),
    "a due entry": lambda client: client.zadd(key("B:default/A"), {"junk": 1}),
    "an odd entry": lambda client: client.sadd(key("odd"), "junk"),
    "a failing entry": lambda client: client.sadd(key("failing"), "junk"),
    "bytes that are no text": lambda client: client.zadd(key("heads:D:default"), {b"\xff" * 20: 1}),
    "a head of a lane": lambda client: client.zadd(key("heads:R:default"), {"junk": 1}),
    "a head of a queue": lambda client: client.zadd(key("heads:R"), {"junk": 1}),
    "heads of nothing": lambda client: client.zadd(key("heads:junk"), {"junk": 1}),
    "heads of a lane that is not there": lambda client: client.zadd(key("heads:B:other"), {f"{one(3)}A": 1}),
    "no heads": lambda client: client.delete(key("heads:R"), key("heads:R:default")),
    "a pause": lambda client: client.sadd(key("pauses"), "junk"),
    "a key": lambda client: client.hset(key("keys"), "new", "junk"),
    "a key of a task without one": lambda client: client.hset(key("keys"), "new", one(1)),
    "an event": lambda client: client.hset(key("events"), "event", "junk"),
    "a time of an event": lambda client: client.zadd(key("event_times"), {"junk": 1}),
    "a lane that is none": lambda client: client.zadd(key("lanes"), {"junk": 1}),
    "an answer to an enqueue": lambda client: spoil_answers(client, b"junk"),
    "an answer to an enqueue that is a number": lambda client: spoil_answers(client, b"\x07"),
    "an answer to an enqueue that is short": lambda client: spoil_answers(client, b"\x91\x07"),
    "an answer to an enqueue whose rows are odd": lambda client: spoil_answers(
        client, b"\x94\x01\x01\xaa0000000001\x91\xa11"
    ),
    "a state of endless receipts": lambda client: client.hset(key("state"), one(3), b"\0" * (20 + 8 * 300)),
    "a last id": lambda client: client.set(key("last_id"), "junk"),
    "a last id above all": lambda client: client.set(key("last_id"), 10**30),
}


def spoil_answers(client: Redis, answer: bytes) -> None:
    """In the place of what each process was answered to its latest enqueue."""
    callers = list(client.scan_iter(key("caller:*")))
    assert callers
    for caller in callers:
        client.hset(caller, mapping=dict.fromkeys(client.hkeys(caller), answer))


async def test_the_size_of_a_queue_is_known_where_its_last_id_is_junk(store: RedisStore, client: Redis) -> None:
    await add(store, 1)
    for junk in ("junk", "", "-1", str(10**30)):
        client.set(key("last_id"), junk)
        assert (await store.operations())["lastID"] == 0


@pytest.mark.parametrize("wrong", [one(2), one(99), "junk"])
async def test_one_repair_mends_a_key_that_leads_to_another_task(store: RedisStore, client: Redis, wrong: str) -> None:
    """What is wrong goes first, what is missing comes then; what is said to be mended is."""
    await fill(store)
    client.hset(key("keys"), "k", wrong)
    found = [one_ for one_ in await examine(store, mend=True) if one_.subject == "indexes"]
    assert {one_.level for one_ in found} == {Level.NOTE}
    await assert_whole(store)
    assert client.hget(key("keys"), "k") == one(6).encode()


async def test_one_repair_mends_everything_at_once(store: RedisStore, client: Redis) -> None:
    """Damages that hide each other, all of those of this file that do not take a task away."""
    await fill(store)
    for what, damage in JUNK.items():
        if "body" not in what:
            damage(client)
    assert (await repair(store)).left == frozenset()
    await assert_whole(store)


async def test_what_somebody_else_spoils_again_and_again_is_not_called_mended(store: RedisStore, client: Redis) -> None:
    await fill(store)
    script = store.calls.script

    async def spoiled(name: str, *arguments: Any, **options: Any) -> Any:
        client.sadd(key("pauses"), "junk")
        return await script(name, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.calls, "script", spoiled)
        found = [one_ for one_ in await examine(store, mend=True) if "is no pause" in one_.sentence]
    assert found[0].level is Level.FAULT
    assert "(mended)" not in found[0].sentence


@pytest.mark.parametrize("what", JUNK)
async def test_junk_in_a_key_is_found_and_mended(store: RedisStore, client: Redis, clock: Clock, what: str) -> None:
    await fill(store)
    JUNK[what](client)
    assert not (await check(store)).whole
    clock.advance(5)
    await repair(store)
    assert set((await check(store)).differences) <= {"has damaged names"}
    assert len(await add(store, 2)) == 2
    clock.advance(1000)
    assert await drain(store)
    await store.sweep(10)
    await assert_whole(store)


@pytest.mark.parametrize("what", JUNK)
async def test_junk_in_a_key_spoils_no_other_row(store: RedisStore, client: Redis, clock: Clock, what: str) -> None:
    await fill(store)
    JUNK[what](client)
    for name, call in EVERYTHING.items():
        if (what, name) != ("an event", "enqueue_once"):
            await call(store)
    clock.advance(1000)
    assert len(await drain(store)) >= 3


async def test_a_row_that_is_no_task_does_not_keep_others_from_being_leased(store: RedisStore, client: Redis) -> None:
    ids = await add(store, 4)
    client.hset(key("body"), mapping={one(ids[0]): "junk", one(ids[1]): ""})
    await store.lease(worker(), 2, 60)
    assert [task.id for task in await store.lease(worker(), 2, 60)] == ids[2:]
    assert [row.id for row in await store.list_active(9)] == ids[2:]
    found = await examine(store, mend=True)
    assert any(one_.level is Level.FAULT and "damaged beyond repair" in one_.sentence for one_ in found)
    assert client.hget(key("damaged:body"), one(ids[0])) == b"junk"
    await assert_whole(store)


async def test_a_settle_that_meets_damage_writes_nothing(store: RedisStore, client: Redis) -> None:
    await add(store, 2)
    tasks = await store.lease(worker(), 2, 60)
    client.set(key("over"), "x")
    for outcome in (Complete(), Fail()):
        with pytest.raises(Damaged):
            await settle(store, tasks, outcome)
    client.delete(key("over"))
    await assert_whole(store)
    assert [row.id if row else None for row in await store.get([1, 2])] == [1, 2]
    assert [found.verdict for found in await settle(store, tasks)] == ["settled"] * 2


async def test_tasks_that_have_lost_their_end_do_not_run_again(store: RedisStore, client: Redis) -> None:
    await add(store, 3)
    await drain(store)
    client.delete(key("ended"))
    assert (await check(store)).differences == {"has lost its end": 3}
    found = await examine(store, mend=True)
    assert any("nobody knows how it ended" in one_.sentence for one_ in found)
    await assert_whole(store)
    assert await store.lease(worker(), 9, 60) == []
    assert [row.result for row in await store.list_archived(9)] == [Result.FAILURE] * 3


async def test_a_payload_that_is_gone_stays_a_fault_after_a_repair(store: RedisStore, client: Redis) -> None:
    await fill(store)
    client.delete(key("data"))
    for _ in range(2):
        faults = [found for found in await examine(store, mend=True) if found.level is Level.FAULT]
        assert len(faults) == 1
        assert "cannot be mended" in faults[0].sentence


@pytest.mark.parametrize("last_id", [None, 0, 2])
async def test_no_task_is_written_over_when_the_last_id_is_lost(
    redis_server: RedisServer, store: RedisStore, client: Redis, last_id: int | None
) -> None:
    """By a process that has seen no id."""
    await add(store, 5, data="first")
    await settle(store, await store.lease(worker(), 2, 60, only=[4, 5]))
    if last_id is None:
        client.delete(key("last_id"))
    else:
        client.set(key("last_id"), last_id)
    async with open_store(redis_server.socket_url) as fresh:
        assert await add(fresh, 2, data="second") == [6, 7]
        assert [row.data for row in await fresh.get([1, 2, 3]) if row] == ["first"] * 3
    await assert_whole(store)


# ---- the channel


@pytest.mark.parametrize("message", [b"hello", b"", b"-1", b"\xff", "٣".encode(), b"9" * 5000])
async def test_what_others_say_on_the_channel_is_ignored(
    redis_server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch, message: bytes
) -> None:
    monkeypatch.setattr(redis_changes, "_SELDOM", 60.0)
    async with open_store(redis_server.socket_url) as store:
        while await store.changed(0.05):
            pass
        for _ in range(3):
            client.publish(key("bell"), message)
            await store.changed(0.02)
        await add(store, 1)
        assert await store.changed(5) is True


# ---- servers that lack something


@pytest.mark.parametrize("command", ["CONFIG", "INFO"])
async def test_the_doctor_works_where_a_command_is_renamed_away(command: str) -> None:
    with RedisServer("--rename-command", command, "") as server:
        async with open_store(server.socket_url) as store:
            await add(store, 1)
            assert all(found.level is not Level.FAULT for found in await examine(store))
            assert len(await drain(store)) == 1


async def test_a_server_without_a_command_that_scripts_need_says_which() -> None:
    with RedisServer("--rename-command", "ZMSCORE", "") as server:
        async with open_store(server.socket_url) as store:
            await add(store, 1, delay_until=1)
            with pytest.raises(StoreUnavailable, match="lacks a command that the queue needs"):
                await store.lease(worker(), 1, 60)

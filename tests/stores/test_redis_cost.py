"""What calls cost the server: counted commands, which no neighbour on the machine can change; and memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis import Redis

from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Pause, PauseKind, Release, Settlement, State, Task, TaskFilter, Yield
from stores import redis, redis_lists, redis_rows
from stores.redis import RedisStore, open_store
from tests.clock import START, Clock
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, commands, cost_of, drain, emptied, settle, worker

Call = Callable[[RedisStore], Awaitable[object]]

MOUNTAIN = 20_000


@pytest.fixture
async def store(redis_server: RedisServer, clock: Clock) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server, StoreOptions(now=clock)) as store:
        yield store


async def cost(client: Redis, store: RedisStore, call: Call) -> dict[str, int]:
    """The commands of one call."""
    return await cost_of(client, lambda: call(store))


async def lease_ten(store: RedisStore) -> None:
    assert len(await store.lease(worker(), 10, 60)) == 10


async def lease_and_settle(store: RedisStore) -> None:
    await settle(store, await store.lease(worker(), 10, 60))


async def lease_rare(store: RedisStore) -> None:
    await settle(store, await store.lease(worker(), 1, 60, classes={"Rare"}), Release())


CALLS: dict[str, Call] = {
    "enqueue": lambda store: add(store, 10),
    "lease": lease_ten,
    "lease and settle": lease_and_settle,
    "a rare class": lease_rare,
    "stats": lambda store: store.stats(),
    "a page": lambda store: store.list_active(10),
    "a deep page": lambda store: store.list_active(10, offset=900),
    "held rows": lambda store: store.list_active(10, where=TaskFilter(states=frozenset({State.LEASED}))),
    "sweep": lambda store: store.sweep(10),
    "operations": lambda store: store.operations(),
}


@pytest.mark.parametrize("what", CALLS)
async def test_a_call_runs_as_many_commands_at_any_depth(
    redis_server: RedisServer, store: RedisStore, what: str
) -> None:
    """R062, R064: no script walks what is ready."""
    with client_of(redis_server) as client:
        await add(store, 1, task_class="Rare")
        await add(store, 1000)
        shallow = await cost(client, store, CALLS[what])
        for _ in range(MOUNTAIN // 1000):
            await add(store, 1000)
        assert await cost(client, store, CALLS[what]) == shallow


async def test_rows_of_other_lanes_and_rows_that_wait_cost_nothing(
    redis_server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    with client_of(redis_server) as client:
        await add(store, 20)
        await add(store, 1, task_class="Bulk", queue="bulk", priority=0)
        await add(store, 1, delay_until=START + 1000, priority=0)
        await store.lease(worker(), 1, 1000, classes={"Bulk"})
        await add(store, 1, task_class="Bulk", queue="bulk", priority=0)
        await store.pause(Pause(PauseKind.QUEUE, "bulk"))
        few = await cost(client, store, lease_ten)
        for _ in range(5):
            await add(store, 1000, task_class="Bulk", queue="bulk", priority=0)
            await add(store, 1000, delay_until=START + 1000, priority=0)
        await add(store, 20)
        assert await cost(client, store, lease_ten) == few


async def test_many_due_rows_cost_a_window_and_not_the_mountain(
    redis_server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    """R036: twenty thousand tasks due in the same second."""
    with client_of(redis_server) as client:
        for _ in range(3):
            await add(store, 1000, delay_until=1)
        few = await cost(client, store, lease_ten)
        for _ in range(MOUNTAIN // 1000):
            await add(store, 1000, delay_until=1)
        assert await cost(client, store, lease_ten) == few
        assert len(await store.lease(worker(), 10_000, 60)) == 1000


async def test_twenty_thousand_expired_leases_are_taken_over_in_pieces(store: RedisStore, clock: Clock) -> None:
    """R036: no script error, each once."""
    for _ in range(MOUNTAIN // 1000):
        await add(store, 1000)
        await store.lease("web1:1", 1000, 5)
    clock.advance(100)
    seen: set[int] = set()
    while tasks := await store.lease(worker(), 10_000, 60):
        seen |= {task.id for task in tasks}
    assert len(seen) == MOUNTAIN


async def commands_on(store: RedisStore, task_ids: list[int]) -> list[object]:
    """What each command of an operator answers, one after the other."""
    first, ended, rest = task_ids[0], task_ids[1], task_ids[2:]
    await store.settle([Settlement.unfenced(task_id, Yield(wait=600)) for task_id in (first, *rest)])
    return [
        await store.awaken([*rest, first, rest[0], 10**9]),
        await store.priority([*rest, first, rest[0], ended], 7),
        await store.free([first, *rest, first]),
        [row and row.result for row in await store.cancel([10**9, *task_ids, first])],
        [row and (row.id - first, row.priority) for row in await store.retry([*task_ids, 10**9, first])],
        await store.delay(task_ids, START + 600),
    ]


async def test_a_command_over_many_tasks_goes_in_pieces_and_answers_as_one(
    redis_server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R036: so that ten thousand tasks at once do not hold up the server."""
    whole = await commands_on(store, await add(store, 11))
    assert whole[:3] == [10, 11, 10]
    with client_of(redis_server) as client:
        client.flushall()
        monkeypatch.setattr(redis, "PIECE", 3)
        ids = await add(store, 11)
        assert await commands_on(store, ids) == whole
        client.config_resetstat()
        await store.free(ids)
        assert commands(client)["evalsha"] == 4
    await assert_whole(store)


async def test_one_call_is_one_script(redis_server: RedisServer, store: RedisStore) -> None:
    """The batch goes and comes in one round trip."""
    with client_of(redis_server) as client:
        for name in ("enqueue", "lease and settle"):
            counted = await cost(client, store, CALLS[name])
            assert counted["evalsha"] == (2 if name == "lease and settle" else 1)
            assert counted["hset"] <= 6
            assert counted["zadd"] <= 6


async def test_an_idle_listener_asks_once_a_second(redis_server: RedisServer, store: RedisStore) -> None:
    """R069, R070"""
    async with open_store(redis_server.socket_url) as idle:
        while await idle.changed(0.2):
            pass
        with client_of(redis_server) as client:
            client.config_resetstat()
            assert not await idle.changed(2.5)
            assert commands(client)["evalsha"] <= 5


async def test_a_stream_of_changes_is_no_stream_of_messages(redis_server: RedisServer, store: RedisStore) -> None:
    """A listener is told once, and looks for the rest when it has time."""
    async with open_store(redis_server.socket_url) as listener:
        while await listener.changed(0.1):
            pass
        with client_of(redis_server) as client:
            client.config_resetstat()
            for _ in range(200):
                await add(store, 1)
            assert commands(client)["publish"] == 1
        assert await listener.changed(1) is True


async def test_a_page_of_rows_that_wait_brings_no_more_than_itself(
    redis_server: RedisServer, store: RedisStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand by time: all are looked at there, and the page alone comes here."""
    monkeypatch.setattr(redis_lists, "STEP", 500)
    waiting = TaskFilter(states=frozenset({State.WAITING}))
    ids = []
    for number in range(6):
        ids += await add(store, 500, delay_until=START + 1000 - number, priority=9 - number)
    brought = 0
    read = redis_rows.active_task

    def count(*parts: Any) -> Task:
        nonlocal brought
        brought += 1
        return read(*parts)

    monkeypatch.setattr(redis_lists, "active_task", count)
    found = await store.list_active(10, where=waiting)
    assert [row.id for row in found] == ids[2500:2510]
    assert brought <= 6 * 10
    found = await store.list_active(10, where=waiting, offset=495)
    assert [row.id for row in found] == [*ids[2995:], *ids[2000:2005]]
    found = await store.list_active(10, where=waiting, after=(8, ids[505]))
    assert [row.id for row in found] == ids[506:516]


# ---- memory


async def test_a_waiting_task_takes_less_than_half_a_kilobyte(redis_server: RedisServer, store: RedisStore) -> None:
    """Payload of 55 bytes, a PHID, an ordinary class name."""
    new = NewTask(task_class="FeedPublisherHTTPWorker", data="x" * 55, object_phid="PHID-USER-" + "x" * 20)
    with client_of(redis_server) as client:
        await store.enqueue([new] * 10)
        before = client.info("memory")["used_memory"]
        for _ in range(20):
            await store.enqueue([new] * 500)
        used = (client.info("memory")["used_memory"] - before) / 10_000
    assert used < 500, used


async def test_memory_and_keys_level_off_when_the_retention_is_over(redis_server: RedisServer, clock: Clock) -> None:
    """R106: what belongs to a task goes with it."""
    async with emptied(redis_server, StoreOptions(now=clock, retention=10)) as store:
        with client_of(redis_server) as client:
            sizes = []
            for number in range(6):
                for part in range(4):
                    name = f"{number}.{part}"
                    await add(store, 500, data="x" * 1500, task_class=f"Class{name}")
                    await add(store, 1, idempotency_key=name, task_class=f"Class{name}")
                await drain(store)
                clock.advance(10)
                while (await store.sweep(1000)).more:
                    pass
                await assert_whole(store)
                sizes.append((client.dbsize(), client.info("memory")["used_memory"]))
    assert len({keys for keys, _ in sizes[1:]}) == 1
    assert max(used for _, used in sizes[1:]) < 1.1 * min(used for _, used in sizes[1:])


async def test_events_are_kept_for_the_days_that_are_set(redis_server: RedisServer, clock: Clock) -> None:
    with client_of(redis_server) as client:
        client.flushall()
    task = NewTask(task_class="A")
    async with open_store(redis_server.socket_url, StoreOptions(now=clock), event_days=2) as store:
        first = await store.enqueue_once("old", task)
        clock.advance(2 * 86400 - 1)
        second = await store.enqueue_once("young", task)
        await store.sweep(100)
        assert await store.enqueue_once("old", task) == first
        clock.advance(1)
        await store.sweep(100)
        assert await store.enqueue_once("young", task) == second
        again = await store.enqueue_once("old", task)
        assert again.id > second.id

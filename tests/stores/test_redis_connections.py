"""Connections: few for many callers, never a stale reply, and replaced when they die."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import (
    Complete,
    Fail,
    Lease,
    NewTask,
    Outcome,
    Pause,
    PauseKind,
    Release,
    Retry,
    Settlement,
    Task,
    TaskFilter,
    Unknown,
    Yield,
)
from stores import redis_link
from stores.redis import RedisStore, open_store
from tests.runtime.harness import until
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, drain, emptied, key, settle, soon, worker
from tests.stores.relay import Relay, relay_to
from tests.transports import HIGH, unsent

T = TypeVar("T")


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


@pytest.fixture
async def relay(redis_server: RedisServer, store: RedisStore) -> AsyncIterator[Relay]:
    """A line to the emptied server."""
    async with relay_to(redis_server.host, redis_server.port) as relay:
        yield relay


def through(relay: Relay, *, connections: int) -> AbstractAsyncContextManager[RedisStore]:
    """A store at the other end of the line."""
    return open_store(relay.url, connections=connections)


def clients_of(server: RedisServer) -> int:
    """Connections to the server, without the one that asks and those that listen."""
    with client_of(server) as client:
        return sum(one["cmd"].split("|")[0] not in ("client", "subscribe", "ping") for one in client.client_list())


# ---- many callers


async def test_two_hundred_callers_share_five_connections(redis_server: RedisServer, store: RedisStore) -> None:
    """R046: they wait, and nobody fails."""
    async with open_store(redis_server.url, connections=5) as few:
        before = clients_of(redis_server)
        ids = await asyncio.gather(*[add(few, 2) for _ in range(200)])
        assert clients_of(redis_server) - before == 5
        assert sorted(task_id for part in ids for task_id in part) == list(range(1, 401))
        taken = await asyncio.gather(*[few.lease(worker(), 2, 60) for _ in range(200)])
        verdicts = await asyncio.gather(*[settle(few, tasks) for tasks in taken])
        assert [len(part) for part in verdicts] == [2] * 200
        await assert_whole(few)


async def test_who_waits_too_long_for_a_connection_is_told_so(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """R045: a bound, and no hanging."""
    monkeypatch.setattr(redis_link, "WAIT_SECONDS", 0.05)
    async with through(relay, connections=1) as slow:
        await slow.ping()
        relay.delay = 0.5
        first = asyncio.create_task(slow.stats())
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="no free connection"):
            await slow.stats()
        assert (await first).active == 0


async def test_a_listener_takes_no_connection_from_the_callers(redis_server: RedisServer, store: RedisStore) -> None:
    async with open_store(redis_server.url, connections=1) as one:
        while await one.changed(0.05):
            pass
        listening = asyncio.create_task(one.changed(10))
        await asyncio.sleep(0.05)
        assert await add(one, 1) == [1]
        assert await listening is True


async def test_a_short_bound_for_replies_does_not_bound_the_wait_for_messages(
    redis_server: RedisServer, store: RedisStore
) -> None:
    """R026, R028: the listener waits on a connection of its own, by its own time; an idle store opens none."""
    async with open_store(f"{redis_server.url}?socket_timeout=0.1") as line:
        while await line.changed(0.15):
            pass
        with client_of(redis_server) as client:
            before = client.info("stats")["total_connections_received"]
            assert await line.changed(0.8) is False
            assert client.info("stats")["total_connections_received"] == before
        await add(store, 1)
        assert await line.changed(5) is True


# ---- callers that go away


async def test_cancelled_calls_leave_no_reply_to_the_next_caller(
    relay: Relay, redis_server: RedisServer, store: RedisStore
) -> None:
    """R043, R045: each is cancelled at a random moment; beside them callers check that they get their own."""
    dice = random.Random(5)
    own = [new.id for new in await store.enqueue([NewTask(task_class="Own", data=str(n)) for n in range(50)])]
    await add(store, 502, task_class="Held")
    held = leases_of(await store.lease(worker(), 502, 600, classes={"Held"}))
    ending = held[1:]
    before = clients_of(redis_server)
    async with through(relay, connections=3) as line:
        relay.delay = 0.002
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: add(line, 2),
            lambda: line.lease(worker(), 3, 60, classes={"A"}),
            line.stats,
            lambda: line.renew([held[0]], 60),
            lambda: line.settle([Settlement.held(ending.pop(), Retry(wait=0))]),
        ]

        async def impatient() -> None:
            call = asyncio.ensure_future(dice.choice(calls)())
            await asyncio.sleep(dice.random() * dice.choice(MOMENTS))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

        async def patient(number: int) -> None:
            (row,) = await line.get([own[number]])
            assert row is not None
            assert (row.id, row.data) == (own[number], str(number))
            assert [one.id if one else None for one in await line.get([own[-1], 10**9])] == [own[-1], None]

        for _ in range(10):
            await asyncio.gather(*[one for n in range(50) for one in (impatient(), patient(n))])
        relay.delay = 0
        found = await asyncio.gather(*[line.get([own[0]]) for _ in range(3)])
        assert [row.id if row else None for (row,) in found] == [own[0]] * 3
        assert [row.id if row else None for row in await line.renew(held[:1], 60)] == [held[0].task_id]
        await assert_settled_once(line, held[1:], len(ending))
        await assert_whole(line)
    await soon(lambda: clients_of(redis_server) <= before)


MOMENTS = (0.012, 0.3)
"""Seconds within which a call is cancelled: while it waits for a connection, and when it has been sent or answered."""


def leases_of(tasks: list[Task]) -> list[Lease]:
    """What proves that these are held."""
    return [Lease(task.id, task.lease_owner) for task in tasks if task.lease_owner]


async def assert_settled_once(line: RedisStore, leases: list[Lease], untouched: int) -> None:
    """Each outcome (a retry) was written whole or not at all; the first so many leases nobody ended."""
    rows = await line.get([lease.task_id for lease in leases])
    histories = await line.history([lease.task_id for lease in leases])
    failures = []
    for lease, row, attempts in zip(leases, rows, histories, strict=True):
        assert row is not None
        assert (row.failure_count, row.lease_owner) in ((0, lease.owner), (1, "(retry)"))
        assert len(attempts) == row.failure_count
        failures.append(row.failure_count)
    assert failures[:untouched] == [0] * untouched
    assert sum(failures) > 0


async def cancel_calls(relay: Relay, redis_server: RedisServer, number: int) -> None:
    """Every method of the store, cancelled at random moments; after it the queue is whole and replies are one's own."""
    dice = random.Random(3)
    before = clients_of(redis_server)
    async with through(relay, connections=3) as line:
        await add(line, 50 + number // 20, task_class="Held")
        held = leases_of(await line.lease(worker(), 1000, 600))
        ending, with_child = held[1:], Complete(followups=[NewTask(task_class="Child of held")])
        ids = await add(line, 200, data="x" * 1200)
        pause = Pause(PauseKind.QUEUE, "other")
        outcomes: tuple[Outcome, ...] = (
            Complete(followups=[NewTask(task_class="Child")]),
            Fail(),
            Retry(wait=0),
            Yield(),
            Release(),
            Unknown(0),
        )

        def some() -> list[int]:
            return dice.sample(ids, 3)

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "enqueue": lambda: add(line, 2, idempotency_key=f"k{dice.randrange(9)}"),
            "enqueue_once": lambda: line.enqueue_once(f"e{dice.randrange(9)}", NewTask(task_class="A")),
            "lease": lambda: line.lease(worker(), 3, 1, due_first=dice.random() < 0.5),
            "renew": lambda: line.renew(held[:1], 60),
            "settle": lambda: line.settle([Settlement.held(ending.pop(), with_child)]),
            "settle unfenced": lambda: line.settle([Settlement.unfenced(one, dice.choice(outcomes)) for one in some()]),
            "cancel": lambda: line.cancel(some()),
            "awaken": lambda: line.awaken(some()),
            "free": lambda: line.free(some()),
            "priority": lambda: line.priority(some(), dice.randrange(9)),
            "delay": lambda: line.delay(some(), 1),
            "retry": lambda: line.retry(some(), repeat=True),
            "pause": lambda: line.pause(pause),
            "resume": lambda: line.resume(pause),
            "paused": line.paused,
            "sweep": lambda: line.sweep(5),
            "get": lambda: line.get(some()),
            "get_archived": lambda: line.get_archived(some()),
            "list_active": lambda: line.list_active(5),
            "list_archived": lambda: line.list_archived(5),
            "history": lambda: line.history(some()),
            "stats": line.stats,
            "backlog": line.backlog,
            "operations": line.operations,
            "ping": line.ping,
        }
        public = {name for name in vars(RedisStore) if not name.startswith("_")}
        # `changed` has one caller: test_redis_changes.py; the others wait for nothing
        assert public - calls.keys() == {"changed", "aclose", "hands", "on_handed"}
        relay.delay = 0.002
        names = [*calls] * (number // len(calls) + 1)
        dice.shuffle(names)

        async def impatient(name: str) -> None:
            call = asyncio.ensure_future(calls[name]())
            await asyncio.sleep(dice.random() * dice.choice(MOMENTS))
            call.cancel()
            (result,) = await asyncio.gather(call, return_exceptions=True)
            assert not isinstance(result, Exception), (name, result)

        for start in range(0, number, 25):
            await asyncio.gather(*[impatient(name) for name in names[start : start + 25]])
        relay.delay = 0
        assert [len(rows) for rows in await asyncio.gather(*[line.get(ids[:n]) for n in range(1, 6)])] == [
            1,
            2,
            3,
            4,
            5,
        ]
        assert [row.id if row else None for row in await line.renew(held[:1], 60)] == [held[0].task_id]
        ended = [row for row in await line.get_archived([lease.task_id for lease in held]) if row]
        assert ended
        assert len(ended) <= len(held) - 1 - len(ending)
        children = await line.list_active(1000, where=TaskFilter(classes=frozenset({"Child of held"})))
        assert len(children) == len(ended)
        await assert_whole(line)
    await soon(lambda: clients_of(redis_server) <= before)


async def test_any_call_may_be_cancelled_at_any_moment(
    relay: Relay, redis_server: RedisServer, store: RedisStore
) -> None:
    """R043, R045"""
    await cancel_calls(relay, redis_server, 500)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_any_of_two_thousand_calls_may_be_cancelled_at_any_moment(
    relay: Relay, redis_server: RedisServer, store: RedisStore
) -> None:
    await cancel_calls(relay, redis_server, 2000)


async def test_a_call_cancelled_while_it_waits_or_connects_gives_its_place_back(
    redis_server: RedisServer, store: RedisStore
) -> None:
    """R045"""
    async with open_store(redis_server.url, connections=3) as few:
        for number in range(100):
            calls = [asyncio.ensure_future(few.stats()) for _ in range(5)]
            for _ in range(number % 7):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        async with asyncio.timeout(5):
            assert len(await asyncio.gather(*[few.stats() for _ in range(3)])) == 3


# ---- connections that die


async def test_idle_connections_that_the_server_closed_are_replaced_before_use(
    redis_server: RedisServer, store: RedisStore
) -> None:
    """R028: not even a lease, which is never sent twice, hears of it."""
    async with open_store(redis_server.url, connections=3) as line, asyncio.timeout(20):
        await asyncio.gather(*[add(line, 1) for _ in range(10)])
        for _ in range(5):
            with client_of(redis_server) as client:
                client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)
            assert len(await line.lease(worker(), 1, 60)) == 1


async def test_connections_killed_all_the_time_cost_no_task(redis_server: RedisServer, store: RedisStore) -> None:
    """R025: each task ends exactly once."""
    ids = await add(store, 200)
    stop = False

    async def kill() -> None:
        with client_of(redis_server) as client:
            while not stop:
                client.client_kill_filter(_type="normal", skipme=True)
                await asyncio.sleep(0.01)

    async def run(line: RedisStore) -> None:
        while (await until_answered(line.stats)).active:
            try:
                tasks: list[Task] = await line.lease(worker(), 3, 1)
            except StoreUnavailable:
                continue
            if tasks:
                await until_answered(lambda: settle(line, tasks))  # noqa: B023  awaited before it changes

    async with open_store(redis_server.url, StoreOptions(patience=0), connections=4) as line, asyncio.timeout(60):
        killer = asyncio.create_task(kill())
        await asyncio.gather(*[run(line) for _ in range(4)])
        stop = True
        await killer
        assert sorted(row.id for row in await line.list_archived(5000)) == ids
        await assert_whole(line)


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Ask again until there is an answer."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.001)


async def test_a_server_that_hangs_is_an_outage_and_its_late_reply_is_nobodys() -> None:
    """R029: a bound on each reply, also where the connection stays open."""
    with RedisServer() as server, client_of(server) as client:
        async with open_store(f"{server.url}?socket_timeout=0.2", connections=1) as line:
            ids = await add(line, 2)
            server.pause()
            with pytest.raises(StoreUnavailable, match="no reply within"):
                await line.lease(worker(), 1, 60)
            server.resume()
            assert (await line.stats()).active == 2
            rows = await line.get(ids)
            assert [row.id for row in rows if row] == ids
            assert client.exists(key("body"))


async def test_everything_is_closed_at_the_end(redis_server: RedisServer, store: RedisStore) -> None:
    before = clients_of(redis_server)
    async with open_store(redis_server.url) as line:
        await asyncio.gather(*[add(line, 1) for _ in range(20)])
        await line.changed(0.01)
        assert await drain(line)
    with client_of(redis_server) as client:
        await soon(lambda: clients_of(redis_server) == before and not client.client_list(_type="pubsub"))


async def test_a_call_that_is_given_up_holds_no_connection_to_a_server_that_does_not_read() -> None:
    with RedisServer() as server:
        async with open_store(server.url) as store:
            await store.ping()
            server.pause()
            try:
                call = asyncio.create_task(store.enqueue([NewTask(task_class="A", data="x" * (4 * HIGH))]))
                await until(lambda: unsent() > 0)
                call.cancel()
                await asyncio.wait({call})
                assert unsent() == 0
            finally:
                server.resume()

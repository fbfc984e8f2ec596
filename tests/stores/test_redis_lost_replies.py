"""Replies that never come: nothing is done twice, and nobody is told of what he does not know."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Fail, Lease, NewTask, Pause, PauseKind, Settlement
from stores.redis import RedisStore, open_store
from tests.clock import Clock
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, emptied, settle, worker
from tests.stores.relay import Relay, relay_to

STOP = Pause(PauseKind.ALL)


@pytest.fixture
async def relay(redis_server: RedisServer) -> AsyncIterator[Relay]:
    """A line to the emptied server."""
    async with emptied(redis_server), relay_to(redis_server.host, redis_server.port) as relay:
        yield relay


def through(
    relay: Relay, options: StoreOptions = StoreOptions(), *, connections: int = 2
) -> AbstractAsyncContextManager[RedisStore]:
    """A store at the other end of the line."""
    return open_store(relay.url, options, connections=connections)


async def test_an_enqueue_whose_reply_is_lost_is_answered_with_its_first_ids(relay: Relay) -> None:
    """R094: sent again under the same number, run once."""
    async with through(relay) as line:
        await add(line, 1)
        relay.lose_replies = 1
        new = [NewTask(task_class="A", idempotency_key="k"), NewTask(task_class="B"), NewTask(task_class="C")]
        rows = await line.enqueue([*new, new[0]])
        assert [row.id for row in rows] == [2, 3, 4, 2]
        assert await line.enqueue([new[0]]) == [rows[0]]
        assert [row.task_class for row in await line.list_active(9)] == ["A", "A", "B", "C"]
        await assert_whole(line)


async def test_an_event_whose_reply_is_lost_is_delivered_once(relay: Relay) -> None:
    async with through(relay) as line:
        await line.ping()
        relay.lose_replies = 1
        row = await line.enqueue_once("event", NewTask(task_class="A"))
        assert await line.enqueue_once("event", NewTask(task_class="A")) == row
        assert (await line.stats()).active == 1


async def test_a_lease_whose_reply_is_lost_is_not_sent_again_and_ends_by_itself(relay: Relay, clock: Clock) -> None:
    """R094: nobody knows what was taken; it comes back when the lease and the patience are over."""
    async with through(relay, StoreOptions(now=clock)) as line:
        ids = await add(line, 3)
        await line.lease(worker(), 1, 10, only=())  # the server has the script now: the lost reply is that of the lease
        relay.lose_replies = 1
        with pytest.raises(StoreUnavailable, match="lease: the connection was lost"):
            await line.lease(worker(), 2, 10)
        assert [task.id for task in await line.lease(worker(), 9, 10)] == ids[2:]
        clock.advance(21)
        assert [task.id for task in await line.lease(worker(), 9, 10)] == ids


@pytest.mark.parametrize("outcome", [Complete(followups=[NewTask(task_class="Child")]), Fail()])
async def test_an_outcome_whose_reply_is_lost_is_repeated_by_its_holder_and_written_once(
    relay: Relay, outcome: Complete | Fail
) -> None:
    async with through(relay) as line:
        await add(line, 1)
        tasks = await line.lease(worker(), 1, 60)
        await line.settle([Settlement.held(Lease(9, worker()), Complete())])  # the server has the script now
        relay.lose_replies = 1
        with pytest.raises(StoreUnavailable):
            await settle(line, tasks, outcome)
        (settled,) = await settle(line, tasks, outcome)
        assert settled.verdict == "replayed"
        assert len(await line.list_active(9)) == isinstance(outcome, Complete)


@pytest.mark.parametrize("name", ["renew", "cancel", "free", "priority", "retry", "resume"])
async def test_what_may_have_acted_is_not_sent_again(relay: Relay, redis_server: RedisServer, name: str) -> None:
    calls: dict[str, Callable[[RedisStore], Awaitable[object]]] = {
        "renew": lambda line: line.renew([Lease(1, "x")], 60),
        "cancel": lambda line: line.cancel([1]),
        "free": lambda line: line.free([1]),
        "priority": lambda line: line.priority([1], 5),
        "retry": lambda line: line.retry([1]),
        "resume": lambda line: line.resume(STOP),
    }
    async with through(relay) as line:
        await add(line, 1)
        await calls[name](line)
        with client_of(redis_server) as client:
            client.config_resetstat()
            relay.lose_replies = 1
            with pytest.raises(StoreUnavailable):
                await calls[name](line)
            sent = client.info("commandstats")
        assert sent["cmdstat_evalsha"]["calls"] == 1


async def test_a_read_whose_reply_is_cut_in_the_middle_is_asked_again(relay: Relay) -> None:
    async with through(relay, connections=1) as line:
        ids = await add(line, 50, data="x" * 500)
        relay.cut_replies_after = 10_000
        rows = await line.get(ids)
        assert [(row.id, row.data) for row in rows if row] == [(task_id, "x" * 500) for task_id in ids]


async def test_a_lease_whose_reply_is_cut_in_the_middle_is_an_outage(relay: Relay) -> None:
    async with through(relay, connections=1) as line:
        await add(line, 50, data="x" * 500)
        relay.cut_replies_after = 10_000
        with pytest.raises(StoreUnavailable):
            await line.lease(worker(), 50, 60)
        assert await line.lease(worker(), 50, 60) == []

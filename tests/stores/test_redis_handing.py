"""Handing over: a worker that waits is given the next task that comes alone, and nothing else changes by it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from queue_runtime.errors import StoreFull
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Pause, PauseKind, Release, Retry, Settlement, Task, Verdict
from stores import redis_calls, redis_changes
from stores.redis import RedisStore, open_store
from stores.redis_check import repair
from stores.redis_errors import Cut
from stores.redis_rows import INLINE_DATA
from tests.clock import Clock
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, commands, emptied, key, settle, soon, worker


@pytest.fixture
async def store(redis_server: RedisServer, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisStore]:
    """The worker's, which hears by messages alone."""
    monkeypatch.setattr(redis_changes, "_TEST_CLOCK", 60.0)
    async with emptied(redis_server, StoreOptions(now=clock)) as store:
        await listen(store)
        yield store


@pytest.fixture
async def other(redis_server: RedisServer, store: RedisStore, clock: Clock) -> AsyncIterator[RedisStore]:
    """The same queue as another process has it open."""
    async with open_store(redis_server.socket_url, StoreOptions(now=clock)) as other:
        yield other


async def listen(store: RedisStore) -> None:
    """Hear out everything so far."""
    while await store.changed(0.05) or not store.hands:
        pass


async def wait_for_tasks(store: RedisStore, **wanted: object) -> str:
    """The owner of an order that stands."""
    owner = worker()
    assert await store.lease(owner, 5, 60, order="dispatch", stands=True, **wanted) == []  # type: ignore[arg-type]
    return owner


async def ask_again(store: RedisStore, *owners: str, limit: int = 5) -> list[Task]:
    """What is there for a worker whose orders end."""
    return await store.lease(worker(), limit, 60, order="dispatch", recall=owners)


def came(store: RedisStore) -> list[str]:
    """The owners for whose orders something comes from now on."""
    owners: list[str] = []
    store.on_handed(owners.append)
    return owners


async def message(client: Redis, store: RedisStore, text: bytes) -> None:
    """Send it to the store's channel, and wait until everything sent so far was heard."""
    client.publish(store._orders.channel, text)
    client.publish(key("bell"), "1")
    async with asyncio.timeout(5):
        while not await store.changed(1):
            pass


async def held_by(store: RedisStore, task_id: int) -> str | None:
    (row,) = await store.get([task_id])
    return None if row is None else row.lease_owner


async def test_a_task_that_comes_alone_is_held_by_the_worker_that_waits(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, clock: Clock
) -> None:
    """One script of the enqueue is all that the server runs: the worker needs no round trip."""
    owners = came(store)
    owner = await wait_for_tasks(store)
    with client_of(redis_server) as client:
        await add(other, 0)
        client.config_resetstat()
        (added,) = await other.enqueue([NewTask(task_class="A", data="payload", object_phid="PHID-1", max_attempts=3)])
        await soon(lambda: owners)
        (task,) = await ask_again(store, owner)
        assert commands(client)["evalsha"] == 1
    assert owners == [owner]
    assert (added.lease_owner, added.lease_expires) == (None, None)
    assert (task.lease_owner, task.lease_expires, task.data) == (owner, clock.now + 60, "payload")
    assert [task] == await store.get([added.id])
    assert [one.verdict for one in await settle(store, [task])] == [Verdict.SETTLED]
    assert await ask_again(store) == []
    await assert_whole(store)


async def test_a_handed_task_is_told_to_nobody_else(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    await listen(other)
    await wait_for_tasks(store)
    await add(other, 1)
    assert await other.changed(0.1) is False
    assert await other.lease(worker(), 5, 60) == []


async def test_a_handed_lane_is_whole_while_it_is_held(store: RedisStore, other: RedisStore) -> None:
    """Nothing else ever stood in it."""
    await wait_for_tasks(store)
    await add(other, 1, task_class="New", queue="new")
    await assert_whole(store)


async def test_an_order_is_filled_once(store: RedisStore, other: RedisStore) -> None:
    owners = came(store)
    owner = await wait_for_tasks(store)
    first, second = await add(other, 1), await add(other, 1)
    await soon(lambda: owners)
    assert [task.id for task in await ask_again(store, owner)] == first
    assert [task.id for task in await ask_again(store, owner)] == second
    assert owners == [owner]


async def test_two_that_wait_get_one_task_each(store: RedisStore, other: RedisStore) -> None:
    owners = came(store)
    waiting = [await wait_for_tasks(store), await wait_for_tasks(store)]
    ids = [*await add(other, 1), *await add(other, 1)]
    await soon(lambda: len(owners) == 2)
    assert sorted(owners) == sorted(waiting)
    assert sorted(task.id for task in await ask_again(store, *waiting)) == ids


async def test_a_reply_that_is_full_leaves_no_order(store: RedisStore, other: RedisStore) -> None:
    ids = await add(other, 2)
    tasks = await store.lease(worker(), 2, 60, order="dispatch", stands=True)
    assert [task.id for task in tasks] == ids
    (task_id,) = await add(other, 1)
    assert await held_by(other, task_id) is None


async def test_a_short_reply_leaves_an_order(store: RedisStore, other: RedisStore) -> None:
    (first,) = await add(other, 1)
    owner = worker()
    assert [task.id for task in await store.lease(owner, 2, 60, order="dispatch", stands=True)] == [first]
    (second,) = await add(other, 1)
    assert await held_by(other, second) == owner


async def test_who_does_not_listen_is_handed_nothing(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    assert not other.hands
    await wait_for_tasks(other)
    with client_of(redis_server) as client:
        assert not client.exists(key("orders"))
    (task_id,) = await add(store, 1)
    assert await held_by(store, task_id) is None


ORDINARY: dict[str, list[NewTask]] = {
    "several": [NewTask(task_class="A"), NewTask(task_class="A")],
    "a long payload": [NewTask(task_class="A", data="x" * (INLINE_DATA + 1))],
    "one with a delay": [NewTask(task_class="A", delay_until=1)],
    "one with a key": [NewTask(task_class="A", idempotency_key="key")],
}


@pytest.mark.parametrize("what", ORDINARY)
async def test_what_is_not_plain_is_left_for_whoever_asks(store: RedisStore, other: RedisStore, what: str) -> None:
    owners = came(store)
    owner = await wait_for_tasks(store)
    rows = await other.enqueue(ORDINARY[what])
    assert not {row.lease_owner for row in await other.get([row.id for row in rows]) if row} & {owner}
    assert len(await ask_again(store, owner)) == len(rows)
    assert owners == []
    await assert_whole(store)


async def test_an_event_is_left_for_whoever_asks(store: RedisStore, other: RedisStore) -> None:
    await wait_for_tasks(store)
    row = await other.enqueue_once("event", NewTask(task_class="A"))
    assert await held_by(other, row.id) is None


@pytest.mark.parametrize(
    ("wanted", "fits", "not_fitting"),
    [
        ({"classes": {"A", "B"}}, NewTask(task_class="B"), NewTask(task_class="C")),
        ({"classes": {"AB"}}, NewTask(task_class="AB"), NewTask(task_class="B")),
        ({"classes": {"AB"}}, NewTask(task_class="AB"), NewTask(task_class="A")),
        ({"classes": set()}, None, NewTask(task_class="A")),
        ({"without_classes": {"A", "B"}}, NewTask(task_class="C"), NewTask(task_class="A")),
        ({"queues": {"one", "two"}}, NewTask(task_class="A", queue="two"), NewTask(task_class="A", queue="three")),
        ({"queues": {"one"}}, NewTask(task_class="A", queue="one"), NewTask(task_class="one")),
        (
            {"classes": {"A"}, "queues": {"one"}},
            NewTask(task_class="A", queue="one"),
            NewTask(task_class="B", queue="one"),
        ),
    ],
)
async def test_an_order_gets_only_what_it_asked_for(
    store: RedisStore, other: RedisStore, wanted: dict[str, object], fits: NewTask | None, not_fitting: NewTask
) -> None:
    owner = await wait_for_tasks(store, **wanted)
    (row,) = await other.enqueue([not_fitting])
    assert await held_by(other, row.id) is None
    await settle(other, await other.lease(worker(), 5, 60))
    if fits is not None:
        (row,) = await other.enqueue([fits])
        assert await held_by(other, row.id) == owner


async def test_a_task_passes_none_that_is_ready(store: RedisStore, other: RedisStore) -> None:
    """Also not one that this worker does not take: nothing is compared, so nothing is wrong."""
    await wait_for_tasks(store, classes={"A"})
    await add(other, 1, task_class="B", priority=9000)
    (task_id,) = await add(other, 1, task_class="A", priority=1)
    assert await held_by(other, task_id) is None


@pytest.mark.parametrize("kind", ["delay", "back-off", "yield or receipt", "worker"])
async def test_a_task_passes_none_that_is_due(store: RedisStore, other: RedisStore, clock: Clock, kind: str) -> None:
    """And where it is not due yet, it stands in nobody's way."""
    if kind == "delay":
        await add(other, 1, delay_until=clock.now + 30)
    else:
        await add(other, 1)
        name = "somebody" if kind == "yield or receipt" else worker()
        tasks = await other.lease(name, 1, 30)
        if kind == "back-off":
            await settle(other, tasks, Retry(wait=30))
    await wait_for_tasks(store)
    (early,) = await add(other, 1)
    assert await held_by(other, early) is not None
    clock.advance(60)
    await wait_for_tasks_though_due(store)
    (late,) = await add(other, 1)
    assert await held_by(other, late) is None


async def wait_for_tasks_though_due(store: RedisStore) -> None:
    """An order that does not see what is due, as one would that was placed a moment before."""
    await wait_for_tasks(store, classes={"A", "none"}, queues={"default", "none"}, without=range(1, 50))


@pytest.mark.parametrize(
    "pause", [Pause(PauseKind.ALL), Pause(PauseKind.CLASS, "A"), Pause(PauseKind.QUEUE, "default")]
)
async def test_a_pause_is_obeyed_and_lifted(store: RedisStore, other: RedisStore, pause: Pause) -> None:
    owner = await wait_for_tasks(store)
    await other.pause(pause)
    (task_id,) = await add(other, 1)
    assert await held_by(other, task_id) is None
    assert await ask_again(store, owner) == []
    await other.resume(pause)
    await settle(other, await other.lease(worker(), 1, 60))
    owner = await wait_for_tasks(store)
    (task_id,) = await add(other, 1)
    assert await held_by(other, task_id) == owner


async def test_an_order_ends_by_itself(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, clock: Clock
) -> None:
    await wait_for_tasks(store)
    clock.advance(4)
    (task_id,) = await add(other, 1)
    assert await held_by(other, task_id) is None
    with client_of(redis_server) as client:
        assert not client.exists(key("orders"))


async def test_a_worker_that_is_gone_gets_nothing(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, clock: Clock
) -> None:
    async with open_store(redis_server.socket_url, StoreOptions(now=clock)) as dead:
        await listen(dead)
        await wait_for_tasks(dead)
        channel = dead._orders.channel
    with client_of(redis_server) as client:
        await soon(lambda: dict(client.pubsub_numsub(channel))[channel.encode()] == 0)
        (task_id,) = await add(other, 1)
        assert await held_by(other, task_id) is None
        assert not client.exists(key("orders"))


async def test_a_dead_worker_s_handed_task_comes_back_like_any_other(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, clock: Clock
) -> None:
    """With one loss counted; the sweep takes away the note of it."""
    owner = await wait_for_tasks(store)
    (task_id,) = await add(other, 1)
    assert await held_by(other, task_id) == owner
    clock.advance(60 + 10)
    assert await other.lease(worker(), 1, 60) == []
    clock.advance(1)
    (task,) = await other.lease(worker(), 1, 60)
    assert (task.id, task.lost_count) == (task_id, 1)
    await other.sweep(10)
    with client_of(redis_server) as client:
        assert not client.exists(key("handed"))
    await assert_whole(store)


async def test_a_lost_message_costs_one_more_call(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    owners = came(store)
    owner = await wait_for_tasks(store)
    with client_of(redis_server) as client:
        channel = store._orders.channel
        store._orders.end([owner])  # whatever comes for it is not known any more
        (task_id,) = await add(other, 1)
        assert await held_by(other, task_id) == owner
        (found,) = await ask_again(store, owner)
        assert (found.id, found.lease_owner) == (task_id, owner)
        assert await ask_again(store, owner) == []
        assert dict(client.pubsub_numsub(channel))[channel.encode()] == 1
        assert not client.exists(key("handed"))
    assert owners == []
    await assert_whole(store)


async def test_what_was_handed_comes_before_and_beside_the_rest(store: RedisStore, other: RedisStore) -> None:
    owner = await wait_for_tasks(store)
    (handed,) = await add(other, 1)
    store._orders.end([owner])
    ready = await add(other, 3)
    new = worker()
    tasks = await store.lease(new, 3, 60, order="dispatch", recall=[owner])
    assert [(task.id, task.lease_owner) for task in tasks] == [(handed, owner), (ready[0], new), (ready[1], new)]
    assert [one.verdict for one in await settle(store, tasks)] == [Verdict.SETTLED] * 3


async def test_what_was_handed_is_returned_whatever_is_asked_for(store: RedisStore, other: RedisStore) -> None:
    """That is how an order is withdrawn."""
    owner = await wait_for_tasks(store)
    (handed,) = await add(other, 1)
    store._orders.end([owner])
    await add(other, 1)
    (task,) = await store.lease(worker(), 1, 60, only=(), recall=[owner])
    assert task.id == handed
    owner = await wait_for_tasks(store, classes={"none"})
    assert await store.lease(worker(), 1, 60, only=(), recall=[owner]) == []


async def test_a_withdrawn_order_is_not_filled(store: RedisStore, other: RedisStore) -> None:
    owner = await wait_for_tasks(store)
    assert await store.lease(worker(), 1, 60, only=(), recall=[owner]) == []
    (task_id,) = await add(other, 1)
    assert await held_by(other, task_id) is None


@pytest.mark.parametrize("end", ["cancelled", "freed", "settled", "leased by another"])
async def test_what_is_not_held_any_more_is_not_returned(
    store: RedisStore, other: RedisStore, clock: Clock, end: str
) -> None:
    owner = await wait_for_tasks(store)
    (task_id,) = await add(other, 1)
    store._orders.end([owner])
    if end == "cancelled":
        await other.cancel([task_id])
    elif end == "settled":
        await other.settle([Settlement.held(Lease(task_id, owner), Complete())])
    else:
        await other.free([task_id])
    if end == "leased by another":
        assert len(await other.lease(worker(), 1, 60, due_first=True)) == 1
    assert await store.lease(worker(), 1, 60, only=(), recall=[owner]) == []
    await assert_whole(store)


async def test_a_message_during_the_next_call_is_no_second_task(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply has it; the message, which comes later, is for an order that has ended."""
    owners = came(store)
    owner = await wait_for_tasks(store)
    script = store.calls.script

    async def enqueue_first(name: str, *arguments: redis_calls.Argument, repeatable: bool = False) -> object:
        if name == "lease":
            monkeypatch.setattr(store.calls, "script", script)
            await add(other, 1)
        return await script(name, *arguments, repeatable=repeatable)

    monkeypatch.setattr(store.calls, "script", enqueue_first)
    (task,) = await ask_again(store, owner)
    assert task.lease_owner == owner
    await listen(store)
    assert owners == []
    assert await ask_again(store, owner) == []


async def test_a_message_may_come_before_the_reply_that_tells_of_its_order(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = came(store)
    script = store.calls.script

    async def enqueue_after(name: str, *arguments: redis_calls.Argument, repeatable: bool = False) -> object:
        reply = await script(name, *arguments, repeatable=repeatable)
        if name == "lease":
            monkeypatch.setattr(store.calls, "script", script)
            await add(other, 1)
            await soon(lambda: owners)
        return reply

    monkeypatch.setattr(store.calls, "script", enqueue_after)
    owner = await wait_for_tasks(store)
    (task,) = await ask_again(store, owner)
    assert (task.lease_owner, owners) == (owner, [owner])


async def test_noise_in_the_channel_is_no_task(redis_server: RedisServer, store: RedisStore, other: RedisStore) -> None:
    """Cut short at every byte, with a foreign token, with a body that is none, and not for the first time."""
    owners = came(store)
    owner = await wait_for_tasks(store)
    token = store._orders._tokens[owner]
    with client_of(redis_server) as client:
        pubsub = client.pubsub()  # type: ignore[no-untyped-call]  # the driver's
        pubsub.subscribe(store._orders.channel)
        (task_id,) = await add(other, 1, data="payload")
        await soon(lambda: owners)
        heard = [one["data"] for one in (pubsub.get_message(timeout=5), pubsub.get_message(timeout=5)) if one]
        true = heard[-1]
        assert isinstance(true, bytes)
        assert true.startswith(token)
        assert [task.id for task in await ask_again(store, owner)] == [task_id]

        owner = await wait_for_tasks(store)
        owners.clear()
        await message(client, store, true)  # its order has ended
        token = store._orders._tokens[owner]
        lane = true.index(b"default/A")
        for length in range(lane + len(b"default/A")):
            await asyncio.sleep(0)
            client.publish(store._orders.channel, (token + true[16:])[:length])
        good = token + true[16:]
        for noise in (
            b"\xff" * 60,
            b"0" * 16 + true[16:],
            token + b"4294967296" + true[26:],
            token + b"0000000000" + true[26:],
            token + b"+000000001" + true[26:],
            good[:36] + b"\xff" * 40,
            good[:lane] + b"\xff" + good[lane + 1 :],
            good + b"\xff",
        ):
            await message(client, store, noise)
        assert owners == []
        assert await ask_again(store, owner) == []


async def test_what_others_wrote_among_the_orders_harms_nobody(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    with client_of(redis_server) as client:
        for value in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x98" + b"\x01" * 8):
            client.hset(key("orders"), worker(), value)
        client.hset(key("handed"), worker(), "nonsense")
        (task_id,) = await add(other, 1)
        assert await held_by(other, task_id) is None
        assert not client.exists(key("orders"))
        assert (await repair(store)).left == frozenset()
        assert not client.exists(key("handed"))
        for name in ("orders", "handed"):
            await settle(other, await other.lease(worker(), 9, 60))
            client.delete(key("orders"), key("handed"))
            client.set(key(name), "a text")
            await wait_for_tasks(store)
            (task_id,) = await add(other, 1)
            assert await held_by(other, task_id) is None
            await other.sweep(10)
            await repair(store)
            assert client.type(key(name)) != b"string"
    await settle(other, await other.lease(worker(), 9, 60))
    await wait_for_tasks(store)
    (task_id,) = await add(other, 1)
    assert await held_by(other, task_id) is not None


async def test_an_account_without_the_channel_works_as_before(redis_server: RedisServer, clock: Clock) -> None:
    """It may listen to the bell alone, or publish nothing: nothing is raised, and nothing waits for a lease to end."""
    with client_of(redis_server) as client:
        client.flushall()
        for name, channels in (("bell", [key("bell")]), ("mute", [])):
            client.acl_setuser(
                name,
                enabled=True,
                passwords=["+secret"],
                keys=["*"],
                categories=["+@all"],
                channels=channels,
                reset_channels=True,
            )
        try:
            bell_url = redis_server.url.replace("://", "://bell:secret@")
            mute_url = redis_server.url.replace("://", "://mute:secret@")
            async with open_store(bell_url) as deaf, open_store(mute_url) as mute, open_store(redis_server.url) as full:
                await full.ping()
                while await deaf.changed(0.05):
                    pass
                assert not deaf.hands
                waiting = asyncio.create_task(deaf.changed(20))
                await asyncio.sleep(0.05)
                await add(full, 1)
                assert await waiting is True
                await settle(deaf, await deaf.lease(worker(), 1, 60))

                await listen(full)
                owners = came(full)
                owner = await wait_for_tasks(full)
                (task_id,) = await add(mute, 1)
                assert await held_by(mute, task_id) == owner  # and nobody can be told
                assert [task.id for task in await ask_again(full, owner)] == [task_id]
                assert owners == []
                await assert_whole(full)
        finally:
            client.acl_deluser("bell", "mute")


async def test_an_enqueue_that_is_sent_again_hands_nothing_again(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept answer is given, and the order of another worker stays as it is."""
    owners = came(store)
    waiting = [await wait_for_tasks(store), await wait_for_tasks(store)]
    link = other.calls.link
    call = link.call

    async def lose_the_reply(operation: str, *command: bytes | str | int) -> object:
        await call(operation, *command)
        monkeypatch.setattr(link, "call", call)
        raise Cut(operation, "lost")

    await other.ping()
    monkeypatch.setattr(link, "call", lose_the_reply)
    (task_id,) = await add(other, 1)
    await soon(lambda: owners)
    assert len(owners) == 1
    assert [task.id for task in await ask_again(store, *waiting)] == [task_id]
    assert (await store.stats()).active == 1


async def test_after_a_flush_orders_and_what_was_handed_are_gone(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    owner, second = await wait_for_tasks(store), await wait_for_tasks(store)
    await add(other, 1)
    with client_of(redis_server) as client:
        client.flushall()
    await add(other, 1)
    assert len(await ask_again(store, owner, second)) == 1
    await assert_whole(store)


async def test_a_full_server_refuses_the_task_and_hands_nothing(redis_server: RedisServer, clock: Clock) -> None:
    with client_of(redis_server) as client:
        async with emptied(redis_server, StoreOptions(now=clock)) as store:
            await listen(store)
            owners = came(store)
            await wait_for_tasks(store)
            clock.advance(1)
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(StoreFull):
                    await add(store, 1)
                assert await store.lease(worker(), 1, 60, order="dispatch", stands=True) == []
            finally:
                client.config_set("maxmemory", 0)
            assert owners == []
            assert (await store.stats()).active == 0
            await assert_whole(store)


async def test_orders_go_to_no_log_of_the_server() -> None:
    """Idle workers renew them each second, for nothing that anybody needs after a restart."""
    server = RedisServer("--appendonly", "yes")
    with server:
        async with emptied(server) as store:
            await listen(store)
            with client_of(server) as client:
                owner = await wait_for_tasks(store)
                size = client.info("persistence")["aof_current_size"]
                for _ in range(5):
                    former, owner = owner, worker()
                    await store.lease(owner, 5, 60, order="dispatch", stands=True, recall=[former])
                assert client.hkeys(key("orders")) == [owner.encode()]
                assert client.info("persistence")["aof_current_size"] == size


async def test_a_released_task_that_was_handed_is_ready_again(store: RedisStore, other: RedisStore) -> None:
    owners = came(store)
    owner = await wait_for_tasks(store)
    await add(other, 1)
    await soon(lambda: owners)
    (task,) = await ask_again(store, owner)
    await settle(store, [task], Release())
    (again,) = await other.lease(worker(), 1, 60)
    assert (again.id, again.failure_count, again.lost_count) == (task.id, 0, 0)
    assert [one.verdict for one in await settle(store, [task])] == [Verdict.LOST]
    await assert_whole(store)


async def test_cost_of_an_enqueue_does_not_grow_with_the_orders(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    """It looks at a few of them."""
    with client_of(redis_server) as client:
        counts = []
        for number in (20, 200):
            for _ in range(number):
                await wait_for_tasks(store)
            await add(other, 1)
            client.config_resetstat()
            await add(other, 1)
            counts.append(sum(commands(client).values()))
            await settle(store, await store.lease(worker(), 99, 60))
        assert counts[1] == counts[0]

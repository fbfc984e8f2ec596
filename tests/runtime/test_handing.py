"""A worker that is handed tasks: where its orders go, and what becomes of what comes when it cannot run it."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence

import anyio
import pytest

from queue_runtime import lanes
from queue_runtime.context import Context
from queue_runtime.errors import StoreUnavailable
from queue_runtime.handler_spec import HandlerSpec
from queue_runtime.registry import Registry
from queue_runtime.run import Run
from queue_runtime.runner import Runner
from queue_runtime.task import NewTask, Task
from stores import redis_orders
from stores.redis import RedisStore, open_store
from stores.redis_calls import Argument
from tests.runtime.harness import Worker, until
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, commands, emptied, key, until_empty


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server) as store:
        yield store


@pytest.fixture
async def other(redis_server: RedisServer, store: RedisStore) -> AsyncIterator[RedisStore]:
    """The same queue as another process has it open."""
    async with open_store(redis_server.socket_url) as other:
        yield other


class House:
    """Handlers that note what ran, and wait where they are told to."""

    def __init__(self, **caps: int) -> None:
        self.registry = Registry()
        self.ids: list[int] = []
        self.running: set[int] = set()
        self.open = asyncio.Event()
        self.open.set()
        for name in ("A", "B", "C"):
            self.registry.task(name, concurrency=caps.get(name))(self.note)

    async def note(self, context: Context, data: str) -> None:
        self.ids.append(context.task.id)
        self.running.add(context.task.id)
        try:
            await self.open.wait()
        finally:
            self.running.discard(context.task.id)


class Line:
    """The lease calls of a store as they are made: what each asked for, and a hook before and after."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._script = store.calls.script
        self._lease = store.lease
        self.trips = 0
        self.withdrawn = 0
        self.ran: Callable[[], int] = lambda: 0
        self.ran_before_trips: list[int] = []
        monkeypatch.setattr(store.calls, "script", self.script)
        monkeypatch.setattr(store, "lease", self.lease)

    async def is_quiet(self) -> None:
        """Wait until nothing rings any more: a worker that begins is rung for by what it begins to hear."""
        trips = -1
        while trips != self.trips:
            trips = self.trips
            await asyncio.sleep(0.1)

    async def script(self, name: str, *arguments: Argument, repeatable: bool = False) -> object:
        if name == "lease":
            self.trips += 1
            self.ran_before_trips.append(self.ran())
        return await self._script(name, *arguments, repeatable=repeatable)

    async def lease(
        self, owner: str, limit: int, seconds: int, *, only: Collection[int] | None = None, **more: object
    ) -> list[Task]:
        self.withdrawn += only is not None
        return await self._lease(owner, limit, seconds, only=only, **more)  # type: ignore[arg-type]  # passed on


async def orders(redis_server: RedisServer, number: int) -> None:
    """Wait until so many orders stand."""
    with client_of(redis_server) as client:
        await until(lambda: client.hlen(key("orders")) == number)


def lose_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is heard from now on."""
    monkeypatch.setattr(redis_orders, "_HEAD", re.compile(rb"(?!)"))


async def untouched(store: RedisStore, task_id: int) -> Task:
    """The task, which is ready as if nobody had ever had it."""
    (row,) = await store.get([task_id])
    assert row is not None
    assert (row.lease_owner, row.lease_expires, row.failure_count, row.lost_count) == (None, None, 0, 0)
    return row


async def test_work_of_another_process_starts_without_a_round_trip(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler begins before the worker has sent anything to the server again."""
    monkeypatch.setattr(lanes, "SAFETY_SECONDS", 60.0)
    house, line = House(), Line(store, monkeypatch)
    async with Worker(store, house.registry).running():
        await line.is_quiet()
        for number in range(20):
            await orders(redis_server, 1)
            line.ran_before_trips.clear()
            line.ran = lambda: len(house.ids)
            await add(other, 1)
            await until(lambda: line.ran_before_trips)
            assert line.ran_before_trips[0] == number + 1
        await until_empty(store)
    assert len(set(house.ids)) == len(house.ids) == 20
    await assert_whole(store)


async def test_the_worker_waits_again_after_each_task(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    """Everything is handed: no row is ever seen ready."""
    house = House()
    async with Worker(store, house.registry).running():
        for _ in range(20):
            await orders(redis_server, 1)
            (row,) = await other.enqueue([NewTask(task_class="A")])
            (held,) = await other.get([row.id])
            assert held is None or held.lease_owner is not None
        await until_empty(store)
    assert len(house.ids) == 20


async def test_a_lane_has_an_order_of_its_own(redis_server: RedisServer, store: RedisStore, other: RedisStore) -> None:
    house = House(B=1)
    async with Worker(store, house.registry, slots=4).running():
        await orders(redis_server, 2)
        house.open.clear()
        ids = [*await add(other, 1, task_class="A"), *await add(other, 1, task_class="B")]
        await until(lambda: sorted(house.ids) == ids)
        await orders(redis_server, 1)  # B is at its cap
        (second,) = await add(other, 1, task_class="B")
        await untouched(other, second)
        house.open.set()
        await until_empty(store)
    assert sorted(house.ids) == [*ids, second]


async def test_orders_never_outnumber_the_free_slots(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three lanes and two slots: what a call asks for and the orders of others together have room. All work is done."""
    house, spare = House(A=1, B=1, C=1), list[int]()
    lease = store.lease
    with client_of(redis_server) as client:
        worker = Worker(store, house.registry, slots=2)

        async def count(owner: str, limit: int, seconds: int, *, recall: Sequence[str] = (), **more: object) -> object:
            if "only" not in more:
                beside = set(client.hkeys(key("orders"))).difference(one.encode() for one in recall)
                spare.append(2 - len(house.running) - limit - len(beside))
            return await lease(owner, limit, seconds, recall=recall, **more)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(store, "lease", count)
        async with worker.running():
            for number in range(30):
                await add(other, 1, task_class="ABC"[number % 3])
                await until(lambda known=number: len(house.ids) > known)  # type: ignore[misc]  # a loop's own number
            await until_empty(store)
    assert min(spare) == 0
    rows = await store.list_archived(99)
    assert len(rows) == len(set(house.ids)) == 30
    assert {row.failure_count for row in rows} == {0}
    await assert_whole(store)


async def test_a_worker_without_a_free_slot_has_no_order(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    house = House()
    house.open.clear()
    async with Worker(store, house.registry, slots=2).running():
        await orders(redis_server, 1)
        for number in range(2):
            await add(other, 1)
            await until(lambda known=number: len(house.ids) > known)  # type: ignore[misc]  # a loop's own number
        await orders(redis_server, 0)
        (third,) = await add(other, 1)
        await untouched(other, third)
        house.open.set()
        await until_empty(store)
    assert len(house.ids) == 3


async def test_a_stop_withdraws_the_order(redis_server: RedisServer, store: RedisStore, other: RedisStore) -> None:
    house = House()
    async with Worker(store, house.registry).running():
        await orders(redis_server, 1)
    await orders(redis_server, 0)
    (task_id,) = await add(other, 1)
    await untouched(other, task_id)
    assert house.ids == []


async def test_what_is_handed_during_the_stop_is_given_back(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    """The message is on its way, or was just read, when the order to stop comes. Nothing is lost, nothing counted."""
    house = House()
    for pause in (0, 0, 0, 0.0002, 0.0005, 0.001, 0.002):
        async with Worker(store, house.registry).running() as worker:
            await orders(redis_server, 1)
            adding = asyncio.create_task(add(other, 1))
            await asyncio.sleep(pause)
            worker.lifecycle.stopping.set()
        (task_id,) = await adding
        (row,) = await other.get([task_id])
        if row is not None:
            await untouched(other, task_id)
            assert task_id not in house.ids
            await other.cancel([task_id])
        await assert_whole(store)


async def test_what_was_handed_and_not_heard_of_is_given_back_by_the_stop(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House()
    async with Worker(store, house.registry).running() as worker:
        await orders(redis_server, 1)
        lose_messages(monkeypatch)
        (task_id,) = await add(other, 1)
        worker.lifecycle.stopping.set()
    await untouched(other, task_id)
    assert house.ids == []


async def test_a_lost_message_is_found_within_a_second(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House()
    async with Worker(store, house.registry).running():
        await orders(redis_server, 1)
        lose_messages(monkeypatch)
        (task_id,) = await add(other, 1)
        await until(lambda: house.ids == [task_id], seconds=5)
        await until_empty(store)
    (row,) = await store.get_archived([task_id])
    assert row is not None
    assert (row.failure_count, row.lost_count) == (0, 0)


async def test_an_ear_that_is_cut_costs_no_task(
    redis_server: RedisServer, store: RedisStore, other: RedisStore
) -> None:
    house = House()
    with client_of(redis_server) as client:
        async with Worker(store, house.registry).running():
            for number in range(20):
                if number % 3 == 0:
                    client.client_kill_filter(_type="pubsub", skipme=True)
                await add(other, 1)
            await until(lambda: len(house.ids) == 20)
            await until_empty(store)
    assert len(set(house.ids)) == 20


async def test_after_a_failed_call_the_orders_are_cleared_up(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was run or not: what was handed for either order is found."""
    house = House()
    script = store.calls.script
    async with Worker(store, house.registry).running():
        for runs in (False, True):
            await orders(redis_server, 1)
            failed = asyncio.Event()

            async def fail(
                name: str,
                *arguments: Argument,
                repeatable: bool = False,
                runs: bool = runs,
                failed: asyncio.Event = failed,
            ) -> object:
                if name != "lease" or failed.is_set():
                    return await script(name, *arguments, repeatable=repeatable)
                if runs:
                    await script(name, *arguments, repeatable=repeatable)
                await add(other, 1)
                failed.set()
                raise StoreUnavailable("lease", "a planted failure")

            monkeypatch.setattr(store.calls, "script", fail)
            await failed.wait()
            await until_empty(store)
    assert len(set(house.ids)) == len(house.ids) == 2
    assert {row.lost_count for row in await store.list_archived(9)} == {0}


async def test_a_worker_that_was_stalled_does_not_start_a_task_whose_lease_is_over(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline is counted from before the call that placed the order, whenever the message is read."""
    house = House()
    worker = Worker(store, house.registry)
    moment = time.monotonic
    late = [0.0]

    class StalledTime:
        @staticmethod
        def monotonic() -> float:
            return moment() + late[0]

    monkeypatch.setattr("queue_runtime.lease_loop.time", StalledTime)
    async with worker.running():
        await orders(redis_server, 1)
        late[0] = 100.0
        (task_id,) = await add(other, 1)
        await until(lambda: task_id in house.ids)  # by the call after it was given back
        await until_empty(store)
        assert worker.stats.leases >= 3
    (row,) = await store.get_archived([task_id])
    assert row is not None
    assert (row.failure_count, row.lost_count) == (0, 0)
    assert Counter(house.ids)[task_id] == 1


async def test_the_deadline_of_a_run_is_never_later_than_its_lease(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R003: counted from before the call that placed the order, also where it is found by a later one."""
    house, deadlines = House(), list[float]()
    start = Runner.start

    def note(runner: Runner, task: Task, spec: HandlerSpec, owner: str, lease_until: float) -> Run:
        deadlines.append(lease_until)
        return start(runner, task, spec, owner, lease_until)

    monkeypatch.setattr(Runner, "start", note)
    async with Worker(store, house.registry, lease_seconds=20).running():
        await orders(redis_server, 1)
        lose_messages(monkeypatch)
        await add(other, 1)
        handed_by = time.monotonic()
        await until(lambda: deadlines)
        await until_empty(store)
    assert deadlines[0] <= handed_by + 20


async def test_no_lease_goes_out_after_the_end(
    store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lanes are asked one after the other; the end of the worker waits for the one call that is under way."""
    monkeypatch.setattr(RedisStore, "hands", property(lambda _store: False))
    script, house = store.calls.script, House(B=1)
    held, release, under_way = asyncio.Event(), asyncio.Event(), 0

    async def hold(name: str, *arguments: Argument, repeatable: bool = False) -> object:
        nonlocal under_way
        if name != "lease":
            return await script(name, *arguments, repeatable=repeatable)
        under_way += 1
        held.set()
        await release.wait()
        reply = await script(name, *arguments, repeatable=repeatable)
        under_way -= 1
        return reply

    monkeypatch.setattr(store.calls, "script", hold)
    worker, now = Worker(store, house.registry, slots=2), anyio.Event()
    now.set()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.lease_loop.run, worker.lifecycle.stopping)
        await held.wait()
        worker.lifecycle.stopping.set()
        ending = asyncio.create_task(worker.lease_loop.finish(0, now))
        await asyncio.sleep(0)
        release.set()
        await ending
        assert under_way == 0


async def test_new_settings_have_the_old_lanes_withdraw(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, line = House(), Line(store, monkeypatch)
    async with Worker(store, house.registry).running() as worker:
        await orders(redis_server, 1)
        worker.lease_loop.configure(slots=2, retry_seconds=0)
        await until(lambda: line.withdrawn == 1)
        await orders(redis_server, 1)
        (task_id,) = await add(other, 1)
        await until(lambda: house.ids == [task_id])
        await until_empty(store)


async def test_a_worker_that_nobody_can_tell_works_as_before(
    redis_server: RedisServer, store: RedisStore, other: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its own channel there are no orders, and the bell alone wakes it."""
    monkeypatch.setattr(RedisStore, "hands", property(lambda _store: False))
    house = House()
    with client_of(redis_server) as client:
        async with Worker(store, house.registry).running():
            await until(lambda: client.pubsub_numsub(key("bell"))[0][1] == 1)
            for number in range(10):
                await add(other, 1)
                await until(lambda known=number: len(house.ids) > known)  # type: ignore[misc]  # a loop's own number
                assert not client.exists(key("orders"))
            await until_empty(store)


async def test_an_idle_worker_asks_as_seldom_as_before(
    redis_server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lease each second, which renews the order."""
    line = Line(store, monkeypatch)
    with client_of(redis_server) as client:
        async with Worker(store, House().registry).running():
            await orders(redis_server, 1)
            await anyio.sleep(0.1)
            line.trips = 0
            client.config_resetstat()
            await anyio.sleep(2.2)
            assert line.trips <= 3
            assert commands(client).get("hset", 0) <= 3

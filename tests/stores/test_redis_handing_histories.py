"""Handing over under disorder: every task runs exactly once, whoever dies, is cut off or asks at the wrong moment."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import anyio
import pytest

from queue_runtime.context import Context
from queue_runtime.registry import Registry
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Pause, PauseKind, Result
from stores.redis import RedisStore, open_store
from stores.redis_rows import INLINE_DATA
from tests.runtime.harness import Worker
from tests.servers import RedisServer
from tests.stores.redis_house import assert_whole, client_of, emptied, until_empty

OPTIONS = StoreOptions(patience=1)


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server, OPTIONS) as store:
        yield store


class Town:
    """Workers that come and go, and callers that enqueue at random."""

    def __init__(self, server: RedisServer, dice: random.Random) -> None:
        self._server = server
        self._dice = dice
        self.runs: Counter[int] = Counter()
        self.added: list[int] = []
        self.registry = Registry()
        self.registry.task("A")(self._run)
        self.registry.task("B", concurrency=1)(self._run)
        self.registry.task("C", concurrency=2)(self._run)

    async def _run(self, context: Context, data: str) -> None:
        await asyncio.sleep(self._dice.choice((0, 0, 0.001, 0.01)))
        self.runs[context.task.id] += 1  # one that was stopped has not run

    def _draw(self) -> NewTask:
        data = "x" * self._dice.choice((0, 10, INLINE_DATA + 1))
        return NewTask(task_class=self._dice.choice("ABC"), queue=self._dice.choice(("one", "two")), data=data)

    async def enqueue(self, number: int) -> None:
        """A caller of a process of its own."""
        async with open_store(self._server.socket_url, OPTIONS) as store:
            for _ in range(number):
                size = self._dice.choice((1, 1, 1, 1, 3))
                self.added += [row.id for row in await store.enqueue([self._draw() for _ in range(size)])]
                await asyncio.sleep(self._dice.choice((0, 0.001, 0.005, 0.02)))

    async def work(self, stop: anyio.Event) -> None:
        """A worker that is stopped now and then, and another one comes."""
        while not stop.is_set():
            async with open_store(self._server.socket_url, OPTIONS) as store:
                slots = self._dice.choice((1, 2, 8))
                async with Worker(store, self.registry, slots=slots, lease_seconds=20).running():
                    with anyio.move_on_after(self._dice.uniform(0.05, 0.6)):
                        await stop.wait()

    async def cut_ears(self, stop: anyio.Event) -> None:
        """Messages are lost now and then."""
        with client_of(self._server) as client:
            while not stop.is_set():
                await asyncio.sleep(self._dice.uniform(0.02, 0.2))
                client.client_kill_filter(_type="pubsub", skipme=True)

    async def pause(self, stop: anyio.Event, store: RedisStore) -> None:
        """Pauses come and go."""
        while not stop.is_set():
            await asyncio.sleep(self._dice.uniform(0.05, 0.3))
            await store.pause(Pause(PauseKind.CLASS, "B"))
            await asyncio.sleep(self._dice.uniform(0.0, 0.05))
            await store.resume(Pause(PauseKind.CLASS, "B"))


@pytest.mark.parametrize("seed", range(4))
async def test_each_task_runs_exactly_once(redis_server: RedisServer, store: RedisStore, seed: int) -> None:
    """No failure, no lost run, nothing twice, and every index whole."""
    town, stop = Town(redis_server, random.Random(seed)), anyio.Event()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(town.work, stop)
        group.start_soon(town.cut_ears, stop)
        group.start_soon(town.pause, stop, store)
        async with anyio.create_task_group() as callers:
            for _ in range(4):
                callers.start_soon(town.enqueue, 40)
        await until_empty(store)
        stop.set()
    assert set(town.runs) == set(town.added)
    assert set(town.runs.values()) == {1}
    rows = await store.list_archived(5000)
    assert {(row.result, row.failure_count, row.lost_count) for row in rows} == {(Result.SUCCESS, 0, 0)}
    await assert_whole(store)
    await store.sweep(100)


async def test_a_worker_that_dies_costs_no_task(redis_server: RedisServer, store: RedisStore) -> None:
    """Its loops end from one moment to the next, with an order or with a task just handed: the lease runs out."""
    town = Town(redis_server, random.Random(7))
    async with anyio.create_task_group() as group:
        for _ in range(6):
            async with AsyncExitStack() as stack:
                dying = await stack.enter_async_context(open_store(redis_server.socket_url, OPTIONS))
                worker = Worker(dying, town.registry, slots=2, lease_seconds=2, patience=1)
                loops = [
                    asyncio.create_task(worker.doorbell.listen(dying, worker.lifecycle.stopping)),
                    asyncio.create_task(worker.lease_loop.run(worker.lifecycle.stopping)),
                ]
                group.start_soon(town.enqueue, 5)
                await asyncio.sleep(0.05)
                for loop in loops:
                    loop.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(*loops)
    async with Worker(store, town.registry, slots=8, lease_seconds=20).running():
        await until_empty(store)
    assert set(town.runs) == set(town.added)
    rows = await store.list_archived(5000)
    assert {(row.result, row.failure_count) for row in rows} == {(Result.SUCCESS, 0)}
    await assert_whole(store)

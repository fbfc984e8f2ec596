"""Workers of many kinds on one record, while everything is done to the queue that can be: nothing is stuck at the end.

No sweep helps here. Each worker has its own classes, queues and policy, and streams that are full all the time.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.store import Store
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
)
from stores.streams_feeder import Tending
from tests.servers import RedisServer
from tests.stores.streams_house import House, open_house, take

BRISK = Tending(every=0.1, reclaim=0.3, old=0.3, forget=1)
CLASSES = ("A", "B", "C", "Z")
QUEUES = ("high", "default", "low", "odd")
PAUSES = [
    Pause(PauseKind.ALL),
    *(Pause(PauseKind.CLASS, name) for name in CLASSES),
    *(Pause(PauseKind.QUEUE, name) for name in QUEUES),
]
WORKERS: Sequence[dict[str, Any]] = (
    {"classes": {"A"}},
    {"classes": {"A", "B"}},
    {"classes": None, "without_classes": {"A", "Z"}},
    {"classes": {"C"}, "queues": {"low", "odd"}},
    {"classes": {"Z"}, "queues": {"high"}},
)


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


class Crowd:
    """Workers that end tasks in any way while it is wild, and with success then."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.wild = True
        self.held: set[int] = set()
        self.twice: list[int] = []
        """tasks that two had at once"""

    async def work(self, store: Store, filters: dict[str, Any]) -> None:
        while True:
            tasks = await take(store, self.dice.randint(1, 4), **filters)
            if not tasks:
                await store.changed(0.2)
                continue
            self.twice += [task.id for task in tasks if task.id in self.held]
            self.held |= {task.id for task in tasks}
            await asyncio.sleep(self.dice.uniform(0, 0.01))
            self.held -= {task.id for task in tasks}
            await store.settle([self._end(task) for task in tasks])

    def _end(self, task: Task) -> Settlement:
        again = Complete(followups=(NewTask(task_class="A"),))
        ends: Sequence[Outcome] = (Complete(), Complete(), Complete(), again, Release(), Fail(), Retry(wait=1))
        return Settlement.held(
            Lease(task.id, task.lease_owner or ""), self.dice.choice(ends) if self.wild else Complete()
        )


async def disturb(store: Store, ids: list[int], dice: random.Random) -> None:
    """One thing that an operator or a caller does."""
    some = [dice.choice(ids) for _ in range(3)] if ids else []
    match dice.randrange(12):
        case 0 | 1 | 2 | 3:
            new = [
                NewTask(
                    task_class=dice.choice(CLASSES), queue=dice.choice(QUEUES), priority=dice.choice((1, 2000, 9000))
                )
                for _ in range(dice.randint(1, 30))
            ]
            ids += [row.id for row in await store.enqueue(new)]
        case 4:
            await store.pause(dice.choice(PAUSES))
        case 5 | 6:
            for pause in await store.paused():
                await store.resume(pause)
        case 7:
            await store.delay(some, int(time.time()) + 1)
        case 8:
            await store.priority(some, dice.choice((1, 5000)))
        case 9:
            await store.cancel(some[:1])
        case 10:
            await store.retry(some)
        case 11:
            await store.awaken(some)


def is_for_somebody(task: Task) -> bool:
    return task.task_class != "Z" or task.queue == "high"


@pytest.mark.long
@pytest.mark.parametrize("cap", [5, 50, 1000])
@pytest.mark.parametrize("seed", range(4))
async def test_workers_of_many_kinds_leave_nothing_that_one_of_them_may_take(house: House, cap: int, seed: int) -> None:
    dice, plain, ids = random.Random(seed), await house.record(), list[int]()
    stores: list[Store] = [
        await house.store(tending=BRISK, cap=cap, policy=("strict", "weighted")[place % 2])
        for place in range(len(WORKERS))
    ]
    crowd = Crowd(dice)
    working = [asyncio.create_task(crowd.work(*one)) for one in zip(stores, WORKERS, strict=True)]
    end = time.monotonic() + 2
    while time.monotonic() < end:
        await disturb(dice.choice([*stores, plain]), ids, dice)
        await asyncio.sleep(dice.uniform(0, 0.02))
    crowd.wild = False
    for pause in await plain.paused():
        await plain.resume(pause)
    async with asyncio.timeout(10):
        while any(map(is_for_somebody, left := await plain.list_active(5000))):  # noqa: ASYNC110  as below
            await asyncio.sleep(0.02)
    await plain.cancel([task.id for task in left])
    async with asyncio.timeout(5):
        while not house.is_empty():  # noqa: ASYNC110  what a server does rings no event here
            await asyncio.sleep(0.05)
    for task in working:
        task.cancel()
    ends = await asyncio.gather(*working, return_exceptions=True)
    assert {type(one) for one in ends} == {asyncio.CancelledError}
    assert crowd.twice == []

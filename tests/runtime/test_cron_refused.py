"""One entry that the store does not take keeps no other one waiting."""

import asyncio
from collections.abc import Sequence

import anyio
import pytest

from queue_runtime import cron_loop
from queue_runtime.cron_file import CronEntry
from queue_runtime.cron_loop import CronLoop
from queue_runtime.cron_schedule import Schedule
from queue_runtime.errors import InvalidRequest
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask, Task
from tests.clock import Clock
from tests.faulty_store import FaultyStore
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import until

EVERY_SECOND = Schedule("* * * * * *")


class Narrow(FaultyStore):
    """Takes no large payload, and no round with one: as MySQL with a small max_allowed_packet."""

    limit = 100

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        if sum(len(task.data) for task in tasks) > self.limit:
            self.calls["enqueue"] += 1
            raise InvalidRequest("data", f"the server takes at most {self.limit} bytes")
        return await super().enqueue(tasks)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Narrow:
    return Narrow(ReferenceStore(StoreOptions(now=clock)))


def loop_of(store: Narrow, clock: Clock, **data: str) -> CronLoop:
    """One entry for each name, due each second."""
    entries = [CronEntry(name, EVERY_SECOND, NewTask(task_class="A", data=text)) for name, text in data.items()]
    loop = CronLoop(store, Lifecycle(), entries, now=clock)
    for post in loop.posts:
        post.seen, post.next = clock.now - 1, clock.now
    return loop


async def slots(store: Narrow) -> list[str]:
    """Names of the entries whose slots are in the queue."""
    return sorted((row.idempotency_key or "").split(":")[1] for row in await store.list_active(100))


async def test_the_others_are_enqueued_and_the_refused_one_is_told(store: Narrow, clock: Clock) -> None:
    loop = loop_of(store, clock, good="x", large="x" * 101, fine="x")
    with pytest.raises(InvalidRequest, match="at most 100 bytes"):
        await loop.look_once()
    assert await slots(store) == ["fine", "good"]
    assert [post.entry.name for post in loop.posts if post.waiting] == ["large"]


async def test_a_round_that_is_too_large_as_a_whole_is_written_one_by_one(store: Narrow, clock: Clock) -> None:
    loop = loop_of(store, clock, one="x" * 60, two="x" * 60)
    assert await loop.look_once() == 2
    assert await slots(store) == ["one", "two"]


async def test_the_refused_one_rests_and_is_told_once_and_comes_when_it_may(
    store: Narrow, clock: Clock, monkeypatch: pytest.MonkeyPatch, logs: list[Log]
) -> None:
    monkeypatch.setattr(cron_loop, "REFUSED_SECONDS", 0.05)
    monkeypatch.setattr(cron_loop, "LOOK_SECONDS", 0.01)
    loop, stop = loop_of(store, clock, good="x", large="x" * 101), anyio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        running = group.create_task(loop.run(stop))
        await until(lambda: store.calls["enqueue"] >= 5)
        before = len(await slots(store))
        clock.advance(1)
        while len(await slots(store)) == before:  # noqa: ASYNC110  what a loop does rings no event here
            await asyncio.sleep(0.005)
        told = [line for line in logs if line["event"].startswith("periodic work is not enqueued")]
        assert [line["entries"] for line in told] == [["large"]]
        store.limit = 1000
        await until(lambda: any(line["event"] == "periodic work is enqueued again" for line in logs))
        stop.set()
        await running
    assert "large" in await slots(store)


async def test_a_new_file_asks_the_store_again_at_once(store: Narrow, clock: Clock) -> None:
    loop = loop_of(store, clock, job="x" * 101)
    with pytest.raises(InvalidRequest):
        await loop.look_once()
    loop._refused_until = float("inf")
    assert await loop.look_once() == 0
    loop.replace([CronEntry("job", EVERY_SECOND, NewTask(task_class="A", data="short"))])
    assert await loop.look_once() == 1


async def test_a_refused_slot_that_lies_ahead_after_the_clock_was_set_back_makes_no_hot_loop(
    store: Narrow, clock: Clock
) -> None:
    """It is not waited for any more, so nobody is asked again for its sake."""
    loop = loop_of(store, clock, large="x" * 101)
    with pytest.raises(InvalidRequest):
        await loop.look_once()
    clock.advance(-10)
    assert await loop.look_once() == 0
    assert loop._wait() > 0.1
    clock.advance(1)
    with pytest.raises(InvalidRequest):
        await loop.look_once()

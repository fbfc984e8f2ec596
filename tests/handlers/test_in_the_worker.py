"""The native classes run by the real lease loop, as Phorge would run them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from handlers import catalog
from queue_runtime.doorbell import Doorbell
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.lease_loop import LeaseLoop
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import Settler
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import ArchivedTask, NewTask, Result, Task
from tests.clock import Clock
from tests.handlers.fakes import hook_server
from tests.reference_store import open_store


class Worker:
    """A store and a lease loop whose steps the test makes."""

    def __init__(self, store: Store, policy_file: Path) -> None:
        self.store = store
        lifecycle = Lifecycle()
        self._settler = Settler(store)
        self._loop = LeaseLoop(
            store,
            catalog.native(feed_policy_file=policy_file),
            self._settler,
            Heartbeat(store, lifecycle, lease_seconds=20, patience=10),
            Doorbell(),
            lifecycle,
            WorkerStats(),
            slots=4,
            lease_seconds=20,
            patience=10,
            retry_seconds=300,
        )

    async def step(self) -> int:
        """Lease what is due, run it to its end and write its outcome; the number of tasks run."""
        started = await self._loop.lease_once()
        with anyio.fail_after(10):
            await self._loop.finish(10, anyio.Event())
            if started:
                await self._settler.round()
        return started

    async def add(self, task_class: str, data: str) -> int:
        (task,) = await self.store.enqueue([NewTask(task_class=task_class, data=data)])
        return task.id

    async def active(self, task_id: int) -> Task:
        (task,) = await self.store.get([task_id])
        assert task is not None
        return task

    async def archived(self, task_id: int) -> ArchivedTask:
        (task,) = await self.store.get_archived([task_id])
        assert task is not None
        return task


@pytest.fixture
async def worker(clock: Clock, tmp_path: Path) -> AsyncIterator[Worker]:
    async with open_store(StoreOptions(now=clock)) as store:
        yield Worker(store, tmp_path / "policy.json")


async def test_a_test_task_is_archived_with_its_duration_in_microseconds(worker: Worker) -> None:
    task_id = await worker.add("PhabricatorTestWorker", '{"duration":0.05}')
    assert await worker.step() == 1
    done = await worker.archived(task_id)
    assert done.result is Result.SUCCESS
    assert 50_000 <= done.duration_us < 5_000_000


async def test_a_retry_count_of_one_gives_two_runs_and_then_a_failure(worker: Worker, clock: Clock) -> None:
    data = '{"doWork":"fail-temporary","getMaximumRetryCount":1,"getWaitBeforeRetry":30}'
    task_id = await worker.add("PhabricatorTestWorker", data)
    assert await worker.step() == 1
    waiting = await worker.active(task_id)
    assert (waiting.failure_count, waiting.lease_expires) == (1, clock.now + 30)
    clock.advance(31)
    assert await worker.step() == 1
    done = await worker.archived(task_id)
    assert (done.result, done.failure_count) == (Result.FAILURE, 2)


async def test_a_permanent_failure_does_not_raise_the_failure_count(worker: Worker) -> None:
    task_id = await worker.add("PhabricatorTestWorker", '{"doWork":"fail-permanent"}')
    await worker.step()
    done = await worker.archived(task_id)
    assert (done.result, done.failure_count) == (Result.FAILURE, 0)


async def test_the_lease_is_as_long_as_the_task_requires(worker: Worker, clock: Clock) -> None:
    task_id = await worker.add("PhabricatorTestWorker", '{"getRequiredLeaseTime":5000}')
    await worker.step()
    done = await worker.archived(task_id)
    assert (done.result, done.lease_expires) == (Result.SUCCESS, clock.now + 5000)


async def test_a_hook_that_fails_is_asked_again_after_one_minute_then_two(
    worker: Worker, clock: Clock, tmp_path: Path
) -> None:
    async with hook_server() as gone:
        uri = f"{gone.origin}/feed"
    write_policy(tmp_path, uri)
    task_id = await worker.add("FeedPublisherHTTPWorker", snapshot(uri))
    for failures, wait in ((1, 60), (2, 120)):
        assert await worker.step() == 1
        waiting = await worker.active(task_id)
        assert (waiting.failure_count, waiting.lease_expires) == (failures, clock.now + wait)
        clock.advance(wait + 1)


async def test_a_story_that_was_delivered_is_archived(worker: Worker, tmp_path: Path) -> None:
    async with hook_server() as hook:
        write_policy(tmp_path, f"{hook.origin}/feed")
        task_id = await worker.add("FeedPublisherHTTPWorker", snapshot(f"{hook.origin}/feed"))
        await worker.step()
    assert [request.body for request in hook.requests] == [b"epoch=1"]
    assert (await worker.archived(task_id)).result is Result.SUCCESS


async def test_a_form_that_needs_phorge_waits_without_a_failure(worker: Worker, clock: Clock) -> None:
    task_id = await worker.add("FeedPublisherHTTPWorker", '{"key":"1","uri":"https://example.test/"}')
    assert await worker.step() == 1
    waiting = await worker.active(task_id)
    assert (waiting.lease_owner, waiting.failure_count) == ("(yield)", 0)
    assert waiting.lease_expires == clock.now + 300


def write_policy(folder: Path, uri: str) -> None:
    (folder / "policy.json").write_text(json.dumps({"silent": False, "uris": [uri]}))


def snapshot(uri: str) -> str:
    return json.dumps({"deliveryVersion": 1, "uri": uri, "body": "epoch=1"})

"""Tasks on their whole way: from a row, over HTTP, through the extension under real PHP, to the archive."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from queue_runtime.task import Result
from tests.conduit.house import House
from tests.conduit.php import TOKEN, Php, served
from tests.runtime.harness import until


class Address(Struct):
    """Where PHP is."""

    url: str


@asynccontextmanager
async def at_work(folder: Path, php: Php | None = None) -> AsyncIterator[House]:
    """A worker, and PHP's own web server that runs its tasks."""
    async with served(php or Php(folder), folder) as url, House(Address(url), token=TOKEN).running() as house:
        yield house


async def test_a_task_is_run_and_its_follow_up_after_it(tmp_path: Path) -> None:
    data = {"do": "stage", "children": [["ActingWorker", {"do": "nothing"}, {"priority": 1000}]]}
    async with at_work(tmp_path) as house:
        parent = await house.end_of(await house.add("ActingWorker", json.dumps(data), priority=1500))
        child = await house.end_of(parent.id + 1)
    assert (parent.result, child.result) == (Result.SUCCESS, Result.SUCCESS)
    assert (child.task_class, child.priority) == ("ActingWorker", 1000)
    assert (tmp_path / "php.log").read_text().count("RAN ") == 2


async def test_thousands_of_follow_ups_come_with_the_success(tmp_path: Path) -> None:
    later = {"delayUntil": 4_000_000_000}
    data = {"do": "stage", "children": [["ActingWorker", {"number": number}, later] for number in range(5000)]}
    async with at_work(tmp_path) as house:
        assert (await house.end_of(await house.add("ActingWorker", json.dumps(data)))).result is Result.SUCCESS
    rows = sorted(house.store.tables.active.values(), key=lambda row: row.id)
    texts = [house.store.tables.data[row.data_id] for row in rows]
    assert texts == [f'{{"number":{number}}}' for number in range(5000)]


@pytest.mark.parametrize("data", ["4711", '"text"', "null", "[]"])
async def test_data_of_every_type_is_run(tmp_path: Path, data: str) -> None:
    async with at_work(tmp_path) as house:
        assert (await house.end_of(await house.add("ActingWorker", data))).result is Result.SUCCESS
    assert f"RAN {data}\n" in (tmp_path / "php.log").read_text()


async def test_each_end_of_a_run_is_the_tasks(tmp_path: Path) -> None:
    async with at_work(tmp_path) as house:

        async def add(**data: object) -> int:
            return await house.add("ActingWorker", json.dumps(data))

        assert (await house.waiting(await add(do="yield", seconds=60), "(yield)")).failure_count == 0
        failed = await add(do="throw", hex="61", wait=17)
        assert (await house.waiting(failed, "(retry)")).failure_count == 1
        assert house.history(failed) == ["Exception: a"]
        over = await add(do="give up")
        assert (await house.end_of(over)).result is Result.FAILURE
        left = await add(do="exit")
        assert (await house.waiting(left, "(retry)")).failure_count == 1
        assert "ERR-WORKER-EXIT" in house.history(left)[0]
        assert (await house.waiting(await house.add("NoSuchWorker"), "(retry)")).failure_count == 1


async def test_a_run_that_outlives_its_caller_is_not_started_twice(tmp_path: Path) -> None:
    """PHP holds the task's lock, and says that it is busy."""
    sign = tmp_path / "go-on"
    data = json.dumps({"do": "wait for", "file": str(sign)})
    async with served(Php(tmp_path), tmp_path, workers=3) as url:
        log = tmp_path / "php.log"
        first = House(Address(url), token=TOKEN, lease_seconds=1)
        async with first.running():
            task_id = await first.add("ActingWorker", data)
            await until(lambda: log.read_text().count("RAN ") == 1)
        # its worker has stopped waiting; PHP has not
        assert first.active(task_id).lease_owner == "(unknown)"
        second = House(Address(url), store=first.store, token=TOKEN, lease_seconds=1)
        async with second.running():
            busy = second.client.calls
            await until(lambda: busy["answered"] >= 3)  # the question what it can do, prepare, and busy
            assert log.read_text().count("RAN ") == 1
            sign.touch()
            row = await second.end_of(task_id)
    assert (row.result, row.failure_count) == (Result.SUCCESS, 0)
    assert log.read_text().count("RAN ") == 2


async def test_several_run_at_once(tmp_path: Path) -> None:
    async with at_work(tmp_path) as house:
        ids = [await house.add("ActingWorker") for _ in range(30)]
        rows = await asyncio.gather(*(house.end_of(task_id) for task_id in ids))
    assert {row.result for row in rows} == {Result.SUCCESS}

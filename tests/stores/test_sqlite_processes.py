"""Several processes on one file, and processes that end in mid-write."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_runtime.task import NewTask
from stores.sqlite import open_store
from tests.stores.backdoor import execute


@contextmanager
def actor(said: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that plays a role of tests/stores/actor.py and says its facts into a file."""
    root = Path(__file__).parents[2]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.actor", *arguments], stdout=out, cwd=root, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def numbers(said: Path) -> list[int]:
    return [int(line) for line in said.read_text().splitlines()]


def wait_for(said: Path, lines: int) -> None:
    """Until the actor has said so much."""
    until = time.monotonic() + 30
    while len(numbers(said)) < lines:
        assert time.monotonic() < until
        time.sleep(0.005)


def copy(source: Path, target: Path) -> None:
    """The files as a power cut would leave them: the shared memory (-shm) is gone."""
    shutil.copy(source, target)
    shutil.copy(source.with_name(source.name + "-wal"), target.with_name(target.name + "-wal"))


async def check_whole(path: Path, acknowledged: list[int]) -> None:
    """The file opens, is sound, and has every task that was acknowledged, with its payload."""
    async with open_store(path) as store:
        found = await store.get(acknowledged)
        assert all(task is not None and task.data is not None for task in found)
        (new,) = await store.enqueue([NewTask(task_class="After")])
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]
    assert execute(path, "SELECT count(*), max(id) FROM task") == [(new.id, new.id)]
    assert execute(path, "SELECT last_id, active FROM counter") == [(new.id, new.id)]


async def test_copies_taken_in_mid_write_hold_every_acknowledged_task(path: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    copies: list[tuple[Path, list[int]]] = []

    def take_copies() -> None:
        with actor(said, "enqueue", str(path)) as process:
            wait_for(said, 1)
            for number in range(12):
                wait_for(said, len(numbers(said)) + 1 + 37 * (number % 3))
                process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
                target = tmp_path / f"copy{number}.sqlite3"
                copy(path, target)
                copies.append((target, numbers(said)))
                process.send_signal(signal.SIGCONT)

    await asyncio.to_thread(take_copies)
    for target, acknowledged in copies:
        assert acknowledged
        await check_whole(target, acknowledged)


async def test_a_killed_process_leaves_a_sound_file_with_every_acknowledged_task(path: Path, tmp_path: Path) -> None:
    acknowledged: list[int] = []

    def kill_in_mid_write(number: int) -> None:
        said = tmp_path / f"said{number}"
        with actor(said, "enqueue", str(path)) as process:
            wait_for(said, 40 + 17 * number)
            process.send_signal(signal.SIGKILL)
            process.wait()
        acknowledged.extend(numbers(said))

    for number in range(5):
        await asyncio.to_thread(kill_in_mid_write, number)
    assert len(acknowledged) == len(set(acknowledged))
    await check_whole(path, acknowledged)


async def test_two_processes_on_one_file_run_every_task_once(path: Path, tmp_path: Path) -> None:
    count = 1200
    said = [tmp_path / "one", tmp_path / "two"]
    async with open_store(path) as store:
        with actor(said[0], "work", str(path), str(count)) as one, actor(said[1], "work", str(path), str(count)) as two:
            for number in range(count // 4):
                task_class = f"Class{number % 5}"
                new = NewTask(task_class=task_class, data=f"payload of {task_class}" * 200)
                await store.enqueue([new] * 4)
            async with asyncio.timeout(60):
                codes = await asyncio.gather(*(asyncio.to_thread(process.wait) for process in (one, two)))
        assert codes == [0, 0]
        stats = await store.stats()
    assert (stats.active, stats.archived) == (0, count)
    runs = Counter(numbers(said[0]) + numbers(said[1]))
    assert set(runs.values()) == {1}
    assert len(runs) == count
    assert min(len(numbers(one)) for one in said) > count // 10, "one process starved the other"


async def test_work_of_another_process_wakes_a_waiting_one(path: Path) -> None:
    async with open_store(path) as waiting, open_store(path) as other:
        while await waiting.changed(0):
            pass
        call = asyncio.ensure_future(waiting.changed(20))
        await asyncio.sleep(0)
        await other.enqueue([NewTask(task_class="A")])
        asked_at = time.monotonic()
        assert await call
        assert time.monotonic() - asked_at < 1
        assert len(await waiting.lease("qr:1", 1, 60)) == 1


async def test_a_change_by_another_process_between_two_calls_is_remembered(path: Path) -> None:
    async with open_store(path) as waiting, open_store(path) as other:
        while await waiting.changed(0):
            pass
        await other.enqueue([NewTask(task_class="A")])
        await waiting.lease("qr:1", 1, 60, classes={"B"})  # reads the other's commit on the way
        assert await waiting.changed(0)


async def test_a_lease_that_finds_nothing_wakes_nobody(path: Path) -> None:
    async with open_store(path) as waiting, open_store(path) as other:
        while await waiting.changed(0):
            pass
        for _ in range(5):
            assert await other.lease("qr:1", 1, 60) == []
            assert await other.renew([], 60) == []
        assert not await waiting.changed(0)


@pytest.mark.parametrize("seen_first", [True, False])
async def test_a_class_that_another_process_added_is_leased_by_name(path: Path, seen_first: bool) -> None:
    async with open_store(path) as one, open_store(path) as other:
        if seen_first:
            assert await one.lease("qr:1", 1, 60, classes={"New"}) == []
        await other.enqueue([NewTask(task_class="New")])
        assert [task.task_class for task in await one.list_active(5)] == ["New"]
        assert [task.task_class for task in await one.lease("qr:2", 1, 60, classes={"New"})] == ["New"]

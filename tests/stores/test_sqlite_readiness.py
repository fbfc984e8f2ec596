"""What `ping` says while nothing can be written, and when the file is not the one of its path any more."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Settlement
from stores import sqlite_session
from stores.sqlite import SqliteStore, open_store
from stores.sqlite_session import Session
from tests.clock import Clock
from tests.stores.backdoor import execute, inside

ROOM_ENOUGH = 1073741823


async def changes(store: SqliteStore) -> int:
    return await store._writer.call("test", lambda session: session.connection.total_changes, alone=True)


async def test_a_healthy_store_is_asked_without_writing(store: SqliteStore) -> None:
    await store.enqueue([NewTask(task_class="A")])
    before = await changes(store)
    await store.ping()
    assert await changes(store) == before


async def test_a_full_file_is_not_ready_until_there_is_room(path: Path, store: SqliteStore) -> None:
    ((pages,),) = await inside(store, "PRAGMA page_count")
    await inside(store, f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreFull):
        await store.enqueue([NewTask(task_class="A", data="x" * 2**20)])
    for _ in range(2):
        with pytest.raises(StoreFull, match=r"ping: .*no room left on the disk"):
            await store.ping()
    assert await store.lease("qr:1", 1, 60) == []  # commits, but had nothing to write
    with pytest.raises(StoreFull):
        await store.ping()

    await inside(store, f"PRAGMA max_page_count={ROOM_ENOUGH}")
    await store.ping()
    before = await changes(store)
    await store.ping()
    assert await changes(store) == before, "once a write has gone well it is only asked"
    assert execute(path, "SELECT count(*) FROM payload") == [(0,)]


async def test_a_write_lock_that_another_process_keeps_is_not_ready_until_it_is_gone(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_session, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await store.ping()  # nobody has missed it yet
        with pytest.raises(StoreUnavailable):
            await store.enqueue([NewTask(task_class="A")])
        with pytest.raises(StoreUnavailable, match=r"ping: .*another process has held the file for too long"):
            await store.ping()
        other.execute("ROLLBACK")
    await store.ping()


async def test_a_write_that_goes_well_makes_it_ready_again_without_being_asked(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_session, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await store.enqueue([NewTask(task_class="A")])
        other.execute("ROLLBACK")
    await store.enqueue([NewTask(task_class="A")])
    before = await changes(store)
    await store.ping()
    assert await changes(store) == before


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


DISPLACED: dict[str, tuple[Callable[[Path], None], str]] = {
    "removed": (remove, "the file was removed"),
    "replaced": (replace, "the file was replaced"),
    "moved with its folder": (move_the_folder, "the file was removed"),
    "log removed": (lambda path: beside(path, "-wal").unlink(), "-wal: the file was removed"),
    "log replaced": (lambda path: replace(beside(path, "-wal")), "-wal: the file was replaced"),
    "shared memory removed": (lambda path: beside(path, "-shm").unlink(), "-shm: the file was removed"),
    "shared memory replaced": (lambda path: replace(beside(path, "-shm")), "-shm: the file was replaced"),
}


@pytest.mark.parametrize("how", DISPLACED)
async def test_nothing_is_acknowledged_once_the_file_was_removed_or_replaced(
    tmp_path: Path, clock: Clock, how: str
) -> None:
    displace, reason = DISPLACED[how]
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "queue.sqlite3"
    async with open_store(path, StoreOptions(now=clock)) as store:
        (task,) = await store.enqueue([NewTask(task_class="A")])
        await store.lease("qr:1", 1, 60)
        await store.ping()
        displace(path)
        with pytest.raises(StoreUnavailable, match=f"ping: .*{reason}.*; restart the process"):
            await store.ping()
        with pytest.raises(StoreUnavailable, match=f"enqueue: .*{reason}"):
            await store.enqueue([NewTask(task_class="A")])
        with pytest.raises(StoreUnavailable, match="settle: "):
            await store.settle([Settlement.held(Lease(task.id, "qr:1"), Complete())])
        with pytest.raises(StoreUnavailable, match=f"ping: .*{reason}"):
            await store.ping()


async def test_a_round_that_commits_into_a_removed_file_is_not_acknowledged(path: Path, store: SqliteStore) -> None:
    def remove_meanwhile(_session: Session) -> int:
        remove(path)
        return 1

    with pytest.raises(StoreUnavailable, match="the file was removed"):
        await store._writer.call("enqueue", remove_meanwhile)


BUSY_NEIGHBOUR = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=5)
connection.execute("CREATE TABLE mine (a)")
connection.execute("INSERT INTO mine VALUES (1)")
connection.execute("DROP TABLE mine")
connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
connection.execute("VACUUM")
try:
    connection.execute("PRAGMA journal_mode=DELETE")
except sqlite3.OperationalError:
    pass
connection.close()
"""


async def test_side_files_that_other_processes_use_and_leave_are_no_alarm(path: Path, store: SqliteStore) -> None:
    """Checkpoints, a rewrite of the whole file, a try to leave the mode, and the last of the others that goes."""
    await store.enqueue([NewTask(task_class="A")])
    for _ in range(2):
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", BUSY_NEIGHBOUR, str(path)], check=True)
        await store.ping()
        await store.enqueue([NewTask(task_class="A")])
    async with open_store(path) as other:
        await other.enqueue([NewTask(task_class="A")])
    await store.ping()
    assert (await store.stats()).active == 4


async def test_the_side_files_of_a_linked_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    link = tmp_path / "link.sqlite3"
    link.symlink_to(tmp_path / "data" / "real.sqlite3")
    async with open_store(link) as store:
        await store.enqueue([NewTask(task_class="A")])
        await store.ping()
        (tmp_path / "data" / "real.sqlite3-wal").unlink()
        with pytest.raises(StoreUnavailable, match="-wal: the file was removed"):
            await store.enqueue([NewTask(task_class="A")])


async def test_what_was_acknowledged_before_the_log_was_removed_is_there_after_the_restart(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite3"
    async with open_store(path) as store:
        await store.enqueue([NewTask(task_class="A")] * 3)
        for ending in ("-wal", "-shm"):
            beside(path, ending).unlink()
        with pytest.raises(StoreUnavailable):
            await store.enqueue([NewTask(task_class="A")])
    async with open_store(path) as store:
        assert (await store.stats()).active == 3


async def test_a_file_that_comes_back_under_its_name_serves_again(path: Path, store: SqliteStore) -> None:
    aside = path.with_name("aside")
    await asyncio.to_thread(path.rename, aside)
    with pytest.raises(StoreUnavailable):
        await store.enqueue([NewTask(task_class="A")])
    await asyncio.to_thread(aside.rename, path)
    assert len(await store.enqueue([NewTask(task_class="A")])) == 1
    await store.ping()


async def test_a_path_may_be_no_text(tmp_path: Path) -> None:
    """File names are bytes."""
    path = tmp_path / os.fsdecode(b"queue-\xff.sqlite3")
    async with open_store(path) as store:
        await store.enqueue([NewTask(task_class="A")])
        assert (await store.stats()).active == 1
        beside(path, "-wal").unlink()
        with pytest.raises(StoreUnavailable, match="-wal: the file was removed"):
            await store.enqueue([NewTask(task_class="A")])

"""Opening a file: what is refused, and in which words."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_runtime.errors import StoreUnavailable, StoreUnusable
from queue_runtime.task import NewTask
from stores import sqlite_session
from stores.sqlite import open_store
from stores.sqlite_session import APPLICATION_ID, SCHEMA_VERSION, filesystem_of
from tests.stores.backdoor import execute, inside


async def refusal(path: Path) -> str:
    with pytest.raises(StoreUnusable) as caught:
        async with open_store(path):
            pass
    return str(caught.value)


async def test_a_name_that_is_too_long_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="too long"):
        async with open_store(tmp_path / ("x" * 300)):
            pass


async def test_a_copy_without_side_files_is_opened(path: Path) -> None:
    """As `VACUUM INTO` and the backup of sqlite3's shell make it."""
    async with open_store(path) as store:
        await store.enqueue([NewTask(task_class="A")])
        with closing(sqlite3.connect(path)) as before, closing(sqlite3.connect(path.with_name("backup"))) as backup:
            before.execute("VACUUM INTO ?", (str(path.with_name("vacuumed")),))
            before.backup(backup)
    for name in ("vacuumed", "backup"):
        async with open_store(path.with_name(name)) as store:
            await store.enqueue([NewTask(task_class="A")])
            await store.ping()
            assert (await store.stats()).active == 2


async def test_a_new_file_is_made_and_found_again(path: Path) -> None:
    async with open_store(path) as store:
        (task,) = await store.enqueue([NewTask(task_class="A", data="x")])
    async with open_store(path) as store:
        (found,) = await store.get([task.id])
    assert found is not None
    assert found.data == "x"


async def test_the_file_says_whose_it_is_and_which_schema_it_has(path: Path) -> None:
    async with open_store(path):
        pass
    assert execute(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert execute(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


async def test_every_commit_reaches_the_disk_unless_told_otherwise(path: Path) -> None:
    async with open_store(path) as store:
        assert await inside(store, "PRAGMA synchronous") == [(2,)]  # FULL
        assert await inside(store, "PRAGMA journal_mode") == [("wal",)]
    async with open_store(path, synchronous="NORMAL") as store:
        assert await inside(store, "PRAGMA synchronous") == [(1,)]


async def test_a_file_of_a_newer_release_is_refused_and_left_as_it_is(path: Path) -> None:
    async with open_store(path):
        pass
    execute(path, f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    assert f"schema version {SCHEMA_VERSION + 1}, this release knows {SCHEMA_VERSION}" in await refusal(path)
    assert execute(path, "PRAGMA user_version") == [(SCHEMA_VERSION + 1,)]


async def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    execute(path, "CREATE TABLE task (mine)")
    assert "database of another program" in await refusal(path)
    assert execute(path, "SELECT sql FROM sqlite_master") == [("CREATE TABLE task (mine)",)]
    assert execute(path, "PRAGMA journal_mode") == [("delete",)]


@pytest.fixture
def shopping_list(path: Path) -> Iterator[None]:
    """A file of text in the place of the database, which nobody may touch."""
    text = "shopping list: " + "milk " * 500
    path.write_text(text)
    yield
    assert path.read_text() == text


@pytest.mark.usefixtures("shopping_list")
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    assert "is not an SQLite database" in await refusal(path)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert f"the folder {tmp_path / 'none'} for queue.db does not exist" in await refusal(
        tmp_path / "none" / "queue.db"
    )


async def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    assert "is a folder; name a file" in await refusal(tmp_path)


@pytest.fixture
def shared_folder(path: Path) -> Iterator[Path]:
    """A folder that this process may not write, with a file that it may."""
    path.touch()
    path.chmod(0o666)
    reachable = []
    for folder in (path.parent, *path.parent.parents):
        mode = folder.stat().st_mode
        if not mode & 0o001:
            reachable.append((folder, mode))
            folder.chmod(mode | 0o011)
    path.parent.chmod(0o555)
    yield path.parent
    path.parent.chmod(0o755)
    for folder, mode in reversed(reachable):
        folder.chmod(mode)


async def test_a_folder_that_cannot_be_written_is_refused_even_if_the_file_can(
    path: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # os.access asks for the real user, so a test that runs as root has to ask for the effective one.
    asked = os.access
    monkeypatch.setattr(os, "access", lambda place, mode: asked(place, mode, effective_ids=True))
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        sentence = await refusal(path)
    finally:
        os.seteuid(user)
    assert f"the folder {shared_folder} is not writable" in sentence
    assert "-wal, -shm" in sentence


async def test_many_openers_of_a_new_file_agree_on_it(path: Path) -> None:
    async def open_and_enqueue() -> int:
        async with open_store(path) as store:
            (task,) = await store.enqueue([NewTask(task_class="A")])
            return task.id

    ids = await asyncio.gather(*(open_and_enqueue() for _ in range(8)))
    assert sorted(ids) == list(range(1, 9))


@pytest.mark.parametrize("exists", [False, True])
async def test_a_file_that_stays_locked_is_an_outage_and_not_a_fault_of_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    monkeypatch.setattr(sqlite_session, "BUSY_SECONDS", 0.2)
    if exists:
        async with open_store(path):
            pass
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="another process has held the file for too long"):
            async with open_store(path):
                pass
        other.execute("ROLLBACK")
    async with open_store(path) as store:  # nothing that was begun stands in the way
        await store.ping()


def test_the_file_system_of_a_folder_is_that_of_the_deepest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    folder = tmp_path.resolve()
    mounts.write_text(
        "1 0 0:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:2 / {folder} rw shared:1 - nfs4 server:/a rw\n"
        f"3 1 0:3 / {folder}-beside rw - tmpfs none rw\n"
    )
    assert filesystem_of(folder, mounts) == "nfs4"
    assert filesystem_of(folder.parent, mounts) == "ext4"


async def test_a_network_file_system_is_warned_of(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sqlite_session, "filesystem_of", lambda folder: "nfs4")
    async with open_store(path):
        pass
    assert "network file system" in capsys.readouterr().out

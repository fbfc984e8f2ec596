"""The doctor's look at an SQLite file: it finds what is wrong, and neither changes the file nor leaves another."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from queue_runtime.findings import Level
from queue_runtime.task import NewTask
from stores import sqlite, sqlite_doctor
from stores.sqlite_doctor import examine
from stores.sqlite_session import SCHEMA_VERSION


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.sqlite"


async def fill(file: Path, count: int = 3, *, size: int = 10) -> None:
    async with sqlite.open_store(file) as store:
        ids = [task.id for task in await store.enqueue([NewTask(task_class="A", data="x" * size)] * count)]
        await store.cancel(ids[:1])


def run(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(statement)


def write(file: Path, content: bytes, at: int = 0) -> None:
    """Write over what is there, counted from the end where `at` is negative."""
    with file.open("r+b" if at else "wb") as opened:
        opened.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        opened.write(content)


async def found(file: Path) -> dict[str, tuple[Level, str]]:
    """What is found, by subject."""
    return {one.subject: (one.level, one.sentence) for one in await examine(file)}


async def test_a_file_in_order_is_ok_in_every_respect_also_while_a_process_has_it_open(file: Path) -> None:
    await fill(file)
    closed = await found(file)
    assert {level for level, _ in closed.values()} == {Level.OK}
    assert closed["counts"][1] == "2 active and 1 archived tasks, and the kept counts agree"
    assert list(file.parent.iterdir()) == [file]
    async with sqlite.open_store(file) as store:
        await store.enqueue([NewTask(task_class="A", data="")])
        assert {level for level, _ in (await found(file)).values()} == {Level.OK}
        await store.enqueue([NewTask(task_class="A", data="")])


async def test_a_file_that_is_not_there_is_not_made(file: Path) -> None:
    level, sentence = (await found(file))["file"]
    assert level is Level.NOTE
    assert "is not there yet" in sentence
    assert list(file.parent.iterdir()) == []


async def test_a_place_where_no_file_can_be_is_a_fault(tmp_path: Path) -> None:
    assert (await found(tmp_path / "missing" / "queue.sqlite"))["file"][0] is Level.FAULT
    assert (await found(tmp_path))["file"] == (Level.FAULT, f"{tmp_path} is a folder; name a file")
    assert (await found(tmp_path / ("x" * 300)))["file"][0] is Level.FAULT


async def test_what_is_no_queue_of_ours_is_a_fault(file: Path) -> None:
    write(file, b"not a database " * 500)
    assert "is not an SQLite database" in (await found(file))["file"][1]


async def test_a_database_of_another_program_is_a_fault(file: Path) -> None:
    run(file, "CREATE TABLE mine (x)")
    assert (await found(file))["file"] == (Level.FAULT, f"{file} is a database of another program; name another file")


async def test_the_schema_of_a_newer_release_is_a_fault_and_that_of_an_older_one_is_not(file: Path) -> None:
    await fill(file)
    run(file, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert (await found(file))["schema"][0] is Level.FAULT
    run(file, f"PRAGMA user_version = {SCHEMA_VERSION - 1}")
    assert (await found(file))["schema"][0] is Level.NOTE


async def test_another_journal_mode_is_a_warning(file: Path) -> None:
    await fill(file)
    run(file, "PRAGMA journal_mode = DELETE")
    assert (await found(file))["journal"][0] is Level.WARNING


async def test_kept_counts_that_are_wrong_are_named_with_the_right_ones(file: Path) -> None:
    await fill(file)
    run(file, "UPDATE counter SET active = 7")
    level, sentence = (await found(file))["counts"]
    assert level is Level.WARNING
    assert "2 active and 1 archived tasks, and the kept counts say 7 and 1" in sentence


async def test_ids_that_would_be_used_twice_are_a_fault(file: Path) -> None:
    await fill(file)
    run(file, "UPDATE counter SET last_id = 1")
    assert (await found(file))["ids"][0] is Level.FAULT


async def test_payloads_of_no_task_are_a_warning(file: Path) -> None:
    await fill(file, size=100_000)
    run(file, "DELETE FROM task WHERE id = 2")
    assert (await found(file))["payloads"] == (Level.WARNING, "1 large payloads belong to no task and take room")


async def test_a_damaged_page_is_a_fault(file: Path) -> None:
    await fill(file, 200)
    write(file, b"\xff" * 292, -4096 + 8)
    assert Level.FAULT in {one.level for one in await examine(file)}


async def test_what_takes_too_long_is_left_and_said_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_doctor, "_STEPS", 1)
    await fill(file)
    by_subject = {one.subject: one for one in await examine(file, look_seconds=0.0)}
    assert by_subject["file"].level is Level.OK
    assert by_subject["integrity"].level is Level.NOTE
    assert by_subject["counts"].sentence.startswith("about 2 active and 1 archived tasks")


async def test_little_room_is_a_warning(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_doctor, "FREE_BYTES", 2**62)
    assert (await found(file))["disk"][0] is Level.WARNING
    monkeypatch.setattr(sqlite_doctor, "filesystem_of", lambda _folder: "nfs4")
    first, *_ = await examine(file)
    assert (first.subject, first.level) == ("disk", Level.WARNING)
    assert "network file system (nfs4)" in first.sentence

"""Rows that are no text, odd names and payloads of every shape, through the streams (R086, R087, R090)."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_runtime.task import NewTask, Result
from stores.streams import StreamsStore
from tests.contract.test_payloads import TEXTS
from tests.servers import RedisServer
from tests.stores.streams_house import House, add, finish, open_house, take, until


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


@pytest.fixture
async def store(house: House) -> StreamsStore:
    return await house.store()


def spoil(path: Path, statement: str, *values: object) -> None:
    """Write what is no UTF-8 into the file, behind every store's back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize("column", ["data", "object_phid", "idempotency_key"])
async def test_a_row_that_is_no_text_is_archived_and_the_nine_beside_it_run(
    store: StreamsStore, house: House, column: str
) -> None:
    ids = await add(store, number=10)
    bad = ids[3]
    spoil(house.path, f"UPDATE task SET {column} = CAST(x'ff41' AS TEXT) WHERE id = ?", bad)
    tasks = await take(store, 10)
    assert [task.id for task in tasks] == [task_id for task_id in ids if task_id != bad]
    await finish(store, tasks)
    (ended,) = await store.get_archived([bad])
    assert ended is not None
    assert ended.result is Result.FAILURE
    assert "not UTF-8" in (await store.history([bad]))[0][0].message
    assert await take(store, 10) == []
    await until(house.is_empty)
    assert store.dispatch.mode == "streams"


async def test_a_class_that_is_no_text_ends_its_own_task_alone(house: House) -> None:
    """It is found by those who go through the record, and its name goes into Redis and comes back."""
    plain = await house.record()
    (bad,) = await add(plain, task_class="Bad")
    spoil(house.path, "UPDATE lane SET task_class = CAST(x'ff' AS TEXT) WHERE task_class = 'Bad'")
    store = await house.store()
    (good,) = await add(store)
    assert [task.id for task in await take(store, 10)] == [good]
    (ended,) = await store.get_archived([bad])
    assert ended is not None
    assert ended.result is Result.FAILURE
    await until(lambda: not house.waiting())
    assert store.dispatch.mode == "streams"


async def test_payloads_of_every_shape_come_out_as_they_went_in(store: StreamsStore) -> None:
    await store.enqueue([NewTask(task_class="A", data=text) for text in TEXTS.values()])
    assert [task.data for task in await take(store, 100)] == list(TEXTS.values())


async def test_a_class_may_have_any_name(store: StreamsStore, house: House) -> None:
    """Its name travels in the entry, and decides who reads it."""
    names = [
        "it's",
        '"',
        "100 %",
        "\u00e9" * 32,
        "\U0001f642",
        " x ",
        "a\nb",
        "\u2028",
        "default 1-1",
        "-1",
        "*",
        "\x7f",
    ]
    for name in names:
        await add(store, task_class=name)
    assert await take(store, 50, classes={"other"}) == []
    tasks = await take(store, 50, classes=set(names))
    assert [task.task_class for task in tasks] == names
    await finish(store, tasks)
    await until(house.is_empty)

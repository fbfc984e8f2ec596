"""Filtered leases find rare rows, and look at a bounded number of rows in a call."""

from collections.abc import AsyncIterator, Iterator

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Pause, PauseKind
from stores.mysql import MysqlStore, open_store
from stores.mysql_candidates import EXAMINED
from tests.phorge_tables import PhorgeTables
from tests.stores.mysql_tables import global_rows_read

NOW = 1_700_000_000
COLUMNS = (
    "id, taskClass, leaseOwner, leaseExpires, failureCount, dataID, failureTime, priority, objectPHID, dateCreated,"
    " dateModified, containerPHID"
)


@pytest.fixture
async def store(phorge: PhorgeTables) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(), StoreOptions(now=lambda: NOW, patience=4)) as store:
        yield store


@pytest.fixture
def emptied(phorge: PhorgeTables) -> Iterator[PhorgeTables]:
    """Emptied in a moment: of a million deleted rows the server would have work for minutes, beside the next tests."""
    yield phorge
    phorge.execute("TRUNCATE TABLE worker_activetask; TRUNCATE TABLE worker_taskdata")


def fill(
    phorge: PhorgeTables, task_class: str, count: int, *, first: int, owner: str | None = None, expires: str = "NULL"
) -> None:
    """So many rows of a class; `expires` is SQL."""
    shown = "NULL" if owner is None else f"'{owner}'"
    phorge.execute(
        f"INSERT INTO worker_taskdata (id, data) SELECT seq + {first - 1}, '[]' FROM seq_1_to_{count};"
        f" INSERT INTO worker_activetask ({COLUMNS}) SELECT seq + {first - 1}, '{task_class}', {shown}, {expires}, 0,"
        f" seq + {first - 1}, NULL, 2000, NULL, {NOW}, {NOW}, NULL FROM seq_1_to_{count}"
    )


async def leased(store: MysqlStore, number: int, **filters: object) -> list[str]:
    rows = await store.lease(f"qr:{number}:1:1@h", 10, 60, **filters)  # type: ignore[arg-type]
    return [row.task_class for row in rows]


async def test_due_rows_behind_many_that_are_paused_are_reached(store: MysqlStore, phorge: PhorgeTables) -> None:
    fill(phorge, "Slow", EXAMINED + 1000, first=1, owner="(retry)", expires=f"{NOW} - 5000 + seq MOD 7")
    fill(phorge, "Quick", 5, first=100_000, owner="(retry)", expires=str(NOW - 60))
    await store.pause(Pause(PauseKind.CLASS, "Slow"))
    found: list[str] = []
    for number in range(10):
        found += await leased(store, number)
    assert found == ["Quick"] * 5


@pytest.mark.parametrize("kind", ["ready", "due"])
async def test_rows_of_a_class_behind_many_others_are_leased_in_order_at_once(
    kind: str, store: MysqlStore, phorge: PhorgeTables
) -> None:
    """R062."""
    timed = {"owner": "(retry)", "expires": str(NOW - 90)} if kind == "due" else {}
    fill(phorge, "Other", EXAMINED * 2, first=1, **timed)
    fill(phorge, "Rare", 20, first=100_000, **timed)
    rows = await store.lease("qr:1:1:1@h", 10, 60, classes={"Rare"})
    assert [row.id for row in rows] == list(range(100_000, 100_010))


@pytest.mark.parametrize("kind", ["ready", "due"])
async def test_a_class_of_many_rows_behind_many_others_is_leased_at_once(
    kind: str, store: MysqlStore, phorge: PhorgeTables
) -> None:
    timed = {"owner": "(retry)", "expires": f"{NOW} - 90"} if kind == "due" else {}
    fill(phorge, "Other", EXAMINED * 2, first=1, **timed)
    fill(phorge, "Many", EXAMINED + 500, first=100_000, **timed)
    found: list[str] = []
    for number in range(30):
        found += await leased(store, number, classes={"Many"})
        if found:
            break
    assert found == ["Many"] * 10


@pytest.mark.parametrize("kind", ["ready", "due"])
@pytest.mark.parametrize("filters", [{"classes": {"None"}}, {"queues": {"none"}}, {"without_classes": {"Other"}}])
async def test_a_lease_that_finds_nothing_looks_at_a_bounded_number_of_rows(
    kind: str, filters: dict[str, set[str]], store: MysqlStore, phorge: PhorgeTables
) -> None:
    timed = {"owner": "(retry)", "expires": str(NOW - 90)} if kind == "due" else {}
    fill(phorge, "Other", EXAMINED * 6, first=1, **timed)
    await leased(store, 0, **filters)  # the census is asked for
    before = global_rows_read(phorge)
    assert await leased(store, 1, **filters) == []
    assert global_rows_read(phorge) - before < 5 * EXAMINED


async def test_a_class_that_differs_by_a_space_stands_in_nobodys_way(store: MysqlStore, phorge: PhorgeTables) -> None:
    fill(phorge, "Other", 3000, first=1)
    fill(phorge, "A ", 50, first=10_000)
    fill(phorge, "A", 5, first=20_000)
    assert await leased(store, 1, classes={"A"}) == ["A"] * 5
    await store.pause(Pause(PauseKind.CLASS, "A"))
    await store.pause(Pause(PauseKind.CLASS, "Other"))
    assert await leased(store, 2) == ["A "] * 10
    assert await store.resume(Pause(PauseKind.CLASS, "A ")) is False


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_a_lease_of_a_large_queue_reads_about_what_it_takes(
    count: int, store: MysqlStore, emptied: PhorgeTables
) -> None:
    """R062: 200 classes and 6 priorities. Counted by the server, not by time."""
    emptied.execute(
        f"INSERT INTO worker_taskdata (id, data) SELECT seq, '[]' FROM seq_1_to_{count};"
        f" INSERT INTO worker_activetask ({COLUMNS}) SELECT seq, CONCAT('Class', seq MOD 200), NULL, NULL, 0, seq,"
        f" NULL, 1000 + 500 * (seq MOD 6), NULL, {NOW}, {NOW}, NULL FROM seq_1_to_{count}"
    )
    cases: list[tuple[dict[str, object], int]] = [
        ({}, 1500),
        ({"classes": {f"Class{number}" for number in range(100)}}, 3000),
        ({"without_classes": {"Class1"}}, 2000),
        ({"queues": {"default"}}, 2000),
        ({"classes": {"Class7"}}, 5 * EXAMINED),
        ({"classes": {"Class7", "Nobody"}, "queues": {"default"}}, 5 * EXAMINED),
    ]
    for number, (filters, bound) in enumerate(cases):
        await store.lease(f"qr:w{number}:1:1@h", 30, 60, **filters)  # type: ignore[arg-type]  # what is cached, is
        before = global_rows_read(emptied)
        taken = await store.lease(f"qr:{number}:1:1@h", 30, 60, **filters)  # type: ignore[arg-type]
        assert global_rows_read(emptied) - before < bound, filters
        assert taken, filters
        assert [row.priority for row in taken] == sorted(row.priority for row in taken)

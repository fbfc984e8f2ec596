"""Leases in a row do not look at the head of the queue anew, and miss nothing by that."""

from collections.abc import AsyncIterator

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Lease, NewTask, Release, Settlement
from stores import mysql_head
from stores.mysql import MysqlStore, open_store
from tests.phorge_tables import PhorgeTables
from tests.stores.mysql_tables import global_rows_read
from tests.stores.test_mysql_candidates import NOW

FILTERS = {"everything": None, "one class": frozenset({"Work"})}
CLASSES = pytest.mark.parametrize("classes", FILTERS.values(), ids=FILTERS)


@pytest.fixture
async def store(phorge: PhorgeTables) -> AsyncIterator[MysqlStore]:
    """With 60 tasks of priority 2000."""
    async with open_store(phorge.settings(), StoreOptions(now=lambda: NOW)) as store:
        await store.enqueue([NewTask(task_class="Work", priority=2000) for _ in range(60)])
        yield store


@pytest.fixture
def believes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_head, "BELIEVED_SECONDS", 3600.0)


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_a_lease_in_strict_order_finds_what_came_in_before_the_last_one(
    store: MysqlStore, classes: frozenset[str] | None
) -> None:
    for number in range(3):
        await store.lease(f"qr:0:{number}:1@h", 4, 60, classes=classes, order="dispatch")
    (urgent,) = await store.enqueue([NewTask(task_class="Work", priority=1)])
    first, *_ = await store.lease("web", 4, 60, classes=classes)
    assert first.id == urgent.id


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_strict_leases_in_a_row_find_what_came_in_between(
    store: MysqlStore, classes: frozenset[str] | None
) -> None:
    await store.lease("web", 4, 60, classes=classes)
    (urgent,) = await store.enqueue([NewTask(task_class="Work", priority=1)])
    first, *_ = await store.lease("web", 4, 60, classes=classes)
    assert first.id == urgent.id


@CLASSES
async def test_the_lease_loop_finds_it_as_soon_as_it_looks_again(
    store: MysqlStore, classes: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_head, "BELIEVED_SECONDS", 0.0)
    await store.lease("qr:0:0:1@h", 4, 60, classes=classes, order="dispatch")
    (urgent,) = await store.enqueue([NewTask(task_class="Work", priority=1)])
    first, *_ = await store.lease("qr:0:1:1@h", 4, 60, classes=classes, order="dispatch")
    assert first.id == urgent.id


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_the_lease_loop_takes_everything_in_order_and_misses_no_row(
    store: MysqlStore, classes: frozenset[str] | None
) -> None:
    """Also one that was given back behind it, and one that came in before the place that it had got to."""
    (given_back,) = await store.lease("qr:0:0:1@h", 1, 60, classes=classes, order="dispatch")
    await store.lease("qr:0:1:1@h", 4, 60, classes=classes, order="dispatch")
    await store.settle([Settlement.held(Lease(given_back.id, "qr:0:0:1@h"), Release())])
    (urgent,) = await store.enqueue([NewTask(task_class="Work", priority=1)])
    taken: list[int] = []
    for number in range(2, 40):
        rows = await store.lease(f"qr:0:{number}:1@h", 4, 60, classes=classes, order="dispatch")
        taken += [row.id for row in rows]
    assert sorted(taken) == sorted({given_back.id, urgent.id, *range(6, 61)})
    plain = [one for one in taken if one not in {given_back.id, urgent.id}]
    assert plain == sorted(plain)


@pytest.mark.usefixtures("believes_for_ever")
async def test_a_lease_that_goes_on_reads_less_than_one_that_looks(store: MysqlStore, phorge: PhorgeTables) -> None:
    classes = FILTERS["one class"]
    costs = []
    for number in range(2):
        before = global_rows_read(phorge)
        await store.lease(f"qr:0:{number}:1@h", 4, 60, classes=classes, order="dispatch")
        costs.append(global_rows_read(phorge) - before)
    assert costs[1] < costs[0] / 2

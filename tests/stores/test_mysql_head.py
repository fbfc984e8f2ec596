"""Leases in a row do not look at the head of the queue anew, and miss nothing by that."""

from collections.abc import AsyncIterator

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Lease, NewTask, Release, Settlement, Task, Yield
from stores import mysql_head
from stores.mysql import MysqlStore, open_store
from stores.mysql_driver import Answer, Connection
from stores.mysql_head import START, Glance, Head
from tests.clock import Clock
from tests.phorge_tables import PhorgeTables
from tests.stores.mysql_tables import global_rows_read

FROM_THE_HEAD = f"priority > {START[0]} OR"
FILTERS = {"everything": None, "one class": frozenset({"Work"})}
CLASSES = pytest.mark.parametrize("classes", FILTERS.values(), ids=FILTERS)


@pytest.fixture
async def store(phorge: PhorgeTables, clock: Clock) -> AsyncIterator[MysqlStore]:
    """With 60 tasks of priority 2000."""
    async with open_store(phorge.settings(), StoreOptions(now=clock)) as store:
        await store.enqueue([NewTask(task_class="Work", priority=2000) for _ in range(60)])
        yield store


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to the server, as it is sent."""
    sent: list[str] = []
    run = Connection.run

    async def noted(connection: Connection, sql: str) -> list[Answer]:
        sent.append(sql)
        return await run(connection, sql)

    monkeypatch.setattr(Connection, "run", noted)
    return sent


def owner(number: int) -> str:
    """Of this lease."""
    return f"qr:0:{number}:1@h"


async def next_lease(store: MysqlStore, number: int, limit: int, classes: frozenset[str] | None) -> list[Task]:
    """As the lease loop asks: every fourth call looks first for what came due."""
    return await store.lease(owner(number), limit, 60, classes=classes, due_first=number % 4 == 3, order="dispatch")


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


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_of_a_deep_queue_it_takes_everything_in_order_too(
    store: MysqlStore, classes: frozenset[str] | None
) -> None:
    """Its glances begin behind what is leased."""
    await store.enqueue([NewTask(task_class="Work" if number % 3 else "Other", priority=2000) for number in range(400)])
    rows = await store.list_active(500)
    expected = sorted(row.id for row in rows if classes is None or row.task_class in classes)
    taken: list[int] = []
    for number in range(len(expected) // 7 + 1):
        some = await next_lease(store, number, 7, classes)
        assert len(some) == min(7, len(expected) - len(taken))
        taken += [row.id for row in some]
    assert taken == expected


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_a_short_lease_has_looked_before_its_place_too(store: MysqlStore, classes: frozenset[str] | None) -> None:
    """Else the lease loop would rest beside work."""
    await store.enqueue([NewTask(task_class="Work", priority=2000) for _ in range(100)])
    for number in range(39):
        assert len(await next_lease(store, number, 4, classes)) == 4
    (urgent,) = await store.enqueue([NewTask(task_class="Work", priority=1)])
    last = await next_lease(store, 40, 9, classes)
    assert sorted(row.id for row in last) == [157, 158, 159, 160, urgent.id]


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_what_came_due_goes_first_and_what_is_ready_goes_on_in_order(
    store: MysqlStore, clock: Clock, classes: frozenset[str] | None
) -> None:
    """Also where ready rows were picked for the whole lease, because nothing had been due before."""
    (one, *_), *_ = [await next_lease(store, number, 4, classes) for number in range(4)]
    await store.settle([Settlement.held(Lease(one.id, owner(0)), Yield(0))])
    clock.advance(60)
    assert [row.id for row in await next_lease(store, 7, 4, classes)] == [one.id, 17, 18, 19]
    assert [row.id for row in await next_lease(store, 8, 4, classes)] == [20, 21, 22, 23]


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_leases_that_go_on_are_two_trips_and_begin_behind_what_is_leased(
    store: MysqlStore, classes: frozenset[str] | None, trips: list[str]
) -> None:
    """Also those that look first for what came due, and those after which a glance would be over."""
    await store.enqueue([NewTask(task_class="Work", priority=2000) for _ in range(400)])
    for number in range(8):
        await next_lease(store, number, 4, classes)
    trips.clear()
    for number in range(8, 72):
        await next_lease(store, number, 4, classes)
    assert len(trips) == 2 * 64
    assert not [sql for sql in trips if FROM_THE_HEAD in sql]


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_where_rows_came_due_no_ready_ones_are_locked_beside_them(
    store: MysqlStore, clock: Clock, classes: frozenset[str] | None, trips: list[str]
) -> None:
    rows = [row for number in range(4) for row in await next_lease(store, number, 4, classes)]
    await store.settle([Settlement.held(Lease(row.id, row.lease_owner or ""), Yield(0)) for row in rows])
    clock.advance(60)
    assert len(await next_lease(store, 7, 4, classes)) == 4
    trips.clear()
    assert len(await next_lease(store, 11, 4, classes)) == 4
    first, *_ = trips
    assert "FOR UPDATE" not in first


@CLASSES
@pytest.mark.usefixtures("believes_for_ever")
async def test_a_larger_lease_than_the_last_one_goes_on_too(
    store: MysqlStore, classes: frozenset[str] | None, trips: list[str]
) -> None:
    await store.enqueue([NewTask(task_class="Work", priority=2000) for _ in range(400)])
    await next_lease(store, 0, 4, classes)
    trips.clear()
    assert [row.id for row in await next_lease(store, 1, 90, classes)] == list(range(5, 95))
    assert not [sql for sql in trips if FROM_THE_HEAD in sql]


@pytest.mark.usefixtures("believes_for_ever")
async def test_few_rows_are_looked_at_once_in_a_lease(store: MysqlStore, trips: list[str]) -> None:
    """Where the last look saw the end, there is nothing to go on from."""
    costs = []
    for number in (0, 1):
        trips.clear()
        assert len(await next_lease(store, number, 99, FILTERS["one class"])) == (60, 3)[number]
        costs.append(len(trips))
        await store.enqueue([NewTask(task_class="Work", priority=2000) for _ in range(3)])
    assert costs[1] == costs[0]


@CLASSES
async def test_a_lease_of_named_rows_locks_them_in_its_first_trip(
    store: MysqlStore, clock: Clock, classes: frozenset[str] | None, trips: list[str]
) -> None:
    """Where all of them are asked for there is nothing to choose. The dispatch of streams leases so."""
    await store.enqueue([NewTask(task_class="Other")])
    (due,) = await store.lease(owner(0), 1, 60, only=[7])
    await store.settle([Settlement.held(Lease(due.id, owner(0)), Yield(5))])
    await store.lease(owner(1), 1, 900, only=[8])
    clock.advance(60)
    trips.clear()
    taken = await store.lease(owner(2), 9, 60, classes=classes, only=[5, 6, 7, 8, 9, 61, 4711], without=[9])
    assert [row.id for row in taken] == [5, 6, *([61] if classes is None else []), 7]
    assert len(trips) == 2


def test_what_is_remembered_is_of_one_filter() -> None:
    """Another lease may look at the head while this one waits for its rows."""
    seen = Glance(passing=9, before=(2000, 4), last=(2000, 80), at_end=False)
    head = Head()
    head.looked("ours")
    head.looked("theirs")
    head.took("ours", (2000, 50))
    head.glanced("ours", seen, taken=0, from_start=False)
    assert (head.front("theirs"), head.last("theirs", 1)) == (START, None)


@pytest.mark.usefixtures("believes_for_ever")
async def test_a_lease_with_another_filter_moves_nobody_elses_place(store: MysqlStore) -> None:
    await store.enqueue([NewTask(task_class="Other", priority=1000) for _ in range(8)])
    await next_lease(store, 0, 4, FILTERS["one class"])
    await store.lease("web", 4, 60, classes={"Other"})
    work = await next_lease(store, 1, 4, FILTERS["one class"])
    other = await next_lease(store, 2, 4, frozenset({"Other"}))
    assert [row.task_class for row in (*work, *other)] == ["Work"] * 4 + ["Other"] * 4


@pytest.mark.usefixtures("believes_for_ever")
async def test_a_lease_that_goes_on_reads_less_than_one_that_looks(store: MysqlStore, phorge: PhorgeTables) -> None:
    classes = FILTERS["one class"]
    costs = []
    for number in range(2):
        before = global_rows_read(phorge)
        await store.lease(f"qr:0:{number}:1@h", 4, 60, classes=classes, order="dispatch")
        costs.append(global_rows_read(phorge) - before)
    assert costs[1] < costs[0] / 2

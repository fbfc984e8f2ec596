"""Leasing a part of the queue: classes, queues, ids."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import NewTask, Yield
from tests.clock import Clock
from tests.contract.steps import HTTP, add, add_plain, held, ready_ids, row, settle, take, worker

MANY_IDS = range(1_000_000, 1_003_000)


async def ids_of(store: Store, **filters: object) -> list[int]:
    """Lease with these filters."""
    return [task.id for task in await store.lease(worker(), 100, 60, **filters)]  # type: ignore[arg-type]


async def test_only_the_classes_asked_for(store: Store) -> None:
    a, b, c = await add(store, *[NewTask(task_class=name) for name in "ABC"])
    assert await ids_of(store, classes={"A", "C", "Unknown"}) == [a, c]
    assert (await row(store, b)).lease_owner is None


async def test_a_class_filter_holds_in_the_second_phase(store: Store, clock: Clock) -> None:
    ids = await add(store, *[NewTask(task_class=name, delay_until=clock.now) for name in "ABC"])
    assert await ids_of(store, classes=["C", "B"]) == ids[1:]
    assert (await row(store, ids[0])).lease_owner == "(delay)"


async def test_a_filter_keeps_the_order(store: Store) -> None:
    priorities = [5, 1, 3, 2, 4]
    ids = await add(store, *[NewTask(task_class="AB"[p % 2], priority=p) for p in priorities])
    assert await ids_of(store, classes={"B"}) == [ids[1], ids[2], ids[0]]


@pytest.mark.parametrize("empty", [{"classes": ()}, {"queues": ()}, {"only": ()}, {"classes": set(), "queues": None}])
async def test_an_empty_filter_matches_nothing(store: Store, empty: dict[str, object]) -> None:
    await add_plain(store, 2)
    assert await ids_of(store, **empty) == []
    assert len(await ready_ids(store)) == 2


async def test_classes_are_compared_exactly(store: Store) -> None:
    names = ["Mail", "mail", "Mail ", "%", "_", "M\u00e9l", "Me\u0301l", "it's", '"', "A,B", "[", "\U0001f642"]
    ids = await add(store, *[NewTask(task_class=name) for name in names])
    assert [await ids_of(store, classes={name}) for name in reversed(names)] == [[one] for one in reversed(ids)]


async def test_classes_to_leave_out(store: Store, clock: Clock) -> None:
    fresh = await add(store, *[NewTask(task_class=name) for name in "ABC"])
    due = await add(store, *[NewTask(task_class=name, delay_until=clock.now) for name in "ABC"])
    assert await ids_of(store, without_classes=["A", "C"]) == [fresh[1], due[1]]


async def test_leaving_a_class_out_wins_over_asking_for_it(store: Store) -> None:
    _, b = await add(store, *[NewTask(task_class=name) for name in "AB"])
    assert await ids_of(store, classes={"A", "B"}, without_classes={"A"}) == [b]


async def test_only_the_queues_asked_for(store: Store, clock: Clock) -> None:
    fresh = await add(store, *[NewTask(task_class="A", queue=name) for name in ("high", "low", "default")])
    due = await add(store, *[NewTask(task_class="A", queue=name, delay_until=clock.now) for name in ("high", "low")])
    assert await ids_of(store, queues={"high", "default"}) == [fresh[0], fresh[2], due[0]]
    assert await ids_of(store, queues={"nowhere"}) == []


async def test_only_these_ids_and_never_those_that_cannot_be_leased(store: Store, clock: Clock) -> None:
    ids = await add_plain(store, 3)
    (later,) = await add(store, NewTask(task_class="A", delay_until=clock.now + 60))
    await take(store, only=ids[0])
    assert await ids_of(store, only={ids[0], ids[2], later, 999_999}) == [ids[2]]


async def test_ids_in_without_are_passed_over_in_both_phases(store: Store, clock: Clock) -> None:
    fresh = await add_plain(store, 2)
    due = await add(store, *[NewTask(task_class="A", delay_until=clock.now)] * 2)
    assert await ids_of(store, without={fresh[0], due[1]}) == [fresh[1], due[0]]


async def test_a_process_never_leases_its_own_running_task_again(store: Store, clock: Clock) -> None:
    """R001: its lease is over, it still runs, and the process says so."""
    await add_plain(store, 1)
    task = await take(store, HTTP, seconds=5)
    clock.advance(100)
    assert await ids_of(store, without=[task.id]) == []
    assert await ids_of(store) == [task.id]


async def test_without_wins_over_only(store: Store) -> None:
    ids = await add_plain(store, 2)
    assert await ids_of(store, only=ids, without={ids[0]}) == [ids[1]]


async def test_all_filters_together(store: Store) -> None:
    wanted = NewTask(task_class="A", queue="q")
    ids = await add(
        store, wanted, NewTask(task_class="B", queue="q"), NewTask(task_class="A", queue="r"), wanted, wanted
    )
    assert await ids_of(store, classes={"A"}, queues={"q"}, only=ids[1:], without={ids[3]}) == [ids[4]]


async def test_the_limit_counts_what_passed_the_filters(store: Store, clock: Clock) -> None:
    names = "ABABAB"
    fresh = await add(store, *[NewTask(task_class=name) for name in names])
    due = await add(store, *[NewTask(task_class=name, delay_until=clock.now) for name in names])
    rows = await store.lease(worker(), 4, 60, classes={"B"}, without={fresh[1]})
    assert [task.id for task in rows] == [fresh[3], fresh[5], due[1], due[3]]


@pytest.mark.parametrize("name", ["only", "without"])
async def test_thousands_of_ids_are_no_trouble(store: Store, name: str) -> None:
    (task_id,) = await add_plain(store, 1)
    found = await ids_of(store, **{name: {*MANY_IDS, task_id}})
    assert found == ([task_id] if name == "only" else [])


async def test_hundreds_of_classes_are_no_trouble(store: Store) -> None:
    names = [f"Class{number}" for number in range(500)]
    ids = await add(store, *[NewTask(task_class=name) for name in names])
    rows = await store.lease(worker(), 1000, 60, classes=names[100:400], without_classes=names[300:])
    assert [task.id for task in rows] == ids[100:300]


async def test_a_rare_class_behind_a_thousand_due_rows_is_found(store: Store, clock: Clock) -> None:
    """Rows of other classes do not fill the window of the second phase."""
    await add(store, *[NewTask(task_class="Common", delay_until=clock.now - 9)] * 1000)
    (rare,) = await add(store, NewTask(task_class="Rare", priority=9, delay_until=clock.now))
    assert await ids_of(store, classes={"Rare"}) == [rare]


async def test_filters_do_not_hide_a_yield_that_came_due(store: Store, clock: Clock) -> None:
    await add(store, NewTask(task_class="A", queue="q"))
    task = await take(store)
    await settle(store, held(task), Yield(wait=5))
    clock.advance(6)
    assert await ids_of(store, classes={"A"}, queues={"q"}, only={task.id}) == [task.id]

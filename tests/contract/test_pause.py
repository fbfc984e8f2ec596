"""Pauses: by class, by queue, or everything; obeyed by every lease."""

import pytest

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import Complete, NewTask, Pause, PauseKind
from tests.clock import Clock
from tests.contract.steps import HTTP, SETTLED, add, add_plain, held, ready_ids, settle, take, take_new, worker

ALL = Pause(PauseKind.ALL)


def of_class(name: str) -> Pause:
    return Pause(PauseKind.CLASS, name)


def of_queue(name: str) -> Pause:
    return Pause(PauseKind.QUEUE, name)


async def test_a_paused_class_is_passed_over_in_both_phases(store: Store, clock: Clock) -> None:
    fresh = await add(store, *[NewTask(task_class=name) for name in "AB"])
    due = await add(store, *[NewTask(task_class=name, delay_until=clock.now) for name in "AB"])
    await store.pause(of_class("A"))
    assert await ready_ids(store) == [fresh[1], due[1]]
    await store.resume(of_class("A"))
    assert await ready_ids(store) == [fresh[0], due[0]]


async def test_a_paused_queue_is_passed_over_in_both_phases(store: Store, clock: Clock) -> None:
    fresh = await add(store, *[NewTask(task_class="A", queue=name) for name in ("low", "high")])
    due = await add(store, *[NewTask(task_class="A", queue=name, delay_until=clock.now) for name in ("low", "high")])
    await store.pause(of_queue("low"))
    assert await ready_ids(store) == [fresh[1], due[1]]


async def test_a_pause_of_everything_stops_every_lease(store: Store, clock: Clock) -> None:
    await add_plain(store, 2)
    await add(store, NewTask(task_class="A", delay_until=clock.now))
    await store.pause(ALL)
    assert await ready_ids(store) == []
    assert await store.lease(HTTP, 9, 60, due_first=True) == []
    assert await store.resume(ALL) is True
    assert len(await ready_ids(store)) == 3


async def test_a_pause_wins_over_the_filters_of_a_lease(store: Store) -> None:
    (a, _) = await add(store, *[NewTask(task_class=name, queue="q") for name in "AB"])
    await store.pause(of_class("A"))
    assert await store.lease(worker(), 9, 60, classes={"A"}, queues={"q"}, only={a}) == []


async def test_rows_of_a_paused_class_do_not_fill_the_second_phase(store: Store, clock: Clock) -> None:
    await add(store, *[NewTask(task_class="Paused", delay_until=clock.now - 9)] * 1000)
    (other,) = await add(store, NewTask(task_class="Other", priority=9, delay_until=clock.now))
    await store.pause(of_class("Paused"))
    assert await ready_ids(store) == [other]


async def test_held_tasks_go_on_under_a_pause(store: Store) -> None:
    task = await take_new(store)
    await store.pause(ALL)
    assert (await store.renew([held(task)], 60))[0] is not None
    assert (await settle(store, held(task), Complete(followups=[NewTask(task_class="C")]))).verdict is SETTLED
    assert len(await store.list_active(9)) == 1


async def test_new_work_is_taken_in_under_a_pause(store: Store) -> None:
    await store.pause(ALL)
    ids = await add_plain(store, 1)
    assert await ready_ids(store) == []
    await store.resume(ALL)
    assert await ready_ids(store) == ids


async def test_pauses_are_listed_in_order_and_setting_one_twice_is_one(store: Store) -> None:
    wanted = [ALL, of_class("A"), of_class("B"), of_queue("A"), of_queue("b")]
    for pause in [*reversed(wanted), of_class("B"), ALL]:
        await store.pause(pause)
    assert await store.paused() == wanted


async def test_resume_lifts_exactly_one_pause_and_says_whether_it_was_set(store: Store) -> None:
    for pause in (ALL, of_class("A"), of_queue("A")):
        await store.pause(pause)
    assert await store.resume(of_class("A")) is True
    assert await store.resume(of_class("A")) is False
    assert await store.resume(of_class("never")) is False
    assert await store.paused() == [ALL, of_queue("A")]


async def test_a_class_that_is_paused_twice_over_needs_both_lifted(store: Store) -> None:
    ids = await add(store, NewTask(task_class="A", queue="q"))
    await store.pause(of_class("A"))
    await store.pause(of_queue("q"))
    await store.resume(of_class("A"))
    assert await ready_ids(store) == []
    await store.resume(of_queue("q"))
    assert await ready_ids(store) == ids


async def test_paused_names_are_compared_exactly(store: Store) -> None:
    names = ["mail", "MAIL", "Mail ", "%", "it's"]
    ids = await add(store, *[NewTask(task_class=name) for name in ["Mail", *names]])
    for name in names:
        await store.pause(of_class(name))
    assert (await take(store)).id == ids[0]
    assert await ready_ids(store) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [(PauseKind.ALL, "x"), (PauseKind.CLASS, ""), (PauseKind.CLASS, "x" * 65), (PauseKind.QUEUE, "no spaces")],
)
def test_a_pause_that_means_nothing_cannot_be_built(kind: PauseKind, name: str) -> None:
    with pytest.raises(InvalidRequest):
        Pause(kind, name)

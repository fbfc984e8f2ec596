"""The selftest passes on every store, takes nothing of anybody's, and leaves no active row."""

import pytest
from msgspec.structs import replace

from queue_runtime.selftest import CANARY, DATA, FAR, HELD_SECONDS, LEFT_AFTER, MARK, PRIORITY, run_selftest
from queue_runtime.store import Store
from queue_runtime.task import (
    DEFAULT_QUEUE,
    MAX_LIST,
    Lease,
    NewTask,
    Pause,
    PauseKind,
    Result,
    Settlement,
    Yield,
)
from tests.clock import Clock

OWNER = "qr:0badcafe:1:1@test"
HIDDEN = NewTask(task_class=CANARY, data=DATA, priority=PRIORITY, delay_until=FAR)


async def test_it_passes_and_leaves_nothing_that_is_active(store: Store) -> None:
    report = await run_selftest(store)
    assert (report.ok, report.notes) == (True, ()), report
    assert [one.name for one in report.steps] == [
        "enqueue", "read", "lease", "renew", "settle", "fence", "archive", "cancel", "clean up",
    ]  # fmt: skip
    assert all(one.milliseconds > 0 for one in report.steps)
    assert await store.list_active(MAX_LIST) == []
    ended = {row.id: row.result for row in await store.list_archived(MAX_LIST)}
    first, *others = report.task_ids
    assert ended == {first: Result.SUCCESS, **dict.fromkeys(others, Result.CANCELLED)}


async def test_a_short_one_uses_one_task(store: Store) -> None:
    report = await run_selftest(store, brief=True)
    assert (report.ok, len(report.task_ids)) == (True, 1), report
    assert await store.list_active(MAX_LIST) == []


async def test_it_passes_beside_work_and_leaves_that_alone(store: Store) -> None:
    await store.enqueue([NewTask(task_class="Work", priority=1)] * 3)
    await store.lease(OWNER, 1, 60)
    before = await store.list_active(MAX_LIST)
    assert (await run_selftest(store)).ok
    assert await store.list_active(MAX_LIST) == before


async def test_nobody_takes_a_hidden_task(store: Store) -> None:
    await store.enqueue([HIDDEN])
    assert await store.lease(OWNER, 10, 60) == []
    assert await store.lease(OWNER, 10, 60, classes=[CANARY], due_first=True) == []
    assert await store.backlog() == []


async def test_what_a_killed_one_left_is_taken_back_by_the_next(store: Store, clock: Clock) -> None:
    hidden, held, yielded = [row.id for row in await store.enqueue([HIDDEN] * 3)]
    await store.delay([held, yielded], clock.now)
    await store.lease(OWNER, 2, HELD_SECONDS, only=[held, yielded])
    await store.settle([Settlement.held(Lease(yielded, OWNER), Yield(HELD_SECONDS))])
    clock.advance(LEFT_AFTER)
    report = await run_selftest(store, brief=True)
    assert report.ok
    assert report.notes == (f"took back tasks {[hidden, held, yielded]}, which an earlier selftest had left",)
    assert await store.list_active(MAX_LIST) == []


async def test_one_that_runs_elsewhere_is_let_alone(store: Store, clock: Clock) -> None:
    (other,) = await store.enqueue([HIDDEN])
    canary = await store.enqueue([NewTask(task_class=CANARY)])
    clock.advance(LEFT_AFTER - 1)
    assert (await run_selftest(store)).notes == ()
    clock.advance(LEFT_AFTER)
    assert (await run_selftest(store)).ok
    assert [row.id for row in await store.list_active(MAX_LIST)] == [canary[0].id], other


async def test_canaries_that_a_killed_check_left_are_taken_back_and_nothing_else(store: Store, clock: Clock) -> None:
    canary = NewTask(task_class="Work", priority=1000, container_phid=MARK)
    held, waiting, hidden, ready = [
        row.id for row in await store.enqueue([canary, canary, replace(canary, delay_until=FAR), canary])
    ]
    await store.lease(OWNER, 2, HELD_SECONDS, only=[held, waiting])
    await store.settle([Settlement.held(Lease(waiting, OWNER), Yield(HELD_SECONDS))])
    (work,) = await store.enqueue([NewTask(task_class="Work", priority=1000, container_phid="PHID-REPO-1")])
    clock.advance(LEFT_AFTER - 1)
    assert (await run_selftest(store)).notes == ()
    clock.advance(1)
    assert (await run_selftest(store, brief=True)).notes == ()
    notes = (await run_selftest(store)).notes
    assert notes == (f"took back tasks {[waiting, hidden, ready]}, which an earlier takeover check had left",)
    assert [row.id for row in await store.list_active(MAX_LIST)] == [held, work.id]


@pytest.mark.parametrize("pause", [Pause(PauseKind.CLASS, CANARY), Pause(PauseKind.QUEUE, DEFAULT_QUEUE)], ids=str)
async def test_where_its_own_tasks_are_paused_it_says_what_it_did_not_try(store: Store, pause: Pause) -> None:
    await store.pause(pause)
    report = await run_selftest(store)
    assert (report.ok, len(report.notes)) == (True, 1)
    assert report.notes[0].startswith(f"leasing is paused for the {pause.kind} {pause.name}, so lease")
    await store.resume(pause)


async def test_pauses_of_others_are_nothing_to_it(store: Store) -> None:
    for pause in (Pause(PauseKind.CLASS, DEFAULT_QUEUE), Pause(PauseKind.QUEUE, CANARY)):
        await store.pause(pause)
    assert (await run_selftest(store)).notes == ()


async def test_where_everything_is_paused_it_says_what_it_did_not_try(store: Store) -> None:
    await store.pause(Pause(PauseKind.ALL))
    report = await run_selftest(store)
    assert report.ok
    assert [one.name for one in report.steps] == ["enqueue", "read", "cancel"]
    assert report.notes == ("leasing is paused for everybody, so lease, renew and settle were not tried",)
    assert await store.list_active(MAX_LIST) == []

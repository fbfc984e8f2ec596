"""What each outcome leaves in the row (docs/architecture.md, rules 7 and 8)."""

import pytest
from msgspec.structs import replace

from queue_runtime.store import Store
from queue_runtime.task import (
    ArchivedTask,
    Complete,
    Fail,
    Failure,
    Outcome,
    Release,
    Result,
    Retry,
    Settlement,
    State,
    TaskFilter,
    Unknown,
    Yield,
)
from tests.clock import Clock
from tests.contract.steps import HTTP, OUTCOMES, ended, held, receipt, row, settle, take, take_new


@pytest.mark.parametrize(
    ("outcome", "owner", "wait"),
    [
        (Yield(wait=30), "(yield)", 30),
        (Yield(wait=4), "(yield)", 5),
        (Yield(wait=0), "(yield)", 5),
        (Yield(), "(yield)", 5),
        (Unknown(wait=30), "(unknown)", 30),
        (Unknown(wait=0), "(unknown)", 0),
        (Unknown(), "(unknown)", 300),
        (Release(), None, None),
    ],
)
async def test_giving_back_without_a_failure_changes_owner_and_time_only(
    store: Store, clock: Clock, outcome: Outcome, owner: str | None, wait: int | None
) -> None:
    """R080: no shutdown, lost lease or unknown end raises the count of failures."""
    task = await take_new(store, data="x")
    clock.advance(3)
    settled = await settle(store, held(task), outcome)
    assert settled.archived is None
    assert await row(store, task.id) == replace(
        task,
        lease_owner=owner,
        lease_expires=None if wait is None else clock.now + wait,
        date_modified=clock.now,
    )


@pytest.mark.parametrize(("outcome", "wait"), [(Retry(wait=30), 30), (Retry(wait=0), 0), (Retry(), 300)])
async def test_a_retry_counts_one_failure_and_waits(store: Store, clock: Clock, outcome: Retry, wait: int) -> None:
    task = await take_new(store, data="x")
    clock.advance(3)
    settled = await settle(store, held(task), outcome)
    assert settled.archived is None
    assert await row(store, task.id) == replace(
        task,
        lease_owner="(retry)",
        lease_expires=clock.now + wait,
        failure_count=1,
        failure_time=clock.now,
        date_modified=clock.now,
    )


async def test_failures_add_up_and_the_time_is_that_of_the_latest(store: Store, clock: Clock) -> None:
    await take_new(store)
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=0))
    for failures in (2, 3):
        clock.advance(10)
        await settle(store, held(await take(store, only=task.id)), Retry(wait=0))
        found = await row(store, task.id)
        assert (found.failure_count, found.failure_time) == (failures, clock.now)


@pytest.mark.parametrize("kind", ["yield", "unknown", "release"])
async def test_earlier_failures_are_kept_by_a_run_that_gave_back(store: Store, clock: Clock, kind: str) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=0))
    failed_at = clock.now
    clock.advance(10)
    await settle(store, held(await take(store)), OUTCOMES[kind])
    found = await row(store, task.id)
    assert (found.failure_count, found.failure_time) == (1, failed_at)


@pytest.mark.parametrize(
    ("outcome", "result", "duration"),
    [
        (Complete(duration_us=4711), Result.SUCCESS, 4711),
        (Complete(duration_us=2**63 - 1), Result.SUCCESS, 2**63 - 1),
        (Complete(), Result.SUCCESS, 0),
        (Fail(Failure("no", duration_us=9)), Result.FAILURE, 0),
    ],
)
async def test_an_end_keeps_owner_and_expiry_as_the_receipt(
    store: Store, clock: Clock, outcome: Outcome, result: Result, duration: int
) -> None:
    task = await take_new(store, HTTP, data="x", priority=7, object_phid="O", container_phid="C", max_attempts=9)
    created = clock.now
    clock.advance(3)
    settled = await settle(store, receipt(task), outcome)

    wanted = ArchivedTask(
        id=task.id,
        task_class="Plain",
        data_id=task.data_id,
        priority=7,
        date_created=created,
        date_modified=clock.now,
        result=result,
        duration_us=duration,
        archived_epoch=clock.now,
        lease_owner=HTTP,
        lease_expires=task.lease_expires,
        object_phid="O",
        container_phid="C",
        max_attempts=9,
    )
    assert settled.archived == wanted
    assert await ended(store, task.id) == replace(wanted, data="x")
    assert await store.get([task.id]) == [None]


async def test_a_permanent_failure_does_not_raise_the_count(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=0))
    clock.advance(1)
    await settle(store, held(await take(store)), Fail())
    assert (await ended(store, task.id)).failure_count == 1


async def test_a_success_keeps_the_count_of_earlier_failures(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(wait=0))
    clock.advance(1)
    await settle(store, held(await take(store)), Complete())
    assert (await ended(store, task.id)).failure_count == 1


@pytest.mark.parametrize("kind", ["retry", "yield", "unknown"])
async def test_a_waiting_row_is_shown_as_waiting_and_then_as_ready(store: Store, clock: Clock, kind: str) -> None:
    task = await take_new(store)
    await settle(store, held(task), OUTCOMES[kind])

    async def shown(state: State) -> list[int]:
        return [one.id for one in await store.list_active(9, where=TaskFilter(states=frozenset({state})))]

    assert [await shown(state) for state in State] == [[], [], [task.id], []]
    clock.advance(31)
    assert [await shown(state) for state in State] == [[task.id], [], [], []]


async def test_unfenced_outcomes_leave_the_same_rows(store: Store, clock: Clock) -> None:
    for outcome in (Retry(wait=7), Yield(wait=7), Unknown(wait=7), Release()):
        fenced, other = await take_new(store), await take_new(store)
        await settle(store, held(fenced), outcome)
        await store.settle([Settlement.unfenced(other.id, outcome)])
        found = await row(store, other.id)
        assert replace(found, id=fenced.id, data_id=fenced.data_id) == await row(store, fenced.id)


async def test_an_unfenced_end_of_a_row_nobody_holds_has_no_owner(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Release())
    await store.settle([Settlement.unfenced(task.id, Complete(duration_us=5))])
    found = await ended(store, task.id)
    assert (found.lease_owner, found.lease_expires, found.duration_us) == (None, None, 5)

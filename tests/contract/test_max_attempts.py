"""How many runs may end in failure: counted by ended failures alone (docs/architecture.md, rule 8)."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import Failure, Release, Result, Retry, Settlement, Unknown, Yield
from tests.clock import Clock
from tests.contract.steps import (
    HTTP,
    LOST,
    SETTLED,
    ended,
    errors,
    held,
    receipt,
    row,
    settle,
    take,
    take_new,
    worker,
)


@pytest.mark.parametrize("maximum", [1, 2, 4])
async def test_the_retry_that_reaches_the_maximum_archives_as_failed(store: Store, clock: Clock, maximum: int) -> None:
    """Phorge's maximum m means m + 1 here: this is the number of runs."""
    task = await take_new(store, max_attempts=maximum)
    for run in range(1, maximum):
        assert (await settle(store, held(task), Retry(wait=0))).archived is None
        assert (await row(store, task.id)).failure_count == run
        clock.advance(1)
        task = await take(store)
    settled = await settle(store, held(task), Retry(wait=0, failure=Failure("last straw", duration_us=5)))

    assert settled.verdict is SETTLED
    assert settled.archived is not None
    found = await ended(store, task.id)
    assert (found.result, found.failure_count, found.duration_us) == (Result.FAILURE, maximum, 0)
    assert (found.lease_owner, found.lease_expires) == (task.lease_owner, task.lease_expires)
    history = await errors(store, task.id)
    assert [entry.kind for entry in history] == ["retry"] * (maximum - 1) + ["failure"]
    assert (history[-1].attempt, history[-1].message) == (maximum, "last straw")


async def test_without_a_maximum_a_task_is_tried_again_for_ever(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    for _ in range(30):
        await settle(store, held(task), Retry(wait=0))
        clock.advance(1)
        task = await take(store)
    assert task.failure_count == 30


async def test_the_policy_of_the_class_counts_where_the_row_has_no_maximum(store: Store) -> None:
    task = await take_new(store)
    settled = await settle(store, held(task), Retry(max_attempts=1))
    assert settled.archived is not None
    assert settled.archived.result is Result.FAILURE


@pytest.mark.parametrize(("of_row", "of_class", "ends"), [(2, 1, False), (1, 2, True), (1, None, True)])
async def test_the_maximum_of_the_row_wins_over_that_of_the_class(
    store: Store, of_row: int, of_class: int | None, ends: bool
) -> None:
    task = await take_new(store, max_attempts=of_row)
    settled = await settle(store, held(task), Retry(max_attempts=of_class))
    assert (settled.archived is not None) is ends


async def test_a_policy_lowered_meanwhile_ends_the_task_at_its_next_failure(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    for _ in range(3):
        await settle(store, held(task), Retry(wait=0))
        clock.advance(1)
        task = await take(store)
    settled = await settle(store, held(task), Retry(max_attempts=2))
    assert settled.archived is not None
    assert settled.archived.failure_count == 4


@pytest.mark.options(max_lost=100)
async def test_yields_releases_unknown_ends_and_lost_leases_are_no_attempts(store: Store, clock: Clock) -> None:
    """R080, R085: ten rolling restarts cost a task nothing."""
    task = await take_new(store, max_attempts=1)
    for outcome in (Release(), Yield(), Unknown(wait=0), Release(), Yield(), Unknown(wait=0)):
        await settle(store, held(task), outcome)
        clock.advance(100)
        task = await take(store, seconds=10)
    for owner in (worker(), HTTP, worker()):
        clock.advance(100)
        task = await take(store, owner, seconds=10)
    assert task.failure_count == 0
    assert (await settle(store, receipt(task), Retry())).archived is not None


async def test_a_task_brought_back_has_all_its_attempts_again(store: Store, clock: Clock) -> None:
    task = await take_new(store, max_attempts=2)
    await settle(store, held(task), Retry(wait=0))
    clock.advance(1)
    await settle(store, held(await take(store)), Retry(wait=0))
    await store.retry([task.id])
    again = await take(store)
    assert (again.failure_count, again.failure_time, again.max_attempts) == (0, None, 2)
    assert (await settle(store, held(again), Retry())).archived is None


async def test_the_last_retry_is_not_replayed(store: Store) -> None:
    """REPLAYED exists for Complete and Fail alone."""
    task = await take_new(store, max_attempts=1)
    await settle(store, held(task), Retry())
    assert (await settle(store, held(task), Retry())).verdict is LOST
    assert (await ended(store, task.id)).failure_count == 1


async def test_an_unfenced_retry_obeys_the_maximum_too(store: Store) -> None:
    """On every route."""
    task = await take_new(store, max_attempts=1)
    (settled,) = await store.settle([Settlement.unfenced(task.id, Retry())])
    assert settled.archived is not None
    assert settled.archived.result is Result.FAILURE

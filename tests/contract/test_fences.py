"""Who may change a held task: owners of workers, receipts of HTTP callers (docs/architecture.md, rule 4)."""

import pytest

from queue_runtime.store import Store
from queue_runtime.task import (
    MAX_LEASE_SECONDS,
    Complete,
    Fail,
    Lease,
    Outcome,
    Release,
    Retry,
    Sentinel,
    Settlement,
    Unknown,
    Yield,
)
from tests.backends import Plant
from tests.clock import Clock
from tests.contract.steps import (
    HTTP,
    LOST,
    OUTCOMES,
    SETTLED,
    add_plain,
    everything,
    expiry,
    held,
    receipt,
    settle,
    take,
    take_new,
    verdicts,
)

# ---- our workers: (id, owner)


async def test_a_worker_renews_and_settles_after_its_lease_is_over_while_nobody_took_the_row(
    store: Store, clock: Clock
) -> None:
    """`phd start` expires every lease in the table; a live holder goes on."""
    task = await take_new(store, seconds=10)
    clock.advance(100_000)
    (renewed,) = await store.renew([held(task)], 30)
    assert renewed is not None
    assert renewed.lease_expires == clock.now + 30

    clock.advance(100_000)
    assert (await settle(store, held(task), Complete())).verdict is SETTLED


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_an_old_holder_changes_nothing_once_somebody_else_has_the_row(
    store: Store, clock: Clock, kind: str
) -> None:
    """R009, R050"""
    old = await take_new(store, seconds=10)
    clock.advance(100)
    await take(store)
    before = await everything(store)

    assert await store.renew([held(old)], 60) == [None]
    assert (await settle(store, held(old), OUTCOMES[kind])).verdict is LOST
    assert await everything(store) == before


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_fence_that_settled_once_never_settles_again(store: Store, clock: Clock, kind: str) -> None:
    task = await take_new(store)
    assert (await settle(store, held(task), OUTCOMES[kind])).verdict is SETTLED
    for again in OUTCOMES.values():
        assert (await settle(store, held(task), again)).verdict is not SETTLED
    assert await store.renew([held(task)], 60) == [None]

    clock.advance(1000)
    await store.retry([task.id], repeat=True)
    next_holder = await take(store)
    assert next_holder.id == task.id
    for again in OUTCOMES.values():
        assert (await settle(store, held(task), again)).verdict is LOST


@pytest.mark.parametrize("sentinel", Sentinel)
@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_sentinel_never_fences(store: Store, plant: Plant, clock: Clock, sentinel: str, kind: str) -> None:
    (task_id,) = await add_plain(store, 1)
    await plant(task_id, sentinel, clock.now + 60)
    before = await everything(store)
    for lease in (Lease(task_id, sentinel), Lease(task_id, sentinel, clock.now + 60)):
        assert await store.renew([lease], 600) == [None]
        assert (await settle(store, lease, OUTCOMES[kind])).verdict is LOST
    assert await everything(store) == before


async def test_a_sentinel_in_the_archive_is_no_receipt(store: Store, plant: Plant, clock: Clock) -> None:
    (task_id,) = await add_plain(store, 1)
    await plant(task_id, "(yield)", clock.now + 60)
    assert await verdicts(store, Settlement.unfenced(task_id, Complete())) == [SETTLED]
    assert (await settle(store, Lease(task_id, "(yield)"), Complete())).verdict is LOST


@pytest.mark.parametrize("owner", ["gorge-completion-pending", "gorge-failure-pending"])
async def test_a_parked_owner_never_fences(store: Store, plant: Plant, clock: Clock, owner: str) -> None:
    (task_id,) = await add_plain(store, 1)
    await plant(task_id, owner, 2**31 - 1)
    lease = Lease(task_id, owner, 2**31 - 1)
    assert await store.renew([lease], 60) == [None]
    assert (await settle(store, lease, Complete())).verdict is LOST


async def test_the_owner_must_be_the_very_same(store: Store) -> None:
    task = await take_new(store, "Worker")
    for name in ("worker", "WORKER", "Worker ", " Worker", "Worke", ""):
        assert (await settle(store, Lease(task.id, name), Complete())).verdict is LOST
    assert (await settle(store, Lease(task.id, "Worker"), Complete())).verdict is SETTLED


async def test_a_fence_fits_only_its_own_task(store: Store) -> None:
    first, second = await take_new(store), await take_new(store)
    assert first.lease_owner is not None
    assert (await settle(store, Lease(second.id, first.lease_owner), Complete())).verdict is LOST


# ---- HTTP callers: (id, owner, expires)


async def test_a_receipt_is_alive_in_the_last_second_of_its_lease(store: Store, clock: Clock) -> None:
    task = await take_new(store, HTTP, seconds=60)
    clock.advance(59)
    assert (await settle(store, receipt(task), Complete())).verdict is SETTLED


@pytest.mark.parametrize("late", [60, 61, 5000])
@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_receipt_is_dead_once_its_expiry_is_reached(store: Store, clock: Clock, late: int, kind: str) -> None:
    task = await take_new(store, HTTP, seconds=60)
    clock.advance(late)
    before = await everything(store)
    assert (await settle(store, receipt(task), OUTCOMES[kind])).verdict is LOST
    assert await store.renew([receipt(task)], 60) == [None]
    assert await everything(store) == before


@pytest.mark.parametrize("off", [-1, 1])
async def test_a_receipt_needs_the_very_expiry(store: Store, off: int) -> None:
    task = await take_new(store, HTTP)
    assert task.lease_expires is not None
    forged = Lease(task.id, HTTP, task.lease_expires + off)
    assert (await settle(store, forged, Complete())).verdict is LOST
    assert await store.renew([forged], 600) == [None]


async def test_a_receipt_needs_the_very_owner(store: Store) -> None:
    task = await take_new(store, HTTP)
    assert (await settle(store, Lease(task.id, "web2:1", task.lease_expires), Complete())).verdict is LOST


async def test_a_renewed_receipt_is_dead_and_the_new_one_lives(store: Store) -> None:
    old = await take_new(store, HTTP, seconds=60)
    (new,) = await store.renew([receipt(old)], 600)
    assert new is not None
    assert (await settle(store, receipt(old), Complete())).verdict is LOST
    assert (await settle(store, receipt(new), Complete())).verdict is SETTLED


async def test_two_leases_of_one_name_are_told_apart_by_their_tasks(store: Store) -> None:
    """R091: the same X-Lease-Owner in every call."""
    first, second = await take_new(store, HTTP), await take_new(store, HTTP)
    assert (await settle(store, receipt(second), Fail())).verdict is SETTLED
    assert (await settle(store, receipt(first), Complete())).verdict is SETTLED


@pytest.mark.parametrize("how", ["release", "free", "unfenced release", *("complete", "fail", "cancel")])
async def test_no_receipt_is_ever_granted_twice(store: Store, how: str) -> None:
    """The same name leases the same task again in the same second, for the same time."""
    old = await take_new(store, HTTP, seconds=600)
    match how:
        case "release":
            await settle(store, receipt(old), Release())
        case "free":
            await store.free([old.id])
        case "unfenced release":
            await store.settle([Settlement.unfenced(old.id, Release())])
        case "cancel":
            await store.cancel([old.id])
            await store.retry([old.id])
        case _:
            await settle(store, receipt(old), OUTCOMES[how])
            await store.retry([old.id], repeat=True)

    new = await take(store, HTTP, seconds=600)
    assert (new.id, new.lease_owner, new.lease_expires) == (old.id, HTTP, expiry(old) + 1)
    assert await verdicts(store, Settlement.held(receipt(old), Complete())) == [LOST]
    assert await store.renew([receipt(old)], 60) == [None]
    assert (await settle(store, receipt(new), Complete())).verdict is SETTLED


@pytest.mark.parametrize("seconds", [1, 20])
async def test_a_tight_loop_of_leases_under_one_name_steps_one_second_each_time(
    store: Store, clock: Clock, seconds: int
) -> None:
    await add_plain(store, 1)
    granted: list[int] = []
    for _ in range(40):
        task = await take(store, HTTP, seconds=seconds)
        granted.append(expiry(task))
        await settle(store, receipt(task), Release())
    assert granted == [clock.now + seconds + step for step in range(40)]


async def test_what_was_spent_is_granted_no_more_while_the_clock_moves_into_it(store: Store, clock: Clock) -> None:
    """Leases of a second more, of one less, of as much: each has an expiry of its own."""
    await add_plain(store, 1)
    granted: list[int] = []
    for step in range(60):
        task = await take(store, HTTP, seconds=(20, 21, 19, 10)[step % 4])
        granted.append(expiry(task))
        await settle(store, receipt(task), Release())
        clock.advance(step % 2)
    assert len(set(granted)) == 60


@pytest.mark.parametrize("seconds", [1, 20, 599, 601])
async def test_a_lease_is_not_lengthened_by_a_long_receipt_that_was_given_back(
    store: Store, clock: Clock, seconds: int
) -> None:
    old = await take_new(store, HTTP, seconds=60)
    (renewed,) = await store.renew([receipt(old)], 600)
    assert renewed is not None
    await settle(store, receipt(renewed), Release())
    new = await take(store, HTTP, seconds=seconds)
    assert new.lease_expires == clock.now + seconds
    assert await verdicts(store, *[Settlement.held(receipt(one), Complete()) for one in (old, renewed)]) == [LOST] * 2
    assert (await settle(store, receipt(new), Complete())).verdict is SETTLED


async def test_the_expiry_before_a_renewal_is_not_granted_again(store: Store) -> None:
    """The first report of a caller may still be on its way when the same name holds the task once more."""
    first = await take_new(store, HTTP, seconds=60)
    (renewed,) = await store.renew([receipt(first)], 600)
    assert renewed is not None
    await settle(store, receipt(renewed), Release())
    assert (await take(store, HTTP, seconds=60)).lease_expires == expiry(first) + 1


async def test_a_renewal_does_not_end_in_a_spent_expiry_either(store: Store) -> None:
    first = await take_new(store, HTTP, seconds=60)
    await settle(store, receipt(first), Release())
    second = await take(store, HTTP, seconds=10)
    (renewed,) = await store.renew([receipt(second)], 60)
    assert renewed is not None
    assert renewed.lease_expires == expiry(first) + 1
    assert (await settle(store, receipt(first), Complete())).verdict is LOST
    assert (await settle(store, receipt(renewed), Complete())).verdict is SETTLED


async def test_another_name_does_not_get_a_spent_expiry_either(store: Store) -> None:
    old = await take_new(store, HTTP, seconds=600)
    await settle(store, receipt(old), Release())
    await settle(store, receipt(await take(store, "web2:1", seconds=600)), Release())
    assert (await take(store, HTTP, seconds=600)).lease_expires == expiry(old) + 2


async def test_a_worker_in_between_does_not_make_a_spent_expiry_free(store: Store, clock: Clock) -> None:
    old = await take_new(store, HTTP, seconds=600)
    await settle(store, receipt(old), Release())
    await settle(store, held(await take(store)), Complete())
    await store.retry([old.id], repeat=True)
    assert (await take(store, HTTP, seconds=600)).lease_expires == expiry(old) + 1


async def test_one_call_gives_each_task_the_expiry_that_it_can_have(store: Store, clock: Clock) -> None:
    old = await take_new(store, HTTP, seconds=600)
    await settle(store, receipt(old), Release())
    await add_plain(store, 2)
    rows = await store.lease(HTTP, 3, 600)
    assert [expiry(task) - clock.now for task in rows] == [601, 600, 600]
    assert list(await store.get([task.id for task in rows])) == rows


async def test_a_worker_lease_is_exactly_as_long_as_asked_whatever_was_given_back(store: Store, clock: Clock) -> None:
    await settle(store, receipt(await take_new(store, HTTP, seconds=600)), Release())
    assert (await take(store, seconds=600)).lease_expires == clock.now + 600


async def test_a_receipt_given_back_by_one_task_is_free_for_another(store: Store, clock: Clock) -> None:
    await settle(store, receipt(await take_new(store, HTTP, seconds=600)), Yield(wait=60))
    assert (await take_new(store, HTTP, seconds=600)).lease_expires == clock.now + 600


@pytest.mark.parametrize("kind", ["retry", "yield", "unknown", "worker", "delay", "parked"])
async def test_only_receipts_are_spent_and_not_what_else_a_row_waited_for(
    store: Store, plant: Plant, clock: Clock, kind: str
) -> None:
    task = await take_new(store, seconds=600)
    waits: dict[str, Outcome] = {"retry": Retry(wait=600), "yield": Yield(wait=600), "unknown": Unknown(wait=600)}
    if kind in waits:
        await settle(store, held(task), waits[kind])
    if kind == "delay":
        await settle(store, held(task), Release())
        await store.delay([task.id], clock.now + 600)
    if kind == "parked":
        await plant(task.id, "gorge-failure-pending", clock.now + 600)
    assert await store.free([task.id]) == 1
    assert (await take(store, HTTP, seconds=600)).lease_expires == clock.now + 600


@pytest.mark.parametrize("seconds", [1, MAX_LEASE_SECONDS])
async def test_a_lease_may_be_a_second_or_a_week(store: Store, clock: Clock, seconds: int) -> None:
    task = await take_new(store, seconds=seconds)
    assert task.lease_expires == clock.now + seconds
    (renewed,) = await store.renew([held(task)], seconds)
    assert renewed is not None
    assert renewed.lease_expires == clock.now + seconds

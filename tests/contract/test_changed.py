"""The store's own signal that work may have become leasable."""

import asyncio

import pytest

from queue_runtime.store import Store
from queue_runtime.task import Complete, NewTask, Pause, PauseKind, Release, Retry, Yield
from tests.clock import Clock
from tests.contract.steps import HTTP, add, add_plain, held, settle, take_new

SOON = 5.0
"""A bound in real seconds for what should happen at once; nobody waits so long."""


async def quiet(store: Store) -> None:
    """Hear out everything that has happened so far."""
    async with asyncio.timeout(SOON):
        while await store.changed(0.02):
            pass


async def heard(store: Store) -> bool:
    """Whether a change is heard well before the time is over."""
    async with asyncio.timeout(SOON):
        return await store.changed(SOON - 1)


async def test_silence_ends_with_the_timeout(store: Store) -> None:
    await quiet(store)
    began = asyncio.get_running_loop().time()
    assert await store.changed(0.1) is False
    assert asyncio.get_running_loop().time() - began >= 0.09


async def test_an_enqueue_is_heard_by_who_waits(store: Store) -> None:
    """R070"""
    await quiet(store)
    waiting = asyncio.ensure_future(heard(store))
    await asyncio.sleep(0)
    await add_plain(store, 1)
    assert await waiting is True


async def test_a_change_between_two_calls_is_remembered(store: Store) -> None:
    await quiet(store)
    await add_plain(store, 1)
    assert await heard(store) is True


async def test_what_was_heard_once_is_not_heard_for_ever(store: Store) -> None:
    """R069: no hot loop over a task that nobody here may take."""
    await add_plain(store, 3)
    await add(store, NewTask(task_class="A", delay_until=1))
    await quiet(store)
    assert await store.changed(0.05) is False


@pytest.mark.parametrize("how", ["event", "follow-up", "release", "free", "awaken", "bring back", "resume", "delay"])
async def test_everything_that_makes_work_leasable_is_heard(store: Store, clock: Clock, how: str) -> None:
    """R077: awakened tasks start at once."""
    task = await take_new(store)
    if how == "awaken":
        await settle(store, held(task), Yield(wait=600))
    if how == "bring back":
        await store.cancel([task.id])
    if how == "resume":
        await store.pause(Pause(PauseKind.ALL))
    await quiet(store)
    match how:
        case "event":
            await store.enqueue_once("e", NewTask(task_class="A"))
        case "follow-up":
            await settle(store, held(task), Complete(followups=[NewTask(task_class="A")]))
        case "release":
            await settle(store, held(task), Release())
        case "free":
            await store.free([task.id])
        case "awaken":
            await store.awaken([task.id])
        case "bring back":
            await store.retry([task.id])
        case "resume":
            await store.resume(Pause(PauseKind.ALL))
        case "delay":
            (other,) = await add_plain(store, 1)
            await quiet(store)
            await store.delay([other], clock.now)
    assert await heard(store) is True


@pytest.mark.parametrize("kind", ["delay", "retry", "lease", "worker lease"])
async def test_a_row_coming_due_is_heard(store: Store, clock: Clock, kind: str) -> None:
    """R065, R011: a delay, a back-off, the end of a lease."""
    match kind:
        case "delay":
            await add(store, NewTask(task_class="A", delay_until=clock.now + 30))
        case "retry":
            await settle(store, held(await take_new(store)), Retry(wait=29))
        case "lease":
            await take_new(store, HTTP, seconds=29)
        case _:
            await take_new(store, seconds=19)
    await quiet(store)
    clock.advance(29)
    assert await store.changed(0.05) is False
    clock.advance(1)
    assert await heard(store) is True

"""Who works on a queue that Phorge's own taskmasters share: by the owners in its rows, and by a canary task."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

import anyio
from msgspec import Struct

from queue_runtime.findings import Finding, fault, note, ok, warning
from queue_runtime.store import Store
from queue_runtime.task import MAX_LIST, PARKED_OWNERS, NewTask, Result, State, TaskFilter, is_sentinel, is_worker

CANARY = "QueueRuntimeCanaryWorker"
"""A class of the extension that does nothing, and has no handler here: Phorge runs it for us, or nobody does."""

CANARY_PRIORITY = 1000
CANARY_POLL = 0.2

_NATIVE = re.compile(r"\d+:\d+:(.*):\d+")


class Who(StrEnum):
    """Whose an owner is, as far as it says."""

    OURS = "workers of queue-runtime"
    NATIVE = "native taskmasters"
    CALLERS = "others, over HTTP"
    NOBODY = "nobody (bin/worker, or a cancelled row)"


def who(owner: str | None) -> Who:
    """Whose this owner is."""
    if owner is None or is_sentinel(owner) or owner in PARKED_OWNERS:
        return Who.NOBODY
    if is_worker(owner):
        return Who.OURS
    return Who.NATIVE if _NATIVE.fullmatch(owner) else Who.CALLERS


class Activity(Struct, frozen=True):
    """What the rows say of a time until now."""

    seconds: int
    ready: int
    """rows that wait for somebody; at most MAX_LIST are counted"""
    held: Counter[Who]
    """rows that somebody holds. The owner of a failed native attempt stays until its wait is over"""
    ended: Counter[Who]
    native_hosts: frozenset[str]


async def look(store: Store, seconds: int) -> Activity:
    """What the rows say. Of those that ended, the MAX_LIST with the highest ids are looked at."""
    ready = await store.list_active(MAX_LIST, where=TaskFilter(states=frozenset({State.READY})))
    held = await store.list_active(MAX_LIST, where=TaskFilter(states=frozenset({State.LEASED})))
    since = time.time() - seconds
    ended = [row for row in await store.list_archived(MAX_LIST) if row.archived_epoch >= since]
    owners = [*(row.lease_owner for row in held), *(row.lease_owner for row in ended)]
    hosts = {found[1] for found in map(_NATIVE.fullmatch, filter(None, owners)) if found}
    return Activity(
        seconds=seconds,
        ready=len(ready),
        held=Counter(who(row.lease_owner) for row in held),
        ended=Counter(who(row.lease_owner) for row in ended),
        native_hosts=frozenset(hosts),
    )


def describe(activity: Activity) -> Iterator[Finding]:
    """One line for each of those who act, and the verdict."""
    minutes = activity.seconds // 60
    yield note("waiting", f"{activity.ready}{' or more' if activity.ready == MAX_LIST else ''} tasks wait for somebody")
    for one in Who:
        held, ended = activity.held[one], activity.ended[one]
        if held or ended:
            yield note(one.value, f"hold {held} tasks, and ended {ended} in the last {minutes} minutes")
    if activity.held[Who.NATIVE] or activity.ended[Who.NATIVE]:
        hosts = ", ".join(sorted(activity.native_hosts))
        yield fault(
            "takeover", f"not done: native taskmasters of {hosts} still act, or did so in these {minutes} minutes"
        )
    elif not activity.ended[Who.OURS]:
        yield fault("takeover", f"not done: no task was ended by a worker of queue-runtime in {minutes} minutes")
    else:
        yield ok("takeover", f"done: in {minutes} minutes no native taskmaster has acted, and tasks were ended here")


async def send_canary(store: Store, task_class: str, seconds: float) -> Finding:
    """Enqueue a task that does nothing, and see who ends it, and how. One that nobody takes is cancelled."""
    (canary,) = await store.enqueue([NewTask(task_class=task_class, data="{}", priority=CANARY_PRIORITY)])
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        (ended,) = await store.get_archived([canary.id])
        if ended is not None:
            break
        if reason := await _last_error(store, canary.id):
            await store.cancel([canary.id])
            return fault("canary", f"task {canary.id} ({task_class}) failed: {reason}")
        await anyio.sleep(CANARY_POLL)
    else:
        await store.cancel([canary.id])
        return fault(
            "canary",
            f"nobody ended task {canary.id} ({task_class}) within {seconds:.0f} s, so it is cancelled: does "
            "`queue-runtime serve` run, and may it run this class (TASK_CLASSES, CONDUIT_CLASSES)?",
        )
    taken = time.monotonic() - began
    if who(ended.lease_owner) is not Who.OURS:
        return warning("canary", f"task {canary.id} was ended by {who(ended.lease_owner)}: {ended.lease_owner}")
    if ended.result is not Result.SUCCESS:
        reason = await _last_error(store, canary.id) or "no reason is known"
        return fault("canary", f"task {canary.id} ({task_class}) failed: {reason}")
    return ok("canary", f"task {canary.id} ({task_class}) came back as done after {taken:.1f} s")


async def _last_error(store: Store, task_id: int) -> str | None:
    (attempts,) = await store.history([task_id])
    return attempts[-1].message if attempts else None

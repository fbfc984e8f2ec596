"""Who works on a queue that Phorge's taskmasters share, by the owners in its rows; who would run what waits there."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct

from queue_runtime.findings import Finding, fault, note, ok
from queue_runtime.selftest import CANARY, MARK, pause_words, stops
from queue_runtime.store import Store
from queue_runtime.task import (
    MAX_LIST,
    PARKED_OWNERS,
    ArchivedTask,
    Backlog,
    Pause,
    Result,
    State,
    Task,
    TaskFilter,
    is_sentinel,
    is_worker,
)

MOST = 200_000
"""So many rows of each kind are looked at. A quarter of an hour has so many where 200 tasks end a second."""

NAMED = 3
"""So many names stand in one line."""

_NATIVE = re.compile(r"\d+:\d+:(.*):\d+")


class Who(StrEnum):
    """Whose an owner is, as far as it says."""

    OURS = "workers of queue-runtime"
    NATIVE = "native taskmasters"
    CALLERS = "others, over HTTP or in the tables"
    ALLOWED = "others that --allow names"
    NOBODY = "nobody (bin/worker, or a cancelled row)"


def who(owner: str | None, allowed: Collection[str] = ()) -> Who:
    """Whose this owner is. `allowed`: patterns of owners that may go on; a native taskmaster only by its whole name."""
    if owner is None or is_sentinel(owner) or owner in PARKED_OWNERS:
        return Who.NOBODY
    if is_worker(owner):
        return Who.OURS
    if owner in allowed:
        return Who.ALLOWED
    if _NATIVE.fullmatch(owner):
        return Who.NATIVE
    return Who.ALLOWED if any(fnmatchcase(owner, pattern) for pattern in allowed) else Who.CALLERS


# ---- what the rows say


class Activity(Struct, frozen=True):
    """What the rows say of a time until now."""

    seconds: int
    covered: bool
    """all rows were looked at; else there were more than could be"""
    held: Counter[Who]
    """rows that somebody holds. The owner of a failed native attempt stays until its wait is over"""
    ended: Counter[Who]
    results: Counter[Result]
    """how the rows ended that workers of queue-runtime ended"""
    ran: Counter[str]
    """their classes"""
    native_classes: frozenset[str]
    """classes that native taskmasters hold or ended"""
    native_hosts: frozenset[str]
    callers: tuple[str, ...]
    """owners of others that are not allowed"""

    @property
    def minutes(self) -> int:
        return max(self.seconds // 60, 1)


async def look(store: Store, seconds: int, *, allowed: Collection[str] = (), rows: int = MOST) -> Activity:
    """What the rows say: who holds some now, and who ended some in this time, by when they ended. `rows`: of each at
    most so many."""
    held, all_held = await _held(store, rows)
    archived, all_ended = await _ended(store, int(time.time()) - seconds, rows)
    # a trial of our own does not show that anybody is at work; one that somebody else took does
    ended = [row for row in archived if not (_is_trial(row) and is_worker(row.lease_owner))]
    seen: list[Task | ArchivedTask] = [*held, *ended]
    native = [row for row in seen if who(row.lease_owner, allowed) is Who.NATIVE]
    ours = [row for row in ended if is_worker(row.lease_owner)]
    hosts = map(_NATIVE.fullmatch, {row.lease_owner or "" for row in native})
    return Activity(
        seconds=seconds,
        covered=all_held and all_ended,
        held=Counter(who(row.lease_owner, allowed) for row in held),
        ended=Counter(who(row.lease_owner, allowed) for row in ended),
        results=Counter(row.result for row in ours),
        ran=Counter(row.task_class for row in ours),
        native_classes=frozenset(row.task_class for row in native),
        native_hosts=frozenset(found[1] for found in hosts if found),
        callers=tuple(sorted({row.lease_owner or "" for row in seen if who(row.lease_owner, allowed) is Who.CALLERS})),
    )


async def _held(store: Store, most: int) -> tuple[list[Task], bool]:
    """Rows that somebody holds, and whether these are all."""
    rows: list[Task] = []
    after = None
    while len(rows) < most:
        size = min(MAX_LIST, most - len(rows))
        page = await store.list_active(size, after=after, where=TaskFilter(states=frozenset({State.LEASED})))
        rows += page
        if len(page) < size:
            return rows, True
        after = (page[-1].priority, page[-1].id)
    return rows, False


async def _ended(store: Store, since: int, most: int) -> tuple[list[ArchivedTask], bool]:
    """Rows that ended then or later, whatever their ids, and whether these are all."""
    rows: list[ArchivedTask] = []
    before = None
    while len(rows) < most:
        size = min(MAX_LIST, most - len(rows))
        page = await store.list_archived(size, before=before, where=TaskFilter(ended_since=since))
        rows += page
        if len(page) < size:
            return rows, True
        before = page[-1].id
    return rows, False


def _is_trial(row: ArchivedTask) -> bool:
    """Whether it was a task of the selftest or a canary."""
    return row.task_class == CANARY or row.container_phid == MARK


class Phd(Struct, frozen=True):
    """What Phorge itself says of its taskmasters, who leave no trace in the rows while they have nothing to do."""

    alive: tuple[str, ...] | None = None
    """hosts of those that live, by its book of daemons; None: it cannot be read"""

    wanted: int | None = None
    """phd.taskmasters; None: nobody says"""

    @property
    def natives(self) -> bool:
        """Whether some live, or will after the next start of phd."""
        return bool(self.alive or self.wanted)


# ---- who would run what waits


class Worker(Struct, frozen=True):
    """What answers at an address where a worker is expected."""

    address: str
    ours: bool = False
    """a process of this runtime is there"""
    supported: tuple[str, ...] | None = None
    """classes that it leases, or patterns of them; None: there is no worker"""
    queues: tuple[str, ...] | None = None
    """the queues that it leases from; None: all"""
    trouble: str | None = None
    """why no task can be left to it now"""

    def takes(self, task_class: str) -> bool:
        """Whether it leases this class."""
        return any(fnmatchcase(task_class, one) for one in self.supported or ())

    def takes_from(self, queue: str) -> bool:
        """Whether it leases from this queue."""
        return self.queues is None or queue in self.queues


class Waiting(Struct, frozen=True):
    """What waits for somebody now, and what nobody may lease."""

    groups: Sequence[Backlog]
    pauses: Sequence[Pause]

    @property
    def classes(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for group in self.groups:
            found[group.task_class] += group.waiting
        return found


async def look_at_waiting(store: Store) -> Waiting:
    """The tasks that could be leased now, and the pauses."""
    return Waiting(await store.backlog(), await store.paused())


def unserved(waiting: Waiting, workers: Sequence[Worker]) -> Iterator[str]:
    """Why tasks that wait have nobody to run them, one sentence a reason."""
    paused: Counter[Pause] = Counter()
    nobody: Counter[str] = Counter()
    for group in waiting.groups:
        pause = next((one for one in waiting.pauses if stops(one, group.task_class, group.queue)), None)
        if pause is not None:
            paused[pause] += group.waiting
        elif not any(one.takes(group.task_class) and one.takes_from(group.queue) for one in workers):
            nobody[group.task_class] += group.waiting
    for pause, count in paused.items():
        yield f"{count} tasks wait while {pause_words(pause)}"
    if nobody:
        yield (
            f"{nobody.total()} tasks wait that no worker at {', '.join(one.address for one in workers)} leases:"
            f" {some(f'{count} of {name}' for name, count in nobody.most_common())}. See to CONDUIT_URL,"
            " CONDUIT_CLASSES, TASK_CLASSES and QUEUES; name workers at other addresses by --worker"
        )


def some(names: Iterator[str] | Sequence[str]) -> str:
    """The first of these names, in one line."""
    every = list(names)
    return ", ".join(every[:NAMED]) + (f" and {len(every) - NAMED} more" if len(every) > NAMED else "")


# ---- findings


def describe(activity: Activity, waiting: Waiting, here: Collection[str], phd: Phd) -> Iterator[Finding]:
    """Who leased, executed and archived. `here`: the classes that have a handler in this runtime."""
    if phd.alive is None:
        yield note(
            "phd",
            "Phorge's book of daemons cannot be read (SELECT on the table daemon_log of its daemon database), so native"
            " taskmasters that have nothing to do are not seen",
        )
    classes = waiting.classes
    named = f": {some(f'{count} of {name}' for name, count in classes.most_common())}" if classes else ""
    yield note("waiting", f"{classes.total()} tasks wait for somebody{named}")
    yield from (note("paused", pause_words(pause)) for pause in waiting.pauses)
    for one in Who:
        held, ended = activity.held[one], activity.ended[one]
        if held or ended:
            yield note(one.value, f"hold {held} tasks, and ended {ended} in the last {activity.minutes} minutes")
    if activity.ran:
        own = sum(count for task_class, count in activity.ran.items() if task_class in here)
        results = ", ".join(f"{count} {result.name.lower()}" for result, count in sorted(activity.results.items()))
        yield note(
            "executed",
            f"of what workers of queue-runtime ended, {own} ran in handlers here and {activity.ran.total() - own} in"
            f" Phorge or a fallback; archived as {results}",
        )


def acting(activity: Activity) -> Iterator[str]:
    """One sentence for each kind of foreign lease owner that acts, or did so in this time."""
    if activity.native_hosts:
        hosts = ", ".join(sorted(activity.native_hosts))
        yield f"native taskmasters of {hosts} still act, or did so in these {activity.minutes} minutes"
    if activity.callers:
        yield (
            f"owners that are not of this runtime act, or did so in these {activity.minutes} minutes:"
            f" {some(activity.callers)}. Where these are your own programs, which lease over HTTP, name them by --allow"
        )
    if not activity.covered:
        yield (
            f"more than {MOST} tasks are held, or ended in {activity.minutes} minutes, so not all were looked at: give"
            " fewer --minutes"
        )


def idle(phd: Phd) -> Iterator[str]:
    """One sentence for each sign of native taskmasters that may act at any time."""
    if phd.alive:
        yield (
            f"native taskmasters are alive on {', '.join(phd.alive)} by Phorge's book of daemons, and may take tasks at"
            " any time"
        )
    if phd.wanted:
        yield f"phd.taskmasters is {phd.wanted}, so native taskmasters run, or will after the next start of phd"


def verdict(activity: Activity, waiting: Waiting, workers: Sequence[Worker], phd: Phd) -> Iterator[Finding]:
    """Whether it is done; else everything that is missing."""
    missing = [
        *acting(activity),
        *idle(phd),
        *(one.trouble for one in workers if one.trouble is not None),
        *unserved(waiting, workers),
    ]
    if not activity.ended[Who.OURS]:
        missing.append(f"no task was ended by a worker of queue-runtime in {activity.minutes} minutes")
    yield from (fault("takeover", f"not done: {reason}") for reason in missing)
    if not missing:
        yield ok(
            "takeover",
            f"done: in {activity.minutes} minutes no native taskmaster has acted, tasks were ended here, and what waits"
            f" has a worker at {', '.join(one.address for one in workers)}",
        )


def reasons_to_wait(activity: Activity, waiting: Waiting, worker: Worker) -> Iterator[str]:
    """Why native taskmasters must stay on yet: who would run their tasks?"""
    if worker.trouble is not None:
        yield worker.trouble
    if lost := sorted(one for one in activity.native_classes if not worker.takes(one)):
        yield (
            f"the worker at {worker.address} does not lease {some(lost)}, which native taskmasters run now: see to"
            " CONDUIT_URL, CONDUIT_CLASSES and TASK_CLASSES"
        )
    yield from unserved(waiting, [worker])

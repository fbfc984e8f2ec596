"""Who works on a queue that Phorge's own taskmasters share, by the owners in its rows; and the steps of taking over."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct

from queue_runtime.findings import Finding, fault, note, ok
from queue_runtime.selftest import CANARY
from queue_runtime.store import Store
from queue_runtime.task import MAX_LIST, PARKED_OWNERS, ArchivedTask, Result, State, TaskFilter, is_sentinel, is_worker

TEST_CLASS = "PhabricatorTestWorker"
"""Every Phorge has it, and so has this runtime, as a handler of its own."""

CANARY_PRIORITY = 1000

NAMED = 3
"""So many owners are named in one line."""

_NATIVE = re.compile(r"\d+:\d+:(.*):\d+")


class Who(StrEnum):
    """Whose an owner is, as far as it says."""

    OURS = "workers of queue-runtime"
    NATIVE = "native taskmasters"
    CALLERS = "others, over HTTP or in the tables"
    ALLOWED = "others that --allow names"
    NOBODY = "nobody (bin/worker, or a cancelled row)"


def who(owner: str | None, allowed: Collection[str] = ()) -> Who:
    """Whose this owner is. `allowed`: patterns of owners that may go on."""
    if owner is None or is_sentinel(owner) or owner in PARKED_OWNERS:
        return Who.NOBODY
    if is_worker(owner):
        return Who.OURS
    if any(fnmatchcase(owner, pattern) for pattern in allowed):
        return Who.ALLOWED
    return Who.NATIVE if _NATIVE.fullmatch(owner) else Who.CALLERS


class Activity(Struct, frozen=True):
    """What the rows say of a time until now."""

    seconds: int
    ready: int
    """rows that wait for somebody; at most as many as were looked at are counted"""
    held: Counter[Who]
    """rows that somebody holds. The owner of a failed native attempt stays until its wait is over"""
    ended: Counter[Who]
    results: Counter[Result]
    """how the rows ended that workers of queue-runtime ended"""
    ran: Counter[str]
    """their classes"""
    native_hosts: frozenset[str]
    callers: tuple[str, ...]
    """owners of others that are not allowed"""


async def look(store: Store, seconds: int, *, allowed: Collection[str] = (), rows: int = MAX_LIST) -> Activity:
    """What the rows say. Of those that ended, the `rows` with the highest ids are looked at."""
    ready = await store.list_active(rows, where=TaskFilter(states=frozenset({State.READY})))
    held = await store.list_active(rows, where=TaskFilter(states=frozenset({State.LEASED})))
    since = time.time() - seconds
    archived = await store.list_archived(rows)
    ended = [row for row in archived if row.archived_epoch >= since and not _is_trial(row)]
    owners = {owner for owner in [*(row.lease_owner for row in held), *(row.lease_owner for row in ended)] if owner}
    native = {owner for owner in owners if who(owner, allowed) is Who.NATIVE}
    ours = [row for row in ended if is_worker(row.lease_owner)]
    return Activity(
        seconds=seconds,
        ready=len(ready),
        held=Counter(who(row.lease_owner, allowed) for row in held),
        ended=Counter(who(row.lease_owner, allowed) for row in ended),
        results=Counter(row.result for row in ours),
        ran=Counter(row.task_class for row in ours),
        native_hosts=frozenset(found[1] for found in map(_NATIVE.fullmatch, native) if found),
        callers=tuple(sorted(owner for owner in owners if who(owner, allowed) is Who.CALLERS)),
    )


def _is_trial(row: ArchivedTask) -> bool:
    """Whether it was a task of the selftest or a canary, which do not show that anybody is at work."""
    return row.task_class == CANARY or (row.task_class == TEST_CLASS and row.priority == CANARY_PRIORITY)


def describe(activity: Activity, here: Collection[str]) -> Iterator[Finding]:
    """Who leased, executed and archived. `here`: the classes that have a handler in this runtime."""
    minutes = max(activity.seconds // 60, 1)
    yield note("waiting", f"{activity.ready}{' or more' if activity.ready >= MAX_LIST else ''} tasks wait for somebody")
    for one in Who:
        held, ended = activity.held[one], activity.ended[one]
        if held or ended:
            yield note(one.value, f"hold {held} tasks, and ended {ended} in the last {minutes} minutes")
    if activity.ran:
        own = sum(count for task_class, count in activity.ran.items() if task_class in here)
        results = ", ".join(f"{count} {result.name.lower()}" for result, count in sorted(activity.results.items()))
        yield note(
            "executed",
            f"of what workers of queue-runtime ended, {own} ran in handlers here and {activity.ran.total() - own} in"
            f" Phorge or a fallback; archived as {results}",
        )


def acting(activity: Activity) -> Iterator[Finding]:
    """One fault for each kind of foreign lease owner that acts, or did so in this time."""
    minutes = max(activity.seconds // 60, 1)
    if activity.native_hosts:
        hosts = ", ".join(sorted(activity.native_hosts))
        yield fault(
            "takeover", f"not done: native taskmasters of {hosts} still act, or did so in these {minutes} minutes"
        )
    if activity.callers:
        names = ", ".join(activity.callers[:NAMED]) + (" and more" if len(activity.callers) > NAMED else "")
        yield fault(
            "takeover",
            f"not done: owners that are not of this runtime act, or did so in these {minutes} minutes: {names}. Where"
            " these are your own programs, which lease over HTTP, name them by --allow",
        )


def verdict(activity: Activity) -> Iterator[Finding]:
    """Whether it is done."""
    minutes = max(activity.seconds // 60, 1)
    foreign = list(acting(activity))
    yield from foreign
    if foreign:
        return
    if not activity.ended[Who.OURS]:
        yield fault("takeover", f"not done: no task was ended by a worker of queue-runtime in {minutes} minutes")
    else:
        yield ok("takeover", f"done: in {minutes} minutes no native taskmaster has acted, and tasks were ended here")


class Step(IntEnum):
    """The order of taking over. Each is there because the ones after it need it."""

    SHADOW = 0
    STORE = 1
    CONDUIT = 2
    ENQUEUE = 3
    TASKMASTERS = 4
    CLOSED = 5


class Stage(Struct, frozen=True):
    """A step as the plan has it. `{phorge}` stands for Phorge's folder."""

    step: Step
    title: str
    commands: str


STAGES: Sequence[Stage] = (
    Stage(
        Step.SHADOW,
        "Look on, as long as you like. Nothing is written, and nothing is taken from anybody.",
        """\
QUEUE_RUNTIME_SHADOW=1 queue-runtime serve     (its log says what it would take, and who works now)
""",
    ),
    Stage(
        Step.STORE,
        "The store is in order. Nothing changes yet.",
        """\
queue-runtime init
queue-runtime doctor --store
queue-runtime selftest                         (three tasks that nobody else takes; they end in the archive)
""",
    ),
    Stage(
        Step.CONDUIT,
        "Phorge runs its classes for this runtime. Native taskmasters go on meanwhile.",
        """\
queue-runtime phorge install {phorge}          (not for the fork, which has the method)
{phorge}/bin/config set queue-runtime.token TOKEN
systemctl reload 'php*-fpm'
queue-runtime doctor --conduit --phorge {phorge}
queue-runtime serve                            (without SHADOW; with CONDUIT_URL, CONDUIT_TOKEN, and CONDUIT_HOST)
queue-runtime takeover check                   (a canary task goes the whole way, through PHP to the archive)
""",
    ),
    Stage(
        Step.ENQUEUE,
        "The fork only: new tasks come over HTTP.",
        """\
{phorge}/bin/config set gorge.taskqueue.uri http://THIS-HOST:8090
""",
    ),
    Stage(
        Step.TASKMASTERS,
        "Native taskmasters off, on every host that runs phd. The other daemons go on: the trigger daemon is not"
        " replaced.",
        """\
{phorge}/bin/config get phd.taskmasters        (write the number down)
{phorge}/bin/config set phd.taskmasters 0
{phorge}/bin/phd stop
{phorge}/bin/phd start --keep-leases           (without it all leases, delays and waits of the queue end at once)
""",
    ),
    Stage(
        Step.CLOSED,
        "The loop is closed: a quarter of an hour later nobody else has acted.",
        """\
queue-runtime takeover status
""",
    ),
)

BACK = """\
{phorge}/bin/config delete gorge.taskqueue.uri (the fork only)
stop `queue-runtime serve` by SIGTERM: it gives back what it holds
{phorge}/bin/config set phd.taskmasters NUMBER
{phorge}/bin/phd stop
{phorge}/bin/phd start --keep-leases
queue-runtime phorge remove {phorge}           (last: what Phorge still runs for it ends first)
"""


def plan(phorge: str) -> str:
    """All steps with their commands, and the way back."""
    parts = ["The store stays where it is, Phorge's own tables, so each step can be taken back.\n"]
    parts += [f"{stage.step}. {stage.title}\n{_indented(stage.commands, phorge)}" for stage in STAGES]
    parts.append(f"The way back, from any step:\n{_indented(BACK, phorge)}")
    return "\n".join(parts)


def commands_of(step: Step, phorge: str) -> str:
    """The commands of one step, and those that take it back."""
    stage = STAGES[step]
    return (
        f"next is step {step}: {stage.title}\n{_indented(stage.commands, phorge)}"
        f"the way back:\n{_indented(BACK, phorge)}"
    )


def _indented(commands: str, phorge: str) -> str:
    return "".join(f"     {line}\n" for line in commands.format(phorge=phorge).splitlines())

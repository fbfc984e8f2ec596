"""Values: tasks, leases, and the ways a lease can end. All frozen; behaviour lives elsewhere.

Times are Unix seconds of the store's clock, durations are seconds unless a name ends in `_us`
(microseconds). Column meanings are Phorge's.
"""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Self

from msgspec import Struct

from queue_runtime.errors import InvalidRequest

U32 = 2**32 - 1
DEFAULT_PRIORITY = 2000
DEFAULT_QUEUE = "default"
RETRY_SECONDS = 300
"""Phorge's own default wait after a temporary failure."""

YIELD_FLOOR = 5
"""A yield is never shorter (Phorge's own rule)."""

AWAKEN_BACK = 3600
"""Awaken back-dates a yield by this much, which puts it ahead of what became due meanwhile (Phorge's rule)."""

MAX_LEASE_SECONDS = 604_800
MAX_LEASE_LIMIT = 1000
MAX_LEASE_BYTES = 8 * 2**20
MAX_LIST = 5000
MAX_IDS = 10_000
MAX_FOLLOWUPS = 20_000
MAX_FOLLOWUP_BYTES = 64 * 2**20
"""Follow-ups of one task, and their payloads together. They are stored in one step with its success, which keeps a
store busy for up to half a second where they are so many."""

MAX_ATTEMPTS = 2**31 - 1
MAX_DATA_BYTES = 64 * 2**20
MAX_EVENT_ID_BYTES = 128
LOST_MESSAGE = "worker lost"
"""Message of the history entry that a lease writes when it takes over the stale lease of one of our workers."""

MAX_HISTORY = 25
"""Entries of error history kept for a task; the newest win."""

MAX_MESSAGE = 2000
MAX_TRACE = 8000


class Sentinel(StrEnum):
    """What stands in the owner column of a row that nobody holds but that waits for a time.

    A sentinel never fences, and a non-NULL owner keeps native taskmasters from taking a waiting row at once.
    """

    YIELD = "(yield)"
    RETRY = "(retry)"
    DELAY = "(delay)"
    UNKNOWN = "(unknown)"


PARKED_OWNERS = frozenset({"gorge-completion-pending", "gorge-failure-pending"})
"""Owners written by the forked PHP client for reports it could not deliver: never leased, swept or counted."""

WORKER_PREFIX = "qr:"
"""Owners of our own workers begin so; an expired row of such an owner is left alone for `patience` more."""


def is_worker(owner: str | None) -> bool:
    """Whether the owner is one of our own workers."""
    return owner is not None and owner.startswith(WORKER_PREFIX)


def is_sentinel(owner: str | None) -> bool:
    """Whether the owner is of the form `(…)`, which names a state and not a holder."""
    return owner is not None and owner.startswith("(") and owner.endswith(")")


def due_at(owner: str | None, expires: int, patience: int) -> int | None:
    """First second at which a row with this owner and expiry may be leased; None: never (docs/architecture.md, rule 6).

    An absolute time (`delayUntil`) is due in its own second; a time computed as now + n is past one second
    later, because the fence calls a lease alive until its last second has ended.
    """
    if owner in PARKED_OWNERS:
        return None
    if owner is None or owner == Sentinel.DELAY:
        return expires
    return expires + 1 + (patience if is_worker(owner) else 0)


class Result(IntEnum):
    """How an archived task ended. Phorge's page of a task breaks on anything else."""

    SUCCESS = 0
    FAILURE = 1
    CANCELLED = 2


class NewTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to enqueue, or a follow-up of another one.

    `priority` None means 2000, or the parent's for a follow-up. `delay_until` is the one absolute time that
    enters a store. `queue` None is routed by the class. `max_attempts` counts runs that end in failure.
    Building one raises InvalidRequest when a bound of the shared tables is broken, so that bad input can
    never become a database error.
    """

    task_class: str
    data: str = ""
    priority: int | None = None
    object_phid: str | None = None
    container_phid: str | None = None
    delay_until: int | None = None
    queue: str | None = None
    idempotency_key: str | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        check_name("task_class", self.task_class, limit=64)
        if type(self.data) is not str or not self.data.isascii() or len(self.data) > MAX_DATA_BYTES:
            check_data(self.data)
        if self.priority is not None:
            check_range("priority", self.priority, 0, U32)
        if self.object_phid is not None:
            check_bytes("object_phid", self.object_phid, 64)
        if self.container_phid is not None:
            check_bytes("container_phid", self.container_phid, 64)
        if self.delay_until is not None:
            check_range("delay_until", self.delay_until, 1, U32)
        if self.queue is not None:
            check_queue("queue", self.queue)
        if self.idempotency_key is not None:
            check_bytes("idempotency_key", self.idempotency_key, 255)
        if self.max_attempts is not None:
            check_range("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)


class Task(Struct, frozen=True, kw_only=True):
    """An active row. `data` is None where the call does not read payloads (lists, and replies that change rows)."""

    id: int
    task_class: str
    data_id: int
    priority: int
    date_created: int
    date_modified: int
    lease_owner: str | None = None
    lease_expires: int | None = None
    failure_count: int = 0
    failure_time: int | None = None
    object_phid: str | None = None
    container_phid: str | None = None
    queue: str = DEFAULT_QUEUE
    idempotency_key: str | None = None
    max_attempts: int | None = None
    lost_count: int = 0
    data: str | None = None


class ArchivedTask(Struct, frozen=True, kw_only=True):
    """An ended task. Owner and expiry are those held when it ended: the receipt that makes a report repeatable."""

    id: int
    task_class: str
    data_id: int
    priority: int
    date_created: int
    date_modified: int
    result: Result
    duration_us: int
    archived_epoch: int
    lease_owner: str | None = None
    lease_expires: int | None = None
    failure_count: int = 0
    object_phid: str | None = None
    container_phid: str | None = None
    queue: str = DEFAULT_QUEUE
    idempotency_key: str | None = None
    max_attempts: int | None = None
    lost_count: int = 0
    data: str | None = None


class Lease(Struct, frozen=True, forbid_unknown_fields=True):
    """Who holds a task. `expires` only where an HTTP caller sent a receipt; our workers' owners are never reused."""

    task_id: int
    owner: str
    expires: int | None = None


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a run did not succeed. Texts are cut to MAX_MESSAGE and MAX_TRACE characters when stored."""

    message: str = ""
    trace: str = ""
    duration_us: int = 0


class Complete(Struct, frozen=True, tag="complete", forbid_unknown_fields=True):
    """Success: archived with result 0 and the follow-ups enqueued, in one step."""

    duration_us: int = 0
    followups: Sequence[NewTask] = ()


class Fail(Struct, frozen=True, tag="fail", forbid_unknown_fields=True):
    """Permanent failure: archived with result 1, failure count not raised (Phorge's rule)."""

    failure: Failure = Failure()


class Retry(Struct, frozen=True, tag="retry", forbid_unknown_fields=True):
    """Temporary failure: failure count + 1, owner `(retry)`, runs again after `wait` seconds.

    A row that reaches its `max_attempts` is archived with result 1 instead. The row's own value wins over
    the outcome's, which is the policy of the class.
    """

    wait: int = RETRY_SECONDS
    failure: Failure = Failure()
    max_attempts: int | None = None


class Yield(Struct, frozen=True, tag="yield", forbid_unknown_fields=True):
    """Not now: owner `(yield)`, runs again after `wait` seconds (floor 5), or when awakened. Not a failure."""

    wait: int = YIELD_FLOOR


class Unknown(Struct, frozen=True, tag="unknown", forbid_unknown_fields=True):
    """Nobody knows how the run ended: owner `(unknown)`, looked at again after `wait` seconds. Not a failure."""

    wait: int = RETRY_SECONDS


class Release(Struct, frozen=True, tag="release", forbid_unknown_fields=True):
    """Given back untouched: ready at once, as if never leased. Not a failure; the count of losses stays."""


Outcome = Complete | Fail | Retry | Yield | Unknown | Release
"""How a run ended. The tags tell them apart on the wire (store_wire.py)."""


class Settlement(Struct, frozen=True, forbid_unknown_fields=True):
    """An outcome for a task. Build it by `held` or `unfenced`."""

    task_id: int
    outcome: Outcome
    lease: Lease | None

    @classmethod
    def held(cls, lease: Lease, outcome: Outcome) -> Self:
        """The outcome of a lease; refused (LOST) once somebody else has the row."""
        return cls(lease.task_id, outcome, lease)

    @classmethod
    def unfenced(cls, task_id: int, outcome: Outcome) -> Self:
        """Whoever holds it. Only for the legacy routes, whose clients send no owner."""
        return cls(task_id, outcome, None)


class Verdict(StrEnum):
    SETTLED = "settled"
    """The outcome was written by this call."""

    REPLAYED = "replayed"
    """The same end was written before, by the same holder: an earlier reply was lost."""

    LOST = "lost"
    """The lease is not valid (any more); nothing was written."""

    BUSY = "busy"
    """Somebody else has the row locked at this moment; nothing was written. Send it again."""


class Settled(Struct, frozen=True):
    """What became of a settlement; `archived` where the task has ended."""

    verdict: Verdict
    archived: ArchivedTask | None = None


class AttemptKind(StrEnum):
    RETRY = "retry"
    FAILURE = "failure"
    LOST = "lost"


class Attempt(Struct, frozen=True, kw_only=True):
    """One entry of a task's error history.

    `attempt` is the number of the run: failures so far + 1 when it ended. `owner` is who held the row.
    """

    attempt: int
    kind: AttemptKind
    when: int
    owner: str | None
    duration_us: int
    message: str
    trace: str


class State(StrEnum):
    """Where an active row stands; see `state_of`."""

    READY = "ready"
    LEASED = "leased"
    WAITING = "waiting"
    PARKED = "parked"


def state_of(owner: str | None, expires: int | None, now: int, patience: int) -> State:
    """State of an active row at `now`: a waiting row or a stale lease is READY once it is due."""
    if owner in PARKED_OWNERS:
        return State.PARKED
    if owner is None and expires is None:
        return State.READY
    due = None if expires is None else due_at(owner, expires, patience)
    if due is not None and due <= now:
        return State.READY
    return State.WAITING if owner is None or is_sentinel(owner) else State.LEASED


class TaskFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows a list shows; an absent part lets everything through.

    `results` and `ended_since` (Unix seconds by the store's clock: ended then or later) apply to the archive alone.
    """

    classes: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    states: frozenset[State] | None = None
    results: frozenset[Result] | None = None
    object_phid: str | None = None
    container_phid: str | None = None
    min_failures: int | None = None
    max_failures: int | None = None
    min_priority: int | None = None
    max_priority: int | None = None
    ended_since: int | None = None


class QueueStats(Struct, frozen=True, kw_only=True):
    """Counts of the whole queue. `estimated` where a count above 200,000 comes from a statistic.

    active: live rows but parked ones · leased: owner not NULL and expires >= now, without `(retry)`, `(delay)`,
    `(unknown)` (so a yield in its window counts) and without parked rows · failed: live rows with a failure.
    """

    active: int
    leased: int
    archived: int
    failed: int
    estimated: bool = False


class Backlog(Struct, frozen=True, kw_only=True):
    """Rows of one class and priority that could be leased now. `oldest` is the smallest dateCreated among them."""

    task_class: str
    queue: str
    priority: int
    waiting: int
    oldest: int


class PauseKind(StrEnum):
    ALL = "all"
    CLASS = "class"
    QUEUE = "queue"


class Pause(Struct, frozen=True, forbid_unknown_fields=True):
    """A stop sign that every lease obeys. `name` is "" for ALL."""

    kind: PauseKind
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind is PauseKind.ALL:
            if self.name:
                raise InvalidRequest("name", "a pause of everything has no name")
        elif self.kind is PauseKind.CLASS:
            check_name("name", self.name, limit=64)
        else:
            check_queue("name", self.name)


class SweepReport(Struct, frozen=True, kw_only=True):
    """What one sweep did. `more`: the limit was reached, call again soon."""

    expired: int = 0
    """archived rows deleted because their retention is over"""

    promoted: int = 0
    """waiting rows made ready (stores that need it)"""

    redelivered: int = 0
    """entries given to the dispatch again (stores that need it)"""

    more: bool = False


def check_range(field: str, value: int, low: int, high: int) -> None:
    """Raise InvalidRequest unless it is a whole number and low <= value <= high."""
    if type(value) is not int:
        raise InvalidRequest(field, f"must be a whole number, not {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidRequest(field, f"must be from {low} to {high}, not {value}")


def check_text(field: str, value: str) -> None:
    """Raise InvalidRequest unless it is a str: handlers are not typed in fact, only on paper."""
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be text, not {type(value).__name__}")


def check_bytes(field: str, value: str, limit: int) -> None:
    """Raise InvalidRequest unless the text is UTF-8 of 1 to `limit` bytes without NUL."""
    check_text(field, value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(field, "must be valid Unicode text") from None
    if not 0 < size <= limit:
        raise InvalidRequest(field, f"must have 1 to {limit} bytes, not {size}")
    if "\0" in value:
        raise InvalidRequest(field, "must not hold a NUL")


def check_name(field: str, value: str, *, limit: int) -> None:
    """Raise InvalidRequest unless the name has 1 to `limit` characters, is UTF-8 and has no NUL."""
    check_text(field, value)
    if not 0 < len(value) <= limit:
        raise InvalidRequest(field, f"must have 1 to {limit} characters, not {len(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(field, "must be valid Unicode text") from None
    if "\0" in value:
        raise InvalidRequest(field, "must not hold a NUL")


def check_queue(field: str, value: str) -> None:
    """Raise InvalidRequest unless it is a queue name: 1 to 64 of letters, digits, `_ . : -`."""
    check_text(field, value)
    if not 0 < len(value) <= 64 or not value.isascii() or value.strip(_QUEUE_CHARACTERS):
        raise InvalidRequest(field, "must have 1 to 64 letters, digits or _ . : -")


_QUEUE_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-"


def check_data(data: str) -> None:
    """Raise InvalidRequest unless the payload is UTF-8 text within MAX_DATA_BYTES. NUL and any content are fine."""
    check_text("data", data)
    try:
        size = len(data.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("data", "must be valid Unicode text (a lone surrogate has no UTF-8 form)") from None
    if size > MAX_DATA_BYTES:
        raise InvalidRequest("data", f"must have at most {MAX_DATA_BYTES} bytes, not {size}")


def check_owner(owner: str) -> None:
    """Raise InvalidRequest unless the name can hold a lease: 1 to 64 characters, not of the form `(…)`, not parked."""
    check_name("owner", owner, limit=64)
    if is_sentinel(owner):
        raise InvalidRequest("owner", "a name of the form (…) stands for a state and cannot hold a lease")
    if owner in PARKED_OWNERS:
        raise InvalidRequest("owner", f"{owner} marks a report that could not be delivered and cannot hold a lease")


_INT64 = 2**63 - 1


def check_outcome(outcome: Outcome) -> None:
    """Raise InvalidRequest where an outcome breaks a bound."""
    match outcome:
        case Complete(duration_us, followups):
            check_range("duration_us", duration_us, 0, _INT64)
            if len(followups) > MAX_FOLLOWUPS:
                raise InvalidRequest("followups", f"must be at most {MAX_FOLLOWUPS}, not {len(followups)}")
            if followups and (size := sum([len(task.data) for task in followups])) > MAX_FOLLOWUP_BYTES:
                raise InvalidRequest("followups", f"must have at most {MAX_FOLLOWUP_BYTES} bytes together, not {size}")
        case Fail(failure):
            check_range("failure.duration_us", failure.duration_us, 0, _INT64)
        case Retry(wait, failure, max_attempts):
            check_range("wait", wait, 0, U32)
            check_range("failure.duration_us", failure.duration_us, 0, _INT64)
            if max_attempts is not None:
                check_range("max_attempts", max_attempts, 1, MAX_ATTEMPTS)
        case Yield(wait) | Unknown(wait):
            check_range("wait", wait, 0, U32)
        case _:
            pass

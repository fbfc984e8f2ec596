"""The wire form of the Store protocol, for both ends: the route of the API, and the store that calls it.

Each method is one request: its arguments are the keys of a JSON object, its answer stands in the envelope of the API.
The values are those of the protocol itself. What changes any of them raises VERSION, also a field that is only added:
a server that does not know a filter would answer what was not asked for. For the same reason no part of a call may have
a field that the server does not know.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from queue_runtime.errors import (
    EventConflict,
    InvalidRequest,
    QueueRuntimeError,
    StoreFull,
    StoreUnavailable,
    WritesRefused,
)
from queue_runtime.store import Order
from queue_runtime.task import (
    ArchivedTask,
    Attempt,
    Backlog,
    Lease,
    NewTask,
    Pause,
    QueueStats,
    Settled,
    Settlement,
    SweepReport,
    Task,
    TaskFilter,
)

VERSION = 2
VERSION_HEADER = "X-Queue-Runtime-Store"
"""Both ends name their version in it. A reply without it comes from something that does not speak this protocol."""

PATH = "/api/queue/store/"

MAX_CALL_BYTES = 32 * 2**20
"""Largest request; larger ones are refused before they are sent."""

MAX_WAIT = 30.0
"""Longest time for which `changed` is held open, in seconds."""


class EnqueueCall(Struct, frozen=True, forbid_unknown_fields=True):
    tasks: Sequence[NewTask]


class EnqueueOnceCall(Struct, frozen=True, forbid_unknown_fields=True):
    event_id: str
    task: NewTask
    digest: str | None


class LeaseCall(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    owner: str
    limit: int
    seconds: int
    classes: frozenset[str] | None
    without_classes: frozenset[str]
    queues: frozenset[str] | None
    only: frozenset[int] | None
    without: frozenset[int]
    due_first: bool
    order: Order


class RenewCall(Struct, frozen=True, forbid_unknown_fields=True):
    leases: Sequence[Lease]
    seconds: int


class SettleCall(Struct, frozen=True, forbid_unknown_fields=True):
    settlements: Sequence[Settlement]


class TasksCall(Struct, frozen=True, forbid_unknown_fields=True):
    """For all methods that take ids and nothing else."""

    task_ids: Sequence[int]


class PriorityCall(Struct, frozen=True, forbid_unknown_fields=True):
    task_ids: Sequence[int]
    priority: int


class DelayCall(Struct, frozen=True, forbid_unknown_fields=True):
    task_ids: Sequence[int]
    until: int


class RetryCall(Struct, frozen=True, forbid_unknown_fields=True):
    task_ids: Sequence[int]
    repeat: bool


class PauseCall(Struct, frozen=True, forbid_unknown_fields=True):
    pause: Pause


class SweepCall(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int


class ListActiveCall(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int
    offset: int
    after: tuple[int, int] | None
    where: TaskFilter


class ListArchivedCall(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int
    before: int | None
    where: TaskFilter


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """For all methods that take nothing."""


class Bell(Struct, frozen=True, forbid_unknown_fields=True):
    """How often the bell of one server process has rung. Two that differ: something may have changed between."""

    process: str
    rings: int


class ChangedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """`seen` is the bell of the last answer. The protocol has no such argument: the caller keeps it for the server."""

    timeout: float
    seen: Bell | None


class Heard(Struct, frozen=True):
    """The answer to `changed`. `patience` is the option the server's store was opened with."""

    bell: Bell
    patience: int


Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Method(Generic[Call, Answer]):
    """One method of the protocol: its name, and the types of what is asked and of what is answered."""

    def __init__(self, name: str, call: type[Call], answer: type[Answer]) -> None:
        self.name = name
        self.call = call
        self.answer = answer
        self._calls = msgspec.json.Decoder(call)
        self._answers = msgspec.json.Decoder(answer)

    def read_call(self, body: bytes) -> Call:
        """What a request asks for. Raises InvalidRequest."""
        try:
            return self._calls.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest("body", f"is no call of {self.name}: {error}") from error

    def read_answer(self, raw: Raw) -> Answer:
        """What a reply answers. Raises msgspec.MsgspecError."""
        return self._answers.decode(raw)


ENQUEUE = Method("enqueue", EnqueueCall, list[Task])
ENQUEUE_ONCE = Method("enqueue_once", EnqueueOnceCall, Task)
LEASE = Method("lease", LeaseCall, list[Task])
RENEW = Method("renew", RenewCall, list[Task | None])
SETTLE = Method("settle", SettleCall, list[Settled])
CANCEL = Method("cancel", TasksCall, list[ArchivedTask | None])
AWAKEN = Method("awaken", TasksCall, int)
FREE = Method("free", TasksCall, int)
PRIORITY = Method("priority", PriorityCall, int)
DELAY = Method("delay", DelayCall, int)
RETRY = Method("retry", RetryCall, list[Task | None])
PAUSE = Method("pause", PauseCall, type(None))
RESUME = Method("resume", PauseCall, bool)
PAUSED = Method("paused", NoArguments, list[Pause])
SWEEP = Method("sweep", SweepCall, SweepReport)
GET = Method("get", TasksCall, list[Task | None])
GET_ARCHIVED = Method("get_archived", TasksCall, list[ArchivedTask | None])
LIST_ACTIVE = Method("list_active", ListActiveCall, list[Task])
LIST_ARCHIVED = Method("list_archived", ListArchivedCall, list[ArchivedTask])
HISTORY = Method("history", TasksCall, list[list[Attempt]])
STATS = Method("stats", NoArguments, QueueStats)
BACKLOG = Method("backlog", NoArguments, list[Backlog])
OPERATIONS = Method("operations", NoArguments, dict[str, object])
PING = Method("ping", NoArguments, type(None))
CHANGED = Method("changed", ChangedCall, Heard)


class Code(StrEnum):
    """What kind of error a refusal is; all but the first are errors of the protocol."""

    VERSION = "ERR_STORE_VERSION"
    INVALID = "ERR_BAD_REQUEST"
    CONFLICT = "ERR_EVENT_CONFLICT"
    FULL = "ERR_STORE_FULL"
    UNAVAILABLE = "ERR_STORE_UNAVAILABLE"


STATUS: dict[str, int] = {
    Code.VERSION: 400,
    Code.INVALID: 400,
    Code.CONFLICT: 409,
    Code.FULL: 507,
    Code.UNAVAILABLE: 503,
}


class Refusal(Struct, frozen=True, omit_defaults=True):
    """An error on the wire. Which of the last keys it has depends on the code."""

    code: str
    message: str
    field: str = ""
    reason: str = ""
    operation: str = ""
    event_id: str = ""


class Envelope(Struct, frozen=True):
    """What every reply of the API stands in."""

    data: Raw = Raw(b"null")
    error: Refusal | None = None


def refusal(error: Exception) -> Refusal | None:
    """How an error of the protocol travels; None: it is none."""
    match error:
        case InvalidRequest():
            return Refusal(Code.INVALID, str(error), field=error.field, reason=error.reason)
        case EventConflict():
            return Refusal(Code.CONFLICT, str(error), event_id=error.event_id)
        case WritesRefused():  # for a worker elsewhere it is an outage: it waits until the server is no shadow any more
            return Refusal(Code.UNAVAILABLE, str(error), operation=error.operation, reason="the server is a shadow")
        case StoreUnavailable():
            code = Code.FULL if isinstance(error, StoreFull) else Code.UNAVAILABLE
            return Refusal(code, str(error), operation=error.operation, reason=error.reason)
        case _:
            return None


def raised(refused: Refusal) -> QueueRuntimeError | None:
    """The error of the protocol that travelled so; None: it was none."""
    match refused.code:
        case Code.INVALID if refused.field:
            return InvalidRequest(refused.field, refused.reason)
        case Code.CONFLICT:
            return EventConflict(refused.event_id)
        case Code.FULL:
            return StoreFull(refused.operation, refused.reason)
        case Code.UNAVAILABLE:
            return StoreUnavailable(refused.operation, refused.reason)
        case _:
            return None

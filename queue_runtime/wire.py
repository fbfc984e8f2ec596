"""JSON in Phorge's spelling: what requests may say, and how tasks are written.

Request bodies are decoded strictly by msgspec. Every key is optional and may be null for the decoder, so that
"is required" and the bounds are said in one place and in the same words. Unknown keys are ignored, and of a
key that stands twice the last one counts, as in the Go service.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from queue_runtime.errors import InvalidRequest
from queue_runtime.task import (
    DEFAULT_QUEUE,
    ArchivedTask,
    Attempt,
    Lease,
    NewTask,
    Pause,
    PauseKind,
    QueueStats,
    Sentinel,
    Task,
    check_name,
    check_range,
)

INT64 = 2**63 - 1
Int64 = Annotated[int, Meta(ge=-INT64 - 1, le=INT64)]
Json = dict[str, object]

WIRE_NAMES = {
    "task_id": "taskID",
    "task_class": "taskClass",
    "object_phid": "objectPHID",
    "container_phid": "containerPHID",
    "delay_until": "delayUntil",
    "idempotency_key": "idempotencyKey",
    "max_attempts": "maxAttempts",
    "event_id": "eventID",
    "duration_us": "duration",
}
"""Python name of a value -> its key on the wire, where the two differ."""

MAX_TASKS = 1000
"""Tasks, or outcomes, of one request, as the contract has it. A handler here may bring more follow-ups."""

HIDDEN_OWNERS = frozenset({Sentinel.RETRY, Sentinel.DELAY, Sentinel.UNKNOWN})
"""Owners that the Go service does not know: it leaves the column NULL, and so the key is absent."""


class EnqueueBody(Struct):
    """EnqueueRequest of the contract; the last three keys are ours."""

    taskClass: str | None = None
    data: str | None = None
    priority: Int64 | None = None
    objectPHID: str | None = None
    containerPHID: str | None = None
    delayUntil: Int64 | None = None
    queue: str | None = None
    idempotencyKey: str | None = None
    maxAttempts: Int64 | None = None


class EnqueueBatchBody(Struct):
    tasks: list[EnqueueBody] | None = None


class EnqueueEventBody(Struct):
    eventID: str | None = None
    task: EnqueueBody | None = None


class LeaseBody(Struct):
    limit: Int64 | None = None
    taskClasses: list[str] | None = None
    queues: list[str] | None = None
    duration: Int64 | None = None
    waitSeconds: Int64 | None = None


class TaskBody(Struct):
    taskID: Int64 | None = None


class CompleteBody(TaskBody):
    duration: Int64 | None = None


class FailBody(TaskBody):
    permanent: bool | None = None
    retryWait: Int64 | None = None
    message: str | None = None


class YieldBody(TaskBody):
    duration: Int64 | None = None


class TasksBody(Struct):
    taskIDs: list[Int64] | None = None


class RetryBody(TasksBody):
    repeat: bool | None = None


class PriorityBody(TasksBody):
    priority: Int64 | None = None


class DelayBody(TasksBody):
    delayUntil: Int64 | None = None


class ReceiptBody(TaskBody):
    """What a lease gave its holder, and what proves that it still holds the task."""

    leaseOwner: str | None = None
    leaseExpires: Int64 | None = None


class RenewBody(ReceiptBody):
    duration: Int64 | None = None


class FinalizeBody(ReceiptBody):
    duration: Int64 | None = None
    followups: list[EnqueueBody] | None = None


class ResolveBody(ReceiptBody):
    outcome: str | None = None
    retryWait: Int64 | None = None
    duration: Int64 | None = None
    message: str | None = None


class SettlementBody(ReceiptBody):
    outcome: str | None = None
    duration: Int64 | None = None
    retryWait: Int64 | None = None
    message: str | None = None
    followups: list[EnqueueBody] | None = None


class SettleBatchBody(Struct):
    settlements: list[SettlementBody] | None = None


class PauseBody(Struct):
    taskClass: str | None = None
    queue: str | None = None
    all: bool | None = None


Body = TypeVar("Body", bound=Struct)


def decode(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """Read a request body; raises InvalidRequest that names the key on the wire."""
    try:
        if not body.isascii():
            body.decode()  # msgspec looks into the strings it keeps, not into those it skips
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = path.strip("`").removeprefix(".") or "body"
        reason = text.replace("`", "").replace(" | null", "")
        raise InvalidRequest(field, reason[:1].lower() + reason[1:]) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest("body", "must be a JSON object in UTF-8") from None
    except RecursionError:
        raise InvalidRequest("body", "is nested too deeply") from None


def new_task(body: EnqueueBody, at: str = "") -> NewTask:
    """The task a request asks for; `at` is where the request stands in its body, e.g. `followups[3].`."""
    if not body.taskClass:
        raise InvalidRequest(f"{at}taskClass", "is required")
    delay_until = body.delayUntil
    try:
        return NewTask(
            task_class=body.taskClass,
            data=body.data or "",
            priority=body.priority,
            object_phid=body.objectPHID or None,
            container_phid=body.containerPHID or None,
            delay_until=delay_until if delay_until is not None and delay_until > 0 else None,
            queue=body.queue or None,
            idempotency_key=body.idempotencyKey or None,
            max_attempts=body.maxAttempts,
        )
    except InvalidRequest as error:
        raise InvalidRequest(at + wire_name(error.field), error.reason) from None


def new_tasks(bodies: Sequence[EnqueueBody] | None, field: str) -> list[NewTask]:
    """The tasks of a list; raises InvalidRequest when it is longer than any list of tasks may be."""
    bodies = bodies or ()
    if len(bodies) > MAX_TASKS:
        raise InvalidRequest(field, f"must be at most {MAX_TASKS} tasks, not {len(bodies)}")
    return [new_task(body, f"{field}[{place}].") for place, body in enumerate(bodies)]


def task_id(body: TaskBody, at: str = "") -> int:
    """The id a request names."""
    if body.taskID is None:
        raise InvalidRequest(f"{at}taskID", "is required")
    check_range(f"{at}taskID", body.taskID, 1, INT64)
    return body.taskID


def receipt(body: ReceiptBody, at: str = "") -> Lease:
    """The lease a request claims to hold; whether it does is the store's to say."""
    task = task_id(body, at)
    if not body.leaseOwner:
        raise InvalidRequest(f"{at}leaseOwner", "is required")
    check_name(f"{at}leaseOwner", body.leaseOwner, limit=64)
    if body.leaseExpires is None:
        raise InvalidRequest(f"{at}leaseExpires", "is required")
    check_range(f"{at}leaseExpires", body.leaseExpires, 1, INT64)
    return Lease(task, body.leaseOwner, body.leaseExpires)


def pause(body: PauseBody) -> Pause:
    """The pause a request names: a class, a queue or everything."""
    named = [bool(body.taskClass), bool(body.queue), bool(body.all)]
    if sum(named) != 1:
        raise InvalidRequest("body", "must name one of taskClass, queue and all (true)")
    if body.all:
        return Pause(PauseKind.ALL)
    try:
        if body.taskClass:
            return Pause(PauseKind.CLASS, body.taskClass)
        return Pause(PauseKind.QUEUE, body.queue or "")
    except InvalidRequest as error:
        raise InvalidRequest("taskClass" if body.taskClass else "queue", error.reason) from None


def wire_name(field: str) -> str:
    """How a value is called on the wire."""
    return WIRE_NAMES.get(field, field)


def task_json(task: Task, *, data: bool = False) -> Json:
    """An active task. `data` only where the contract sends payloads: leases and single reads."""
    found = _common(task)
    if task.failure_time is not None:
        found["failureTime"] = task.failure_time
    if data and task.data:
        found["data"] = task.data
    return found


def archived_json(task: ArchivedTask, *, data: bool = False) -> Json:
    """An ended task."""
    found = _common(task)
    found["result"] = int(task.result)
    found["duration"] = task.duration_us
    found["archivedEpoch"] = task.archived_epoch
    if data and task.data:
        found["data"] = task.data
    return found


def _common(task: Task | ArchivedTask) -> Json:
    found: Json = {"id": task.id, "taskClass": task.task_class}
    if task.lease_owner and task.lease_owner not in HIDDEN_OWNERS:
        found["leaseOwner"] = task.lease_owner
    if task.lease_expires is not None:
        found["leaseExpires"] = task.lease_expires
    found["failureCount"] = task.failure_count
    found["dataID"] = task.data_id
    found["priority"] = task.priority
    if task.object_phid:
        found["objectPHID"] = task.object_phid
    if task.container_phid:
        found["containerPHID"] = task.container_phid
    found["dateCreated"] = task.date_created
    found["dateModified"] = task.date_modified
    if task.queue != DEFAULT_QUEUE:
        found["queue"] = task.queue
    if task.max_attempts is not None:
        found["maxAttempts"] = task.max_attempts
    if task.idempotency_key is not None:
        found["idempotencyKey"] = task.idempotency_key
    if task.lost_count:
        found["lostCount"] = task.lost_count
    return found


def attempts_json(attempts: Sequence[Attempt]) -> list[Json]:
    """The error history of a task, oldest first."""
    return [
        {
            "attempt": one.attempt,
            "kind": one.kind.value,
            "when": one.when,
            "leaseOwner": one.owner or "",
            "duration": one.duration_us,
            "message": one.message,
            "trace": one.trace,
        }
        for one in attempts
    ]


def pause_json(found: Pause) -> Json:
    """A pause, in the words of the request that set it."""
    if found.kind is PauseKind.ALL:
        return {"all": True}
    return {"taskClass" if found.kind is PauseKind.CLASS else "queue": found.name}


def stats_json(stats: QueueStats) -> Json:
    """The four counts of the contract."""
    return {
        "activeCount": stats.active,
        "leasedCount": stats.leased,
        "archivedCount": stats.archived,
        "failedCount": stats.failed,
    }


def event_digest(task: NewTask, *, sent_delay: int | None = None) -> str:
    """What makes two tasks of one event the same: SHA-256 of the JSON that the Go service would write.

    `sent_delay` is delayUntil as the request had it: 0 and less mean no delay, yet count as a difference.
    Our own options are appended only when set, so that a live inbox of the Go service can be taken over.
    """
    fields = {
        "taskClass": task.task_class,
        "data": task.data,
        "priority": task.priority,
        "objectPHID": task.object_phid,
        "containerPHID": task.container_phid,
        "delayUntil": task.delay_until if sent_delay is None else sent_delay,
        "queue": task.queue,
        "idempotencyKey": task.idempotency_key,
        "maxAttempts": task.max_attempts,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    text = json.dumps(present, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.translate(_GO_ESCAPES).encode()).hexdigest()


_GO_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}

"""The messages of `worker.execute`: what is asked of PHP about one task, and what PHP answers."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from conduit.replies import MALFORMED
from queue_runtime.errors import InvalidRequest
from queue_runtime.task import MAX_FOLLOWUPS, NewTask, Task

METHOD = "worker.execute"
VERSION = 1

NO_CLASS = "ERR-NO-TASK-CLASS"
"""What a version that knows no phases says to PROBE."""

PROBE: Mapping[str, object] = {
    "executionVersion": VERSION,
    "phase": "capabilities",
    "taskID": 0,
    "taskClass": "",  # a version that knows no phases refuses this before it builds a worker
    "data": "{}",
    "failureCount": 0,
    "priority": 0,
    "leaseOwner": "startup-probe",
    "leaseExpires": 0,
}


class Unreadable(Exception):
    """The answer does not keep to the protocol. `ran`: so much of it is plain that the task has run to its end."""

    def __init__(self, reason: str, *, ran: bool = False) -> None:
        super().__init__(reason)
        self.ran = ran


class Terms(NamedTuple):
    """How PHP wants to be called."""

    version: int
    """0: run it, and no more (the first release of the fork). 1: phases, retry times, follow-ups"""

    locks: bool = False
    """PHP holds a lock while a task runs and answers `busy` to a second call, as our own extension does"""


class Answer(Struct, rename="camel"):
    """What PHP says of one task. Numbers may come as text, as PHP's often do."""

    result: str
    execution_version: object = None
    duration: object = None
    retry: object = None
    lease_duration: object = None
    task_lock: object = None
    failure_reason: object = None
    followups: Raw = Raw(b"null")
    """read only when all else is"""

    @property
    def reason(self) -> str:
        """Why it failed, for the error history."""
        return self.failure_reason if isinstance(self.failure_reason, str) and self.failure_reason else "no reason"


class _Child(Struct, rename="camel"):
    task_class: str
    data: Raw = Raw(b'""')
    options: Raw = Raw(b"{}")
    """the fork writes what stands in here beside the class"""


class _Options(Struct):
    """Absent and null mean the same."""

    priority: int | None = None
    objectPHID: str | None = None
    containerPHID: str | None = None
    delayUntil: int | None = None


_decode_answer = msgspec.json.Decoder(Answer).decode
_decode_children = msgspec.json.Decoder(list[Raw] | dict[str, Raw] | None).decode
_decode_child = msgspec.json.Decoder(_Child).decode
_decode_options = msgspec.json.Decoder(_Options, strict=False).decode  # numbers may be text


def plain_call(task: Task) -> dict[str, object]:
    """The call of version 0; that method refuses every other parameter."""
    return {"taskID": task.id, "taskClass": task.task_class, "data": task.data or ""}


def phase_call(phase: str, task: Task, lease_expires: int) -> dict[str, object]:
    """A call of version 1; PHP wants whole numbers to be JSON integers, and a lease that has not ended."""
    return {
        "executionVersion": VERSION,
        "phase": phase,
        "taskID": task.id,
        "taskClass": task.task_class,
        "data": task.data or "",
        "failureCount": task.failure_count,
        "priority": task.priority,
        "leaseOwner": task.lease_owner or "",
        "leaseExpires": lease_expires,
    }


def read_terms(raw: Raw) -> Terms:
    """What the answer to PROBE says. Raises Unreadable."""
    answer = _read(raw)
    if answer.result != "capabilities" or number(answer.execution_version) != VERSION:
        raise Unreadable(f"{METHOD} speaks version {answer.execution_version!r}, and this needs {VERSION}")
    return Terms(VERSION, locks=answer.task_lock is True)


def read_answer(raw: Raw, terms: Terms) -> Answer:
    """The answer about a task. Raises Unreadable."""
    answer = _read(raw)
    if terms.version and number(answer.execution_version) != terms.version:
        version = str(answer.execution_version)[:100]
        reason = f"{METHOD} answered in version {version}, and was asked in {terms.version}"
        raise Unreadable(reason, ran=answer.result == "success")
    return answer


def _read(raw: Raw) -> Answer:
    try:
        return _decode_answer(raw)
    except MALFORMED as error:
        raise Unreadable(f"{METHOD} gave a result that is not understood: {error}") from None


def read_followups(answer: Answer) -> list[NewTask]:
    """The children that the worker staged; their data is passed on as it came, byte for byte.

    Raises Unreadable where they cannot be understood, InvalidRequest where they cannot be stored.
    """
    try:
        children = _decode_children(answer.followups) or []
    except MALFORMED as error:
        raise Unreadable(f"its follow-ups are not understood: {error}") from None
    if isinstance(children, dict):  # PHP writes a list with gaps so
        children = list(children.values())
    if len(children) > MAX_FOLLOWUPS:
        raise InvalidRequest("followups", f"PHP staged {len(children)}, at most {MAX_FOLLOWUPS} are stored with a task")
    return [_child(raw) for raw in children]


def _child(raw: Raw) -> NewTask:
    try:
        child = _decode_child(raw)
        # an empty map is `[]` in PHP
        options = _decode_options(raw if _is_empty(child.options) else child.options)
        data = msgspec.json.decode(child.data, type=str) if bytes(child.data)[:1] == b'"' else str(child.data, "utf-8")
    except (*MALFORMED, UnicodeDecodeError) as error:
        raise Unreadable(f"a follow-up is not understood: {error}") from None
    return NewTask(
        task_class=child.task_class,
        data=data,
        priority=options.priority,
        object_phid=options.objectPHID or None,
        container_phid=options.containerPHID or None,
        delay_until=options.delayUntil or None,
    )


def _is_empty(options: Raw) -> bool:
    return b"".join(bytes(options).split()) in {b"{}", b"[]", b"null"}


def number(value: object) -> int | None:
    """A whole number, also one that PHP wrote as text or with a fraction of zero; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None

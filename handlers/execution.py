"""The messages of `worker.execute`: what is asked of PHP about one task, and what PHP answers."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from conduit.replies import MALFORMED
from queue_runtime.task import Task

METHOD = "worker.execute"
VERSION = 1
MAX_VERSION = 50

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

    keeps: bool = False
    """PHP keeps the answer of a run for a caller who has lost it, and says which of its leases that was"""

    alone: bool = True
    """nobody else leases these rows: a native taskmaster does not ask for that lock"""

    @property
    def short(self) -> bool:
        """Whether the ordinary lease will do, because nobody starts a run a second time while the first goes on."""
        return self.locks and self.alone


class Answer(Struct, rename="camel"):
    """What PHP says of one task. Numbers may come as text, as PHP's often do."""

    result: str
    execution_version: object = None
    duration: object = None
    retry: object = None
    lease_duration: object = None
    task_lock: object = None
    keeps_answers: object = None
    failure_reason: object = None
    followups: Raw = Raw(b"null")
    """read only when all else is, by followups.py"""

    @property
    def reason(self) -> str:
        """Why it failed, for the error history."""
        return self.failure_reason if isinstance(self.failure_reason, str) and self.failure_reason else "no reason"


class _Facts(Struct):
    taskmasters: int | None = None


class _Capabilities(Struct):
    facts: _Facts | None = None


_decode_answer = msgspec.json.Decoder(Answer).decode


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
        raise Unreadable(f"{METHOD} speaks version {_shown(answer.execution_version)}, and this needs {VERSION}")
    return Terms(VERSION, locks=answer.task_lock is True, keeps=answer.keeps_answers is True)


def read_taskmasters(raw: Raw) -> int | None:
    """How many taskmasters of its own Phorge is to run, as the answer to PROBE tells it; None where it does not."""
    try:
        facts = msgspec.json.decode(raw, type=_Capabilities).facts
    except MALFORMED:
        return None
    return None if facts is None else facts.taskmasters


def read_answer(raw: Raw, terms: Terms) -> Answer:
    """The answer about a task. Raises Unreadable."""
    answer = _read(raw)
    if terms.version and number(answer.execution_version) != terms.version:
        version = _shown(answer.execution_version)
        reason = f"{METHOD} answered in version {version}, and was asked in {terms.version}"
        raise Unreadable(reason, ran=answer.result == "success")
    return answer


def _read(raw: Raw) -> Answer:
    try:
        return _decode_answer(raw)
    except MALFORMED as error:
        raise Unreadable(f"{METHOD} gave a result that is not understood: {error}") from None


def _shown(value: object) -> str:
    """A version, for a sentence: it may be anything, of any length."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "of too many digits"
    return (
        str(value)[:MAX_VERSION] if isinstance(value, str | int | float | None) else f"of type {type(value).__name__}"
    )


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

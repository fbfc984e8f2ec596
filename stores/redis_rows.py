"""Rows of the Redis store as values, and back. `lua/fragments/layout.lua` has the layout of each part."""

from collections.abc import Iterable, Sequence
from struct import Struct as Layout

import msgspec

from queue_runtime.store import Routes
from queue_runtime.task import U32, ArchivedTask, Attempt, AttemptKind, NewTask, Result, Sentinel, Task

INLINE_DATA = 1000
"""Payloads up to so many bytes stand in the body; longer ones apart, so that scripts do not carry them about."""

APART, _KEYED, _INHERITS = 1, 2, 4

_FIXED = Layout(">IIIBHH")
_NEW = Layout(">IIBHH")
_STATE = Layout(">IIIII")
_ENDED = Layout(">BIIII")

Rest = tuple[str, str, str, int]
"""PHIDs, idempotency key and max_attempts; empty text and zero stand for none."""

_read_rest = msgspec.msgpack.Decoder(Rest).decode
_pack = msgspec.msgpack.Encoder().encode
_NO_REST: Rest = ("", "", "", 0)
_RESULTS = {int(result): result for result in Result}

_lanes: dict[bytes, tuple[str, str]] = {}
_lane_names: dict[tuple[str, str], bytes] = {}
_MOST_LANES = 10_000
"""Names met so far, as they are on the server and here; forgotten when somebody makes up too many."""


def pack(value: object) -> bytes:
    """A value as the msgpack that scripts read."""
    return _pack(value)


def id_text(task_id: int) -> str:
    """An id as keys and scripts write it; empty where no task can have it."""
    return f"{task_id:010d}" if 0 < task_id <= U32 else ""


def id_texts(task_ids: Iterable[int]) -> list[str]:
    """The same for many."""
    return [id_text(task_id) for task_id in task_ids]


def new_task(new: NewTask, routes: Routes, default_priority: int | None) -> list[bytes]:
    """A task as the scripts insert it: its body without the time, and its payload where that stands apart.

    Without a default a task that names no priority takes its parent's.
    """
    queue = routes.queue_for(new.task_class) if new.queue is None else new.queue
    lane = _lane_names.get((queue, new.task_class)) or _name_lane(queue, new.task_class)
    rest = b""
    flags = 0
    if new.object_phid or new.container_phid or new.idempotency_key or new.max_attempts:
        flags = _KEYED if new.idempotency_key else 0
        rest = _pack(
            (new.object_phid or "", new.container_phid or "", new.idempotency_key or "", new.max_attempts or 0)
        )
    priority = default_priority if new.priority is None else new.priority
    if priority is None:
        priority, flags = 0, flags | _INHERITS
    data = new.data.encode()
    delay = new.delay_until or 0
    if len(data) <= INLINE_DATA:
        return [_NEW.pack(priority, delay, flags, len(lane), len(rest)) + lane + rest + data]
    return [_NEW.pack(priority, delay, flags | APART, len(lane), len(rest)) + lane + rest, data]


def _name_lane(queue: str, task_class: str) -> bytes:
    if len(_lane_names) >= _MOST_LANES:
        _lane_names.clear()
    name = _lane_names[queue, task_class] = f"{queue}/{task_class}".encode()
    return name


class Body:
    """What never changes of a task, read from its body or the head of it.

    `readable` is False where a name is not UTF-8 text, which this store never writes; it is shown as far as it is.
    """

    __slots__ = ("created", "delay", "flags", "head", "lane", "priority", "readable", "rest")

    def __init__(self, body: bytes) -> None:
        self.created, self.priority, self.delay, self.flags, lane_size, rest_size = _FIXED.unpack_from(body)
        end = _FIXED.size + lane_size
        lane = body[_FIXED.size : end]
        self.head = end + rest_size
        self.readable = True
        self.rest: Rest = _NO_REST
        try:
            self.lane = _lanes.get(lane) or _read_lane(lane)
            if rest_size:
                self.rest = _read_rest(body[end : self.head])
        except (UnicodeDecodeError, msgspec.DecodeError):
            queue, _, task_class = lane.decode(errors="replace").partition("/")
            self.lane, self.readable = (task_class, queue), False


def _read_lane(lane: bytes) -> tuple[str, str]:
    """Class and queue."""
    if len(_lanes) >= _MOST_LANES:
        _lanes.clear()
    queue, _, task_class = lane.decode().partition("/")
    _lanes[lane] = task_class, queue
    return task_class, queue


def enqueued_task(task_id: int, head: bytes) -> Task:
    """A row as it was when it was enqueued."""
    body = Body(head)
    task_class, queue = body.lane
    object_phid, container_phid, key, max_attempts = body.rest
    return Task(
        id=task_id,
        task_class=task_class,
        data_id=task_id,
        priority=body.priority,
        date_created=body.created,
        date_modified=body.created,
        lease_owner=Sentinel.DELAY.value if body.delay else None,
        lease_expires=body.delay or None,
        object_phid=object_phid or None,
        container_phid=container_phid or None,
        queue=queue,
        idempotency_key=key or None,
        max_attempts=max_attempts or None,
    )


def active_task(task_id: int, head: bytes, hold: bytes | None, state: bytes | None, data: str | None = None) -> Task:
    """An active row."""
    owner, expires = _read_hold(hold) if hold else (None, None)
    return held_task(task_id, Body(head), state, owner=owner, expires=expires, data=data)


def held_task(
    task_id: int, body: Body, state: bytes | None, *, owner: str | None, expires: int | None, data: str | None
) -> Task:
    """An active row whose owner is known."""
    task_class, queue = body.lane
    object_phid, container_phid, key, max_attempts = body.rest
    failures, failed_at, lost, modified, priority = (
        _STATE.unpack_from(state) if state else (0, 0, 0, body.created, body.priority)
    )
    return Task(
        id=task_id,
        task_class=task_class,
        data_id=task_id,
        priority=priority,
        date_created=body.created,
        date_modified=modified,
        lease_owner=owner,
        lease_expires=expires,
        failure_count=failures,
        failure_time=failed_at or None,
        object_phid=object_phid or None,
        container_phid=container_phid or None,
        queue=queue,
        idempotency_key=key or None,
        max_attempts=max_attempts or None,
        lost_count=lost,
        data=data,
    )


def archived_task(task_id: int, head: bytes, ended: bytes, data: str | None = None) -> ArchivedTask:
    """An archived row."""
    body = Body(head)
    task_class, queue = body.lane
    object_phid, container_phid, key, max_attempts = body.rest
    result, priority, when, failures, lost = _ENDED.unpack_from(ended)
    spent_at = _ENDED.size + 1 + ended[_ENDED.size]
    hold = ended[spent_at + 1 + 8 * ended[spent_at] :]
    owner, expires = _read_hold(hold) if hold else (None, None)
    return ArchivedTask(
        id=task_id,
        task_class=task_class,
        data_id=task_id,
        priority=priority,
        date_created=body.created,
        date_modified=when,
        result=_RESULTS[result],
        duration_us=int(ended[_ENDED.size + 1 : spent_at]),
        archived_epoch=when,
        lease_owner=owner,
        lease_expires=expires,
        failure_count=failures,
        object_phid=object_phid or None,
        container_phid=container_phid or None,
        queue=queue,
        idempotency_key=key or None,
        max_attempts=max_attempts or None,
        lost_count=lost,
        data=data,
    )


def _read_hold(hold: bytes) -> tuple[str | None, int | None]:
    """Owner and expiry."""
    expires = hold[:10]
    return hold[10:].decode(errors="replace") or None, int(expires) if expires.isdigit() else None


def payload(body: bytes, apart: bytes | None) -> bytes | None:
    """The payload of a whole body; None where it should stand apart and does not."""
    parts = Body(body)
    return apart if parts.flags & APART else body[parts.head :]


def attempts(entries: Sequence[bytes]) -> list[Attempt]:
    """The entries of an error history."""
    return [attempt for entry in entries if (attempt := read_attempt(entry)) is not None]


def read_attempt(entry: bytes) -> Attempt | None:
    """One entry; None where it was not written by this store."""
    try:
        number, kind, when, owner, duration, message, trace = _read_attempt(entry)
        return Attempt(
            attempt=number,
            kind=AttemptKind(kind),
            when=when,
            owner=owner or None,
            duration_us=int(duration),
            message=message,
            trace=trace,
        )
    except (msgspec.DecodeError, ValueError):
        return None


_read_attempt = msgspec.msgpack.Decoder(tuple[int, str, int, str, str, str, str]).decode


def storable(text: str) -> str:
    """The text with what has no UTF-8 form (lone surrogates, as tracebacks may hold) written as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()

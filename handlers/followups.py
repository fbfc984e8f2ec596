"""The follow-ups that a worker of PHP has staged, as an answer of `worker.execute` has them."""

import math
import re
from collections.abc import Collection
from functools import cache

import msgspec
from msgspec import Raw, Struct

from conduit.replies import MALFORMED
from handlers.execution import Answer, Unreadable
from queue_runtime.errors import InvalidRequest
from queue_runtime.task import MAX_FOLLOWUPS, NewTask

LARGE = 2**20
"""From so many bytes on it is looked how many they are before they are taken apart."""

_NOTHING = frozenset({b"null", b"false", b'""', b"{}", b"[]"})
"""What PHP may write for nothing: an empty map is a list there."""

_WHOLE = re.compile(r"([+-]?\d{1,20})(\.0{1,20})?", re.ASCII)


class _Child(Struct, rename="camel"):
    task_class: str
    data: Raw = Raw(b'""')
    options: Raw = Raw(b"{}")
    """the fork writes what stands in here beside the class"""


class _Options(Struct):
    priority: object = None
    objectPHID: object = None
    containerPHID: object = None
    delayUntil: object = None


class _Name(str):
    """The place of a child in a list that PHP writes as an object. A type of its own, so that each can be counted."""

    __slots__ = ()


_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_child = msgspec.json.Decoder(_Child).decode
_decode_options = msgspec.json.Decoder(_Options).decode


def read_followups(answer: Answer) -> list[NewTask]:
    """The children that the worker staged; their data is passed on as it came, byte for byte.

    Raises Unreadable where they cannot be understood, InvalidRequest where they cannot be stored.
    """
    try:
        children = _children(answer.followups)
    except MALFORMED as error:
        raise Unreadable(f"its follow-ups are not understood: {error}") from None
    return [_child(raw) for raw in children]


def _children(followups: Raw) -> Collection[Raw]:
    """Each by itself. To take millions apart would hold up the event loop for seconds, so that is not begun."""
    if _is_nothing(followups):
        return ()
    text = memoryview(followups)
    if text[0] == ord("{"):  # PHP writes a list with gaps so
        return _decode_counted(followups).values()
    if text[0] == ord("[") and text.nbytes >= LARGE and _are_legion(followups):
        raise _too_many()
    children = _decode_list(followups)
    if len(children) > MAX_FOLLOWUPS:
        raise _too_many()
    return children


def _decode_counted(followups: Raw) -> dict[_Name, Raw]:
    count = 0

    def name(_: type, text: str) -> _Name:
        nonlocal count
        count += 1
        if count > MAX_FOLLOWUPS:
            raise _too_many()
        return _Name(text)

    return msgspec.json.decode(followups, type=dict[_Name, Raw], dec_hook=name)


def _are_legion(followups: Raw) -> bool:
    """Whether a list is longer than any that is stored."""
    try:
        msgspec.json.decode(followups, type=_few())
    except msgspec.ValidationError:
        return True
    return False


@cache
def _few() -> type[Struct]:
    """Of a list that is no longer; of a longer one no more is read than that."""
    fields = [(f"n{n}", Raw, Raw(b"null")) for n in range(MAX_FOLLOWUPS)]
    return msgspec.defstruct("_Few", fields, array_like=True, forbid_unknown_fields=True)


def _too_many() -> InvalidRequest:
    return InvalidRequest("followups", f"PHP staged more than {MAX_FOLLOWUPS}, and no more are stored with a task")


def _child(raw: Raw) -> NewTask:
    try:
        child = _decode_child(raw)
        options = _decode_options(raw if _is_nothing(child.options) else child.options)
        data = msgspec.json.decode(child.data, type=str) if bytes(child.data)[:1] == b'"' else str(child.data, "utf-8")
    except (*MALFORMED, UnicodeDecodeError) as error:
        raise Unreadable(f"a follow-up is not understood: {error}") from None
    return NewTask(
        task_class=child.task_class,
        data=data,
        priority=_whole("priority", options.priority),
        object_phid=_text("objectPHID", options.objectPHID),
        container_phid=_text("containerPHID", options.containerPHID),
        delay_until=_whole("delayUntil", options.delayUntil) or None,
    )


def _is_nothing(raw: Raw) -> bool:
    text = memoryview(raw)
    return text.nbytes < LARGE and b"".join(bytes(text).split()) in _NOTHING


def _whole(name: str, value: object) -> int | None:
    """A whole number, whose type PHP may have lost on the way: 1500.0 and "1500" are 1500, and false is nothing."""
    if _is_absent(value):
        return None
    if isinstance(value, str) and (found := _WHOLE.fullmatch(value)):
        return int(found[1])
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Unreadable(f"a follow-up is not understood: {name} is no whole number")


def _text(name: str, value: object) -> str | None:
    if _is_absent(value):
        return None
    if isinstance(value, str):
        return value
    raise Unreadable(f"a follow-up is not understood: {name} is no text")


def _is_absent(value: object) -> bool:
    return value is None or value is False or value == ""

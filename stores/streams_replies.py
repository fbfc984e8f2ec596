"""What the scripts of the dispatch answer, checked: Redis may hold what nobody of us put there.

Each reader raises ValueError where a reply is not what it must be; the line takes that for an outage.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from queue_runtime.task import U32
from stores.redis_link import Reply

Entries = list[tuple[str, tuple[int, int]]]
"""Queues, and an entry of the stream of each."""


_BEHIND, _ALONE = 2, 3
"""Why a reading stopped."""


class Added(NamedTuple):
    """What became of entries that were offered."""

    added: int
    full: int
    """had no room in their stream"""

    gone: list[int]
    """tasks that may have been leased since the record was read"""

    last: Entries


class Entry(NamedTuple):
    """One entry of a stream."""

    queue: str
    number: bytes
    task_id: int
    task_class: str


class Reading(NamedTuple):
    """What one look at the streams brought."""

    health: int
    stopped: str
    """the queue that is to be leased from the record; empty: all queues were looked at"""

    behind: bool
    """whether that is because it is behind; else it holds classes that this caller did not ask for"""

    alone: bool
    """whether all the other queues are empty then"""

    known: int
    """tasks that have an entry"""

    entries: list[Entry]
    low: list[tuple[str, int, int]]
    """queues to fill again, and from which priority and id on"""

    malformed: int


class Tended(NamedTuple):
    """What the housekeeping found."""

    health: int
    freed: int
    old: list[tuple[str, bytes, int]]
    """queue, number and task of entries"""

    last: tuple[str, bytes]
    """queue and number behind which there may be more; empty: there are none"""


class Mended(NamedTuple):
    """One step of bringing the books in order."""

    cursor: int
    dropped: list[str]
    """keys and values that were not ours"""


def read_added(reply: Reply) -> Added:
    added, full, gone, *last = _list(reply)
    return Added(read_number(added), read_number(full), read_ids(gone), read_entries(last))


def read_entries(reply: Reply) -> Entries:
    return [(_text(queue), read_entry(entry)) for queue, entry in _groups(reply, 2)]


def read_reading(reply: Reply) -> Reading:
    health, stopped, why, known, entries, low, malformed = _list(reply)
    return Reading(
        read_number(health),
        _text(stopped),
        read_number(why) in {_BEHIND, _ALONE},
        read_number(why) == _ALONE,
        read_number(known),
        list(_entries(entries)),
        [(_text(queue), read_u32(priority), read_u32(task_id)) for queue, priority, task_id in _groups(low, 3)],
        read_number(malformed),
    )


def _entries(reply: Reply) -> Iterator[Entry]:
    for queue, task_class, run in _groups(reply, 3):
        name, class_name, words = _text(queue), _bytes(task_class).decode(errors="replace"), _bytes(run).split()
        for number, task_id in zip(words[::2], words[1::2], strict=True):
            yield Entry(name, number, read_u32(task_id), class_name)


def read_tended(reply: Reply) -> Tended:
    health, freed, old, queue, number = _list(reply)
    return Tended(
        read_number(health),
        read_number(freed),
        [(_text(queue), _bytes(number), read_u32(task_id)) for queue, number, task_id in _groups(old, 3)],
        (_text(queue), _bytes(number)),
    )


def read_mended(reply: Reply) -> Mended:
    cursor, dropped = _list(reply)
    return Mended(read_number(cursor), [_bytes(name).decode(errors="replace") for name in _list(dropped)])


def read_news(reply: Reply) -> list[tuple[bytes, tuple[int, int]]]:
    """Streams with new entries, and the last of each: what XREAD answers, which is nothing when its time is over."""
    news = []
    for item in [] if reply is None else _list(reply):
        stream, entries = _list(item)
        *_, (number, _) = map(_list, _list(entries))
        news.append((_bytes(stream), read_entry(number)))
    return news


def read_ids(reply: Reply) -> list[int]:
    return [read_u32(value) for value in _list(reply)]


def read_number(reply: Reply) -> int:
    """A number that is not negative, whichever way it came."""
    if isinstance(reply, bytes) and reply.isdigit() and len(reply) <= 20:
        return int(reply)
    if isinstance(reply, int) and reply >= 0:
        return reply
    raise ValueError(f"{_shown(reply)} is no number")


def read_u32(reply: Reply) -> int:
    """The number of a task, or a priority."""
    number = read_number(reply)
    if number > U32:
        raise ValueError(f"{number} is too large")
    return number


def read_entry(reply: Reply) -> tuple[int, int]:
    """The number of an entry."""
    milliseconds, _, number = _bytes(reply).partition(b"-")
    return read_number(milliseconds), read_number(number)


def _list(reply: Reply) -> list[Any]:
    if not isinstance(reply, list):
        raise ValueError(f"{_shown(reply)} is no list")  # noqa: TRY004  one kind of error for all that is wrong
    return reply


def _groups(reply: Reply, size: int) -> Iterator[Sequence[Any]]:
    flat = _list(reply)
    if len(flat) % size:
        raise ValueError(f"a list of {len(flat)} cannot be read by {size}")
    for first in range(0, len(flat), size):
        yield flat[first : first + size]


def _bytes(reply: Reply) -> bytes:
    if not isinstance(reply, bytes):
        raise ValueError(f"{_shown(reply)} is no text")  # noqa: TRY004  as above
    return reply


def _text(reply: Reply) -> str:
    return _bytes(reply).decode()


def _shown(reply: Reply) -> str:
    return repr(reply)[:60]

"""Proves that every task of a queue stands in the indexes it must stand in and nowhere else, and rebuilds them."""

from collections import Counter
from collections.abc import AsyncIterator

from msgspec import Struct

from stores.redis import RedisStore
from stores.redis_calls import Calls
from stores.redis_errors import Damaged

STEP = 500
EXAMPLES = 20

LOST = frozenset({"has lost its payload", "has damaged names", "is damaged beyond repair"})
"""What no repair brings back. Such a task fails when it is leased, or is set aside."""

_TASKS = ("body", "hold", "state", "ended", "data", "active", "archive", "over", "odd", "failing")
_OTHERS = {
    "event": "events",
    "event_time": "event_times",
    "pause": "pauses",
    "lane": "lanes",
    "order": "orders",
    "handed": "handed",
}
_SORTED = frozenset({"active", "archive", "over", "event_times", "lanes"})
_PLAIN = frozenset({"odd", "failing", "pauses"})
_PLACES = (b"R:", b"D:", b"B:", b"H:", b"W:")
_HEADS = b"heads:"
_CALLER = b"caller:"

PASSES = 5
"""Most passes of a repair: what one mends may show the next what is missing. The last one finds nothing to mend."""


class Report(Struct, frozen=True):
    """What a check found: how many tasks there are, how many differences of each kind, and some of them in words.

    `left`: the kinds of difference that the last pass of a repair still met, and that are not LOST.
    """

    tasks: int
    differences: dict[str, int]
    examples: list[str]
    left: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


async def check(store: RedisStore) -> Report:
    """Compare everything. Others may go on working: each task is looked at in one moment."""
    found = await _look_at_all(store.calls, mend=False)
    return _report(await _tasks(store.calls), found)


async def repair(store: RedisStore) -> Report:
    """Compare everything, and make the indexes follow the tasks, until nothing differs but what is LOST.

    The report is of all that was met on the way. Others may go on working.
    What is in the way and cannot be mended is kept under `{prefix}:damaged:…`. A payload that is gone cannot be made
    again: the lease that meets such a task archives it as failed.
    """
    found: _Found = set()
    for _ in range(PASSES):
        met = await _look_at_all(store.calls, mend=True)
        found |= met
        left = frozenset(_text(name) for name, _ in met) - LOST
        if not left:
            break
    return _report(await _tasks(store.calls), found, left)


_Found = set[tuple[bytes, bytes]]
"""Differences: what differs, and of what. A task is looked at from each part that knows it."""


async def _look_at_all(calls: Calls, *, mend: bool) -> _Found:
    found: _Found = set()

    async def look(part: str | bytes, members: list[bytes]) -> None:
        differing = await calls.script("check", int(mend), part, *members)
        found.update(zip(differing[::2], differing[1::2], strict=True))

    async for names in _scan_keys(calls):
        await look("type", names)
    if mend or not found:  # nothing can be compared with a key of another type
        await look("last_id", [b"last_id"])
        async for part, members in _parts(calls):
            await look(part, members)
    return found


async def _tasks(calls: Calls) -> int:
    """How many there are; 0 where the key that holds them is of another type."""
    try:
        return int(await calls.command("check", "HLEN", f"{calls.keys}body"))
    except Damaged:
        return 0


def _report(tasks: int, found: _Found, left: frozenset[str] = frozenset()) -> Report:
    kinds = Counter(_text(name) for name, _ in found)
    examples = [f"{_text(member)}: {_text(name)}" for name, member in sorted(found)]
    return Report(tasks, dict(kinds), examples[:EXAMPLES], left)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


async def _parts(calls: Calls) -> AsyncIterator[tuple[str | bytes, list[bytes]]]:
    """Everything that is to be compared, in pieces: what it is, and some of it."""
    async for part, members in _heads(calls):
        yield part, members
    async for members in _scan(calls, "keys"):  # a wrong key is in the way of the right one
        yield "key", members
    for name in _TASKS:
        async for members in _scan(calls, name):
            yield "task", members
    for part, name in _OTHERS.items():
        async for members in _scan(calls, name):
            yield part, members
    async for names in _scan_keys(calls):
        if histories := [name.removeprefix(b"history:") for name in names if name.startswith(b"history:")]:
            yield "history", histories
        if callers := [name for name in names if name.startswith(_CALLER)]:
            yield "caller", callers
        for place in names:
            if place.startswith(_PLACES):
                async for members in _scan(calls, place):
                    yield place, members


async def _heads(calls: Calls) -> AsyncIterator[tuple[str | bytes, list[bytes]]]:
    """The heads, and what must stand among them. Before the tasks, whose mending has the heads follow."""
    async for names in _scan_keys(calls):
        for heads in names:
            if heads.startswith(_HEADS):
                async for members in _scan(calls, heads):
                    yield heads, members
        if known := [name for name in names if name.startswith((_HEADS, *_PLACES))]:
            yield "first", known


async def _scan(calls: Calls, name: str | bytes) -> AsyncIterator[list[bytes]]:
    """The members of one key, without what belongs to them."""
    command = "SSCAN" if name in _PLAIN else "ZSCAN" if name in _SORTED or isinstance(name, bytes) else "HSCAN"
    key = calls.keys.encode() + (name if isinstance(name, bytes) else name.encode())
    cursor = b"0"
    while True:
        cursor, found = await calls.command("check", command, key, cursor, "COUNT", STEP)
        members = found if command == "SSCAN" else found[::2]
        for start in range(0, len(members), STEP):
            yield members[start : start + STEP]
        if cursor == b"0":
            return


async def _scan_keys(calls: Calls) -> AsyncIterator[list[bytes]]:
    """The keys of the queue without their beginning. Places that nobody knows are found here too."""
    pattern = calls.keys.replace("[", r"\[").replace("*", r"\*").replace("?", r"\?") + "*"
    cursor = b"0"
    while True:
        cursor, found = await calls.command("check", "SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
        if found:
            yield [name[len(calls.keys.encode()) :] for name in found]
        if cursor == b"0":
            return

"""Proves that every task of a queue stands in the indexes it must stand in and nowhere else, and rebuilds them."""

from collections import Counter
from collections.abc import AsyncIterator

from msgspec import Struct

from stores.redis import RedisStore
from stores.redis_calls import Calls

STEP = 500
EXAMPLES = 20

LOST = frozenset({"has lost its payload", "has damaged names", "is damaged beyond repair"})
"""What no repair brings back. Such a task fails when it is leased, or is set aside."""

_TASKS = ("body", "hold", "state", "ended", "data", "active", "archive", "over", "odd", "failing")
_OTHERS = {"key": "keys", "event": "events", "event_time": "event_times", "pause": "pauses"}
_SORTED = frozenset({"active", "archive", "over", "event_times"})
_PLAIN = frozenset({"odd", "failing", "pauses"})
_PLACES = (b"R:", b"D:", b"B:", b"H:", b"W:")
_HEADS = b"heads:"


class Report(Struct, frozen=True):
    """What a check found: how many tasks there are, how many differences of each kind, and some of them in words."""

    tasks: int
    differences: dict[str, int]
    examples: list[str]

    @property
    def whole(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


async def check(store: RedisStore) -> Report:
    """Compare everything. Others may go on working: each task is looked at in one moment."""
    return await _check(store.calls, mend=False)


async def repair(store: RedisStore) -> Report:
    """Compare everything, and make the indexes follow the tasks. The report is of what was mended, and of what is LOST.

    What is in the way and cannot be mended is kept under `{prefix}:damaged:…`. A payload that is gone cannot be made
    again: the lease that meets such a task archives it as failed.
    """
    return await _check(store.calls, mend=True)


async def _check(calls: Calls, *, mend: bool) -> Report:
    seen: set[tuple[bytes, bytes]] = set()  # a task is looked at from each part that knows it

    async def look(part: str | bytes, members: list[bytes]) -> None:
        found = await calls.script("check", int(mend), part, *members)
        seen.update(zip(found[::2], found[1::2], strict=True))

    async for names in _scan_keys(calls):
        await look("type", names)
    tasks = 0
    if mend or not seen:  # nothing can be compared with a key of another type
        tasks = await calls.command("check", "HLEN", f"{calls.keys}body")
        await look("last_id", [b"last_id"])
        async for part, members in _parts(calls):
            await look(part, members)
    kinds = Counter(name.decode(errors="replace") for name, _ in seen)
    examples = [f"{member.decode(errors='replace')}: {name.decode(errors='replace')}" for name, member in sorted(seen)]
    return Report(tasks, dict(kinds), examples[:EXAMPLES])


async def _parts(calls: Calls) -> AsyncIterator[tuple[str | bytes, list[bytes]]]:
    """Everything that is to be compared, in pieces: what it is, and some of it."""
    async for part, members in _heads(calls):
        yield part, members
    for name in _TASKS:
        async for members in _scan(calls, name):
            yield "task", members
    for part, name in _OTHERS.items():
        async for members in _scan(calls, name):
            yield part, members
    async for names in _scan_keys(calls):
        if histories := [name.removeprefix(b"history:") for name in names if name.startswith(b"history:")]:
            yield "history", histories
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

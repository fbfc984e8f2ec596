"""Proves that every task of a queue stands in the indexes it must stand in and nowhere else, and rebuilds them."""

from collections import Counter
from collections.abc import AsyncIterator

from msgspec import Struct

from stores.redis import RedisStore
from stores.redis_calls import Calls
from stores.redis_rows import pack

STEP = 500
EXAMPLES = 20


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
    """Compare everything, and make the indexes follow the tasks. The report is of what was mended.

    A payload that is gone cannot be made again: the lease that meets such a task archives it as failed.
    """
    return await _check(store.calls, mend=True)


async def _check(calls: Calls, *, mend: bool) -> Report:
    tasks: int = await calls.command("check", "HLEN", f"{calls.keys}body")
    seen: set[tuple[bytes, bytes]] = set()  # a task is looked at from each part that knows it
    async for part, members in _parts(calls):
        found = await calls.script("check", int(mend), part, pack(members))
        seen |= set(zip(found[::2], found[1::2], strict=True))
    kinds = Counter(name.decode(errors="replace") for name, _ in seen)
    examples = [f"{member.decode(errors='replace')}: {name.decode(errors='replace')}" for name, member in sorted(seen)]
    return Report(tasks, dict(kinds), examples[:EXAMPLES])


async def _parts(calls: Calls) -> AsyncIterator[tuple[str, list[str]]]:
    """Everything that is to be compared, in pieces: what it is, and some of it."""
    for name, command in (
        ("body", "HSCAN"),
        ("hold", "HSCAN"),
        ("state", "HSCAN"),
        ("ended", "HSCAN"),
        ("data", "HSCAN"),
        ("active", "ZSCAN"),
        ("archive", "ZSCAN"),
        ("over", "ZSCAN"),
        ("odd", "SSCAN"),
        ("failing", "SSCAN"),
    ):
        async for members in _scan(calls, command, name):
            yield "task", members
    async for members in _scan(calls, "HSCAN", "keys"):
        yield "key", members
    async for members in _scan(calls, "HSCAN", "events"):
        yield "event", members
    async for part, members in _scan_keys(calls):
        yield part, members


async def _scan(calls: Calls, command: str, name: str) -> AsyncIterator[list[str]]:
    """The members of one key, without what belongs to them."""
    cursor = b"0"
    while True:
        cursor, found = await calls.command("check", command, calls.keys + name, cursor, "COUNT", STEP)
        members = found if command == "SSCAN" else found[::2]
        for start in range(0, len(members), STEP):
            yield [member.decode(errors="replace") for member in members[start : start + STEP]]
        if cursor == b"0":
            return


async def _scan_keys(calls: Calls) -> AsyncIterator[tuple[str, list[str]]]:
    """Places and histories, which are keys of their own. Places that nobody knows are found here too."""
    pattern = calls.keys.replace("[", r"\[").replace("*", r"\*").replace("?", r"\?") + "*"
    cursor = b"0"
    while True:
        cursor, found = await calls.command("check", "SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
        names = [key.decode(errors="replace")[len(calls.keys) :] for key in found]
        histories = [name.removeprefix("history:") for name in names if name.startswith("history:")]
        if histories:
            yield "history", histories
        for name in names:
            if name[:2] in {"R:", "D:", "B:", "H:", "W:"}:
                async for members in _scan(calls, "ZSCAN", name):
                    yield name, members
        if cursor == b"0":
            return

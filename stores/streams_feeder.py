"""Gives the streams what the record has to run: at once where somebody tells, else when it looks."""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import TypeVar

import structlog
from msgspec import Struct

from queue_runtime.task import Pause, Task
from stores.dispatchable import Candidate, Due, Named, Page, Ready, Record, Which, Young
from stores.streams_bell import Bell
from stores.streams_line import Argument, Line
from stores.streams_replies import read_added, read_ids, read_mended, read_tended

CAP = 1000
"""Entries that a stream may hold. What finds it full stays in the record until the stream is half empty again."""

PAGE = 1000
LATE_SECONDS = 60.0
"""For so long a row is waited for whose id was given out: PHP draws it before the row can be seen."""

YOUNG_SECONDS = 1.0
LATE_IDS = 1000
"""So many ids below those given out when this process began are waited for too."""

_OFFERED_SECONDS = 2.0
"""A task is not offered again to the streams in this time, as long as its row has not changed."""

_LONG_DROP = 0.04
"""Seconds; less than a lease waits before its tasks may be given back."""

_NEWEST_PAGES = 20
"""So many due rows of about one second do not hide those that came due after them."""

_DUE_PAGES = 20
"""So many due rows of other queues do not hide those of the one that is filled again."""

_NONE_DUE_SECONDS = 0.25
"""For so long it is believed that no row is due, where a stream is filled again many times a second."""

_WALK_SHARE = 20
_SHORT_WALK = 0.5
_FEW_ROWS = 5 * PAGE
"""A walk through everything that took longer, or met more rows, is rested from for so many times as long, unless it
must be."""

_log = structlog.get_logger().bind(source="dispatch")

Item = TypeVar("Item")


class Tending(Struct, frozen=True, kw_only=True):
    """Times of the housekeeping, in seconds."""

    every: float = 5.0
    reclaim: float = 5.0
    """after which an entry that was read and not claimed goes to others"""

    forget: float = 3600.0
    """after which a silent consumer that holds nothing is forgotten"""

    old: float = 15.0
    """after which the record is asked whether a waiting entry is still work"""

    patience: int = 10
    """the record's, for the leases of our workers"""


class Feeder:
    """Adds entries to the streams. Raises LineDownError, and StoreUnavailable where the record does not answer."""

    def __init__(self, record: Record, line: Line, bell: Bell, tending: Tending, *, cap: int = CAP) -> None:
        self._record = record
        self._line = line
        self._bell = bell
        self._tending = tending
        self._cap = cap
        self._marks: deque[tuple[float, int]] = deque()
        """when a newest id was seen, and which"""
        self._looked_to = 0
        """the newest id when it was last looked for young rows"""
        self._due_seen = -1
        """the latest expiry of a due row that was seen"""
        self._none_due_until = 0.0
        self._pauses: frozenset[Pause] = frozenset()
        self._unseen = False
        """whether tasks are in no stream that no look finds: a pause is over, or ids begin anew"""
        self._offered: dict[tuple[int, int | None], float] = {}
        self._walk_at = 0.0
        self._late_at = 0.0
        self._checked: tuple[str, bytes] = ("", b"")
        """the last old entry that the record was asked about; empty: all"""
        self.kept_back: set[int] = set()
        """tasks without an entry that this process may not have just now; others may"""

    # ---- what somebody tells

    async def tasks(self, rows: Iterable[Task | None]) -> None:
        """Tasks that were just enqueued or brought back: those that can run now."""
        await self._add(
            [
                Candidate(row.id, row.task_class, row.queue, row.priority, row.lease_expires)
                for row in rows
                if row is not None and row.lease_owner is None and not row.lease_expires
            ],
            is_free=True,
        )

    async def named(self, task_ids: Collection[int]) -> None:
        """Tasks that may have been given back just now."""
        await self._add((await self.leasable(task_ids)).values(), is_free=True)

    # ---- what it finds

    async def leasable(self, task_ids: Collection[int]) -> dict[int, Candidate]:
        """Those of the tasks that a lease could take now."""
        found: dict[int, Candidate] = {}
        for part in _pages(task_ids):
            found |= {task.id: task for task in (await self._read(Named(part))).tasks}
        return found

    async def new_ones(self) -> int:
        """Find tasks that are younger than those of the last look; how many entries were added."""
        first = await self._read(Young(self._looked_to))
        added = await self._add(self._fresh(first.tasks)) + await self._offer(first.next)
        self._looked_to = first.newest
        return added

    async def look(self) -> int:
        """Find what is new and what came due; how many entries were added."""
        before = self._looked_to
        added = await self.new_ones()
        if (young := self._mark(YOUNG_SECONDS)) < before:
            added += await self._offer(Young(young), pages=1)
        due = await self._read(Due())
        if self._unseen:
            return added + await self.walk()
        added += await self._add(self._fresh(due.tasks))
        if due.next is not None:  # more than a page: what came due just now stands at the other end
            newest = Due((max(0, self._due_seen - self._tending.patience - 2), 0))
            added += await self._offer(newest, pages=_NEWEST_PAGES)
        self._saw_due(due)
        return added

    async def walk(self) -> int:
        """Go through everything that can run; how many entries were added."""
        began = time.monotonic()
        before = (await self._read(Named(()))).newest
        self._looked_to = max(self._looked_to, before)
        self._unseen = False
        added = rows = 0
        for which in (Ready(), Due(), Young(before)):
            following: Which | None = which
            while following is not None:
                page = await self._read(following)
                added += await self._add(page.tasks)
                rows += len(page.tasks)
                following = page.next
                if isinstance(which, Due):
                    self._saw_due(page)
        took = time.monotonic() - began
        is_short = took < _SHORT_WALK and rows <= _FEW_ROWS
        self._walk_at = 0.0 if is_short else time.monotonic() + _WALK_SHARE * took
        return added

    async def walk_now_and_then(self) -> int:
        """The same, unless the last walk was long and not long ago."""
        return await self.walk() if time.monotonic() >= self._walk_at else 0

    async def refill(self, queue: str, priority: int, task_id: int) -> None:
        """Fill the stream of a queue again that is behind from this priority and id on."""
        if not await self._refill_due(queue, (priority, task_id)):
            following: Ready | None = Ready((priority, task_id - 1))
            while following is not None:
                page = await self._read(following, self._cap // 2)
                following = page.next if isinstance(page.next, Ready) else None
                place = None if following is None else (following.after[0], following.after[1] + 1)
                added, full = await self._fill(queue, place, page.tasks)
                if full or added >= self._cap // 4:
                    break
        await self._line.command("DEL", f"{self._line.keys}/filling/{queue}")

    async def _refill_due(self, queue: str, place: tuple[int, int]) -> bool:
        """Add what is due in the queue; whether there may be more: the queue stays behind from this place on then."""
        if time.monotonic() < self._none_due_until:
            return False
        added = full = 0
        following: Which = Due()
        for _ in range(_DUE_PAGES):
            asked_at = time.monotonic()
            page = await self._read(following)
            if not page.tasks and page.next is None:
                self._none_due_until = asked_at + _NONE_DUE_SECONDS
            for part in _pages((task for task in page.tasks if task.queue == queue), max(1, self._cap // 4)):
                more, full = await self._fill(queue, place, part)
                added += more
                if full or added >= self._cap // 4:
                    return True
            if page.next is None:
                break
            following = page.next
        return False

    async def _fill(self, queue: str, place: tuple[int, int] | None, tasks: Sequence[Candidate]) -> tuple[int, int]:
        """Add those of the queue that is filled, and of others; how many of the queue were added, and had no room."""
        wanted = [task for task in tasks if task.queue == queue]
        others = [task for task in tasks if task.queue != queue]
        mark: tuple[Argument, Argument] = ("", "") if place is None else place
        added, full = await self._give(wanted, queue, *mark, is_free=False)
        await self._add(others)
        return added, full

    async def deliver_all(self) -> int:
        """Bring streams and record together again, whatever the server has lost; how many entries were added."""
        await self._line.learn()
        cursor = 0
        while True:
            mended = await self._line.script("streams_mend", cursor, read=read_mended)
            if mended.dropped:
                _log.warning("what nobody of us put into Redis was dropped", what=mended.dropped[:20])
            cursor = mended.cursor
            if cursor == 0:
                break
        self._offered.clear()
        added = await self.walk()
        await self._line.command("SET", f"{self._line.keys}/epoch", int(time.time()))
        return added

    async def tend(self) -> int:
        """Free what dead consumers hold, drop what is no work any more, find late rows, mend what is broken; how many
        entries were added."""
        await self._line.learn()
        times = self._tending
        milliseconds = [round(seconds * 1000) for seconds in (times.reclaim, times.forget, times.old)]
        health, freed, old, self._checked = await self._line.script(
            "streams_tend", self._line.consumer, *milliseconds, 200, *self._checked, read=read_tended
        )
        if freed:
            _log.info("entries that nobody would have read or claimed are given to others", entries=freed)
        await self._check_old(old)
        if self.kept_back:
            await self.named(self.kept_back)
        if health:
            return freed + await self.deliver_all()
        added = freed
        if time.monotonic() >= self._late_at:
            began = time.monotonic()
            added += await self._offer(Young(self._mark(LATE_SECONDS)))
            if self._unseen:
                added += await self.walk()
            self._late_at = time.monotonic() + _WALK_SHARE * (time.monotonic() - began)
        return added

    async def _check_old(self, old: Sequence[tuple[str, bytes, int]]) -> None:
        if not old:
            return
        still = await self.leasable([task_id for _, _, task_id in old])
        if gone := [entry for entry in old if entry[2] not in still]:
            await self.drop(gone)
            await self.named([task_id for _, _, task_id in gone])  # what has come back meanwhile

    # ---- what is no work any more

    async def drop(self, entries: Sequence[tuple[str, bytes, int]]) -> None:
        """Take entries away: queue, number and task of each; queue and number are empty where only the task is known.

        A task that was wanted again meanwhile, or may have been because this took long, is added again if it is work.
        """
        began = time.monotonic()
        again = await self._line.script("streams_drop", *_dropping(entries), read=read_ids)
        if time.monotonic() - began > _LONG_DROP:
            again = [task_id for _, _, task_id in entries]
        if again:
            await self.named(again)

    # ---- steps

    async def _offer(self, which: Which | None, *, pages: int = 100) -> int:
        """Add what is there, page by page; what was offered lately is left out."""
        added = 0
        following = which
        while following is not None and pages > 0:
            page = await self._read(following)
            added += await self._add(self._fresh(page.tasks))
            if isinstance(which, Due):
                self._saw_due(page)
            following = page.next
            pages -= 1
        return added

    async def _read(self, which: Which, limit: int = PAGE) -> Page:
        known = self._marks[-1][1] if self._marks else 0
        page = await self._record.dispatchable(which, limit)
        if page.newest < known:  # an older database was restored
            self._marks.clear()
            self._looked_to = min(self._looked_to, page.newest)
            self._unseen = True
        now = time.monotonic()
        if not self._marks or page.newest != self._marks[-1][1]:
            if not self._marks:
                self._marks.append((now - LATE_SECONDS, max(0, page.newest - LATE_IDS)))
            self._marks.append((now, page.newest))
        while len(self._marks) > 1 and self._marks[1][0] < now - LATE_SECONDS:
            self._marks.popleft()
        self._unseen = self._unseen or bool(self._pauses - page.pauses)
        self._pauses = page.pauses
        return page

    def _mark(self, seconds: float) -> int:
        """The newest id so many seconds ago."""
        until = time.monotonic() - seconds
        found = 0
        for moment, newest in self._marks:
            if moment > until:
                break
            found = newest
        return found

    def _saw_due(self, page: Page) -> None:
        self._due_seen = max([self._due_seen, *(task.expires or 0 for task in page.tasks)])

    def _fresh(self, tasks: Sequence[Candidate]) -> list[Candidate]:
        """Those that were not offered lately."""
        now = time.monotonic()
        if len(self._offered) > 10 * PAGE:
            self._offered = {key: until for key, until in self._offered.items() if until > now}
        fresh = [task for task in tasks if self._offered.get((task.id, task.expires), 0.0) <= now]
        for task in fresh:
            self._offered[task.id, task.expires] = now + _OFFERED_SECONDS
        return fresh

    async def _add(self, tasks: Iterable[Candidate], *, is_free: bool = False) -> int:
        added = 0
        for part in _pages(tasks):
            added += (await self._give(part, "", "", "", is_free=is_free))[0]
        return added

    async def _give(self, tasks: Iterable[Candidate], *filled: Argument, is_free: bool) -> tuple[int, int]:
        """Add a page of tasks, and say which stream this fills up to where; how many were added, and had no room."""
        reply = await self._line.script(
            "streams_add",
            self._cap,
            int(is_free),
            *filled,
            *_adding(tasks),
            read=read_added,
            seconds=2 * _SECONDS,
        )
        self._bell.added(reply.last)
        added, full = reply.added, reply.full
        if reply.gone and (back := await self.leasable(reply.gone)):
            more, fuller = await self._give(back.values(), *filled, is_free=True)
            added, full = added + more, full + fuller
        return added, full


_SECONDS = 1.0


def _pages(items: Iterable[Item], size: int = PAGE) -> Iterator[list[Item]]:
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page


def _adding(tasks: Iterable[Candidate]) -> Iterable[Argument]:
    """Tasks in their order; those next to each other that differ in nothing but their ids together."""
    for kind, alike in groupby(tasks, key=attrgetter("queue", "task_class", "priority")):
        yield from kind
        yield " ".join([str(task.id) for task in alike])


def _dropping(entries: Iterable[tuple[str, bytes, int]]) -> Iterable[Argument]:
    for queue, together in groupby(entries, key=itemgetter(0)):
        yield queue
        yield b" ".join([b"%b %d" % (number or b"-", task_id) for _, number, task_id in together])

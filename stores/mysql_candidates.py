"""Which rows a filtered lease should try: read without locks, and never more than EXAMINED of them in one call.

Phase 1 walks the index of (owner, priority, id) from its head. Where the head has too little for the filter, the
index of classes leads to the classes asked for: at once and in order where they have few rows, else the oldest of each
class first. A filter without classes goes on along the first index. A walk that meets its bound is continued by the
next call of the same filter, so that rare rows behind a long queue are reached too.
"""

import time
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from queue_runtime.store import Routes
from queue_runtime.task import U32, Pause, PauseKind
from stores.mysql_driver import Answer, Row
from stores.mysql_head import Head
from stores.mysql_left import REMEMBERED, Lefts, Place
from stores.mysql_session import Session
from stores.mysql_text import Sql, Value, literal

EXAMINED = 5000
"""Most rows that one call looks at in either phase."""

WINDOW = 1000
"""Phase 2 picks by priority among this many rows, those due longest."""

NO_ID = (U32 + 1,)
"""Stands for no ids at all in a statement, whose lists must not be empty. Somebody may have a row of id 0."""

_SPARE = 16
"""How many more rows than are wanted the first step of a walk reads: some will not pass."""

CENSUS_SECONDS = 10.0
"""How long a count of a filter's classes is believed."""

_ID, _PRIORITY, _CLASS, _QUEUE, _EXPIRES, _DUE = range(6)
"""Places in the `candidate_columns` and what follows them."""

_NO_CLASS = "-" * 65
"""Longer than any in the table; a row may have a class without a name."""

_HEAD: tuple[int, int] = (-1, 0)
_DUE_FIRST: tuple[int, int] = (-1, 0)
_DUE_HEAD = EXAMINED - WINDOW
"""How many due rows are looked at from the beginning; the rest of EXAMINED where the last call stopped."""


class LeaseFilter(Struct, frozen=True):
    """Which rows pass, pauses included. None: all."""

    classes: frozenset[str] | None
    not_classes: frozenset[str]
    queues: frozenset[str] | None
    not_queues: frozenset[str]
    routes: Routes

    @classmethod
    def of(
        cls,
        classes: Collection[str] | None,
        without_classes: Collection[str],
        queues: Collection[str] | None,
        pauses: Collection[Pause],
        routes: Routes,
    ) -> "LeaseFilter":
        """The filter of a lease call under these pauses."""
        names = {kind: frozenset(one.name for one in pauses if one.kind is kind) for kind in PauseKind}
        return cls(
            classes=None if classes is None else frozenset(classes) - names[PauseKind.CLASS],
            not_classes=frozenset(without_classes) | names[PauseKind.CLASS],
            queues=None if queues is None else frozenset(queues) - names[PauseKind.QUEUE],
            not_queues=names[PauseKind.QUEUE],
            routes=routes,
        )

    @property
    def passes_all(self) -> bool:
        """Whether there is nothing to filter."""
        return self.classes is None and not self.not_classes and not self.by_queue

    @property
    def passes_nothing(self) -> bool:
        """Whether no row can pass."""
        return self.classes == frozenset() or self.queues == frozenset()

    @property
    def by_queue(self) -> bool:
        """Whether the queue counts."""
        return self.queues is not None or bool(self.not_queues)

    @property
    def values(self) -> dict[str, Value]:
        """The classes for a statement that compares them as bytes."""
        return {
            "every_class": self.classes is None,
            "classes": _as_bytes(self.classes or ()),
            "not_classes": _as_bytes(self.not_classes or (_NO_CLASS,)),
        }

    def passes(self, row: Row) -> bool:
        """Whether a candidate passes."""
        task_class = row[_CLASS]
        if (self.classes is not None and task_class not in self.classes) or task_class in self.not_classes:
            return False
        if not self.by_queue:
            return True
        queue = row[_QUEUE] or self.routes.queue_for(task_class)
        return (self.queues is None or queue in self.queues) and queue not in self.not_queues


def _as_bytes(names: Collection[str]) -> Sql:
    return Sql(literal([name.encode(errors="backslashreplace") for name in sorted(names)]))


class Candidates:
    """What one opened store remembers of its walks."""

    def __init__(self) -> None:
        self._left = Lefts()
        self._due_left = Lefts()
        self._census: dict[frozenset[str], tuple[float, int]] = {}
        self._delayed: tuple[float, int] = (0.0, 0)
        self.head = Head()
        self.hurry = False
        """whether the last walk stopped at its bound with too little, so that the next lease should come soon"""
        self.nothing_due = False
        """whether the last look of phase 2 found nothing"""
        self.pauses: list[Pause] = []
        """as the last lease saw them; the next one begins as if they still were so"""

    async def head_is_plain(self, session: Session) -> bool:
        """Whether the head of the queue is free of delays that PHP wrote.

        A locking pick has to step over them one by one, and would lock them all.
        """
        until, delayed = self._delayed
        if time.monotonic() >= until:
            ((delayed,),) = await session.rows("count_delayed", limit=WINDOW)
            self._delayed = (time.monotonic() + CENSUS_SECONDS, delayed)
        return delayed < WINDOW // 2

    @staticmethod
    def first_step(session: Session, count: int) -> str:
        """The statement that `ready` begins with for so many rows: its answer may be had in an earlier trip."""
        return session.fill("walk_ready", after_priority=_HEAD[0], after_id=_HEAD[1], limit=count + _SPARE)

    async def ready(
        self,
        session: Session,
        wanted: LeaseFilter,
        without: Collection[int],
        count: int,
        *,
        first: Sequence[Row] | None = None,
    ) -> list[Place]:
        """Priority and id of up to `count` rows of phase 1, in its order. `first` is the answer of first_step."""
        walk = _Walk(session, wanted, without, count)
        await walk.on(_HEAD, EXAMINED // 5, first)
        if walk.found_enough or walk.at_end:
            self._left.done(wanted)
            return walk.found
        if wanted.classes is None:
            return await self._walk_on(wanted, walk, walk.place)
        if await self._rows_of(session, wanted.classes) <= EXAMINED:
            return await self._of_classes(session, wanted, without, count)
        found = {task_id for _, task_id in walk.found}
        by_class = _ClassWalk(session, wanted, found.union(without), count - len(found))
        return walk.found + await self._walk_on(wanted, by_class, ("", 0))

    async def _walk_on(self, wanted: LeaseFilter, walk: "_Walk", start: Place) -> list[Place]:
        """Walk on from where the last call of this filter stopped."""
        await walk.on(self._left.resume(wanted, start), EXAMINED)
        if not walk.found_enough:
            soon = self._left.stopped(wanted, walk.place, at_end=walk.at_end, found=bool(walk.found))
            self.hurry = self.hurry or soon
        return walk.found

    async def _rows_of(self, session: Session, classes: frozenset[str]) -> int:
        until, counted = self._census.get(classes, (0.0, 0))
        if time.monotonic() >= until:
            ((counted,),) = await session.rows("count_classes", names=classes, limit=EXAMINED + 1)
            self._census[classes] = (time.monotonic() + CENSUS_SECONDS, counted)
            while len(self._census) > REMEMBERED:
                self._census.pop(next(iter(self._census)))
        return counted

    async def _of_classes(
        self, session: Session, wanted: LeaseFilter, without: Collection[int], count: int
    ) -> list[Place]:
        limit = EXAMINED if wanted.by_queue else count + len(without)
        rows = await session.rows("ready_of_classes", names=wanted.classes or (), limit=limit, **wanted.values)
        return _passing([row for row in rows if row[_ID] not in without], wanted)[:count]

    @staticmethod
    def first_due(session: Session, wanted: LeaseFilter, without: Collection[int], count: int) -> list[str]:
        """The statements that `due` begins with for so many rows: their answers may be had in an earlier trip."""
        return _due_statements(session, _asked(wanted, without, session.now, count), _DUE_FIRST, _DUE_HEAD)

    async def due(
        self,
        session: Session,
        wanted: LeaseFilter,
        without: Collection[int],
        now: int,
        count: int,
        *,
        first: Sequence[Answer] = (),
    ) -> list[Place]:
        """Up to `count` rows of phase 2, in its order: first those due longest, by priority among WINDOW.

        `first` are the answers of `first_due`.
        """
        asked = _asked(wanted, without, now, count)
        answers = first or await session.trip(*_due_statements(session, asked, _DUE_FIRST, _DUE_HEAD))
        found, place, at_end = _due_found(answers, wanted, _DUE_HEAD)
        self.nothing_due = at_end and not found
        if len(found) >= count or at_end:
            self._due_left.done(wanted)
            return found[:count]
        if wanted.classes is not None and await self._rows_of(session, wanted.classes) <= EXAMINED:
            rows = await session.rows("due_of_classes", names=wanted.classes, **asked)
            return _passing(rows, wanted)[:count]
        start = self._due_left.resume(wanted, place)
        answers = await session.trip(*_due_statements(session, asked, start, EXAMINED - _DUE_HEAD))
        more, place, at_end = _due_found(answers, wanted, EXAMINED - _DUE_HEAD)
        soon = self._due_left.stopped(wanted, place, at_end=at_end, found=bool(more))
        self.hurry = self.hurry or (soon and len(found) + len(more) < count)
        return (found + more)[:count]


def _asked(wanted: LeaseFilter, without: Collection[int], now: int | Sql, count: int) -> dict[str, Value]:
    return {
        "now": now,
        "without": without or NO_ID,
        "count": WINDOW if wanted.by_queue else count,
        **wanted.values,
    }


def _due_statements(session: Session, asked: Mapping[str, Value], start: Place, limit: int) -> list[str]:
    part = {"now": asked["now"], "after_expires": start[0], "after_id": start[1], "limit": limit}
    return [session.fill("due_step", **{**asked, **part}), session.fill("due_end", **part)]


def _due_found(answers: Sequence[Answer], wanted: LeaseFilter, limit: int) -> tuple[list[Place], Place, bool]:
    """What passes among so many rows from a place on; where that ends, and whether there are no more."""
    rows, ends = answers
    examined, last = (int(number) for number in ends.rows[0])
    return _passing(rows.rows, wanted), (last >> 32, last & U32), examined < limit


def _passing(rows: Sequence[Row], wanted: LeaseFilter) -> list[Place]:
    return [(row[_PRIORITY], row[_ID]) for row in rows if wanted.passes(row)]


class _Walk:
    """A walk along the ready rows, step by step, until enough are found."""

    def __init__(self, session: Session, wanted: LeaseFilter, without: Collection[int], count: int) -> None:
        self._session = session
        self._wanted = wanted
        self._without = without
        self._count = count
        self._examined = 0
        self.found: list[Place] = []
        self.place: Place = _HEAD
        self.at_end = False

    @property
    def found_enough(self) -> bool:
        """Whether the walk is over."""
        return len(self.found) >= self._count

    async def on(self, place: Place, bound: int, first: Sequence[Row] | None = None) -> None:
        """Walk on from a place until `bound` rows have been examined in all. `first` are the rows of the first step."""
        self.place, step = place, self._count + _SPARE
        while self._examined < bound and not self.found_enough and not self.at_end:
            step = min(step, bound - self._examined)
            rows = await self._read(step) if first is None else first
            self._examined += len(rows)
            self._look_at(rows)
            self.at_end = len(rows) < step
            first, step = None, step * 4

    async def _read(self, limit: int) -> Sequence[Row]:
        priority, task_id = self.place
        return await self._session.rows("walk_ready", after_priority=priority, after_id=task_id, limit=limit)

    def _place_of(self, row: Row) -> Place:
        return row[_PRIORITY], row[_ID]

    def _look_at(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self.found_enough:
                return
            self.place = self._place_of(row)
            if row[_EXPIRES] is None and row[_ID] not in self._without and self._wanted.passes(row):
                self.found.append((row[_PRIORITY], row[_ID]))


class _ClassWalk(_Walk):
    """A walk along the index of classes: all rows of these, the oldest of each class first."""

    async def _read(self, limit: int) -> Sequence[Row]:
        task_class, task_id = self.place
        return await self._session.rows(
            "walk_classes", names=self._wanted.classes or (), after_class=task_class, after_id=task_id, limit=limit
        )

    def _place_of(self, row: Row) -> Place:
        return row[_CLASS], row[_ID]


def of_ids(wanted: LeaseFilter, rows: Sequence[Row], without: Collection[int]) -> tuple[list[Place], list[Place]]:
    """Those of named rows (`candidates_of`) that are ready and those that are due, each in the order of its phase."""
    passing = [row for row in rows if row[_ID] not in without and wanted.passes(row)]
    ready = [row for row in passing if not row[_DUE]]
    due = [row for row in passing if row[_DUE]][:WINDOW]
    return _by_priority(ready), _by_priority(due)


def _by_priority(rows: Sequence[Row]) -> list[Place]:
    return sorted((row[_PRIORITY], row[_ID]) for row in rows)

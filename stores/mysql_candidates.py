"""Which rows a filtered lease should try: read without locks, and never more than EXAMINED of them in one call.

Phase 1 walks the index of (owner, priority, id) from its head. Where the head has too little for the filter, and the
classes asked for have few rows in all, the index of classes gives them at once; otherwise the walk goes on from where
the last call of the same filter stopped, so that rare rows behind a long queue are reached too.
"""

import time
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from queue_runtime.store import Routes
from queue_runtime.task import Pause, PauseKind
from stores.mysql_driver import Row
from stores.mysql_session import Session

EXAMINED = 5000
"""Most rows that one call looks at in either phase."""

WINDOW = 1000
"""Phase 2 picks by priority among this many rows, those due longest."""

CENSUS_SECONDS = 10.0
"""How long a count of a filter's classes is believed."""

_ID, _PRIORITY, _CLASS, _QUEUE, _EXPIRES, _DUE = range(6)
"""Places in the `candidate_columns` and what follows them."""

Place = tuple[int, int]
_HEAD: Place = (-1, 0)


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

    def passes(self, row: Row) -> bool:
        """Whether a candidate passes."""
        task_class = row[_CLASS]
        if (self.classes is not None and task_class not in self.classes) or task_class in self.not_classes:
            return False
        if not self.by_queue:
            return True
        queue = row[_QUEUE] or self.routes.queue_for(task_class)
        return (self.queues is None or queue in self.queues) and queue not in self.not_queues


class Candidates:
    """What one opened store remembers of its walks."""

    def __init__(self) -> None:
        self._places: dict[LeaseFilter, Place] = {}
        self._census: dict[frozenset[str], tuple[float, int]] = {}
        self._delayed: tuple[float, int] = (0.0, 0)

    async def head_is_plain(self, session: Session) -> bool:
        """Whether the head of the queue is free of delays that PHP wrote.

        A locking pick has to step over them one by one, and would lock them all.
        """
        until, delayed = self._delayed
        if time.monotonic() >= until:
            ((delayed,),) = await session.rows("count_delayed", limit=EXAMINED)
            self._delayed = (time.monotonic() + CENSUS_SECONDS, delayed)
        return delayed < WINDOW

    async def ready(self, session: Session, wanted: LeaseFilter, without: Collection[int], count: int) -> list[int]:
        """Ids of up to `count` rows of phase 1, in its order."""
        found: list[int] = []
        place, examined, more = await self._walk(session, wanted, without, _HEAD, EXAMINED // 5, count, found)
        if len(found) >= count or not more:
            self._places.pop(wanted, None)
            return found
        if wanted.classes is not None and await self._rows_of(session, wanted.classes) <= EXAMINED:
            return await self._of_classes(session, wanted, without, count)
        place = max(place, self._places.get(wanted, place))
        place, _, more = await self._walk(session, wanted, without, place, EXAMINED - examined, count, found)
        if more and len(found) < count:
            self._places[wanted] = place
            while len(self._places) > 100:  # filters nobody asks for any more
                self._places.pop(next(iter(self._places)))
        else:
            self._places.pop(wanted, None)
        return found

    async def _walk(  # noqa: PLR0917  private, and one thing
        self,
        session: Session,
        wanted: LeaseFilter,
        without: Collection[int],
        place: Place,
        bound: int,
        count: int,
        found: list[int],
    ) -> tuple[Place, int, bool]:
        """Walk on from a place; where it stopped, how many rows it saw, and whether there are more."""
        examined, step = 0, count + 16
        while examined < bound and len(found) < count:
            step = min(step, bound - examined)
            rows = await session.rows("walk_ready", after_priority=place[0], after_id=place[1], limit=step)
            examined += len(rows)
            for row in rows:
                if row[_EXPIRES] is None and row[_ID] not in without and wanted.passes(row):
                    found.append(row[_ID])
            if len(rows) < step:
                return place, examined, False
            place = rows[-1][_PRIORITY], rows[-1][_ID]
            step *= 4
        del found[count:]
        return place, examined, True

    async def _rows_of(self, session: Session, classes: frozenset[str]) -> int:
        until, counted = self._census.get(classes, (0.0, 0))
        if time.monotonic() >= until:
            ((counted,),) = await session.rows("count_classes", classes=classes, limit=EXAMINED + 1)
            self._census = {classes: (time.monotonic() + CENSUS_SECONDS, counted)} | self._census
            while len(self._census) > 100:
                self._census.popitem()
        return counted

    async def _of_classes(
        self, session: Session, wanted: LeaseFilter, without: Collection[int], count: int
    ) -> list[int]:
        limit = EXAMINED if wanted.by_queue else count + len(without)
        rows = await session.rows("ready_of_classes", classes=wanted.classes or (), limit=limit)
        return [row[_ID] for row in rows if row[_ID] not in without and wanted.passes(row)][:count]

    async def due(
        self, session: Session, wanted: LeaseFilter, without: Collection[int], now: int, count: int
    ) -> list[int]:
        """Ids of up to `count` rows of phase 2, in its order."""
        rows = await session.rows(
            "due_window",
            now=now,
            limit=EXAMINED if wanted.by_queue else WINDOW,
            without=without or (0,),
            every_class=wanted.classes is None,
            classes=wanted.classes or (),
            not_classes=wanted.not_classes or ("",),
        )
        return _by_priority([row for row in rows if wanted.passes(row)][:WINDOW], count)


async def of_ids(
    session: Session, wanted: LeaseFilter, ids: Sequence[int], without: Collection[int], now: int
) -> tuple[list[int], list[int]]:
    """Those of the named rows that are ready and those that are due, each in the order of its phase."""
    rows = await session.rows("candidates_of", ids=ids, now=now)
    passing = [row for row in rows if row[_ID] not in without and wanted.passes(row)]
    ready = _by_priority([row for row in passing if not row[_DUE]], len(rows))
    return ready, _by_priority([row for row in passing if row[_DUE]][:WINDOW], len(rows))


def _by_priority(rows: Sequence[Row], count: int) -> list[int]:
    key: Callable[[Row], Place] = lambda row: (row[_PRIORITY], row[_ID])  # noqa: E731
    return [row[_ID] for row in sorted(rows, key=key)[:count]]

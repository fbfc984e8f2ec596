"""The outcomes that are not known to be written: where each of them is, and whose turn it is."""

import math
from collections import OrderedDict
from collections.abc import Sequence

from queue_runtime.settle_part import NO_TASKS, Home, Part

MAX_SETTLEMENTS = 1000
"""Settlements in a round, unless one caller alone brings more."""

MAX_BYTES = 8 * 2**20
"""Bytes of follow-ups and messages in a round, unless one caller alone brings more."""

Asks = list[tuple[Part, int]]
"""Settlements that are sent together: the part, and the place in it that gets the answer."""


class _Waiting:
    """What waits to be sent, of one kind. What was set aside before cannot keep the fresh from their turn."""

    def __init__(self) -> None:
        self.fresh: Home = OrderedDict()
        self.again: Home = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.fresh or self.again)


class Unsettled:
    """Keeps each part in one place: waiting, in flight, locked (somebody has its row), without room, or gone for good.

    `_move` alone changes places, so that no part can be in two of them or be sent twice in a round.

    While somebody has the row of a task locked, one part asks for it, and other parts with this task stand in line
    behind: outcomes of one task keep their order.
    """

    def __init__(self) -> None:
        self._calls = _Waiting()
        self._outcomes = _Waiting()
        self._in_flight: Home = OrderedDict()
        self._locked: Home = OrderedDict()
        self._without_room: Home = OrderedDict()
        self._lines: dict[int, Home] = {}
        self._again_first = True
        self.own = 0
        """outcomes of our own runs"""
        self.own_set_aside = 0
        """how many of these have been set aside"""
        self.short_of_room = 0
        """how many have been refused for want of room"""

    # ---- where they are

    def add(self, part: Part) -> None:
        """A new part: it waits."""
        assert part.home is None
        self.own += part.own
        self._move(part, self._waiting(part).fresh)

    def lock_out(self, part: Part, due: float) -> None:
        """Somebody has rows of it locked: out of the way until `due`, which never falls from part to part."""
        self._set_aside(part, self._locked)
        part.due = due
        self._stand_in_line(part, frozenset(part.settlements[place].task_id for place in part.open_places))

    def wait_for_room(self, part: Part) -> None:
        """Out of the way until there is room. It holds up nobody meanwhile, not even for its own task."""
        self._set_aside(part, self._without_room)
        self.short_of_room += not part.short_of_room
        part.short_of_room = True
        self._stand_in_line(part, NO_TASKS)

    def finish(self, part: Part) -> None:
        """Its caller knows what became of it, or has gone away."""
        self._move(part, None)
        self._stand_in_line(part, NO_TASKS)
        self.own -= part.own
        self.own_set_aside -= part.own and part.set_aside
        self.short_of_room -= part.short_of_room

    def put_back(self) -> list[Part]:
        """Whatever is still in flight waits again, in front of its queue; what this was."""
        parts = list(self._in_flight)
        for part in reversed(parts):
            waiting = self._waiting(part)
            home = waiting.again if part.set_aside else waiting.fresh
            self._move(part, home)
            home.move_to_end(part, last=False)
            self._stand_in_line(part, NO_TASKS)
        return parts

    def wake_locked(self, now: float) -> None:
        """What is due waits again, behind what was set aside before."""
        while self._locked and (part := next(iter(self._locked))).due <= now:
            self._move(part, self._waiting(part).again)

    def dissolve_lines(self) -> None:
        """Nobody stands behind another part any more."""
        for line in list(self._lines.values()):
            for part in list(line):
                self._stand_in_line(part, NO_TASKS)

    def wake_for_room(self, *, every: bool) -> None:
        """One waits again, to see whether there is room, or every one."""
        while self._without_room:
            part = next(iter(self._without_room))
            self._move(part, self._waiting(part).again)
            if not every:
                break

    def _set_aside(self, part: Part, home: Home) -> None:
        self._move(part, home)
        self.own_set_aside += part.own and not part.set_aside
        part.set_aside = True

    def _move(self, part: Part, home: Home | None) -> None:
        if part.home is not None:
            del part.home[part]
        part.home = home
        if home is not None:
            home[part] = None

    def _waiting(self, part: Part) -> _Waiting:
        return self._outcomes if part.own else self._calls

    # ---- what there is

    @property
    def calls_wait(self) -> bool:
        """Whether calls wait to be sent."""
        return bool(self._calls)

    @property
    def outcomes_wait(self) -> bool:
        """Whether outcomes of our own runs wait to be sent."""
        return bool(self._outcomes)

    @property
    def any_without_room(self) -> bool:
        return bool(self._without_room)

    @property
    def locked_until(self) -> float:
        """When the first of the locked ones is due; infinity where there is none."""
        return next(iter(self._locked)).due if self._locked else math.inf

    def all(self) -> list[Part]:
        """All of them, wherever they are."""
        again, fresh = (self._outcomes.again, self._calls.again), (self._outcomes.fresh, self._calls.fresh)
        return [part for home in (self._in_flight, *again, self._locked, self._without_room, *fresh) for part in home]

    # ---- whose turn it is

    def take(self, *, outcomes: bool) -> list[Part]:
        """Move into flight what fits into a round: calls, and outcomes where these are to go along.

        Neither of the two can crowd out the other, nor what was set aside the fresh: they take turns at the front.
        """
        assert not self._in_flight, "one round at a time"
        self._again_first = not self._again_first
        outcomes = outcomes and bool(self._outcomes)
        count, size = self._fill(self._calls, MAX_SETTLEMENTS // 2 if outcomes else MAX_SETTLEMENTS, MAX_BYTES)
        if outcomes:
            self._fill(self._outcomes, MAX_SETTLEMENTS // 2 + count, size)
        return list(self._in_flight)

    def take_alone(self, part: Part) -> None:
        """Move this one into flight, wherever it is."""
        assert not self._in_flight, "one round at a time"
        self._move(part, self._in_flight)

    def _fill(self, waiting: _Waiting, count: int, size: int) -> tuple[int, int]:
        """Take while they fit (the first one always does); the room that is left."""
        taken = False
        homes = (waiting.again, waiting.fresh) if self._again_first else (waiting.fresh, waiting.again)
        for home in homes:
            while home and count > 0:
                part = next(iter(home))
                if part.gone:  # nothing was promised yet
                    self.finish(part)
                    continue
                if taken and (part.left > count or part.size > size):
                    break
                self._move(part, self._in_flight)
                taken = True
                count -= part.left
                size -= part.size
        return max(count, 0), max(size, 0)

    # ---- which rows to ask for

    def asks(self, parts: Sequence[Part]) -> Asks:
        """What to send of these parts: what has no answer yet, and stands in no line behind another part."""
        asks: Asks = []
        for part in parts:
            assert part.home is self._in_flight, f"task {part.task_id} is not in flight"
            for place in part.open_places:
                line = self._lines.get(part.settlements[place].task_id)
                if line is None or next(iter(line)) is part:
                    asks.append((part, place))
        assert len(set(asks)) == len(asks), "a settlement is sent once in a call"
        return asks

    def _stand_in_line(self, part: Part, tasks: frozenset[int]) -> None:
        """Stand in the lines for these tasks and in no other; a place in a line is kept."""
        if tasks == part.in_line_for:
            return
        for task_id in part.in_line_for - tasks:
            line = self._lines[task_id]
            del line[part]
            if not line:
                del self._lines[task_id]
        for task_id in tasks - part.in_line_for:
            self._lines.setdefault(task_id, OrderedDict())[part] = None
        part.in_line_for = tasks

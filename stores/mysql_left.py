"""Where walks stopped that met their bound, so that the next call of the same filter goes on from there."""

import time
from collections.abc import Hashable

Place = tuple[int, int] | tuple[str, int]
"""(priority, id) on the way of phase 1, (class, id) on the way of the classes, (expiry, id) on that of due rows."""

REMEMBERED = 100
"""For how many filters a place or a count is kept: the oldest go first, they may be asked for by nobody any more."""

_REST = 30
"""After a walk to the end that found nothing, the next one is not hurried for so many times as long as it took."""


class _Left:
    __slots__ = ("any", "began", "place", "rests_until")

    def __init__(self) -> None:
        self.place: Place | None = None
        self.began = time.monotonic()
        self.any = False
        """whether this round of walks has found something"""
        self.rests_until = 0.0


class Lefts:
    """The walks of one kind, by filter."""

    def __init__(self) -> None:
        self._left: dict[Hashable, _Left] = {}

    def resume(self, wanted: Hashable, start: Place) -> Place:
        """Where to walk on: where the last call stopped, but not before `start`."""
        left = self._left.get(wanted)
        return start if left is None or left.place is None else max(start, left.place)

    def done(self, wanted: Hashable) -> None:
        """The walk found enough near its beginning."""
        self._left.pop(wanted, None)

    def stopped(self, wanted: Hashable, place: Place, *, at_end: bool, found: bool) -> bool:
        """The walk stopped here with too little; whether the next call should come soon."""
        left = self._left.pop(wanted, None) or _Left()
        self._left[wanted] = left
        while len(self._left) > REMEMBERED:
            self._left.pop(next(iter(self._left)))
        now = time.monotonic()
        left.any = left.any or found
        if not at_end:
            left.place = place
            return now >= left.rests_until
        left.rests_until = now if left.any else now + _REST * (now - left.began)
        left.place, left.began, left.any = None, now, False
        return False

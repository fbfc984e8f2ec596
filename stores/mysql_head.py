"""What the leases of one store remember of the head of the queue, so that each need not look at it anew.

What has been leased leaves dead entries at the head of the index, until the server has cleared them away. Whoever
begins at the head steps over them all, and that cost a third of the server's work in a drain.
"""

import time

from queue_runtime.task import U32

RowPlace = tuple[int, int]
"""Priority and id of a row: its place in the order of phase 1."""

START: RowPlace = (-1, 0)
"""Before every row, that of the priority 0 and the id 0 too."""

BELIEVED_SECONDS = 0.25
"""How long a look at the head is believed. For as long the lease loop may pass over a row that has come in before the
place that it has got to; a lease in strict order never does."""


def place_of(number: int) -> RowPlace:
    """A place, from the number that a glance packs it into (priority * 2^32 + id)."""
    return number >> 32, number & U32


class Head:
    """The last look from the beginning, for one filter at a time."""

    def __init__(self) -> None:
        self._wanted: object = None
        self._until = 0.0
        self._last = START
        self._left = 0
        self._front = START

    def looked(self, wanted: object, *, last: RowPlace = START, left: int = 0) -> None:
        """The head was just looked at with this filter: `left` more rows pass, none of them after `last`."""
        self._wanted, self._last, self._left = wanted, last, left
        self._until = time.monotonic() + BELIEVED_SECONDS
        self._front = START

    def took(self, place: RowPlace) -> None:
        """Rows up to this place are leased, in the order of the lease loop."""
        self._front = max(self._front, place)

    def front(self, wanted: object) -> RowPlace:
        """The place after which the lease loop goes on."""
        return self._front if self._believes(wanted) else START

    def last(self, wanted: object, room: int) -> RowPlace | None:
        """A place up to which there should be so many rows that pass; None: somebody has to look."""
        if not self._believes(wanted) or self._left < room:
            return None
        self._left -= room
        return self._last

    def _believes(self, wanted: object) -> bool:
        return wanted == self._wanted and time.monotonic() < self._until

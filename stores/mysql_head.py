"""What the leases of one store remember of the head of the queue, so that each need not look at it anew.

What has been leased leaves dead entries at the head of the index, until the server has cleared them away. Whoever
begins at the head steps over them all, and that cost a third of the server's work in a drain.
"""

import time

from msgspec import Struct

from queue_runtime.task import U32
from stores.mysql_driver import Row

RowPlace = tuple[int, int]
"""Priority and id of a row: its place in the order of phase 1."""

START: RowPlace = (-1, 0)
"""Before every row, that of the priority 0 and the id 0 too."""

BELIEVED_SECONDS = 0.25
"""How long a look at the head is believed. For as long the lease loop may pass over a row that has come in before the
place that it has got to; a lease in strict order never does."""


class Glance(Struct, frozen=True):
    """What a glance at the queue saw, behind some place."""

    passing: int
    """rows that are ready and pass"""

    before: RowPlace
    """no row that passes is at this place or before it"""

    last: RowPlace
    """the last row that was looked at"""

    at_end: bool
    """whether there are no more rows"""

    @classmethod
    def of(cls, row: Row, *, depth: int) -> "Glance":
        """From the answer to the statement `glance`, which packs a place into a number (priority * 2^32 + id)."""
        count, passing, first, last = (int(number) for number in row)
        return cls(passing, _place_of(first - 1), _place_of(last), count < depth)


def _place_of(number: int) -> RowPlace:
    return number >> 32, number & U32


class Head:
    """The last look from the beginning, for one filter at a time."""

    def __init__(self) -> None:
        self._wanted: object = None
        self._until = 0.0
        self._last = START
        self._left = 0
        self._front = START
        self.deep = False
        """whether there were more rows than the last glance looked at"""

    def looked(self, wanted: object) -> None:
        """The head was just looked at with this filter."""
        self._wanted, self._last, self._left = wanted, START, 0
        self._until = time.monotonic() + BELIEVED_SECONDS
        self._front = START

    def glanced(self, wanted: object, seen: Glance, *, taken: int, from_start: bool) -> None:
        """The queue was just glanced at with this filter, from its head or from the place that the lease loop has got
        to; so many of the rows that pass are taken now."""
        if from_start:
            self.looked(wanted)
        if wanted == self._wanted:
            self._last, self._left = seen.last, seen.passing - taken
            self.deep = not seen.at_end

    def took(self, wanted: object, place: RowPlace) -> None:
        """Rows up to this place are leased with this filter, in the order of the lease loop."""
        if wanted == self._wanted:
            self._front = max(self._front, place)

    def front(self, wanted: object) -> RowPlace:
        """The place after which the lease loop goes on."""
        return self._front if self._believes(wanted) else START

    def has(self, room: int) -> bool:
        """Whether the last glance saw so many rows that are not taken."""
        return self._left >= room

    def last(self, wanted: object, room: int) -> RowPlace | None:
        """A place up to which there should be so many rows that pass; None: somebody has to look."""
        if not self._believes(wanted) or not self.has(room):
            return None
        self._left -= room
        return self._last

    def _believes(self, wanted: object) -> bool:
        return wanted == self._wanted and time.monotonic() < self._until

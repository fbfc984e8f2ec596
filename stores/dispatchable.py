"""What a store of record tells the dispatch: which tasks a lease could take now."""

from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from msgspec import Struct

from queue_runtime.store import Store
from queue_runtime.task import Pause


class Ready(Struct, frozen=True):
    """Tasks of phase 1 by priority and id, behind this place."""

    after: tuple[int, int] = (-1, 0)


class Young(Struct, frozen=True):
    """Tasks of phase 1 with ids above this one, by id."""

    above: int


class Due(Struct, frozen=True):
    """Tasks of phase 2, whose time has come, by expiry and id, behind this place."""

    after: tuple[int, int] = (-1, 0)


class Named(Struct, frozen=True):
    """Those of these tasks that a lease could take."""

    task_ids: Collection[int]


Which = Ready | Young | Due | Named


class Candidate(NamedTuple):
    """A task that a lease could take. `expires` is None in phase 1."""

    id: int
    task_class: str
    queue: str
    priority: int
    expires: int | None = None


class Page(Struct, frozen=True):
    """Some of the tasks asked for, paused ones left out."""

    tasks: Sequence[Candidate]
    next: Ready | Young | Due | None
    """asks for those that follow; None: there are no more"""

    newest: int
    """the last task id that was given out before this was read"""

    pauses: frozenset[Pause]
    """the pauses that were in force"""


class Record(Store, Protocol):
    """A store whose tasks can be dispatched by other means than its own lease."""

    async def dispatchable(self, which: Which, limit: int) -> Page:
        """One page of the tasks that a lease could take now, at most `limit`. Reads only; nothing is locked."""
        ...

    async def names(self) -> Collection[str]:
        """What tells this record from others: two with a name in common are one. None: it cannot be told.

        One name is kept in the database, and comes along where that is restored or moved. Another may be its place.
        """
        ...


def record_name(kind: str, text: str) -> str:
    """A name, of something that nobody shall read or that may hold anything."""
    return f"{kind}:{sha256(text.encode()).hexdigest()[:16]}"


def next_page(which: Which, last: tuple[int, int, int]) -> Ready | Young | Due | None:
    """What follows the row with this priority, id and expiry."""
    priority, task_id, expires = last
    match which:
        case Ready():
            return Ready((priority, task_id))
        case Young():
            return Young(task_id)
        case Due():
            return Due((expires, task_id))
        case Named():
            return None

"""Takes away lanes that no task is in any more: names of classes that come and go would make every lease dearer."""

import time
from collections.abc import Callable
from functools import partial

from queue_runtime.errors import StoreUnavailable
from stores.sqlite_session import Session
from stores.sqlite_threads import SessionThread

MANY = 1000
"""So many lanes cost a lease nothing that can be measured."""

PAUSE_SECONDS = 3600.0
AT_ONCE = 5000
"""Lanes that one transaction takes away."""


class LaneSweep:
    """Looks about once an hour, and only where there are many lanes. Safe with other processes on the file: what one of
    them writes meanwhile is a new task with a larger id, and the lane of such a task stays. `clock` is monotonic."""

    def __init__(self, *, many: int = MANY, clock: Callable[[], float] = time.monotonic) -> None:
        self._many = many
        self._clock = clock
        self._next = 0.0

    async def sweep(self, lister: SessionThread, writer: SessionThread) -> int:
        """How many were taken away; 0 also where it is not time to look."""
        if self._clock() < self._next:
            return 0
        self._next = self._clock() + PAUSE_SECONDS
        try:
            idle, last_id = await lister.call("sweep", self._idle)
        except StoreUnavailable:  # it took too long, or the file is gone: the sweep itself may still do its work
            return 0
        gone = 0
        for start in range(0, len(idle), AT_ONCE):
            some = idle[start : start + AT_ONCE]
            gone += await writer.call("sweep", partial(_take_away, lanes=some, last_id=last_id))
        return gone

    def _idle(self, session: Session) -> tuple[list[int], int]:
        ((many,),) = session.rows("many_lanes", (self._many,))
        found = session.rows("idle_lanes") if many else []
        return [lane for lane, _ in found], found[0][1] if found else 0


def _take_away(session: Session, lanes: list[int], last_id: int) -> int:
    gone = session.run("delete_lanes", (str(lanes), last_id))
    session.lanes.gone()
    return gone

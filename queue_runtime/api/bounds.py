"""Bounds the time of all requests with one timer.

`asyncio.timeout` sets a timer for each, and that was a sixth of what an enqueue costs.
"""

import asyncio
from types import TracebackType
from typing import Self


class Bound:
    """The time of one request, to be used as `asyncio.timeout` is: what goes on beyond it ends in TimeoutError."""

    __slots__ = ("_bounds", "_cancelled_before", "_expired", "_task", "end")

    def __init__(self, bounds: "Bounds", task: asyncio.Task[object], end: float) -> None:
        self._bounds = bounds
        self._task = task
        self._cancelled_before = task.cancelling()
        self._expired = False
        self.end = end

    def move(self, end: float) -> None:
        """End later."""
        self.end = max(self.end, end)

    def expire(self) -> None:
        """End what goes on."""
        self._expired = True
        self._task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bounds.leave(self)
        # Somebody else may have cancelled the task too, and then that is how it ends.
        if self._expired and self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Bounds:
    """All that are open, each `seconds` long. None ever ends earlier than an older one that nobody moved."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._open: set[Bound] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Bound:
        """Bound what the current task does from now on."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("only a task can be bounded")
        bound = Bound(self, task, loop.time() + self._seconds)
        self._open.add(bound)
        if self._timer is None:
            self._timer = loop.call_at(bound.end, self._look, loop)
        return bound

    def leave(self, bound: Bound) -> None:
        """One has ended."""
        self._open.discard(bound)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for bound in [bound for bound in self._open if bound.end <= now]:
            self._open.discard(bound)
            bound.expire()
        # Whatever begins meanwhile ends after this moment, so the timer need not be set for it.
        first = min((bound.end for bound in self._open), default=None)
        self._timer = None if first is None else loop.call_at(first, self._look, loop)

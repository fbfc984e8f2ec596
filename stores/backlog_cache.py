"""Answers a backlog again for a while, because counting a large one costs the server something."""

import time
from collections.abc import Awaitable, Callable

from queue_runtime.task import Backlog

_LONGEST = 15.0
_SHARE = 50
"""An answer is good for this many times as long as it took to count, at most _LONGEST seconds."""

_QUICK = 0.02
"""Counts that took no longer are not kept."""


class BacklogCache:
    """The last count of one store."""

    def __init__(self) -> None:
        self._answer: list[Backlog] = []
        self._until = 0.0

    async def get(self, count: Callable[[], Awaitable[list[Backlog]]]) -> list[Backlog]:
        """The last answer, or a new one of `count`."""
        asked_at = time.monotonic()
        if asked_at >= self._until:
            self._answer = await count()
            took = time.monotonic() - asked_at
            if took > _QUICK:
                self._until = asked_at + min(_LONGEST, took * _SHARE)
        return list(self._answer)

"""Delegated tasks that came back without an outcome: how often in a row, for which kind of reason."""

import time
from collections import Counter

import structlog
from msgspec import Struct

from queue_runtime.task import Task

MAX_TASKS = 10_000
MAX_LINES = 1000
"""So many tasks, and log lines, are remembered at most."""

REPEAT_AFTER = 300.0
REPEAT_LOUD_AFTER = 3600.0
"""Seconds between two log lines about one class and one reason."""

MAX_OWNERS = 8
"""Of so many leases of a task it is remembered that the answer was lost."""

FOLD = 120
"""Reasons that begin with the same characters are one: what follows may be different each time."""


class _Line(Struct):
    said_at: float
    folded: int = 0


class Setbacks:
    """What is remembered of tasks between two tries, and says so in the log without filling it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """all setbacks since the start, by kind"""
        self._tasks: dict[int, Counter[str]] = {}
        self._lost: dict[int, tuple[str, ...]] = {}
        self._lines: dict[tuple[str, str, str], _Line] = {}
        self._log = structlog.get_logger().bind()

    def add(self, task_id: int, kind: str) -> int:
        """Note that the task came back; how often it did for a reason of this kind since its last outcome."""
        self.counts[kind] += 1
        times = self._tasks.pop(task_id, None)
        if times is None:
            if len(self._tasks) >= MAX_TASKS:
                del self._tasks[next(iter(self._tasks))]
            times = Counter()
        self._tasks[task_id] = times  # the newest last
        times[kind] += 1
        return times[kind]

    def lose(self, task_id: int, owner: str) -> None:
        """Note that the answer to the call under this lease was lost."""
        owners = self._lost.pop(task_id, ())
        if len(self._lost) >= MAX_TASKS:
            del self._lost[next(iter(self._lost))]
        self._lost[task_id] = (*owners, owner)[-MAX_OWNERS:]

    def lost(self, task_id: int) -> tuple[str, ...]:
        """Leases of this task whose answers were lost since its last outcome."""
        return self._lost.get(task_id, ())

    def over(self, task_id: int) -> None:
        """The task has an outcome."""
        self._tasks.pop(task_id, None)
        self._lost.pop(task_id, None)

    def say(self, event: str, task: Task, reason: str, *, loud: bool = False, **facts: object) -> None:
        """Say it once for a class and a reason, and later again with how many were left out.

        `loud`: as an error, because an administrator has to act.
        """
        now = time.monotonic()
        key = (event, task.task_class, reason[:FOLD])
        line = self._lines.get(key)
        if line is not None and now - line.said_at < (REPEAT_LOUD_AFTER if loud else REPEAT_AFTER):
            line.folded += 1
            return
        if line is None and len(self._lines) >= MAX_LINES:
            del self._lines[next(iter(self._lines))]
        folded = {} if line is None or not line.folded else {"left_out": line.folded}
        self._lines[key] = _Line(now)
        write = self._log.error if loud else self._log.warning
        write(event, reason=reason, task_id=task.id, task_class=task.task_class, **facts, **folded)


def grown(first: float, times: int, longest: float) -> float:
    """A wait that doubles with each time, up to the longest."""
    return min(first * 2.0 ** min(times - 1, 32), longest)

"""What the worker counts: plain numbers on the hot path, read by the metrics and by `GET /api/worker/stats`."""

from bisect import bisect_left
from collections.abc import Mapping
from enum import StrEnum

RUN_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
"""Upper bounds of the run time histogram, seconds."""


class Ending(StrEnum):
    """How a run ended, as counted once the store has confirmed it (`lost` and `abandoned` need no store)."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    FAILED = "failed"
    YIELDED = "yielded"
    UNKNOWN = "unknown"
    RELEASED = "released"
    LOST = "lost"
    ABANDONED = "abandoned"


class ClassStats:
    """Counts of one task class since the process started."""

    __slots__ = ("buckets", "endings", "run_seconds", "running")

    def __init__(self) -> None:
        self.running = 0
        self.endings = dict.fromkeys(Ending, 0)
        self.run_seconds = 0.0
        self.buckets = [0] * (len(RUN_BUCKETS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one run of this length in the histogram."""
        self.run_seconds += seconds
        self.buckets[bisect_left(RUN_BUCKETS, seconds)] += 1


class WorkerStats:
    """Counts of the whole worker since the process started."""

    def __init__(self) -> None:
        self._classes: dict[str, ClassStats] = {}
        self.lease_errors = 0
        self.leases = 0
        self.last_lease_at: float | None = None
        """monotonic time of the last lease call that succeeded"""
        self.slots = 0
        self.abandoned_now = 0
        """threads and delegated calls that did not end when told to, and still run"""
        self.blocked_seconds = 0.0
        """time for which a handler held the event loop"""

    def of(self, task_class: str) -> ClassStats:
        """The counts of this class."""
        found = self._classes.get(task_class)
        if found is None:
            found = self._classes[task_class] = ClassStats()
        return found

    @property
    def classes(self) -> Mapping[str, ClassStats]:
        """All classes seen so far."""
        return self._classes

    @property
    def active(self) -> int:
        """Runs under way."""
        return sum(one.running for one in self._classes.values())

    def total(self, *endings: Ending) -> int:
        """How many runs ended so."""
        return sum(one.endings[ending] for one in self._classes.values() for ending in endings)

"""Task classes that Phorge refuses, or that end in trouble time after time: each waits by itself, and no other does."""

import time

import structlog
from msgspec import Struct

FREE_STRIKES = 3
"""So many calls of a class in a row may go wrong before it has to wait."""

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0

REPEAT_AFTER = 300.0
"""Seconds between two log lines about one class."""

MAX_CLASSES = 1000
MAX_HELD = 100
"""Of so many classes at most it is remembered how they went, and so many are left out of a lease."""


class _Brake(Struct):
    """How one class went lately."""

    strikes: int = 0
    until: float = 0.0
    reason: str = ""
    said_at: float | None = None


class Brakes:
    """Which classes wait just now, and why.

    A class is *held* at once where Phorge says that it may not be run. One that has ended in trouble so often that
    chance is no explanation is held for a second, and twice as long each time after. An answer that is an outcome
    sets it free.
    """

    def __init__(self) -> None:
        self._brakes: dict[str, _Brake] = {}
        self._log = structlog.get_logger().bind()

    @property
    def held(self) -> dict[str, str]:
        """Classes that wait just now, and why."""
        if not self._brakes:
            return {}
        now = time.monotonic()
        found = [(one, brake.reason) for one, brake in self._brakes.items() if brake.until > now]
        return dict(found[:MAX_HELD])

    def left(self, task_class: str) -> float:
        """Seconds for which this class has to wait."""
        brake = self._brakes.get(task_class)
        return 0.0 if brake is None else max(brake.until - time.monotonic(), 0.0)

    def hold(self, task_class: str, seconds: float, reason: str) -> None:
        """The class itself is refused (whoever found out says so): it is not asked for before `seconds` have passed."""
        brake = self._brake(task_class)
        brake.until, brake.reason = time.monotonic() + seconds, reason
        brake.said_at = time.monotonic()

    def strike(self, task_class: str, reason: str) -> None:
        """A call for this class went wrong, of a Phorge that is there."""
        now = time.monotonic()
        brake = self._brake(task_class)
        if brake.until > now:
            return  # it began before the wait
        brake.strikes += 1
        if brake.strikes < FREE_STRIKES:
            return
        seconds = min(FIRST_SECONDS * 2.0 ** (brake.strikes - FREE_STRIKES), LONGEST_SECONDS)
        brake.until, brake.reason = now + seconds, reason
        if brake.said_at is None or now - brake.said_at >= REPEAT_AFTER:
            brake.said_at = now
            self._log.warning(
                "calls for this class go wrong one after the other, and it is slowed down; no other is",
                task_class=task_class,
                reason=reason,
                times=brake.strikes,
                seconds=seconds,
            )

    def fine(self, task_class: str) -> None:
        """A call for this class ended in an outcome."""
        brake = self._brakes.pop(task_class, None)
        if brake is not None and brake.said_at is not None:
            self._log.info("Phorge runs this class again", task_class=task_class)

    def _brake(self, task_class: str) -> _Brake:
        brake = self._brakes.get(task_class)
        if brake is None:
            if len(self._brakes) >= MAX_CLASSES:
                del self._brakes[next(iter(self._brakes))]
            brake = self._brakes[task_class] = _Brake()
        return brake

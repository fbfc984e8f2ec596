"""Waits: with jitter after trouble, and never past the order to stop."""

import random
import time
from collections.abc import Callable

import anyio
import structlog

from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle

FIRST = 0.1
CAP = 5.0

RED_AFTER = 5.0
"""Seconds of an outage after which readiness turns red. Shorter ones are nobody's alarm."""

LOOK_SECONDS = 1.0
"""How often a long rest looks whether it shall be another length."""

REPEAT_AFTER = 30.0
"""Seconds between two log lines about the same outage."""


class Backoff:
    """Seconds to wait before the next try: 0.1 doubling to 5, each cut by a random part of up to a half."""

    def __init__(self, first: float = FIRST, cap: float = CAP) -> None:
        self._first = first
        self._cap = cap
        self._wait = first

    def next(self) -> float:
        """The wait before the next try."""
        wait, self._wait = self._wait, min(self._wait * 2, self._cap)
        return wait * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """The try succeeded."""
        self._wait = self._first


class Outage:
    """A store outage as one part of the process sees it.

    The first failure is one log line, the following ones are folded into one line every 30 s, the end is one
    line; after RED_AFTER seconds readiness turns red, and green again by itself.
    """

    def __init__(self, source: str, lifecycle: Lifecycle | None = None, *, red_after: float = RED_AFTER) -> None:
        self._source = source
        self._lifecycle = lifecycle
        self._red_after = red_after
        self._backoff = Backoff()
        self._log = structlog.get_logger().bind(source=source)
        self._began: float | None = None
        self._said_at = 0.0
        self._failures = 0

    @property
    def on(self) -> bool:
        """Whether the last try failed."""
        return self._began is not None

    @property
    def failures(self) -> int:
        """Tries that failed in a row."""
        return self._failures

    def failed(self, error: StoreUnavailable) -> float:
        """Note a failed try and return the seconds to wait before the next."""
        now = time.monotonic()
        self._failures += 1
        if self._began is None:
            self._began = self._said_at = now
            self._log.warning(_sentence(error), reason=str(error))
        elif now - self._said_at >= REPEAT_AFTER:
            self._said_at = now
            self._log.warning("store still away", reason=str(error), tries=self._failures, **self._seconds(now))
        if self._lifecycle is not None and now - self._began >= self._red_after:
            self._lifecycle.fault(self._source, f"{_sentence(error)}: {error}")
        return self._backoff.next()

    def over(self) -> None:
        """Note a try that succeeded."""
        if self._began is None:
            return
        self._log.info("store back", tries=self._failures, **self._seconds(time.monotonic()))
        self._began, self._failures = None, 0
        self._backoff.reset()
        if self._lifecycle is not None:
            self._lifecycle.fault(self._source, None)

    def hurry(self) -> None:
        """Begin again with short waits (the last tries of a shutdown)."""
        self._backoff.reset()

    def _seconds(self, now: float) -> dict[str, float]:
        return {"seconds": round(now - (self._began or now), 1)}


def _sentence(error: StoreUnavailable) -> str:
    return "store full" if isinstance(error, StoreFull) else "store away"


def exponential(first: float, factor: float = 2.0, cap: float = 3600.0) -> Callable[[int], int]:
    """A retry policy: `first` seconds after the first failure, `factor` times as long after each further one.

    Each wait is cut by a random part of up to a quarter, and never above `cap`: tasks that failed together do
    not come back together.
    """

    def wait(failures: int) -> int:
        grown = first * factor ** min(max(failures - 1, 0), 64)
        return round(min(grown, cap) * random.uniform(0.75, 1.0))

    return wait


async def rest(stop: anyio.Event, seconds: Callable[[], float]) -> bool:
    """A long `pause` whose length may be changed while it lasts."""
    began = time.monotonic()
    while (left := began + seconds() - time.monotonic()) > 0:
        if not await pause(stop, min(left, LOOK_SECONDS)):
            return False
    return not stop.is_set()


async def pause(stop: anyio.Event, seconds: float) -> bool:
    """Wait, but not past the order to stop. Whether to go on."""
    with anyio.move_on_after(seconds):
        await stop.wait()
    return not stop.is_set()

"""Token buckets, one for each client address."""

import time
from collections.abc import Callable

MAX_BUCKETS = 100_000
IDLE_SECONDS = 600.0
"""A bucket that nobody used for so long is forgotten."""


class Buckets:
    """Lets each address do `burst` things at once, and `rate` a second in the long run.

    When there are MAX_BUCKETS addresses, new ones are refused until idle ones are forgotten: memory stays bounded
    whatever comes in.
    """

    def __init__(self, rate: float, burst: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(max(burst, 1))
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}
        """address: what was left in it, and when that was; the one that was used longest ago comes first"""

    def take(self, address: str) -> bool:
        """Whether this address may go on."""
        now = self._now()
        self._forget_idle(now)
        if address not in self._buckets and len(self._buckets) >= MAX_BUCKETS:
            return False
        left, then = self._buckets.pop(address, (self._burst, now))
        left = min(left + (now - then) * self._rate, self._burst)
        self._buckets[address] = (max(left - 1, 0.0) if left >= 1 else left, now)
        return left >= 1

    def _forget_idle(self, now: float) -> None:
        while self._buckets:
            oldest = next(iter(self._buckets))
            if self._buckets[oldest][1] > now - IDLE_SECONDS:
                return
            del self._buckets[oldest]

"""In which order the queues are served."""

import random
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Literal

Policy = Literal["strict", "weighted"]

QUEUES = (
    "high",
    "events",
    "automation",
    "default",
    "medium",
    "scheduled_jobs",
    "deferred",
    "low",
    "search",
    "purgable",
)
"""The known queues, the preferred first."""


def strangers(queues: Collection[str], routed: Collection[str]) -> dict[str, str | None]:
    """Those of the queues that are neither known nor led to by a route, and what each may have been meant to be."""
    known = [*QUEUES, *routed]
    unknown = sorted(set(queues).difference(known))
    return {queue: next(iter(get_close_matches(queue, known, 1)), None) for queue in unknown}


class Preference:
    """The queues by preference. A queue that is not named comes last, in the order of names.

    strict: a queue is served when those before it are empty. weighted: each call draws an order, in which of two
    queues the one with the larger weight is more likely first; of n queues the first weighs n and the last 1, so that
    none starves.
    """

    def __init__(
        self, queues: Sequence[str] = (), policy: Policy = "strict", *, dice: random.Random | None = None
    ) -> None:
        self.queues = tuple(dict.fromkeys(queues)) or QUEUES
        self._policy = policy
        self._dice = dice or random.Random()

    def of(self, wanted: Collection[str] | None) -> tuple[list[str], bool]:
        """The queues of one call, and whether those that are not named here come behind them."""
        if wanted is None:
            return self._drawn(list(self.queues)), True
        named = [queue for queue in self.queues if queue in wanted]
        return self._drawn(named + sorted(set(wanted).difference(named))), False

    def _drawn(self, queues: list[str]) -> list[str]:
        if self._policy == "strict":
            return queues
        weights = {queue: len(queues) - place for place, queue in enumerate(queues)}
        return sorted(queues, key=lambda queue: self._dice.random() ** (1 / weights[queue]), reverse=True)

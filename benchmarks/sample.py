"""One measured repetition, and the statistics over several."""

import statistics
from collections.abc import Sequence

from msgspec import Struct

OURS = "queue-runtime"
"""How every contender begins that is ours; what follows says with which settings."""

MYSQL_ALONE = "mysql alone"
"""What stands beside the streams over MySQL: the store mysql on the same server."""

BARE_LUA = "bare Lua loop"
"""What stands beside our drain on Redis: the same work without a runtime (bare_lua.py)."""


BARE_SQL = "bare SQL loop"
"""The same on MySQL (bare_sql.py)."""


class Sample(Struct, frozen=True):
    """`variant` is what was varied within the workload: slots, enqueue mode, server. `values` are named figures.

    `load` is the machine's load average of one minute at the end: above its cores, figures are about neighbours too.
    """

    work: str
    variant: str
    contender: str
    values: dict[str, float]
    repetition: int = 0
    load: float = 0.0
    store: str = "sqlite"


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies; 1.0 is the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_of(samples: Sequence[Sample], work: str, variant: str, contender: str, value: str) -> float | None:
    """Median over the repetitions, None where nothing was measured."""
    found = [
        sample.values[value]
        for sample in samples
        if (sample.work, sample.variant, sample.contender) == (work, variant, contender) and value in sample.values
    ]
    return statistics.median(found) if found else None

"""What each store promises: figures, and ratios to others in the same run."""

from collections.abc import Mapping

from msgspec import Struct

from benchmarks.peers import BESIDE
from benchmarks.sample import BARE_LUA, BARE_SQL, MYSQL_ALONE

REDIS_PEERS = ("saq", "huey", "arq")

GO_WORKER: Mapping[str, float] = {"pgqueuer": 1200 / 5200, "huey": 1200 / 2900}
"""The tuned Go worker's rate over these two's, measured on one machine: its figure elsewhere is scaled by either."""


class Aim(Struct, frozen=True):
    """A promise: a figure, or a ratio to others, that must be at least or at most `bound`; None: it is only stated.

    `over` names contenders whose best figure divides ours: the highest where ours must be high, else the lowest.
    """

    sentence: str
    work: str
    variant: str
    value: str
    bound: float | None
    at_least: bool = False
    over: tuple[str, ...] = ()
    their_variant: str | None = None
    """where theirs is another one than ours"""


COMMON = (
    Aim("delayed, earliest, ms after its second", "delay", "", "min_ms", 0, True),
    Aim("delayed, p99, ms after its second", "delay", "", "p99_ms", 50),
    Aim("kill -9: all tasks run again, s", "crash", "", "last_s", 35),
)

SQLITE = (
    Aim("drain, 100 slots, over the fastest of saq, huey, arq", "drain", "100", "rate", 5.0, True, REDIS_PEERS),
    Aim("drain, 10 slots, over the fastest of saq, huey, arq", "drain", "10", "rate", 2.5, True, REDIS_PEERS),
    Aim("drain, 100 slots, over pgqueuer", "drain", "100", "rate", 1.0, True, ("pgqueuer",)),
    Aim("CPU µs a no-op task, 100 slots", "drain", "100", "cpu_us", 80),
    Aim("pick-up through the API, p50 ms", "pickup", "", "p50_ms", 5),
    Aim("pick-up through the API, p99 ms", "pickup", "", "p99_ms", 25),
    Aim("first 2,000 tasks, large backlog over small", "backlog", "", "ratio", 1.2),
    Aim("idle CPU %", "idle", "", "cpu_percent", 1),
    Aim("idle RSS MiB", "idle", "", "rss_mib", 90),
    Aim("HTTP enqueue over a constant answer, hypercorn", "http", "hypercorn", "rate", 0.7, True, ("constant",)),
    Aim("CPU µs a delegated task, the extension", "delegate", "extension", "cpu_us", 1000),
    Aim("CPU µs a delegated task, the fork", "delegate", "fork", "cpu_us", 1000),
    Aim("HTTP calls a delegated task, the extension", "delegate", "extension", "calls", 1.1),
    Aim("HTTP calls a delegated task, the fork", "delegate", "fork", "calls", 2.01),
)

MYSQL = (
    Aim("drain, 100 slots, over row by row, 1 connection", "drain", "100", "rate", 8.0, True,
        ("row by row, 1 connection",)),
    Aim("drain, 100 slots, over row by row, 10 connections", "drain", "100", "rate", 8.0, True,
        ("row by row, 10 connections",)),
    Aim("drain, 100 slots, over pgqueuer", "drain", "100", "rate", 1.0, True, ("pgqueuer",)),
    Aim("drain, 100 slots, share of the store's bare statements", "drain", "100", "rate", None, True, (BARE_SQL,)),
    Aim("drain, 100 slots, over 4 times the tuned Go worker (scaled by pgqueuer)", "drain", "100", "rate",
        4 * GO_WORKER["pgqueuer"], True, ("pgqueuer",)),
    Aim("drain, 100 slots, over 4 times the tuned Go worker (scaled by huey)", "drain", "100", "rate",
        4 * GO_WORKER["huey"], True, ("huey",)),
    Aim("CPU µs a no-op task, 100 slots", "drain", "100", "cpu_us", 120),
    Aim("pick-up of PHP's own insert, p50 ms", "pickup", "from PHP", "p50_ms", 30),
    Aim("pick-up through the API, p50 ms", "pickup", "", "p50_ms", 5),
    Aim("first 2,000 tasks, large backlog over small", "backlog", "", "ratio", 1.3),
    Aim("several processes over one", "processes", "", "rate", 1.0, True, ("one process",)),
)  # fmt: skip  # a promise reads better in few lines

REDIS = (
    Aim("drain, 100 slots, over the fastest Python peer", "drain", "100", "rate", 5.0, True, BESIDE["redis"]),
    Aim("drain, 100 slots, share of a bare pipelined Lua loop", "drain", "100", "rate", None, True, (BARE_LUA,)),
    Aim("CPU µs a no-op task, 100 slots", "drain", "100", "cpu_us", 70),
    Aim("bulk enqueue over the best bulk peer", "enqueue", "bulk", "rate", 2.0, True, BESIDE["redis"]),
    Aim("pick-up across processes, p50 ms", "pickup", "from another process", "p50_ms", 2),
    Aim("pick-up across processes, p99 ms", "pickup", "from another process", "p99_ms", 5),
    Aim("pick-up across processes, p50, over the better of saq and taskiq-stream", "pickup", "from another process",
        "p50_ms", 1.0, False, ("saq", "taskiq-stream"), ""),
    Aim("pick-up across processes, p99, over the better of saq and taskiq-stream", "pickup", "from another process",
        "p99_ms", 1.0, False, ("saq", "taskiq-stream"), ""),
    Aim("first 2,000 tasks, large backlog over small", "backlog", "", "ratio", 1.2),
)  # fmt: skip

STREAMS = (
    Aim("drain, 100 slots, over MySQL alone", "drain", "100", "rate", 0.8, True, (MYSQL_ALONE,)),
    Aim("drain, 10 slots, over MySQL alone", "drain", "10", "rate", 0.8, True, (MYSQL_ALONE,)),
    Aim("pick-up of PHP's own insert, p50 ms", "pickup", "from PHP", "p50_ms", 30),
    Aim("pick-up through the API of another process, p50 ms", "pickup", "API of another process", "p50_ms", 10),
    Aim("the same over MySQL alone", "pickup", "API of another process", "p50_ms", 1.0, False, (MYSQL_ALONE,)),
    Aim("idle, statements a second on MySQL", "idle", "", "mysql_queries_s", None),
    Aim("first 2,000 tasks, large backlog over small", "backlog", "", "ratio", 1.3),
)

AIMS: Mapping[str, tuple[Aim, ...]] = {
    "sqlite": SQLITE + COMMON,
    "mysql": MYSQL + COMMON,
    "redis": REDIS + COMMON,
    "streams": STREAMS + COMMON,
}

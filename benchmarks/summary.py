"""Turns the samples of a run into Markdown: medians side by side, then the aims and whether they were met."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from benchmarks.sample import OURS, Sample, median_of

REDIS_PEERS = ("saq", "huey", "arq")


class Aim(Struct, frozen=True):
    """A promise: a figure, or a ratio to others, that must be at least or at most `bound`.

    `over` names contenders whose best rate divides ours.
    """

    sentence: str
    work: str
    variant: str
    value: str
    bound: float
    at_least: bool = False
    over: tuple[str, ...] = ()


AIMS = (
    Aim("drain, 100 slots, over the fastest of saq, huey, arq", "drain", "100", "rate", 5.0, True, REDIS_PEERS),
    Aim("drain, 10 slots, over the fastest of saq, huey, arq", "drain", "10", "rate", 2.5, True, REDIS_PEERS),
    Aim("drain, 100 slots, over pgqueuer", "drain", "100", "rate", 1.0, True, ("pgqueuer",)),
    Aim("CPU µs a no-op task, 100 slots", "drain", "100", "cpu_us", 80),
    Aim("pick-up through the API, p50 ms", "pickup", "", "p50_ms", 5),
    Aim("pick-up through the API, p99 ms", "pickup", "", "p99_ms", 25),
    Aim("delayed, earliest, ms after its second", "delay", "", "min_ms", 0, True),
    Aim("delayed, p99, ms after its second", "delay", "", "p99_ms", 50),
    Aim("first 2,000 tasks, large backlog over small", "backlog", "", "ratio", 1.2),
    Aim("idle CPU %", "idle", "", "cpu_percent", 1),
    Aim("idle RSS MiB", "idle", "", "rss_mib", 90),
    Aim("HTTP enqueue over a constant answer, hypercorn", "http", "hypercorn", "rate", 0.7, True, ("constant",)),
)


def summary(samples: Sequence[Sample]) -> str:
    """The whole report."""
    parts = []
    for work in dict.fromkeys(sample.work for sample in samples):
        taken = [sample for sample in samples if sample.work == work]
        loads = sorted(sample.load for sample in taken)
        parts += [f"## {work}", "", *_table(taken), "", f"Load average {loads[0]:g} to {loads[-1]:g}.", ""]
    return "\n".join([*parts, "## Aims", "", *_aims(samples)])


def _table(samples: Sequence[Sample]) -> Iterable[str]:
    names = list(dict.fromkeys(name for sample in samples for name in sample.values))
    ratio = "rate" in names
    header = ["variant", "contender", *names, *(["ours / its rate"] if ratio else [])]
    yield _line(header)
    yield _line(["---"] * len(header))
    for variant, contender in dict.fromkeys((sample.variant, sample.contender) for sample in samples):
        cells = [_number(median_of(samples, samples[0].work, variant, contender, name)) for name in names]
        if ratio:
            others = () if contender == OURS else (contender,)
            cells.append(_number(_ratio(samples, samples[0].work, variant, "rate", others)))
        yield _line([variant or "-", contender, *cells])


def _aims(samples: Sequence[Sample]) -> Iterable[str]:
    yield _line(["aim", "bound", "measured", "met"])
    yield _line(["---"] * 4)
    for aim in AIMS:
        if aim.over:
            found = _ratio(samples, aim.work, aim.variant, aim.value, aim.over)
        else:
            found = median_of(samples, aim.work, aim.variant, OURS, aim.value)
        if found is not None:
            met = found >= aim.bound if aim.at_least else found <= aim.bound
            bound = f"{'≥' if aim.at_least else '≤'} {aim.bound:g}"
            yield _line([aim.sentence, bound, _number(found), "yes" if met else "**no**"])


def _ratio(samples: Sequence[Sample], work: str, variant: str, value: str, others: Sequence[str]) -> float | None:
    ours = median_of(samples, work, variant, OURS, value)
    theirs = [
        found
        for other in others
        if (found := median_of(samples, work, variant, other, value)) is not None and found > 0
    ]
    return ours / max(theirs) if ours is not None and theirs else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

"""Turns the samples of runs into Markdown: medians side by side, then the aims and whether they were met."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from benchmarks.aims import AIMS, Aim
from benchmarks.sample import OURS, Sample, median_of


class _Found(Struct, frozen=True):
    """What was measured for an aim, and for whom of ours."""

    contender: str
    value: float


def summary(samples: Sequence[Sample]) -> str:
    """The whole report, store by store."""
    parts: list[str] = []
    for store in dict.fromkeys(sample.store for sample in samples):
        parts += _store(store, [sample for sample in samples if sample.store == store])
    return "\n".join(parts)


def _store(store: str, samples: Sequence[Sample]) -> Iterable[str]:
    yield from (f"# {store}", "")
    for work in dict.fromkeys(sample.work for sample in samples):
        taken = [sample for sample in samples if sample.work == work]
        loads = sorted(sample.load for sample in taken)
        yield from (f"## {work}", "", *_table(taken), "", f"Load average {loads[0]:g} to {loads[-1]:g}.", "")
    yield from ("## Aims", "", *_aims(AIMS.get(store, ()), samples), "")


def _table(samples: Sequence[Sample]) -> Iterable[str]:
    work = samples[0].work
    names = list(dict.fromkeys(name for sample in samples for name in sample.values))
    ratio = "rate" in names
    header = ["variant", "contender", *names, *(["ours / its rate"] if ratio else [])]
    yield _line(header)
    yield _line(["---"] * len(header))
    for variant, contender in dict.fromkeys((sample.variant, sample.contender) for sample in samples):
        cells = [_number(median_of(samples, work, variant, contender, name)) for name in names]
        if ratio:
            others = () if contender == OURS else (contender,)
            cells.append(_number(_ratio(samples, Aim("", work, variant, "rate", 0, True, others))))
        yield _line([variant or "-", contender, *cells])


def _aims(aims: Sequence[Aim], samples: Sequence[Sample]) -> Iterable[str]:
    yield _line(["aim", "bound", "measured", "met"])
    yield _line(["---"] * 4)
    for aim in aims:
        for found in _measured(aim, samples):
            sentence = aim.sentence + found.contender.removeprefix(OURS)
            yield _line([sentence, *_verdict(aim, found.value)])


def _verdict(aim: Aim, value: float) -> tuple[str, str, str]:
    """The bound, what was measured, and whether it was met."""
    if aim.bound is None:
        return "stated", _number(value), "-"
    met = value >= aim.bound if aim.at_least else value <= aim.bound
    return f"{'≥' if aim.at_least else '≤'} {aim.bound:g}", _number(value), "yes" if met else "**no**"


def _measured(aim: Aim, samples: Sequence[Sample]) -> Iterable[_Found]:
    """For each of our contenders that was measured."""
    for contender in dict.fromkeys(sample.contender for sample in samples if sample.contender.startswith(OURS)):
        if aim.over:
            value = _ratio(samples, aim, contender)
        else:
            value = median_of(samples, aim.work, aim.variant, contender, aim.value)
        if value is not None:
            yield _Found(contender, value)


def _ratio(samples: Sequence[Sample], aim: Aim, contender: str = OURS) -> float | None:
    """Ours over the best of theirs."""
    ours = median_of(samples, aim.work, aim.variant, contender, aim.value)
    variant = aim.variant if aim.their_variant is None else aim.their_variant
    theirs = [
        found
        for other in aim.over
        if (found := median_of(samples, aim.work, variant, other, aim.value)) is not None and found > 0
    ]
    best = max if aim.at_least else min
    return ours / best(theirs) if ours is not None and theirs else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

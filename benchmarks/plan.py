"""Which measurements make up a run: every workload with its variants and contenders."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from benchmarks import http_rate, workloads
from benchmarks.peers import Peers, setting
from benchmarks.sample import OURS

WORKLOADS = ("drain", "enqueue", "http", "pickup", "delay", "backlog", "idle")

ENQUEUES = {"one": 3000, "conc": 10_000, "bulk": 20_000}
"""Modes of the drivers' enqueue workload, and how many tasks are enough for a steady rate."""

PEER_DRAIN_SECONDS = 30
"""A peer that has not drained its tasks by then is measured by what it did."""

Measure = Callable[[Path], Mapping[str, float]]


class Measurement(Struct, frozen=True):
    """One figure of the report; `measure` makes one repetition in the folder it is given."""

    work: str
    variant: str
    contender: str
    measure: Measure


class Options(Struct, frozen=True):
    """Sizes of a run."""

    count: int = 20_000
    slots: tuple[int, ...] = (1, 10, 100)
    backlog: int = 500_000
    seconds: int = 5
    event_loop: str = "asyncio"


def plan(work: str, options: Options, names: tuple[str, ...], peers: Peers | None) -> Iterator[Measurement]:
    """The measurements of one workload, contenders side by side, so that a noisy minute hits all of them."""
    match work:
        case "drain":
            yield from _drain(options, names, peers)
        case "enqueue":
            yield from _enqueue(names, peers)
        case "http":
            yield from _http(options)
        case "pickup":
            yield Measurement(work, "", OURS, workloads.pick_up)
            yield from _latencies(work, names, peers, "w3")
        case "delay":
            yield Measurement(work, "", OURS, workloads.delayed)
            yield from _latencies(work, names, peers, "w4")
        case "backlog":
            measure = partial(workloads.backlog, small=1000, large=options.backlog)
            yield Measurement(work, "", OURS, measure)
        case "idle":
            yield Measurement(work, "", OURS, workloads.idle)


def _drain(options: Options, names: tuple[str, ...], peers: Peers | None) -> Iterator[Measurement]:
    for slots in options.slots:
        # a quarter is enough where tasks run one by one
        count = options.count if slots >= 10 else options.count // 4
        measure = partial(workloads.drain, slots=slots, count=count, event_loop=options.event_loop)
        yield Measurement("drain", str(slots), OURS, measure)
        for name in names:
            sizes = ("--setting", setting(name, slots), "--n", str(count), "--cap", str(PEER_DRAIN_SECONDS))
            yield from _peers("drain", str(slots), (name,), peers, "w2", *sizes)


def _enqueue(names: tuple[str, ...], peers: Peers | None) -> Iterator[Measurement]:
    for mode, count in ENQUEUES.items():
        measure = partial(workloads.enqueue, mode=mode, count=count)
        yield Measurement("enqueue", mode, OURS, measure)
        able = tuple(name for name in names if (name, mode) != ("huey", "conc"))  # its driver is not concurrent
        yield from _peers("enqueue", mode, able, peers, "w1", "--mode", mode, "--n", str(count))


def _http(options: Options) -> Iterator[Measurement]:
    for server in ("hypercorn", "uvicorn"):
        common = partial(http_rate.enqueue, server=server, seconds=options.seconds)
        bare = partial(http_rate.constant, server=server, seconds=options.seconds, connections=16)
        yield Measurement("http", server, OURS, partial(common, connections=16))
        yield Measurement("http", server, "constant", bare)
        yield Measurement("http", f"{server}, 1 caller", OURS, partial(common, connections=1))
        yield Measurement("http", f"{server}, 64 callers", OURS, partial(common, connections=64))
        yield Measurement("http", f"{server}, batches of 100", OURS, partial(common, connections=4, batch=100))


def _latencies(work: str, names: tuple[str, ...], peers: Peers | None, theirs: str) -> Iterator[Measurement]:
    for name in names:
        yield from _peers(work, "", (name,), peers, theirs, "--setting", setting(name, 10))


def _peers(
    work: str, variant: str, names: tuple[str, ...], peers: Peers | None, theirs: str, *more: str
) -> Iterator[Measurement]:
    if peers is not None:
        for name in names:
            yield Measurement(work, variant, name, partial(peers.measure, theirs, name, more))

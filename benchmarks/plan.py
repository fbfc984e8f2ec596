"""Which measurements make up a run: every workload with its variants and contenders."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from benchmarks import delegation, http_rate, workloads
from benchmarks.backends import Backend, RecordAlone, Subject
from benchmarks.peers import Peers, setting
from benchmarks.sample import BARE_LUA, BARE_SQL, MYSQL_ALONE, OURS

WORKLOADS = (
    *("drain", "processes", "enqueue", "http", "cycle", "pickup", "delay", "backlog", "idle", "crash"),
    "delegate",
)

ENQUEUES = {"one": 3000, "conc": 10_000, "bulk": 20_000}
"""Modes of the drivers' enqueue workload, and how many tasks are enough for a steady rate."""

NOT_CONCURRENT = frozenset({"huey", "dramatiq", "celery", "rq"})
"""Peers whose drivers do not enqueue concurrently."""

PEER_DRAIN_SECONDS = 30
"""A peer that has not drained its tasks by then is measured by what it did."""

BARE_SLOTS = 100
"""The drain beside which a bare loop stands: its batches are as large as that many slots make them."""

BARE_LOOPS = {"mysql": (BARE_SQL, workloads.bare_sql), "redis": (BARE_LUA, workloads.bare_lua)}

ROW_BY_ROW = {1: (1,), 10: (10,), 100: (1, 10)}
"""Slots of a drain on MySQL, and the connections of the one-row-at-a-time drains that stand beside it."""

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
    workers: int = 4


class Plan:
    """The measurements on one store, contenders side by side, so that a noisy minute hits all of them."""

    def __init__(
        self, subjects: Sequence[Subject], options: Options, names: tuple[str, ...] = (), peers: Peers | None = None
    ) -> None:
        self._subjects = subjects
        self._options = options
        self._names = names if peers is not None else ()
        self._peers = peers

    def measurements(self, work: str) -> Iterator[Measurement]:
        """Those of one workload."""
        match work:
            case "drain":
                yield from self._drain()
            case "processes":
                yield from self._processes()
            case "enqueue":
                yield from self._enqueue()
            case "http":
                yield from self._http()
            case "cycle":
                yield from self._cycle()
            case "pickup":
                yield from self._pickup()
            case "delay":
                yield from self._ours(work, "", workloads.delayed)
                yield from self._latencies(work, "w4")
            case "backlog":
                yield from self._ours(work, "", partial(workloads.backlog, small=1000, large=self._options.backlog))
            case "idle":
                yield from self._ours(work, "", workloads.idle)
            case "crash":
                # our own figure alone: most peers never run such tasks again
                yield Measurement(work, "", OURS, partial(workloads.crash, subject=self._subjects[0]))
            case "delegate":
                yield from self._delegate()

    def _delegate(self) -> Iterator[Measurement]:
        # what a delegated task costs beyond the store is the same on all of them
        if self._backend.name == "sqlite":
            for variant, locks in {"extension": True, "fork": False}.items():
                yield from self._ours("delegate", variant, partial(delegation.delegate, locks=locks))

    @property
    def _backend(self) -> Backend:
        return self._subjects[0].backend

    def _drain(self) -> Iterator[Measurement]:
        for slots in self._options.slots:
            # a quarter is enough where tasks run one by one
            count = self._options.count if slots >= 10 else self._options.count // 4
            yield from self._ours("drain", str(slots), partial(workloads.drain, slots=slots, count=count))
            if self._backend.name == "mysql":
                for connections in ROW_BY_ROW.get(slots, ()):
                    yield self._row_by_row(str(slots), connections)
            if slots == BARE_SLOTS and self._backend.name in BARE_LOOPS:
                name, loop = BARE_LOOPS[self._backend.name]
                yield Measurement("drain", str(slots), name, partial(loop, subject=Subject(self._backend), count=count))
            for name in self._names:
                sizes = ("--setting", setting(name, slots), "--n", str(count), "--cap", str(PEER_DRAIN_SECONDS))
                yield from self._theirs("drain", str(slots), (name,), "w2", *sizes)

    def _row_by_row(self, variant: str, connections: int) -> Measurement:
        # the faster driver, so that the comparison is with the best of its kind
        subject = Subject(self._backend, settings={"MYSQL_DRIVER": "asyncmy"})
        name = f"row by row, {connections} connection{'s' if connections > 1 else ''}"
        count = self._options.count // 4
        measure = partial(workloads.row_by_row, subject=subject, connections=connections, count=count)
        return Measurement("drain", variant, name, measure)

    def _processes(self) -> Iterator[Measurement]:
        measure = partial(workloads.processes, subject=self._subjects[0], count=self._options.count * 2)
        yield Measurement("processes", "", OURS, partial(measure, workers=self._options.workers))
        yield Measurement("processes", "", "one process", partial(measure, workers=1))

    def _enqueue(self) -> Iterator[Measurement]:
        for mode, count in ENQUEUES.items():
            yield from self._ours("enqueue", mode, partial(workloads.enqueue, mode=mode, count=count))
            able = tuple(name for name in self._names if mode != "conc" or name not in NOT_CONCURRENT)
            yield from self._theirs("enqueue", mode, able, "w1", "--mode", mode, "--n", str(count))

    def _http(self) -> Iterator[Measurement]:
        seconds = self._options.seconds
        for server in ("hypercorn", "uvicorn"):
            common = partial(http_rate.enqueue, server=server, seconds=seconds)
            bare = partial(http_rate.constant, server=server, seconds=seconds, connections=16)
            yield from self._ours("http", server, partial(common, connections=16))
            yield Measurement("http", server, "constant", bare)
            yield from self._ours("http", f"{server}, 1 caller", partial(common, connections=1))
            yield from self._ours("http", f"{server}, 64 callers", partial(common, connections=64))
            yield from self._ours("http", f"{server}, batches of 100", partial(common, connections=4, batch=100))

    def _cycle(self) -> Iterator[Measurement]:
        common = partial(http_rate.cycle, seconds=self._options.seconds)
        yield from self._ours("cycle", "1 caller", partial(common, connections=1))
        yield from self._ours("cycle", "16 callers", partial(common, connections=16))
        yield from self._ours("cycle", "4 callers, batches of 100", partial(common, connections=4, batch=100))

    def _pickup(self) -> Iterator[Measurement]:
        yield from self._ours("pickup", "", workloads.pick_up)
        yield from self._latencies("pickup", "w3")
        if self._backend.name == "streams":
            yield from self._ours("pickup", "API of another process", workloads.pick_up_apart)
        senders = {"store": "another process"} | ({"php": "PHP"} if self._backend.name in {"mysql", "streams"} else {})
        for sender, variant in senders.items():
            yield from self._ours("pickup", f"from {variant}", partial(workloads.pick_up_from, sender=sender))

    def _ours(self, work: str, variant: str, measure: Callable[..., Mapping[str, float]]) -> Iterator[Measurement]:
        for subject in self._subjects:
            yield Measurement(work, variant, subject.contender, partial(measure, subject=subject))

    def _latencies(self, work: str, theirs: str) -> Iterator[Measurement]:
        for name in self._names:
            yield from self._theirs(work, "", (name,), theirs, "--setting", setting(name, 10))

    def _theirs(
        self, work: str, variant: str, names: tuple[str, ...], theirs: str, *more: str
    ) -> Iterator[Measurement]:
        if self._peers is not None:
            for name in names:
                yield Measurement(work, variant, name, partial(self._peers.measure, theirs, name, more))


def subjects(backend: Backend, event_loop: str) -> list[Subject]:
    """What is measured on a store: on MySQL with each of the two drivers; beside the streams their record alone."""
    settings = {} if event_loop == "asyncio" else {"EVENT_LOOP": event_loop}
    if backend.name == "streams":
        return [Subject(backend, settings=settings), Subject(RecordAlone(backend), MYSQL_ALONE, settings)]
    if backend.name != "mysql":
        return [Subject(backend, settings=settings)]
    return [
        Subject(backend, OURS if driver == "aiomysql" else f"{OURS}, {driver}", settings | {"MYSQL_DRIVER": driver})
        for driver in ("aiomysql", "asyncmy")
    ]

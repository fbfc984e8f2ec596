"""Prometheus metrics: plain counts on the hot path, put into Prometheus' words when somebody asks.

No label has an unbounded number of values: routes are templates, and of classes and priorities the largest
groups are named and the rest is summed up as `(other)`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from queue_runtime.cron_loop import CronLoop, Post
from queue_runtime.errors import StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.stats import RUN_BUCKETS, ClassStats, WorkerStats
from queue_runtime.store import Dispatching, DispatchState, Store
from queue_runtime.task import Backlog, QueueStats

log = structlog.get_logger()

PREFIX = "queue_runtime_"
OTHER = "(other)"
MAX_GROUPS = 100
READ_SECONDS = 2.0
"""A scrape waits this long for the store, and goes without its figures then."""

FRESH_SECONDS = 5.0
"""Figures of the store may be this old, so that many scrapers do not mean many scans."""

ANY_CLASS = "*"


class WorkerView(Protocol):
    """What the faces see of the worker."""

    @property
    def stats(self) -> WorkerStats: ...

    @property
    def supported(self) -> list[str]:
        """Classes that have a handler here, and `*` where a fallback takes the others."""
        ...

    @property
    def queues(self) -> list[str] | None:
        """The queues that tasks are leased from; None: all."""
        ...


class ConduitView(Protocol):
    """What the metrics see of the calls that have Phorge run tasks."""

    @property
    def calls(self) -> Mapping[str, int]:
        """Calls by how they ended."""
        ...

    @property
    def seconds(self) -> float: ...

    @property
    def running(self) -> int: ...

    @property
    def open(self) -> bool: ...

    @property
    def held(self) -> Mapping[str, str]:
        """Classes that are not leased for it just now, and why."""
        ...

    @property
    def setbacks(self) -> Mapping[str, int]:
        """Tasks that came back without an outcome, by why."""
        ...


class Waiting(Protocol):
    """What the metrics see of the settler."""

    @property
    def waiting(self) -> int: ...


class Figures(Struct, frozen=True):
    """What the store said at one moment."""

    at: float
    stats: QueueStats | None = None
    backlog: tuple[Backlog, ...] = ()


class Metrics(Collector):
    """Counts HTTP requests, and tells these, the worker's counts and the store's figures to a scrape."""

    def __init__(
        self,
        store: Store,
        *,
        lifecycle: Lifecycle,
        settler: Waiting | None = None,
        worker: WorkerView | None = None,
        conduit: ConduitView | None = None,
        cron: CronLoop | None = None,
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._settler = settler
        self._worker = worker
        self._conduit = conduit
        self._cron = cron
        self._requests: dict[tuple[str, int], list[float]] = {}
        self._figures = Figures(-FRESH_SECONDS)
        self._unserved_logged: set[str] = set()
        self._queues_logged: set[str] = set()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    @property
    def conduit(self) -> ConduitView | None:
        """The calls that have Phorge run tasks; None: there are none."""
        return self._conduit

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one HTTP request that was answered."""
        count = self._requests.get((route, status))
        if count is None:
            count = self._requests[route, status] = [0, 0.0]
        count[0] += 1
        count[1] += seconds

    async def render(self) -> bytes:
        """The text of a scrape."""
        await self.refresh()
        return generate_latest(self._registry)

    async def refresh(self) -> None:
        """Ask the store for its figures unless they are fresh; name classes that wait and that nobody here runs."""
        if time.monotonic() - self._figures.at < FRESH_SECONDS:
            return
        try:
            async with asyncio.timeout(READ_SECONDS):
                stats = await self._store.stats()
                backlog = await self._store.backlog()
        except (StoreUnavailable, TimeoutError):
            self._figures = Figures(time.monotonic())
            return
        self._figures = Figures(time.monotonic(), stats, tuple(backlog))
        strange, elsewhere = self._unserved()
        for task_class, waiting in _waiting(strange, lambda one: one.task_class):
            if task_class not in self._unserved_logged and len(self._unserved_logged) < MAX_GROUPS:
                self._unserved_logged.add(task_class)
                log.warning("tasks wait for a class that has no handler here", task_class=task_class, waiting=waiting)
        for queue, waiting in _waiting(elsewhere, lambda one: one.queue):
            if queue not in self._queues_logged and len(self._queues_logged) < MAX_GROUPS:
                self._queues_logged.add(queue)
                # another pool may serve it, so this is no warning
                log.info("tasks wait in a queue that is not leased from here", queue=queue, waiting=waiting)

    def collect(self) -> Iterator[Metric]:
        """Everything, in Prometheus' words; called by the registry."""
        yield from self._of_http()
        yield from self._of_store()
        yield from self._of_process()
        if isinstance(self._store, Dispatching):
            yield from self._of_dispatch(self._store.dispatch)
        if self._conduit is not None:
            yield from self._of_conduit(self._conduit)
        if self._cron is not None:
            yield from self._of_cron(self._cron.posts)
        if self._worker is not None:
            yield from self._of_worker(self._worker.stats)
            yield from self._of_classes(_largest(self._worker.stats.classes))

    def _of_http(self) -> Iterator[Metric]:
        requests = SummaryMetricFamily(
            PREFIX + "http_request_seconds", "HTTP requests by route template and status", labels=["route", "status"]
        )
        for (route, status), (count, seconds) in sorted(self._requests.items()):
            requests.add_metric([route, str(status)], count_value=int(count), sum_value=seconds)
        yield requests

    def _of_store(self) -> Iterator[Metric]:
        stats, backlog = self._figures.stats, self._figures.backlog
        yield _gauge("store_up", "Whether the store answered the last time", float(stats is not None))
        if stats is None:
            return
        yield _gauges(
            "tasks",
            "Tasks in the queue; leased and failed ones are active too",
            "state",
            [
                ("active", stats.active),
                ("leased", stats.leased),
                ("failed", stats.failed),
                ("archived", stats.archived),
            ],
        )
        now = time.time()
        by_class, by_priority = _Groups(), _Groups()
        for one in backlog:
            by_class.add(one.task_class, one.waiting, one.oldest)
            by_priority.add(str(one.priority), one.waiting, one.oldest)
        yield _gauges("waiting_tasks", "Tasks that could run now", "task_class", by_class.waiting())
        yield _gauges(
            "oldest_waiting_seconds", "Age of the oldest task that could run now", "task_class", by_class.ages(now)
        )
        yield _gauges("waiting_tasks_by_priority", "Tasks that could run now", "priority", by_priority.waiting())
        yield _gauges(
            "oldest_waiting_seconds_by_priority",
            "Age of the oldest task that could run now",
            "priority",
            by_priority.ages(now),
        )
        if self._worker is not None:
            strange, elsewhere = self._unserved()
            unserved = _waiting([*strange, *elsewhere], lambda one: one.task_class)
            yield _gauges(
                "unserved_waiting_tasks", "Tasks whose class or queue nobody here takes", "task_class", unserved
            )

    def _unserved(self) -> tuple[list[Backlog], list[Backlog]]:
        """What this worker does not take: classes that it cannot run, and others in queues that it passes by."""
        strange: list[Backlog] = []
        elsewhere: list[Backlog] = []
        if self._worker is None:
            return strange, elsewhere
        supported, queues = frozenset(self._worker.supported), self._worker.queues
        for one in self._figures.backlog:
            if not _is_among(one.task_class, supported):
                strange.append(one)
            elif queues is not None and one.queue not in queues:
                elsewhere.append(one)
        return strange, elsewhere

    def _of_process(self) -> Iterator[Metric]:
        stopping = self._lifecycle.stopping.is_set()
        faults = self._lifecycle.faults
        yield _gauge("stopping", "Whether the process is on its way out", float(stopping))
        yield _gauges("fault", "What is not well now", "source", [(source, 1.0) for source in sorted(faults)])
        if self._settler is not None:
            yield _gauge("outcomes_waiting", "Outcomes that are not written yet", self._settler.waiting)

    def _of_dispatch(self, dispatch: DispatchState) -> Iterator[Metric]:
        modes = [(mode, float(mode == dispatch.mode)) for mode in ("streams", "record")]
        yield _gauges("dispatch_mode", "How tasks get to the workers now", "mode", modes)
        yield _counter("dispatch_falls", "Times that the record had to stand in for the streams", dispatch.falls)

    def _of_conduit(self, conduit: ConduitView) -> Iterator[Metric]:
        yield _gauge("conduit_ready", "Whether Phorge runs tasks, so that they are leased for it", float(conduit.open))
        yield _gauge("conduit_running", "Tasks that Phorge runs for us now", conduit.running)
        yield _counter("conduit_seconds", "Time that calls of Phorge took", conduit.seconds)
        calls = CounterMetricFamily(PREFIX + "conduit_calls", "Calls of Phorge by how they ended", labels=["ending"])
        for ending, count in sorted(conduit.calls.items()):
            calls.add_metric([ending], count)
        yield calls
        setbacks = CounterMetricFamily(
            PREFIX + "conduit_setbacks", "Delegated tasks that came back without an outcome", labels=["why"]
        )
        for why, count in sorted(conduit.setbacks.items()):
            setbacks.add_metric([why], count)
        yield setbacks
        held = [(task_class, 1.0) for task_class in sorted(conduit.held)]
        yield _gauges("conduit_held", "Classes that are not leased for Phorge just now", "task_class", held)

    def _of_cron(self, posts: Sequence[Post]) -> Iterator[Metric]:
        slots = CounterMetricFamily(
            PREFIX + "cron_slots", "Slots in the queue, by this process or an earlier one", labels=["entry"]
        )
        for post in posts:
            slots.add_metric([post.entry.name], post.enqueued)
        yield slots
        for name, help_text, moments in (
            ("last", "Latest slot that is in the queue, Unix seconds", [(one.entry.name, one.last) for one in posts]),
            ("next", "Next slot, Unix seconds", [(one.entry.name, one.next) for one in posts]),
        ):
            known = [(entry, float(slot)) for entry, slot in moments if slot is not None]
            yield _gauges(f"cron_{name}_slot_seconds", help_text, "entry", known)
        waiting = [(post.entry.name, float(len(post.waiting))) for post in posts]
        yield _gauges("cron_waiting_slots", "Slots that are due and not in the queue yet", "entry", waiting)

    def _of_worker(self, stats: WorkerStats) -> Iterator[Metric]:
        yield _gauge("slots", "Tasks that may run at once", stats.slots)
        yield _gauge("abandoned_runs", "Runs that did not end when told to, and still go on", stats.abandoned_now)
        yield _counter("leases", "Lease calls that succeeded", stats.leases)
        yield _counter("lease_errors", "Lease calls that failed", stats.lease_errors)
        yield _counter("loop_blocked_seconds", "Time for which handlers held the event loop", stats.blocked_seconds)
        if stats.last_lease_at is not None:
            age = time.monotonic() - stats.last_lease_at
            yield _gauge("last_lease_seconds", "Time since the last lease call that succeeded", age)

    def _of_classes(self, classes: Iterable[tuple[str, ClassStats]]) -> Iterator[Metric]:
        running = GaugeMetricFamily(PREFIX + "running_tasks", "Tasks that run now", labels=["task_class"])
        endings = CounterMetricFamily(PREFIX + "runs", "Runs by how they ended", labels=["task_class", "ending"])
        lengths = HistogramMetricFamily(PREFIX + "run_seconds", "Length of the runs", labels=["task_class"])
        for task_class, one in classes:
            running.add_metric([task_class], one.running)
            for ending, count in one.endings.items():
                if count:
                    endings.add_metric([task_class, ending.value], count)
            lengths.add_metric([task_class], buckets=_cumulative(one.buckets), sum_value=one.run_seconds)
        yield running
        yield endings
        yield lengths


def _is_among(task_class: str, supported: Collection[str]) -> bool:
    """Whether the class is one of these, or fits a pattern among them."""
    if ANY_CLASS in supported or task_class in supported:
        return True
    return any(fnmatchcase(task_class, name) for name in supported)


def _waiting(groups: Iterable[Backlog], label: Callable[[Backlog], str]) -> list[tuple[str, float]]:
    """How many tasks wait by this label, the most first."""
    counts = _Groups()
    for one in groups:
        counts.add(label(one), one.waiting, one.oldest)
    return counts.waiting()


class _Groups:
    """Waiting tasks by some label: how many, and since when."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[int, int]] = {}

    def add(self, name: str, waiting: int, oldest: int) -> None:
        known, since = self._groups.get(name, (0, oldest))
        self._groups[name] = (known + waiting, min(since, oldest))

    def waiting(self) -> list[tuple[str, float]]:
        return [(name, waiting) for name, waiting, _ in self._largest()]

    def ages(self, now: float) -> list[tuple[str, float]]:
        return [(name, max(0.0, now - oldest)) for name, _, oldest in self._largest()]

    def _largest(self) -> list[tuple[str, int, int]]:
        rows = sorted((-waiting, name, oldest) for name, (waiting, oldest) in self._groups.items())
        found = [(name, -waiting, oldest) for waiting, name, oldest in rows[:MAX_GROUPS]]
        if rest := rows[MAX_GROUPS:]:
            found.append((OTHER, -sum(waiting for waiting, _, _ in rest), min(oldest for _, _, oldest in rest)))
        return found


def _largest(classes: Mapping[str, ClassStats]) -> list[tuple[str, ClassStats]]:
    """The classes that ran most, and the others as one."""
    rows = sorted(classes.items(), key=lambda row: (-sum(row[1].endings.values()), row[0]))
    if rest := rows[MAX_GROUPS:]:
        other = ClassStats()
        for _, one in rest:
            other.running += one.running
            other.run_seconds += one.run_seconds
            other.buckets = [mine + more for mine, more in zip(other.buckets, one.buckets, strict=True)]
            for ending, count in one.endings.items():
                other.endings[ending] += count
        rows = [*rows[:MAX_GROUPS], (OTHER, other)]
    return rows


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip((*RUN_BUCKETS, float("inf")), buckets, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else str(bound), total))
    return found


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_text, value=value)


def _gauges(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, help_text, labels=[label])
    for labelled, value in values:
        family.add_metric([labelled], value)
    return family


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_text, value=value)

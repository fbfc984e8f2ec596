"""The workloads, run on the shipped runtime. Each function measures one repetition in a folder of its own."""

import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.backends import Backend, Subject, questions
from benchmarks.payload import payload_text
from benchmarks.processes import Child, running, wait_until
from benchmarks.runtime import ROOT, Runtime, Served
from benchmarks.sample import quantile

FILL_SECONDS = 300
DRAIN_SECONDS = 120
CRASH_SECONDS = 90
POLL = 0.002
BACKLOG_TASKS = 2000
BACKLOG_TRIES = 3


def drain(folder: Path, *, subject: Subject, slots: int, count: int) -> dict[str, float]:
    """Run `count` no-ops that wait when the process starts; from the first handler to the last.

    Checks afterwards that every one is archived.
    """
    runtime = Runtime(folder, subject, {"SLOTS": str(slots)})
    fill(runtime, "load", count)
    with runtime.serve(ready=False) as served:
        return _drain(runtime, [served], count)


def row_by_row(folder: Path, *, subject: Subject, connections: int, count: int) -> dict[str, float]:
    """The same drain by transactions of one row each, without the runtime."""
    runtime = Runtime(folder, subject)
    fill(runtime, "load", count)
    command = [sys.executable, "-m", "benchmarks.row_by_row", str(connections)]
    with running(command, folder / "row_by_row.log", env=runtime.environment(), cwd=ROOT) as child:
        figures = _race(runtime, [child], count)
        if code := child.process.wait(DRAIN_SECONDS):
            raise RuntimeError(f"row_by_row ended with {code}:\n{child.tail()}")
    return figures


def bare_lua(folder: Path, *, subject: Subject, count: int) -> dict[str, float]:
    """The same drain by a bare pipelined Lua loop, on the same server, without the runtime."""
    runtime = Runtime(folder, subject)
    command = [sys.executable, "-m", "benchmarks.bare_lua", str(count)]
    with running(command, folder / "bare_lua.log", env=runtime.environment(), cwd=ROOT) as child:
        _reach(runtime.tally.count, 1, [child], FILL_SECONDS)
        figures = _race(runtime, [child], count)
        if code := child.process.wait(DRAIN_SECONDS):
            raise RuntimeError(f"bare_lua ended with {code}:\n{child.tail()}")
    return figures


def bare_sql(folder: Path, *, subject: Subject, count: int) -> dict[str, float]:
    """The same drain by the bare statements of the store, on the same server, without the runtime."""
    runtime = Runtime(folder, subject)
    fill(runtime, "load", count)
    command = [sys.executable, "-m", "benchmarks.bare_sql"]
    with running(command, folder / "bare_sql.log", env=runtime.environment(), cwd=ROOT) as child:
        figures = _race(runtime, [child], count)
        if code := child.process.wait(DRAIN_SECONDS):
            raise RuntimeError(f"bare_sql ended with {code}:\n{child.tail()}")
    return figures


def processes(folder: Path, *, subject: Subject, workers: int, count: int, slots: int = 100) -> dict[str, float]:
    """Several processes on one queue, which is paused until all are ready; measured from when all of them run tasks."""
    runtime = Runtime(folder, subject, {"SLOTS": str(slots)})
    with contextlib.ExitStack() as stack:
        serving = [stack.enter_context(runtime.serve(worker=number)) for number in range(workers)]
        serving[0].call("POST", "/api/queue/pause", {"all": True})
        fill(runtime, "load", count)
        serving[0].call("POST", "/api/queue/resume", {"all": True})
        return _drain(runtime, serving, count)


def backlog(folder: Path, *, subject: Subject, small: int, large: int, slots: int = 100) -> dict[str, float]:
    """Seconds for the first 2,000 tasks with `small` and with `large` waiting behind them, and the ratio.

    Medians of a few tries, each of a new process, because they take a fraction of a second. The tries on the large
    backlog go on where the last one stopped.
    """
    settings = {"SLOTS": str(slots)}
    tries: dict[int, list[float]] = {small: [], large: []}
    for number in range(BACKLOG_TRIES):
        runtime = Runtime(folder / f"small-{number}", subject, settings)
        fill(runtime, "load", small + BACKLOG_TASKS)
        tries[small].append(_first_tasks(runtime))
    runtime = Runtime(folder / "large", subject, settings)
    fill(runtime, "load", large + BACKLOG_TASKS)
    for _ in range(BACKLOG_TRIES):
        runtime.tally.reset()
        tries[large].append(_first_tasks(runtime))
    small_s, large_s = statistics.median(tries[small]), statistics.median(tries[large])
    return {"small_s": small_s, "large_s": large_s, "ratio": large_s / small_s}


def enqueue(folder: Path, *, subject: Subject, mode: str, count: int) -> dict[str, float]:
    """Enqueue through the store in a process of its own, without HTTP."""
    return {"rate": count / fill(Runtime(folder, subject), mode, count)}


def pick_up(folder: Path, *, subject: Subject, count: int = 200) -> dict[str, float]:
    """Milliseconds from before the HTTP request that enqueues a task to its handler, on an idle runtime."""
    runtime = Runtime(folder, subject)
    with runtime.serve() as served:
        return _pick_up(runtime, served, count)


def _pick_up(runtime: Runtime, served: Served, count: int) -> dict[str, float]:
    def send(number: int) -> float:
        time.sleep(random.uniform(0.05, 0.15))
        now = time.time()
        _enqueue(served, number)
        return now

    for number in range(-5, 0):  # warm
        send(number)
    sent = {number: send(number) for number in range(count)}
    return _spread(_lateness(runtime, served, sent))


def pick_up_apart(folder: Path, *, subject: Subject, count: int = 200) -> dict[str, float]:
    """The same where one process serves the API and another one is the worker."""
    runtime = Runtime(folder, subject)
    with (
        runtime.serve(ROLES="api,sweep", HANDLERS="") as served,
        runtime.serve(worker=1, ROLES="worker"),
    ):
        return _pick_up(runtime, served, count)


def pick_up_from(folder: Path, *, subject: Subject, sender: str, count: int = 200) -> dict[str, float]:
    """The same for tasks that another process puts into the store, from before its first statement."""
    runtime = Runtime(folder, subject)
    with runtime.serve() as served:
        sent = dict(json.loads(runtime.ask("senders", sender, str(count), timeout=FILL_SECONDS)))
        return _spread(_lateness(runtime, served, {number: when for number, when in sent.items() if number >= 0}))


def delayed(folder: Path, *, subject: Subject, count: int = 100) -> dict[str, float]:
    """Milliseconds from the second named by `delayUntil` to the handler; below zero would be too early."""
    runtime = Runtime(folder, subject)
    with runtime.serve() as served:
        due = {}
        for number in range(count):
            second = int(time.time()) + 3
            _enqueue(served, number, delayUntil=second)
            due[number] = float(second)
            time.sleep(0.02)
        late = _lateness(runtime, served, due)
    return {"min_ms": min(late), "p50_ms": quantile(late, 0.5), "p99_ms": quantile(late, 0.99)}


def crash(folder: Path, *, subject: Subject, count: int = 10) -> dict[str, float]:
    """Seconds from the kill -9 of a process to when its first and its last task run again in a new process."""
    runtime = Runtime(folder, subject)
    with runtime.serve() as served:
        for number in range(count):
            _enqueue(served, number, task_class="long")
        wait_until(lambda: len(runtime.tally.stamps()) == count, served.child, "every task runs")
        served.kill()
    runtime.tally.reset()
    killed = time.time()
    with runtime.serve(worker=1) as served:
        wait_until(
            lambda: len(runtime.tally.stamps()) == count, served.child, "every task has run again", CRASH_SECONDS
        )
    again = runtime.tally.stamps().values()
    return {"first_s": min(again) - killed, "last_s": max(again) - killed}


def idle(folder: Path, *, subject: Subject, seconds: float = 30) -> dict[str, float]:
    """CPU share and memory of a runtime with nothing to do, all roles, settled for a few seconds."""
    runtime = Runtime(folder, subject)
    with runtime.serve() as served:
        time.sleep(5)
        server, before = _ServerCpu(runtime.backend), served.child.usage()
        asked = questions(runtime.backend)
        time.sleep(seconds)
        after, asked_since = served.child.usage(), questions(runtime.backend)
    return {
        "cpu_percent": (after.cpu_seconds - before.cpu_seconds) / seconds * 100,
        "rss_mib": after.rss_mib,
        **({} if asked is None or asked_since is None else {"mysql_queries_s": (asked_since - asked) / seconds}),
    } | server.used("server_percent", seconds / 100)


def fill(runtime: Runtime, mode: str, count: int) -> float:
    """Enqueue no-ops; the seconds it took."""
    return float(json.loads(runtime.ask("fill", mode, str(count), timeout=FILL_SECONDS))["seconds"])


def _first_tasks(runtime: Runtime) -> float:
    with runtime.serve(ready=False) as served:
        seconds = _race(runtime, [served.child], BACKLOG_TASKS)["seconds"]
        wait_until(served.ready, served.child, "queue-runtime is ready")  # before that it does not stop cleanly
    return seconds


def _drain(runtime: Runtime, serving: Sequence[Served], count: int) -> dict[str, float]:
    """A race of which the last outcome must be written too."""
    asked = serving[0]
    figures = _race(
        runtime,
        [served.child for served in serving],
        count,
        archived=lambda: asked.ready() and asked.counts()["activeCount"] == 0,
    )
    archived = asked.counts()["archivedCount"]
    if archived != count or runtime.tally.count() != count:
        raise AssertionError(f"{count} enqueued, {runtime.tally.count()} ran, {archived} archived")
    return figures


def _race(
    runtime: Runtime, children: Sequence[Child], goal: int, *, archived: Callable[[], bool] = lambda: True
) -> dict[str, float]:
    """From when every process has run a task to when `goal` tasks have run; the CPU until they are archived."""
    tally = runtime.tally
    _reach(lambda: min(tally.counts()[: len(children)]), 1, children, 40)
    server, before = _ServerCpu(runtime.backend), _cpu(children)
    first, began = tally.count(), time.monotonic()
    _reach(tally.count, goal, children, DRAIN_SECONDS)
    seconds = time.monotonic() - began
    wait_until(archived, children[0], "every task is archived")
    until_archived, after = time.monotonic() - began, _cpu(children)
    tasks = goal - first
    if tasks <= 0:
        raise RuntimeError(f"all {goal} tasks had run before the measurement began: it needs more of them")
    return {
        "rate": tasks / seconds,
        "archived_rate": tasks / until_archived,
        "seconds": seconds,
        "cpu_us": (after - before) / tasks * 1e6,
        "rss_mib": sum(child.usage().rss_mib for child in children),
    } | server.used("server_us", tasks / 1e6)


class _ServerCpu:
    """What the database server uses from here on."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before = backend.cpu_seconds()

    def used(self, name: str, divisor: float) -> dict[str, float]:
        after = self._backend.cpu_seconds()
        return {} if self._before is None or after is None else {name: (after - self._before) / divisor}


def _cpu(children: Sequence[Child]) -> float:
    return sum(child.usage().cpu_seconds for child in children)


def _reach(count: Callable[[], int], goal: int, children: Sequence[Child], timeout: float) -> None:
    end = time.monotonic() + timeout
    while count() < goal:
        for child in children:
            child.check()
        if time.monotonic() > end:
            raise TimeoutError(f"{count()} of {goal} tasks within {timeout:.0f} s:\n{children[0].tail()}")
        time.sleep(POLL)


def _enqueue(served: Served, number: int, *, task_class: str = "mark", **more: int) -> None:
    served.call("POST", "/api/queue/enqueue", {"taskClass": task_class, "data": payload_text(number), **more})


def _lateness(runtime: Runtime, served: Served, since: dict[int, float]) -> list[float]:
    wait_until(lambda: since.keys() <= runtime.tally.stamps().keys(), served.child, "every task has run")
    ran = runtime.tally.stamps()
    return [(ran[number] - when) * 1000 for number, when in since.items()]


def _spread(late: Sequence[float]) -> dict[str, float]:
    return {"p50_ms": quantile(late, 0.5), "p99_ms": quantile(late, 0.99), "max_ms": max(late)}

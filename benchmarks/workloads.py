"""The workloads, run on the shipped runtime. Each function measures one repetition in a folder of its own."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.payload import payload_text
from benchmarks.processes import wait_until
from benchmarks.runtime import ROOT, Runtime, Served
from benchmarks.sample import quantile

FILL_SECONDS = 300
DRAIN_SECONDS = 120
POLL = 0.002
BACKLOG_TASKS = 2000


def drain(folder: Path, *, slots: int, count: int, event_loop: str = "asyncio") -> dict[str, float]:
    """Run `count` no-ops that wait when the process starts; from the first handler to the last.

    Checks afterwards that every one is archived.
    """
    runtime = Runtime(folder, {"SLOTS": str(slots), "EVENT_LOOP": event_loop})
    fill(runtime, "load", count)
    with runtime.serve(ready=False) as served:
        figures = _race(runtime, served, count)
        wait_until(served.ready, served.child, "queue-runtime is ready")
        wait_until(lambda: served.counts()["activeCount"] == 0, served.child, "every task is archived")
        archived = served.counts()["archivedCount"]
    if archived != count or runtime.tally.count() != count:
        raise AssertionError(f"{count} enqueued, {runtime.tally.count()} ran, {archived} archived")
    return figures


def backlog(folder: Path, *, small: int, large: int, slots: int = 100) -> dict[str, float]:
    """Seconds for the first 2,000 tasks with `small` and with `large` waiting behind them, and the ratio."""
    seconds = {}
    for behind in (small, large):
        runtime = Runtime(folder / str(behind), {"SLOTS": str(slots)})
        fill(runtime, "load", behind + BACKLOG_TASKS)
        with runtime.serve(ready=False) as served:
            seconds[behind] = _race(runtime, served, BACKLOG_TASKS)["seconds"]
    return {"small_s": seconds[small], "large_s": seconds[large], "ratio": seconds[large] / seconds[small]}


def enqueue(folder: Path, *, mode: str, count: int) -> dict[str, float]:
    """Enqueue through the store in a process of its own, without HTTP."""
    return {"rate": count / fill(Runtime(folder), mode, count)}


def pick_up(folder: Path, *, count: int = 200) -> dict[str, float]:
    """Milliseconds from before the HTTP request that enqueues a task to its handler, on an idle runtime."""
    runtime = Runtime(folder)
    with runtime.serve() as served:

        def send(number: int) -> float:
            time.sleep(random.uniform(0.05, 0.15))
            now = time.time()
            _enqueue(served, number)
            return now

        for number in range(-5, 0):  # warm
            send(number)
        sent = {number: send(number) for number in range(count)}
        late = _lateness(runtime, served, sent)
    return {"p50_ms": quantile(late, 0.5), "p99_ms": quantile(late, 0.99), "max_ms": max(late)}


def delayed(folder: Path, *, count: int = 100) -> dict[str, float]:
    """Milliseconds from the second named by `delayUntil` to the handler; below zero would be too early."""
    runtime = Runtime(folder)
    with runtime.serve() as served:
        due = {}
        for number in range(count):
            second = int(time.time()) + 3
            _enqueue(served, number, delayUntil=second)
            due[number] = float(second)
            time.sleep(0.02)
        late = _lateness(runtime, served, due)
    return {"min_ms": min(late), "p50_ms": quantile(late, 0.5), "p99_ms": quantile(late, 0.99)}


def idle(folder: Path, *, seconds: float = 30) -> dict[str, float]:
    """CPU share and memory of a runtime with nothing to do, all roles, settled for a few seconds."""
    with Runtime(folder).serve() as served:
        time.sleep(5)
        before = served.child.usage()
        time.sleep(seconds)
        after = served.child.usage()
    return {
        "cpu_percent": (after.cpu_seconds - before.cpu_seconds) / seconds * 100,
        "rss_mib": after.rss_mib,
    }


def fill(runtime: Runtime, mode: str, count: int) -> float:
    """Enqueue no-ops into the runtime's file; the seconds it took."""
    command = [sys.executable, "-m", "benchmarks.fill", mode, str(count), str(runtime.database)]
    done = subprocess.run(
        command, cwd=ROOT, env=runtime.environment(), stdout=subprocess.PIPE, check=True, timeout=FILL_SECONDS
    )
    return float(json.loads(done.stdout)["seconds"])


def _race(runtime: Runtime, served: Served, goal: int) -> dict[str, float]:
    _reach(runtime.tally.count, 1, served, 40)
    first, began, before = runtime.tally.count(), time.monotonic(), served.child.usage()
    _reach(runtime.tally.count, goal, served, DRAIN_SECONDS)
    seconds, after = time.monotonic() - began, served.child.usage()
    tasks = goal - first
    return {
        "rate": tasks / seconds,
        "seconds": seconds,
        "cpu_us": (after.cpu_seconds - before.cpu_seconds) / tasks * 1e6,
        "rss_mib": after.rss_mib,
    }


def _reach(count: Callable[[], int], goal: int, served: Served, timeout: float) -> None:
    end = time.monotonic() + timeout
    while count() < goal:
        served.child.check()
        if time.monotonic() > end:
            raise TimeoutError(f"{count()} of {goal} tasks within {timeout:.0f} s:\n{served.child.tail()}")
        time.sleep(POLL)


def _enqueue(served: Served, number: int, **more: int) -> None:
    served.call("POST", "/api/queue/enqueue", {"taskClass": "mark", "data": payload_text(number), **more})


def _lateness(runtime: Runtime, served: Served, since: dict[int, float]) -> list[float]:
    wait_until(lambda: since.keys() <= runtime.tally.stamps().keys(), served.child, "every task has run")
    ran = runtime.tally.stamps()
    return [(ran[number] - when) * 1000 for number, when in since.items()]

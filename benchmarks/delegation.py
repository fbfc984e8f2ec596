"""Tasks that Phorge runs: what each costs the runtime in CPU and in HTTP calls. PHP's own part is a stub."""

import json
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from benchmarks.backends import Subject
from benchmarks.payload import payload_text
from benchmarks.processes import free_port, listening, running, wait_until
from benchmarks.runtime import ROOT, Runtime
from benchmarks.stub_php import PHASES

DRAIN_SECONDS = 120
BATCH = 500
CONCURRENCY = 8
CLASSES = 10
POLL = 0.1


def delegate(folder: Path, *, subject: Subject, locks: bool, count: int = 2000) -> dict[str, float]:
    """Run `count` tasks of ten classes that wait when the queue is resumed; until the last is archived."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {"CONDUIT_URL": url, "CONDUIT_TOKEN": "benchmark-token-of-the-service"}
    settings |= {"CONDUIT_CONCURRENCY": str(CONCURRENCY), "SLOTS": str(2 * CONCURRENCY)}
    runtime = Runtime(folder, subject, settings)
    command = [sys.executable, "-m", "benchmarks.stub_php", str(port), "1" if locks else "0"]
    with running(command, folder / "php.log", cwd=ROOT) as php:
        wait_until(lambda: listening(port), php, "the stub of PHP listens")
        with runtime.serve() as served:
            served.call("POST", "/api/queue/pause", {"all": True})
            for start in range(0, count, BATCH):
                tasks = [
                    {"taskClass": f"PhpWorker{number % CLASSES}", "data": payload_text(number)}
                    for number in range(start, min(start + BATCH, count))
                ]
                served.call("POST", "/api/queue/enqueue-batch", {"tasks": tasks})
            before, began = served.child.usage(), time.monotonic()
            served.call("POST", "/api/queue/resume", {"all": True})
            # the stub is asked, not the runtime: asking costs the one who is asked
            while (made := _counts(url)).get("execute", 0) < count:
                served.child.check()
                if time.monotonic() - began > DRAIN_SECONDS:
                    raise TimeoutError(f"{made} of {count} runs within {DRAIN_SECONDS} s:\n{served.child.tail()}")
                time.sleep(POLL)
            seconds = time.monotonic() - began
            wait_until(lambda: served.counts()["activeCount"] == 0, served.child, "every task is archived")
            after = served.child.usage()
            if (archived := served.counts()["archivedCount"]) != count or made["execute"] != count:
                raise AssertionError(f"{count} enqueued, {made['execute']} ran, {archived} archived")
    return {
        "rate": count / seconds,
        "cpu_us": (after.cpu_seconds - before.cpu_seconds) / count * 1e6,
        "calls": sum(made.get(phase, 0) for phase in PHASES) / count,
    }


def _counts(url: str) -> dict[str, int]:
    with urlopen(f"{url}/counts", timeout=10) as reply:
        found: dict[str, int] = json.load(reply)
    return found

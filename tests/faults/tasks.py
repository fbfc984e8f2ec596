"""Handlers for the fault tests. Each run writes its start and its end to a ledger that outlives the process."""

import asyncio
import json
import os
import time

from msgspec import Struct

from queue_runtime.lease_loop import LeaseLoop
from queue_runtime.registry import Context, Registry, Retry
from queue_runtime.task import NewTask

if "TEST_STOP_SECONDS" in os.environ:  # twice three seconds are long where only what comes after them is looked at
    settings = LeaseLoop.__init__.__kwdefaults__
    assert settings is not None
    assert "stop_seconds" in settings
    settings["stop_seconds"] = float(os.environ["TEST_STOP_SECONDS"])

registry = Registry()


class Sleep(Struct):
    """How long a run takes."""

    seconds: float = 0.0


def note(what: str, context: Context) -> None:
    """Add a line in one write, so that a kill leaves whole lines and processes do not mix theirs."""
    line = {"what": what, "id": context.task.id, "at": time.monotonic(), "pid": os.getpid()}
    descriptor = os.open(os.environ["TEST_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


@registry.task("SleepWorker")
async def sleep(context: Context, data: Sleep) -> None:
    note("start", context)
    await asyncio.sleep(data.seconds)
    note("end", context)


@registry.task("ThreadWorker")
def sleep_in_a_thread(context: Context, data: Sleep) -> None:
    note("start", context)
    time.sleep(data.seconds)
    note("end", context)


@registry.task("FollowWorker")
async def follow(context: Context, data: Sleep) -> None:
    context.enqueue(NewTask(task_class="SleepWorker", data='{"seconds": 0.01}'))
    await asyncio.sleep(data.seconds)


@registry.task("FlakyWorker")
async def fail_once(context: Context, data: str) -> None:
    if context.attempt == 1:
        raise Retry(wait=1, reason="the first run always fails")


@registry.task("PoisonWorker")
async def end_the_process(context: Context, data: str) -> None:
    note("start", context)
    os._exit(137)

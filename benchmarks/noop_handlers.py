"""Handlers that do next to nothing; the runtime loads them by QUEUE_RUNTIME_HANDLERS."""

import asyncio
import os
from pathlib import Path

from benchmarks.payload import Payload
from benchmarks.tally import FOLDER_VARIABLE, WORKER_VARIABLE, Tally
from queue_runtime.registry import Context, Registry

registry = Registry()
tally = Tally(Path(os.environ[FOLDER_VARIABLE]))


@registry.task("noop")
async def noop(context: Context, data: Payload) -> None:
    """Count."""
    tally.hit()


@registry.task("mark")
async def mark(context: Context, data: Payload) -> None:
    """Note the time."""
    tally.stamp(data.i)


@registry.task("long")
async def long(context: Context, data: Payload) -> None:
    """Note the time, and run on and on in the first process; a later one only notes it."""
    tally.stamp(data.i)
    if os.environ[WORKER_VARIABLE] == "0":
        await asyncio.sleep(3600)

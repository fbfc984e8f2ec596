"""Handlers that do next to nothing; the runtime loads them by QUEUE_RUNTIME_HANDLERS."""

import os
from pathlib import Path

from benchmarks.payload import Payload
from benchmarks.tally import FOLDER_VARIABLE, Tally
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

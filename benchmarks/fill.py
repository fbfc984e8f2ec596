"""Enqueues through the store, from a process of its own: `python -m benchmarks.fill MODE COUNT`.

`one` awaits each task, `conc` keeps 64 callers busy on the group commit, `bulk` sends 100 in a call, and `load`
1,000. The environment says which store, as it does for the runtime. Prints one JSON line with the seconds it took.
"""

import asyncio
import json
import os
import sys
import time

import anyio

from benchmarks.payload import payload_text
from queue_runtime.compose import opened
from queue_runtime.config import load_config
from queue_runtime.current import Current
from queue_runtime.intake import Intake
from queue_runtime.store import Store
from queue_runtime.task import NewTask

CALLERS = 64
SIZES = {"bulk": 100, "load": 1000}


async def fill(store: Store, mode: str, count: int) -> None:
    """Enqueue `count` no-ops."""
    if mode == "one":
        for number in range(count):
            await store.enqueue([_task(number)])
    elif mode == "conc":
        await _concurrently(store, count)
    else:
        size = SIZES[mode]
        for start in range(0, count, size):
            await store.enqueue([_task(number) for number in range(start, min(count, start + size))])


async def _concurrently(store: Store, count: int) -> None:
    intake = Intake(store)
    stop = anyio.Event()
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await intake.enqueue([_task(number)])

    async with anyio.create_task_group() as group:
        group.start_soon(intake.run, stop)
        async with anyio.create_task_group() as callers:
            for _ in range(CALLERS):
                callers.start_soon(caller)
        stop.set()


def _task(number: int) -> NewTask:
    return NewTask(task_class="noop", data=payload_text(number))


async def main(mode: str, count: int) -> None:
    """Fill the store and say how long it took."""
    async with opened(Current(load_config(os.environ))) as store:
        await store.ping()  # opened and warm
        began = time.perf_counter()
        await fill(store, mode, count)
        print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

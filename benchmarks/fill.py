"""Enqueues into a SQLite file from a process of its own: `python -m benchmarks.fill MODE COUNT FILE`.

`one` awaits each task, `conc` keeps 64 callers busy on the group commit, `bulk` sends 100 in a call, and `load`
1,000. Prints one JSON line with the seconds it took.
"""

import asyncio
import json
import sys
import time

import anyio

from benchmarks.payload import payload_text
from queue_runtime.intake import Intake
from queue_runtime.store import Store
from queue_runtime.task import NewTask
from stores.sqlite import open_store

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


async def main(mode: str, count: int, path: str) -> None:
    """Fill the file and say how long it took."""
    async with open_store(path) as store:
        await store.stats()  # opened and warm
        began = time.perf_counter()
        await fill(store, mode, count)
        print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))

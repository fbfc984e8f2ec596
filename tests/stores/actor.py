"""A process of its own on a file: enqueues for ever, or works until everything is done. Says each fact in a line.

python -m tests.stores.actor enqueue PATH      one line for each task that was acknowledged: its id
python -m tests.stores.actor work PATH COUNT   one line for each task that was settled: its id
"""

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from queue_runtime.task import Complete, Lease, NewTask, Settlement, Verdict
from stores.sqlite import SqliteStore, open_store


def say(numbers: Iterable[int]) -> None:
    """Write whole lines at once, so that a reader never sees half of one."""
    os.write(1, "".join(f"{number}\n" for number in numbers).encode())


async def enqueue_for_ever(store: SqliteStore) -> None:
    """Eight callers, each with small and large tasks."""

    async def caller(number: int) -> None:
        while True:
            tasks = await store.enqueue(
                [NewTask(task_class=f"Class{number}", data="x" * (4000 * (place % 2))) for place in range(number + 1)]
            )
            say(task.id for task in tasks)

    await asyncio.gather(*(caller(number) for number in range(8)))


async def work(store: SqliteStore, count: int) -> None:
    """Lease and settle, four rounds at a time, until the archive holds this many tasks."""

    async def slot(number: int) -> None:
        sequence = 0
        while (await store.stats()).archived < count:
            sequence += 1
            owner = f"qr:{os.getpid():08x}:{number}.{sequence}"
            tasks = await store.lease(owner, 7, 60)
            assert all(task.data == f"payload of {task.task_class}" * 200 for task in tasks)
            settled = await store.settle([Settlement.held(Lease(task.id, owner), Complete()) for task in tasks])
            assert all(one.verdict is Verdict.SETTLED for one in settled)
            say(task.id for task in tasks)

    await asyncio.gather(*(slot(number) for number in range(4)))


async def main(role: str, path: Path, count: int) -> None:
    """Play the role."""
    async with open_store(path) as store:
        await (enqueue_for_ever(store) if role == "enqueue" else work(store, count))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))

"""A worker that dies by SIGKILL in the middle of one step of the dispatch: `python -m tests.stores.streams_dying`.

Its words are the file of the record, the URL of Redis, the step, and how often the step is done before.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queue_runtime.context import Context
from queue_runtime.registry import Registry
from queue_runtime.store import StoreOptions
from stores import sqlite
from stores.sqlite import SqliteStore
from stores.streams_feeder import Feeder, Tending
from stores.streams_lease import Dispatcher
from tests.runtime.harness import Worker
from tests.stores.streams_house import add, over

OPTIONS = StoreOptions(patience=0)
LEASE_SECONDS = 1
TENDING = Tending(every=0.1, reclaim=0.3, old=0.3, patience=0)

_Words = Callable[..., object]


def _any_words(*_args: object, **_named: object) -> bool:
    return True


STEPS: dict[str, tuple[type, str, str, _Words]] = {
    "it has read entries": (Dispatcher, "_claim", "before", lambda _asked, entries: entries),
    "the record has given it tasks": (SqliteStore, "lease", "after", lambda *_args, only=None, **_named: only),
    "it is to take entries away": (Feeder, "drop", "before", _any_words),
    "it has taken entries away": (Feeder, "drop", "after", _any_words),
    "it is to write outcomes": (SqliteStore, "settle", "before", _any_words),
    "it has written outcomes": (SqliteStore, "settle", "after", _any_words),
    "it has enqueued": (SqliteStore, "enqueue", "after", _any_words),
    "it is to add entries": (Feeder, "_add", "before", _any_words),
    "it has added entries": (Feeder, "_add", "after", _any_words),
}
"""Class and method, on which side of a call it dies, and which calls count."""


def die_in(step: str, times: int) -> None:
    """Have this process die when the step has been done so often."""
    owner, name, side, counts = STEPS[step]
    method: Any = getattr(owner, name)
    left = times

    async def call(self: object, *args: Any, **named: Any) -> Any:
        nonlocal left
        left -= bool(counts(*args, **named))
        if left < 0 and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await method(self, *args, **named)
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, name, call)


async def main(path: str, url: str) -> None:
    """Work, and enqueue, until it is over."""
    registry = Registry()

    @registry.task("A")
    async def run(context: Context, data: str) -> None:
        await asyncio.sleep(0.01)

    async with (
        sqlite.open_store(Path(path), OPTIONS, synchronous="NORMAL") as record,
        over(record, url, options=OPTIONS, tending=TENDING) as store,
        Worker(store, registry, slots=3, lease_seconds=LEASE_SECONDS, patience=0).running(),
    ):
        while True:
            await add(store)
            await asyncio.sleep(0.005)


if __name__ == "__main__":
    die_in(sys.argv[3], int(sys.argv[4]))
    asyncio.run(main(*sys.argv[1:3]))

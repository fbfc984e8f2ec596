"""The one owner of the process's signals. Light to import: the entry point needs it before anything else."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)


def leave_when_told() -> None:
    """End the process with code 0 at a signal to stop, until `owned_signals` takes over.

    For the start of the program, before the heavy imports: as PID 1 of a container a process without a handler
    does not even notice SIGTERM. Nothing is leased yet, so there is nothing to put in order.
    """
    for number in STOPPING:
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


@contextmanager
def owned_signals(on_stop: Callable[[str], None], on_hangup: Callable[[], None]) -> Iterator[None]:
    """Have the running event loop call `on_stop` for SIGTERM and SIGINT, and `on_hangup` for SIGHUP."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (*STOPPING, signal.SIGHUP)}
    for number in STOPPING:
        loop.add_signal_handler(number, on_stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

"""The one owner of the process's signals, and the last step of its life. Light to import: `main` needs it first."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

STOPPING = (signal.SIGTERM, signal.SIGINT)
OWNED = (*STOPPING, signal.SIGHUP)

_was_owned = False
"""The supervisor has had its turn: what comes now finds the process on its way out already."""


def leave_when_told() -> None:
    """End the process with code 0 at a signal to stop, until `owned_signals` takes over; later do nothing.

    For the start of the program, before the heavy imports: as PID 1 of a container a process without a handler
    does not even notice SIGTERM. Nothing is leased yet, so there is nothing to put in order.
    """
    for number in STOPPING:
        signal.signal(number, _leave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    if not _was_owned:
        sys.exit(0)


@contextmanager
def owned_signals(on_stop: Callable[[str], None], on_hangup: Callable[[], None]) -> Iterator[None]:
    """Have the running event loop call `on_stop` for SIGTERM and SIGINT, and `on_hangup` for SIGHUP."""
    global _was_owned  # noqa: PLW0603  as process-wide as the signals themselves
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in OWNED}
    for number in STOPPING:
        loop.add_signal_handler(number, on_stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    _was_owned = True
    try:
        yield
    finally:
        # Held back meanwhile: between two handlers a signal would find the default one, and end the process by it.
        signal.pthread_sigmask(signal.SIG_BLOCK, OWNED)
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OWNED)


def end_process(code: int) -> NoReturn:
    """Leave at once, whatever threads and tasks still run, and before Python gives signals their defaults back."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(code)

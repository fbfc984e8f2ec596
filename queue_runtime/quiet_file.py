"""Stderr as a file that neither fails nor stands still: who cannot take its lines loses some, and is told how many."""

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import RLock

PIECE = select.PIPE_BUF
"""Bytes that a pipe which is ready to be written takes without making its writer wait."""

PATIENCE = 0.2
"""Seconds that a reader who is behind may hold up the process, and which share of the time it regains them."""
PATIENCE_SHARE = 0.02

LAST_SECONDS = 1.0
"""How long the end of the process waits for the reader to take what was kept back, and the number of lost lines."""


class QuietFile:
    """A full disk, a reader that is gone and one that stands still cost lines, and nothing else.

    `told` makes a line of how many were lost. A line is written whole or not at all: of one that was begun the rest
    is kept. No thread and no queue: the pipe itself is the queue, and what is in it outlives the process.
    """

    def __init__(self, told: Callable[[int], str]) -> None:
        self._told = told
        self._lock = RLock()
        self._rest = b""
        self._lost = 0
        self._most = self._patience = PATIENCE
        self._looked_at = time.monotonic()

    def write(self, line: str) -> None:
        """Write, or drop."""
        with self._lock, suppress(OSError, ValueError, AttributeError):  # closed, or there is none at all
            number = _number()
            if number is None:
                sys.stderr.write(line)
            else:
                self._write(number, line, sys.stderr.encoding or "utf-8")

    def flush(self) -> None:
        """Nothing is kept that could be written."""

    def finish(self) -> None:
        """Write what was kept back, and how much was lost, if the reader takes it within LAST_SECONDS."""
        with self._lock:
            self._most = self._patience = LAST_SECONDS
            if self._rest or self._lost:
                self.write("")

    def _write(self, number: int, line: str, encoding: str) -> None:
        try:
            if not self._push(number):
                self._lost += 1
                return
            if self._lost:
                line = f"{self._told(self._lost)}\n{line}"
                self._lost = 0
            self._rest = line.encode(encoding, "backslashreplace")
            self._push(number)
        except BlockingIOError:
            return  # somebody made it so that it does not wait
        except OSError:
            self._rest = b""
            raise

    def _push(self, number: int) -> bool:
        """Write what is left of a line; whether that was all."""
        while self._rest:
            if not self._ready(number):
                return False
            self._rest = self._rest[os.write(number, self._rest[:PIECE]) :]
        return True

    def _ready(self, number: int) -> bool:
        """Whether a piece can be written now, or very soon. A broken file is ready: writing tells what is wrong."""
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        if poll.poll(0):
            return True
        now = time.monotonic()
        self._patience = min(self._most, self._patience + (now - self._looked_at) * PATIENCE_SHARE)
        ready = bool(poll.poll(self._patience * 1000))
        self._looked_at = time.monotonic()
        self._patience = max(0.0, self._patience - (self._looked_at - now))
        return ready


def _number() -> int | None:
    """The file descriptor of stderr; None where something stands in for it that has none."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):
        return None

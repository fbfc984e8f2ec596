"""What the handlers leave behind for the driver: counters in a mapped file, and a log of times.

Both cost a handler about a microsecond, as much as the same two cost in the peers' drivers.
"""

import mmap
import os
import struct
import time
from pathlib import Path

FOLDER_VARIABLE = "BENCH_RUN"
WORKER_VARIABLE = "BENCH_WORKER"
"""Which counter is this process's own; the first unless it says otherwise."""

WORKERS = 16
_COUNTER = struct.Struct("<q")


class Tally:
    """The handlers' side; both files are made by the driver's side, `Reading`."""

    def __init__(self, folder: Path) -> None:
        with (folder / "counters").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _COUNTER.size * WORKERS)
        self._place = _COUNTER.size * int(os.environ.get(WORKER_VARIABLE, "0"))
        self._stamps = os.open(folder / "stamps", os.O_WRONLY | os.O_APPEND)
        self._count = 0

    def hit(self) -> None:
        """Count one task."""
        self._count += 1
        _COUNTER.pack_into(self._map, self._place, self._count)

    def stamp(self, number: int) -> None:
        """Note that task `number` runs now."""
        os.write(self._stamps, b"%d %.6f\n" % (number, time.time()))

    def close(self) -> None:
        """Let go of both files."""
        self._map.close()
        os.close(self._stamps)


class Reading:
    """The driver's side."""

    def __init__(self, folder: Path) -> None:
        self._counters = folder / "counters"
        self._stamps = folder / "stamps"
        self.reset()

    def reset(self) -> None:
        """Begin at zero; only while no handler runs."""
        self._counters.write_bytes(bytes(_COUNTER.size * WORKERS))
        self._stamps.write_bytes(b"")

    def counts(self) -> list[int]:
        """Tasks counted so far, by worker."""
        return [found for (found,) in _COUNTER.iter_unpack(self._counters.read_bytes())]

    def count(self) -> int:
        """Tasks counted so far."""
        return sum(self.counts())

    def stamps(self) -> dict[int, float]:
        """First time of each noted task."""
        first: dict[int, float] = {}
        for line in self._stamps.read_text().splitlines():
            number, when = line.split()
            first.setdefault(int(number), float(when))
        return first

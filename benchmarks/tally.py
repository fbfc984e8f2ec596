"""What the handlers leave behind for the driver: a counter in a mapped file, and a log of times.

Both cost a handler about a microsecond, as much as the same two cost in the peers' drivers.
"""

import mmap
import os
import struct
import time
from pathlib import Path

FOLDER_VARIABLE = "BENCH_RUN"
_COUNTER = struct.Struct("<q")


class Tally:
    """The handlers' side; both files are made by the driver's side, `Reading`."""

    def __init__(self, folder: Path) -> None:
        with (folder / "counter").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _COUNTER.size)
        self._stamps = os.open(folder / "stamps", os.O_WRONLY | os.O_APPEND)
        self._count = 0

    def hit(self) -> None:
        """Count one task."""
        self._count += 1
        _COUNTER.pack_into(self._map, 0, self._count)

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
        self._counter = folder / "counter"
        self._stamps = folder / "stamps"
        self.reset()

    def reset(self) -> None:
        """Begin at zero; only while no handler runs."""
        self._counter.write_bytes(bytes(_COUNTER.size))
        self._stamps.write_bytes(b"")

    def count(self) -> int:
        """Tasks counted so far."""
        found: int = _COUNTER.unpack(self._counter.read_bytes())[0]
        return found

    def stamps(self) -> dict[int, float]:
        """First time of each noted task."""
        first: dict[int, float] = {}
        for line in self._stamps.read_text().splitlines():
            number, when = line.split()
            first.setdefault(int(number), float(when))
        return first

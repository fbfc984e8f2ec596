"""Prints the summary of finished runs: `python -m benchmarks.report FILE.jsonl ...`."""

import sys
from pathlib import Path

import msgspec

from benchmarks.sample import Sample
from benchmarks.summary import summary


def read_samples(path: Path) -> list[Sample]:
    """The samples of one run."""
    return [msgspec.json.decode(line, type=Sample) for line in path.read_bytes().splitlines()]


if __name__ == "__main__":
    print(summary([sample for name in sys.argv[1:] for sample in read_samples(Path(name))]))

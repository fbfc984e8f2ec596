"""Runs benchmarks: `python -m benchmarks.run [WORKLOAD ...]`. README.md says what they mean."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks import servers
from benchmarks.peers import REQUIREMENTS, Peers, prepare
from benchmarks.plan import WORKLOADS, Measurement, Options, plan
from benchmarks.runtime import ROOT
from benchmarks.sample import Sample
from benchmarks.summary import summary

VAR = ROOT / "var"


class Run:
    """One run: every sample is kept, in the file too, as soon as it is there."""

    def __init__(self, folder: Path, out: Path) -> None:
        self._folder = folder
        self._out = out
        self.samples: list[Sample] = []
        self.failures: list[str] = []

    def take(self, measurement: Measurement, repetition: int) -> None:
        """Make one repetition; a failure of one contender spares the others."""
        name = f"{measurement.work} {measurement.variant} {measurement.contender}"
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(dir=self._folder) as own:
                values = measurement.measure(Path(own) / "run")
        except Exception as error:  # noqa: BLE001  # whatever it was, an hour of other figures is worth keeping
            self.failures.append(f"{name}: {error}")
            print(f"FAILED {name}: {error!r}", file=sys.stderr, flush=True)
            return
        rounded = {key: round(value, 3) for key, value in values.items()}
        load = round(os.getloadavg()[0], 2)
        sample = Sample(measurement.work, measurement.variant, measurement.contender, rounded, repetition, load)
        self.samples.append(sample)
        with self._out.open("ab") as file:
            file.write(msgspec.json.encode(sample) + b"\n")
        print(f"{name} [{time.monotonic() - began:.0f} s] {rounded}", file=sys.stderr, flush=True)


def main() -> int:
    """Run what was asked for; exit code 1 when a measurement failed."""
    arguments = read_arguments()
    # a plain SIGTERM would skip the clean-up of what we started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    options = Options(
        count=arguments.count,
        slots=tuple(arguments.slots),
        backlog=arguments.backlog,
        seconds=arguments.seconds,
        event_loop=arguments.event_loop,
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder,
        private_servers(arguments, Path(folder)) as peers,
    ):
        run = Run(Path(folder), arguments.out)
        for work in arguments.workloads or WORKLOADS:
            for repetition in range(arguments.reps):
                for measurement in plan(work, options, tuple(arguments.peer), peers):
                    run.take(measurement, repetition)
    print(summary(run.samples))
    for failure in run.failures:
        print(f"\nFAILED {failure}")
    return 1 if run.failures else 0


@contextlib.contextmanager
def private_servers(arguments: argparse.Namespace, folder: Path) -> Iterator[Peers | None]:
    """Environments and servers of the peers, or None when only our own figures are wanted."""
    if arguments.peers is None:
        yield None
        return
    for peer in arguments.peer:
        prepare(peer, arguments.venvs)
    with contextlib.ExitStack() as stack:
        redis_port = stack.enter_context(servers.redis(folder))
        wanted = "pgqueuer" in arguments.peer
        postgres_port = stack.enter_context(servers.postgres(folder, ("pgqueuer",))) if wanted else 0
        yield Peers(arguments.peers, arguments.venvs, redis_port, postgres_port)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    environ = os.environ.get
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--peers", type=Path, default=environ("BENCH_PEERS"), help="folder of the peers' drivers")
    parser.add_argument("--peer", nargs="+", choices=REQUIREMENTS, default=list(REQUIREMENTS), help="which peers")
    parser.add_argument(
        "--venvs", type=Path, default=environ("BENCH_VENVS", str(VAR / "bench-venvs")), help="their environments"
    )
    parser.add_argument("--reps", type=int, default=3, help="repetitions, of which the median counts")
    parser.add_argument("--count", type=int, default=20_000, help="tasks to drain")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 10, 100], help="slots to drain them with")
    parser.add_argument("--backlog", type=int, default=500_000, help="size of the large backlog")
    parser.add_argument("--seconds", type=int, default=5, help="length of one HTTP measurement")
    parser.add_argument("--event-loop", choices=("asyncio", "uvloop"), default="asyncio", help="ours, while draining")
    parser.add_argument("--folder", type=Path, help="where the SQLite files go (default: the temporary folder)")
    parser.add_argument(
        "--out", type=Path, default=VAR / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.jsonl", help="samples, one a line"
    )
    arguments = parser.parse_args()
    for work in arguments.workloads:
        if work not in WORKLOADS:
            parser.error(f"{work} is not one of {', '.join(WORKLOADS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

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
from benchmarks.backends import Backend, RedisKeys, open_backend
from benchmarks.peers import BESIDE, POSTGRES_PEERS, REQUIREMENTS, Peers, prepare
from benchmarks.plan import WORKLOADS, Measurement, Options, Plan, subjects
from benchmarks.runtime import ROOT
from benchmarks.sample import Sample
from benchmarks.summary import summary

VAR = ROOT / "var"
BACKLOGS = {"sqlite": 500_000, "mysql": 1_000_000, "redis": 1_000_000, "streams": 500_000}


class Run:
    """One run: every sample is kept, in the file too, as soon as it is there."""

    def __init__(self, store: str, folder: Path, out: Path) -> None:
        self._store = store
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
        sample = Sample(
            measurement.work, measurement.variant, measurement.contender, rounded, repetition, load, self._store
        )
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
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder,
        open_backend(arguments.store, Path(folder)) as backend,
        private_servers(arguments, Path(folder), backend) as peers,
    ):
        run = Run(arguments.store, Path(folder), arguments.out)
        plan = Plan(subjects(backend, arguments.event_loop), options, tuple(arguments.peer), peers)
        for work in arguments.workloads or WORKLOADS:
            for repetition in range(arguments.reps):
                for measurement in plan.measurements(work):
                    run.take(measurement, repetition)
    print(summary(run.samples))
    for failure in run.failures:
        print(f"\nFAILED {failure}")
    return 1 if run.failures else 0


@contextlib.contextmanager
def private_servers(arguments: argparse.Namespace, folder: Path, backend: Backend) -> Iterator[Peers | None]:
    """Environments and servers of the peers, or None when only our own figures are wanted.

    Beside our store on Redis they use the same server, in databases of their own.
    """
    if arguments.peers is None:
        yield None
        return
    for peer in arguments.peer:
        prepare(peer, arguments.venvs)
    with contextlib.ExitStack() as stack:
        redis_port = postgres_port = 0
        if isinstance(backend, RedisKeys):
            redis_port = backend.port
        elif not set(arguments.peer) <= set(POSTGRES_PEERS):
            redis_port = stack.enter_context(servers.redis(folder))
        if set(arguments.peer) & set(POSTGRES_PEERS):
            postgres_port = stack.enter_context(servers.postgres(folder, POSTGRES_PEERS))
        yield Peers(arguments.peers, arguments.venvs, redis_port, postgres_port)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    environ = os.environ.get
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--store", choices=BESIDE, default="sqlite", help="the store under test")
    parser.add_argument("--peers", type=Path, default=environ("BENCH_PEERS"), help="folder of the peers' drivers")
    parser.add_argument("--peer", nargs="+", choices=REQUIREMENTS, help="which peers (default: those of the store)")
    parser.add_argument(
        "--venvs", type=Path, default=environ("BENCH_VENVS", str(VAR / "bench-venvs")), help="their environments"
    )
    parser.add_argument("--reps", type=int, default=3, help="repetitions, of which the median counts")
    parser.add_argument("--count", type=int, default=20_000, help="tasks to drain")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 10, 100], help="slots to drain them with")
    parser.add_argument("--backlog", type=int, help=f"size of the large backlog (default: {BACKLOGS})")
    parser.add_argument("--seconds", type=int, default=5, help="length of one HTTP measurement")
    parser.add_argument("--event-loop", choices=("asyncio", "uvloop"), default="asyncio", help="ours")
    parser.add_argument(
        "--folder", type=Path, help="where files and servers go; a real disk (default: the temporary folder)"
    )
    parser.add_argument(
        "--out", type=Path, default=VAR / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.jsonl", help="samples, one a line"
    )
    arguments = parser.parse_args()
    arguments.peer = arguments.peer or list(BESIDE[arguments.store])
    arguments.backlog = arguments.backlog or BACKLOGS[arguments.store]
    for work in arguments.workloads:
        if work not in WORKLOADS:
            parser.error(f"{work} is not one of {', '.join(WORKLOADS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

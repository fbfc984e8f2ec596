"""Runs the drivers of other work queues, which live in a folder of their own, and reads their results."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.processes import running

REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    "saq": ("saq[redis,hiredis]", "typing_extensions", "uvloop"),
    "huey": ("huey", "redis", "hiredis"),
    "arq": ("arq", "hiredis", "uvloop"),
    "taskiq-list": ("taskiq", "taskiq-redis", "uvloop", "orjson", "hiredis"),
    "taskiq-stream": ("taskiq", "taskiq-redis", "uvloop", "orjson", "hiredis"),
    "dramatiq": ("dramatiq[redis]", "hiredis"),
    "streaq": ("streaq", "uvloop"),
    "celery": ("celery[redis]", "hiredis"),
    "rq": ("rq", "hiredis"),
    "procrastinate": ("procrastinate", "psycopg[binary,pool]"),
    "pgqueuer": ("pgqueuer[asyncpg,cli]", "asyncpg", "uvloop"),
}
"""What each peer needs in its virtual environment."""

POSTGRES_PEERS = ("pgqueuer", "procrastinate")

BESIDE: Mapping[str, tuple[str, ...]] = {
    "sqlite": ("saq", "huey", "arq", "pgqueuer"),
    "mysql": (*POSTGRES_PEERS, "huey"),
    "streams": (),
    "redis": tuple(peer for peer in REQUIREMENTS if peer not in POSTGRES_PEERS),
}
"""The peers that a store is measured beside, unless others are asked for."""

TUNED: Mapping[str, str] = {"arq": "tuned"}
"""Suffix of a peer's setting where its defaults would make the comparison unfair (arq polls every 0.5 s)."""

RUN_SECONDS = 600


def prepare(peer: str, venvs: Path) -> None:
    """Create the virtual environment of a peer unless it is there."""
    folder = venvs / peer.partition("-")[0]  # taskiq-list and taskiq-stream share one
    if (folder / "ready").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=120)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *REQUIREMENTS[peer]], check=True, timeout=300)
    (folder / "ready").touch()


VALUES: Mapping[str, str] = {
    "rate": "rate",
    "worker_us": "cpu_us",
    "server_us": "server_us",
    "rss": "rss_mib",
    "min": "min_ms",
    "p50": "p50_ms",
    "p99": "p99_ms",
    "max": "max_ms",
}
"""The drivers' names of what they measure, and ours."""


class Peers(Struct, frozen=True):
    """Where the drivers, their environments and their servers are."""

    drivers: Path
    venvs: Path
    redis_port: int
    postgres_port: int

    def measure(self, work: str, peer: str, options: tuple[str, ...], folder: Path) -> dict[str, float]:
        """One repetition of a workload of the drivers' `run.py`; raises with the peer's own words if it failed."""
        folder.mkdir()
        env = os.environ | {
            "BENCH_VENVS": str(self.venvs),
            "BENCH_REDIS_PORT": str(self.redis_port),
            "BENCH_PG_PORT": str(self.postgres_port),
            "BENCH_PG_ANALYZE": "1",  # without it PostgreSQL's planner does not know how full the table is
            "BENCH_OUT": os.devnull,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(folder),
        }
        if peer == "celery" and "--setting" in options:
            env["BENCH_CONC"] = options[options.index("--setting") + 1].removeprefix("threads")
        command = [sys.executable, str(self.drivers / "run.py"), work, peer, "--reps", "1", *options]
        # SIGINT, because only KeyboardInterrupt makes the driver stop its workers
        with running(command, folder / "driver.log", env=env, sign=signal.SIGINT) as child:
            code = child.process.wait(RUN_SECONDS)
        lines = [line for line in child.log.read_bytes().splitlines() if line.startswith(b"{")]
        result = msgspec.json.decode(lines[-1], type=dict[str, object]) if lines else {}
        if code or not result or "error" in result:
            raise RuntimeError(f"{peer} {work}: {result.get('error', child.tail())}")
        if peer in POSTGRES_PEERS:
            result.pop("server_us", None)  # the drivers read the CPU of Redis alone
        return {ours: value for theirs, ours in VALUES.items() if isinstance(value := result.get(theirs), float | int)}


def setting(peer: str, slots: int) -> str:
    """The drivers' spelling of a concurrency."""
    if peer == "rq":
        return "simple"  # one at a time, whatever is asked
    return f"{'threads' if peer == 'celery' else ''}{slots}{TUNED.get(peer, '')}"

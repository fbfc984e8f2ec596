"""Private Redis and PostgreSQL servers for the peers: own ports, own folders, gone afterwards."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import free_port, listening, running, wait_until

POSTGRES_BIN = Path("/usr/lib/postgresql/15/bin")
"""Where Debian keeps the server's programs; `postgres` on the PATH wins."""


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[int]:
    """A Redis that writes nothing to disk; yields its port."""
    program = _need("redis-server", shutil.which("redis-server"))
    port = free_port()
    home = folder / "redis"
    home.mkdir()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with running([*command, "--dir", str(home)], home / "server.log") as child:
        wait_until(lambda: listening(port), child, "Redis answers")
        yield port


@contextlib.contextmanager
def postgres(folder: Path, databases: tuple[str, ...]) -> Iterator[int]:
    """A PostgreSQL with its default durability and these databases; yields its port."""
    found = shutil.which("postgres")
    programs = Path(found).resolve().parent if found else POSTGRES_BIN  # beside it are initdb and createdb
    _need("postgres", str(programs / "postgres") if (programs / "postgres").exists() else None)
    user = "postgres" if os.geteuid() == 0 else None  # initdb refuses to run as root
    port = free_port()
    home = folder / "postgres"
    home.mkdir()
    if user:
        shutil.chown(home, user)
        folder.chmod(0o755)
    data = home / "data"
    initdb = [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale"]
    subprocess.run(initdb, user=user, cwd=home, check=True, stdout=subprocess.DEVNULL, timeout=120)
    command = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(home)]
    log = home / "server.log"
    # SIGINT is PostgreSQL's fast stop: it does not wait for clients
    with running([*command, "-h", "127.0.0.1"], log, user=user, cwd=home, sign=signal.SIGINT) as child:
        wait_until(lambda: listening(port), child, "PostgreSQL answers")
        for name in databases:
            createdb = [str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", name]
            subprocess.run(createdb, check=True, timeout=60)
        yield port


def _need(program: str, path: str | None) -> str:
    if path is None:
        raise FileNotFoundError(f"{program} is not installed (Debian: redis-server, postgresql)")
    return path

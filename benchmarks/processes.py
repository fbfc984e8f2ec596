"""Child processes of a benchmark: started in a session of their own, measured from /proc, always stopped."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(Struct, frozen=True):
    """CPU seconds used so far, and memory held now, by every process of a session."""

    cpu_seconds: float
    rss_mib: float


def cpu_seconds(pid: int) -> float:
    """CPU seconds that one process, with all its threads, has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Child:
    """A running child process; `log` holds what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Id of the process, which is the id of its session too."""
        return self.process.pid

    def usage(self) -> Usage:
        """What the whole session has used so far."""
        cpu = rss = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if int(fields[3]) == self.pid:
                cpu += int(fields[11]) + int(fields[12])
                rss += int(fields[21]) * PAGE
        return Usage(cpu / TICK, rss / 2**20)

    def check(self) -> None:
        """Raise with the end of the log if the process is no longer there."""
        code = self.process.poll()
        if code is not None:
            raise RuntimeError(f"{self.process.args!r} ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of the log."""
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self, sign: signal.Signals = signal.SIGTERM, timeout: float = 20) -> int:
        """Ask the process to end, wait, kill its session if it does not; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.process.wait()


@contextlib.contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: int | str | None = None,
    sign: signal.Signals = signal.SIGTERM,
) -> Iterator[Child]:
    """Run a command until the block ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=env, cwd=cwd, user=user, stdout=output, stderr=output, start_new_session=True
        )
    child = Child(process, log)
    try:
        yield child
    finally:
        child.stop(sign)


def wait_until(ready: Callable[[], bool], child: Child, what: str, timeout: float = 30) -> None:
    """Wait for a condition; an early end of the child or the time-out raises with its log."""
    end = time.monotonic() + timeout
    while not ready():
        child.check()
        if time.monotonic() > end:
            raise TimeoutError(f"{what} not within {timeout:.0f} s:\n{child.tail()}")
        time.sleep(0.01)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening(port: int) -> bool:
    """Whether somebody accepts connections on this port of the loopback interface."""
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True

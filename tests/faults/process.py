"""A real `queue-runtime serve` under test: started, watched through its log, signalled, killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

SCRIPT = str(Path(sys.executable).with_name("queue-runtime"))
HANDLERS = f"{Path(__file__).parent}/tasks.py:registry"
Found = TypeVar("Found")

START_SECONDS = 30.0
"""Far more than a start takes, because CI has two cores and several processes."""


def wait_for(what: str, look: Callable[[], Found], seconds: float, *, every: float = 0.02) -> Found:
    """What `look` gives as soon as it is true; an AssertionError that names it after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(every)


class Served:
    """One process on `folder`, whose SQLite file and ledger outlive it. Settings lack the prefix; None: not set."""

    def __init__(self, folder: Path, *, wrapper: Sequence[str] = (), **settings: object) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._deaf = False
        chosen = {
            "LISTEN": "127.0.0.1:0",
            "SQLITE_PATH": folder / "queue.sqlite",
            "HANDLERS": HANDLERS,
            "LOG_FORMAT": "json",
            "LEASE_SECONDS": 3,
            "SWEEP_SECONDS": 0.5,
        } | settings
        environ = {name: text for name, text in os.environ.items() if not name.startswith("QUEUE_RUNTIME_")}
        environ |= {f"QUEUE_RUNTIME_{name}": str(value) for name, value in chosen.items() if value is not None}
        environ["TEST_LEDGER"] = str(folder / "ledger.jsonl")
        self.process = subprocess.Popen(
            [*wrapper, SCRIPT, "serve"], cwd=folder, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))
            if self._deaf:
                break
        self.process.stderr.close()

    def stop_reading(self) -> None:
        """Close our end of the log with the next line; whatever is written after that fails."""
        self._deaf = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait(10)

    @property
    def log(self) -> str:
        """All that it has logged so far."""
        return "\n".join(self.lines)

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event."""
        found = [json.loads(line) for line in self.lines.copy() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def wait_for_event(self, event: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The first log line of this event."""

        def look() -> list[dict[str, Any]]:
            found = self.events(event)
            assert found or self.process.poll() is None, f"ended before {event!r}:\n{self.log}"
            return found

        return wait_for(f"log line {event!r}", look, seconds)[0]

    def client(self) -> httpx2.Client:
        """A client, once it listens."""
        (address,) = self.wait_for_event("listening")["addresses"]
        return httpx2.Client(base_url=f"http://{address}", timeout=10)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to what it is wrapped in."""
        os.kill(self.inner_pid(), number)

    def inner_pid(self) -> int:
        """The process that runs the queue: the last of the chain of wrappers."""
        pid = self.process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid

    def kill(self) -> float:
        """SIGKILL; when that was, by `time.monotonic()`."""
        self.process.kill()
        at = time.monotonic()
        self.wait(10)
        return at

    def tell_and_wait(self) -> None:
        """Stop it in the ordinary way, which must go well."""
        self.tell(signal.SIGTERM)
        code = self.wait(30)
        assert code == 0, self.log
        check_clean_log(self)

    def wait(self, seconds: float) -> int:
        """The exit code, once it has ended and its whole log is read."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


def check_clean_log(served: Served) -> None:
    """No traceback, and nothing that asyncio says of tasks that were dropped."""
    for sign in ("Traceback", "was destroyed", "never retrieved", "never awaited"):
        assert sign not in served.log, served.log


def enqueue(client: httpx2.Client, task_class: str, data: str = "{}", count: int = 1) -> list[int]:
    """Enqueue so many tasks in one call; their ids."""
    tasks = [{"taskClass": task_class, "data": data} for _ in range(count)]
    answer = client.post("/api/queue/enqueue-batch", json={"tasks": tasks})
    assert answer.status_code == 200, answer.text
    return [task["id"] for task in answer.json()["data"]]


def archived(client: httpx2.Client, task_id: int) -> dict[str, Any] | None:
    """The archived task, or None while it is active."""
    answer = client.get(f"/api/queue/archive/{task_id}")
    return answer.json()["data"] if answer.status_code == 200 else None


def ledger(folder: Path, what: str = "start") -> list[dict[str, Any]]:
    """What the handlers wrote, oldest first."""
    path = folder / "ledger.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["what"] == what]


def let_leases_run_out(folder: Path) -> None:
    """As if a while had gone by since a process was killed: what it held is due."""
    with closing(sqlite3.connect(folder / "queue.sqlite")) as database, database:
        database.execute("UPDATE task SET expires = expires - 60 WHERE owner LIKE 'qr:%' AND result IS NULL")

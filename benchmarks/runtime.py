"""The shipped runtime on a queue of its own, run the way users run it: `queue-runtime serve`."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.backends import Subject
from benchmarks.processes import Child, free_port, running, wait_until
from benchmarks.tally import FOLDER_VARIABLE, WORKER_VARIABLE, Reading

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ("QUEUE_RUNTIME_", "GORGE_")
"""Settings of the caller's own shell have no place in a measurement."""


class Runtime:
    """One measurement's folder and empty queue: the handlers' tally, and the processes run on them."""

    def __init__(self, folder: Path, subject: Subject, settings: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.backend = subject.backend
        self.tally = Reading(folder)
        self._settings = {
            "STORE": subject.backend.name,
            "HANDLERS": "benchmarks.noop_handlers:registry",
            "LOG_LEVEL": "warning",
            **subject.backend.fresh(folder),
            **subject.settings,
            **(settings or {}),
        }

    def environment(self, **settings: str) -> dict[str, str]:
        """The environment of a process on this queue; settings are named without the prefix."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
        env |= {"PYTHONPATH": str(ROOT), FOLDER_VARIABLE: str(self.folder)}
        wanted = self._settings | settings
        return env | {f"QUEUE_RUNTIME_{name}": value for name, value in wanted.items()}

    def ask(self, module: str, *arguments: str, timeout: float) -> bytes:
        """Run a module of ours on this queue to its end; the last line that it printed. Before it are log lines."""
        command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment(), stdout=subprocess.PIPE, check=True, timeout=timeout
        )
        return done.stdout.splitlines()[-1]

    @contextlib.contextmanager
    def serve(self, *, ready: bool = True, worker: int = 0, **settings: str) -> Iterator["Served"]:
        """Run the runtime until the block ends; it must then end cleanly."""
        port = free_port()
        env = self.environment(LISTEN=f"127.0.0.1:{port}", **settings) | {WORKER_VARIABLE: str(worker)}
        command = [sys.executable, "-m", "queue_runtime", "serve"]
        with running(command, self.folder / f"serve-{worker}.log", env=env, cwd=self.folder) as child:
            served = Served(child, port)
            if ready:
                wait_until(served.ready, child, "queue-runtime is ready")
            yield served
            code = child.stop()
            if code and not served.killed:
                raise RuntimeError(f"queue-runtime ended with {code}:\n{child.tail()}")


class Served:
    """A runtime that serves."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.port = port
        self.killed = False
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def ready(self) -> bool:
        """Whether the readiness probe is green."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def kill(self) -> None:
        """End it as a crash does."""
        self.killed = True
        self.child.process.kill()
        self.child.process.wait()

    def call(self, method: str, path: str, body: object = None) -> object:
        """One request on a kept-alive connection; the answer's data."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        text = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        self._connection.request(method, path, text, headers)
        reply = self._connection.getresponse()
        answer = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{method} {path}: {reply.status} {answer[:300]!r}")
        return json.loads(answer)["data"]

    def counts(self) -> dict[str, int]:
        """The queue's own counts."""
        found = self.call("GET", "/api/queue/stats")
        assert isinstance(found, dict)
        return found

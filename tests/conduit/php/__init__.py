"""Runs the extension file under real PHP, among stand-ins for Phorge's classes: as one call, or as a web server."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from tests.runtime.harness import until
from tests.servers import find_program

HERE = Path(__file__).parent
EXTENSION = Path(__file__).parents[3] / "conduit" / "phorge" / "queue-runtime.php"

TOKEN = "the-service-token"

MARKS = frozenset({"LOG", "RAN", "FLUSHED", "COMPARED"})
"""First words of what the stand-ins and the workers log; PHP has a log line of its own for each fault of the code."""
SECONDS = 30.0


class Reply(Struct, frozen=True):
    """What Conduit would answer, and what PHP wrote to its log meanwhile."""

    result: Any
    error_code: str | None
    error_info: str | None
    log: list[str]

    def logged(self, mark: str) -> list[str]:
        """Lines that begin with this word, without it."""
        return [line.removeprefix(mark).strip() for line in self.log if line.startswith(mark)]


class Php:
    """Calls of worker.execute. Tests set the configuration; `folder` is where tasks are locked."""

    def __init__(self, folder: Path) -> None:
        self.command: list[str | Path] = [find_program("php", "php-cli"), "-n"]  # without php.ini
        # everything that PHP has to say of the code is shown, and apart from the reply
        for setting in (
            "disable_functions=hash_equals",  # one of the stand-ins takes its place, which PHP 8 allows
            "variables_order=EGPCS",
            "error_reporting=-1",
            "display_errors=stderr",
            "max_execution_time=30",
        ):
            self.command += ["-d", setting]
        self.config: dict[str, object] = {"queue-runtime.token": TOKEN, "locks": str(folder)}
        self.environ: dict[str, str] = {}
        self.token: str | None = TOKEN
        self.load = [EXTENSION, HERE / "workers.php"]

    def start(self, params: dict[str, object], ask: str = "call") -> "subprocess.Popen[str]":
        """A request that goes on by itself: a call, or one for `methods` or what the `console` shows."""
        environ = {"PATH": os.environ["PATH"], **self.environ}
        if self.token is not None:
            environ["HTTP_X_SERVICE_TOKEN"] = self.token
        process = subprocess.Popen(
            [*self.command, HERE / "call.php"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            text=True,
            errors="replace",  # PHP logs the bytes as they are
        )
        order = {"config": self.config, "load": [str(path) for path in self.load], "ask": ask, "params": params}
        assert process.stdin is not None
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        process.stdin = None
        return process

    def serve(self, address: str, environ: dict[str, str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """PHP's own web server, in a session of its own: its workers do not end with it."""
        return subprocess.Popen(
            [*self.command, "-S", address, HERE / "serve.php"],
            env=environ | self.environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def finish(self, process: "subprocess.Popen[str]") -> Reply:
        """The reply. PHP must have had nothing to say of the code itself."""
        out, err = process.communicate(timeout=SECONDS)
        log = err.splitlines()
        strange = [line for line in log if line and line.split()[0] not in MARKS]
        assert not strange, strange
        try:
            return Reply(**json.loads(out), log=log)
        except ValueError:
            raise AssertionError(f"not a reply: {out!r}") from None

    def call(self, params: dict[str, object]) -> Reply:
        """One call, to its end."""
        return self.finish(self.start(params))

    def execute(self, data: object, phase: str = "execute", **params: object) -> Reply:
        """A call of version 1 for ActingWorker."""
        return self.call(versioned(json.dumps(data), phase=phase, **params))

    def methods(self) -> Sequence[str]:
        """The names of all Conduit methods."""
        return list(self.finish(self.start({}, "methods")).result)

    def console(self) -> Any:
        """What the web console shows of methods and options."""
        return self.finish(self.start({}, "console")).result


def versioned(data: str, **params: object) -> dict[str, object]:
    """The parameters of a call of version 1."""
    return {
        "executionVersion": 1,
        "phase": "execute",
        "taskID": 77,
        "taskClass": "ActingWorker",
        "data": data,
        "failureCount": 0,
        "priority": 1500,
        "leaseOwner": "qr:1",
        "leaseExpires": 1,  # long ago: clocks differ, and the lease is renewed while the call waits
        **params,
    }


@asynccontextmanager
async def served(php: Php, folder: Path, *, workers: int = 2) -> AsyncIterator[str]:
    """PHP's own web server with these settings; yields its address. Its log is in the folder."""
    order = folder / "order.json"
    order.write_text(json.dumps({"config": php.config, "load": [str(path) for path in php.load]}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environ = {"PATH": os.environ["PATH"], "HARNESS_ORDER": str(order), "PHP_CLI_SERVER_WORKERS": str(workers)}
    with (folder / "php.log").open("ab") as log:
        process = php.serve(address, environ, log)
    try:
        await until(lambda: _listens(address), seconds=SECONDS)
        yield f"http://{address}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True

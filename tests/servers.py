"""Private database servers from Debian's packages: each with its own folder, socket and port, all gone with the test.

with MariaDb() as server:            # started, and ready
    server.kill()                    # SIGKILL
    server.start()                   # the same data, socket and port
"""

import atexit
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.authority import Identity
from tests.scratch import new_folder

READY_SECONDS = 60.0
"""Far more than a start takes, because CI has two cores and several processes."""

PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/usr/libexec"])
"""Where programs may lie: only root has all of these in PATH."""

OTHER_REDIS = "QUEUE_RUNTIME_TEST_REDIS_SERVER"
"""Names another program that speaks as Redis does, instead of Debian's: see tests/stores/test_redis_versions.py."""

PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to clients: one that calls a dead server again and again never gets its port."""

# A server dies with the thread that started it (setpriv --pdeathsig), so that it never outlives the tests. This thread
# lives as long as the process, whichever thread asks.
_starter = ThreadPoolExecutor(1, thread_name_prefix="servers")


class MissingServerError(Exception):
    """A program is not installed: the tests fail, they do not skip."""


class ServerError(Exception):
    """A server did not start, or did not stop."""


def find_program(name: str, package: str) -> Path:
    """Where the program is."""
    found = shutil.which(name, path=PLACES)
    if found is None:
        raise MissingServerError(
            f"the tests need {name}. Install it:  sudo apt-get install --no-install-recommends {package}"
        )
    return Path(found)


class Server(ABC):
    """What all servers have in common. `arguments` come last, so that they win over the defaults.

    `durable`: what was answered survives `kill`, always. Without it a server is as fast as it can be.
    """

    name: ClassVar[str]
    host = "127.0.0.1"

    def __init__(self, *arguments: str, durable: bool = False, program: Path | None = None) -> None:
        self.program = program or self._find()
        self.arguments: Sequence[str] = arguments
        self.durable = durable
        self.folder = new_folder(self.name)
        self.socket = str(self.folder / "socket")
        self.port = _claim_port()
        self._process: subprocess.Popen[bytes] | None = None
        account = _account()
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- what each kind of server knows

    @abstractmethod
    def _find(self) -> Path: ...

    def _prepare(self) -> None:  # noqa: B027  # most servers need nothing
        """Make the data folder, before the first start."""

    @abstractmethod
    def _options(self) -> list[str]: ...

    @abstractmethod
    def _greets(self, line: socket.socket) -> bool:
        """Whether what answers on the socket is ready for clients."""

    # ---- its life

    @property
    def running(self) -> bool:
        """Whether the process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has logged, over all its starts."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start it on its data, socket and port, and wait until it is ready."""
        assert not self.running, f"{self.name} runs already"
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._prepare()
        command = [*_unprivileged(), str(self.program), *self._options(), *self.arguments]
        self._process = _starter.submit(self._launch, command).result()
        try:
            self.wait_until_ready()
        except ServerError:
            self.kill()
            raise

    def _launch(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C ends the tests first
            )

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Return when it answers; a ServerError with the end of its log when it ended or `seconds` are over."""
        end = time.monotonic() + seconds
        while not self._ready():
            ended = not self.running
            if ended or time.monotonic() > end:
                what = "ended at once" if ended else f"was not ready within {seconds} s"
                raise ServerError(f"{self.name} {what}; its log ends:\n{self.log[-3000:]}")
            time.sleep(0.01)

    def _ready(self) -> bool:
        with closing(socket.socket(socket.AF_UNIX)) as line:
            line.settimeout(1)
            try:
                line.connect(self.socket)
                return self._greets(line)
            except OSError:
                return False

    def kill(self) -> None:
        """SIGKILL: it writes nothing more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, seconds: float = 60.0) -> None:
        """End it in the ordinary way."""
        if not self.running:
            return
        assert self._process is not None
        self._process.terminate()
        self.resume()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ServerError(
                f"{self.name} did not stop within {seconds} s; its log ends:\n{self.log[-3000:]}"
            ) from error

    def restart(self) -> None:
        """Stop it in the ordinary way, and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove all it had."""
        self.kill()
        if (claim := _claims.pop(self.port, None)) is not None:
            claim.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)


class MariaDb(Server):
    """A MariaDB server whose `root` has no password, set up as Phorge asks for it, on its socket and on TCP.

    With an `identity` it offers TLS, and without one it does not.
    """

    name = "mariadb"
    user = "root"
    password = ""

    def __init__(
        self,
        *arguments: str,
        durable: bool = False,
        program: Path | None = None,
        identity: Identity | None = None,
    ) -> None:
        super().__init__(*arguments, durable=durable, program=program)
        self._identity = identity

    def _find(self) -> Path:
        return find_program("mariadbd", "mariadb-server")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _prepare(self) -> None:
        if self._data.exists():
            return
        command = [
            *_unprivileged(),
            str(find_program("mariadb-install-db", "mariadb-server")),
            "--no-defaults",
            f"--datadir={self._data}",
            f"--tmpdir={self.folder}",  # a server that starts removes what looks left over, also another one's files
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--innodb-log-file-size=32M",
        ]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        if done.returncode:
            raise ServerError(f"mariadb-install-db failed:\n{done.stdout.decode()}{done.stderr.decode()}")

    def _options(self) -> list[str]:
        return [
            "--no-defaults",
            f"--datadir={self._data}",
            f"--tmpdir={self.folder}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            "--character-set-server=utf8mb4",
            "--sql-mode=STRICT_ALL_TABLES",
            "--max-allowed-packet=64M",
            "--max-connections=300",
            "--performance-schema=OFF",
            "--key-buffer-size=1M",
            "--aria-pagecache-buffer-size=8M",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--innodb-flush-method=fsync",  # memory has no direct writes
            f"--innodb-flush-log-at-trx-commit={int(self.durable)}",
            f"--innodb-doublewrite={int(self.durable)}",
            *self._encryption(),
        ]

    def _encryption(self) -> list[str]:
        if self._identity is None:
            return ["--skip-ssl"]
        return [f"--ssl-cert={self._identity.certificate}", f"--ssl-key={self._identity.key}"]

    def _greets(self, line: socket.socket) -> bool:
        """Its first packet: three bytes of length, a number, and the protocol's version, which has been 10 for ever."""
        return line.recv(5)[4:] == b"\x0a"


class RedisServer(Server):
    """A Redis server, or one that speaks as it does (`program`), without a password."""

    name = "redis"

    @classmethod
    def cluster_node(cls) -> Self:
        """A node of a cluster, not started. Its second port is none that the kernel gives away, if it can be told."""
        server = cls("--cluster-enabled", "yes")
        if server.version >= (7, 0):
            server.bus_port = _claim_port()
            server.arguments = (*server.arguments, "--cluster-port", str(server.bus_port))
        return server

    @cached_property
    def version(self) -> tuple[int, int]:
        """Of the program."""
        said = subprocess.run([str(self.program), "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"v=(\d+)\.(\d+)", said)
        assert found, said
        return int(found[1]), int(found[2])

    @cached_property
    def bus_port(self) -> int:
        """Where the other nodes of a cluster reach it."""
        return self.port + 10_000

    @property
    def url(self) -> str:
        """Its first database, over TCP."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def socket_url(self) -> str:
        """Its first database, over the Unix socket."""
        return f"unix://{self.socket}?db=0"

    def _find(self) -> Path:
        other = os.environ.get(OTHER_REDIS)
        return find_program("redis-server", "redis-server") if other is None else Path(other)

    def _options(self) -> list[str]:
        options = {
            "bind": self.host,
            "port": str(self.port),
            "unixsocket": self.socket,
            "unixsocketperm": "777",
            "dir": str(self.folder),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": "always" if self.durable else "no",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _greets(self, line: socket.socket) -> bool:
        """`-LOADING` while it reads its data."""
        line.sendall(b"PING\r\n")
        return line.recv(64).startswith((b"+PONG", b"-NOAUTH"))


@cache
def _account() -> pwd.struct_passwd | None:
    """Who runs the servers when we are root, as which MariaDB refuses to run; None: we do."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("mysql")
    except KeyError:
        return pwd.getpwnam("nobody")


def _unprivileged() -> list[str]:
    """What goes before a command so that it runs under that account and dies with the thread that started it."""
    command = [str(find_program("setpriv", "util-linux")), "--pdeathsig=KILL"]
    account = _account()
    if account is not None:
        command += [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return [*command, "--"]


_claims: dict[int, socket.socket] = {}


def _claim_port() -> int:
    """A port that nobody listens on, and that no server of another test process will take.

    A server listens long after its port was drawn. A name without a file says meanwhile whose it is, and goes with us.
    """
    dice = random.SystemRandom()
    for _ in range(100):
        port = dice.choice(PORTS)
        claim = socket.socket(socket.AF_UNIX)
        with closing(socket.socket()) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                claim.bind(f"\0queue-runtime-test-port-{port}")
                line.bind((Server.host, port))
            except OSError:
                claim.close()
                continue
        _claims[port] = claim
        return port
    raise ServerError(f"no free port from {PORTS.start} to {PORTS.stop}")

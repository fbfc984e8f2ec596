"""Opens the sockets that the HTTP server listens on, and gives them readable names."""

import asyncio
import errno
import socket
import stat
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from queue_runtime.errors import QueueRuntimeError

BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""

ACCEPTS = 16
"""What an event loop is told as the backlog. asyncio accepts so many at once, and when no file descriptor is left it
tries, and logs, so many times: with the true number it would do little else."""

UNIX = "unix:"
File = tuple[str, tuple[int, int, int]]
"""A Unix socket's path, and which file it was when it was bound: device, inode and time, as inodes are used again."""

TURNS = 3
"""Of the event loop, until what `stop_accepting` found half accepted is known to its protocol."""

_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""A name such as localhost stands for several addresses, and a machine need not have all of them."""


class ListenError(QueueRuntimeError):
    """An address cannot be listened on."""


def open_all(addresses: Sequence[str]) -> list[socket.socket]:
    """Listening sockets for `host:port`, `[::1]:port`, `:port` (all interfaces) and `unix:/path`; all or none."""
    with ExitStack() as undo:
        opened = [one for address in addresses for one in _open(address, undo)]
        undo.pop_all()
    return opened


def name_of(listening: socket.socket) -> str:
    """The address as one would write it, with the real port where 0 was asked for."""
    address = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"{UNIX}{address}"
    host, port = address[:2]
    return f"[{host}]:{port}" if listening.family == socket.AF_INET6 else f"{host}:{port}"


def take_all_waiting(sockets: Sequence[socket.socket]) -> None:
    """Have the kernel keep BACKLOG connections again, after an event loop has told it ACCEPTS."""
    for one in sockets:
        with suppress(OSError):  # closed meanwhile
            one.listen(BACKLOG)


def stop_accepting(listeners: Iterable[asyncio.Server]) -> None:
    """Close asyncio's listeners, and lose no connection: those they have accepted are known after TURNS.

    asyncio accepts in one turn, and gives the connection to its protocol in the next ones. A listener that is closed in
    between makes it fail without a word, and its client waits for an answer until the garbage collector comes.
    """
    loop = asyncio.get_running_loop()
    for listener in listeners:
        for one in listener.sockets:
            loop.remove_reader(one.fileno())
        loop.call_soon(listener.close)  # behind what was accepted before


def files_of(sockets: Sequence[socket.socket]) -> list[File]:
    """The files of those that are Unix sockets, for `remove_files` when they are closed."""
    found = []
    for one in sockets:
        if one.family == socket.AF_UNIX:
            path = one.getsockname()
            with suppress(FileNotFoundError):
                found.append((path, _which(path)))
    return found


def remove_files(files: Sequence[File]) -> None:
    """Take away the files that Unix sockets leave behind, but not one that a successor has put there since."""
    for path, which in files:
        with suppress(FileNotFoundError):
            if _which(path) == which:
                Path(path).unlink()


def _which(path: str) -> tuple[int, int, int]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _open(address: str, undo: ExitStack) -> list[socket.socket]:
    try:
        if address.startswith(UNIX):
            return [_open_unix(Path(address.removeprefix(UNIX)), undo)]
        return _open_tcp(address, undo)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from error


def _open_tcp(address: str, undo: ExitStack) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    infos = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened = []
    missing: OSError | None = None
    for family, kind, protocol, _, place in infos:
        try:
            listening = undo.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(place)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            missing = error
            continue
        opened.append(_listen(listening))
    if not opened:
        raise missing or OSError(errno.EADDRNOTAVAIL, "the name has no address")
    return opened


def _open_unix(path: Path, undo: ExitStack) -> socket.socket:
    listening = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    if _is_left_over(path):
        path.unlink()
    listening.bind(str(path))
    return _listen(listening)


def _is_left_over(path: Path) -> bool:
    """Whether a socket stands there that nobody listens on any more."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def _listen(listening: socket.socket) -> socket.socket:
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening

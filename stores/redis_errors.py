"""What Redis's errors mean for a caller, in one place."""

import re

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from queue_runtime.errors import QueueRuntimeError, StoreFull, StoreUnavailable
from queue_runtime.task import U32

_CODE = re.compile(r"(?:^|-)([A-Z]{3,})\b")
"""Older servers wrap the error of a command inside a script into a sentence of their own, code and all."""

_PASSING = {
    "LOADING": "the server is reading its data from disk",
    "READONLY": "the server is a replica now",
    "MASTERDOWN": "the server is a replica without a master",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster is moving this queue to another server",
    "ASK": "the cluster is moving this queue to another server",
    "MOVED": "the cluster keeps this queue on another server",
    "BUSY": "the server is busy with a long script, or has too many clients",
    "UNBLOCKED": "the server's role has changed",
}
"""Nothing happened, and soon it may."""

_LASTING = {
    "MISCONF": "the server cannot save to its disk and refuses writes",
    "NOREPLICAS": "the server has too few replicas and refuses writes",
    "NOAUTH": "the server does not accept the user or password, or wants one",
    "WRONGPASS": "the server does not accept the user or password",
    "NOPERM": "the user may not do this on the server",
    "DENIED": "the server accepts no connections from here",
}
"""Nothing happened, and somebody must do something first."""

_DAMAGE = re.compile(r"WRONGTYPE|user_script|not an integer|not a valid float")
"""A script ended in the middle of its reading, or a command met a key of another type."""

MEND = "run `queue-runtime doctor --store --repair`"

_MISSING_COMMAND = re.compile(r"unknown (?:Redis )?command", re.IGNORECASE)

_OURS = re.compile(r"wrong number of|syntax error|unbalanced quotes|invalid multibulk|invalid bulk", re.IGNORECASE)
"""What a server says of a command that we have written wrong."""

_OTHERS = frozenset({"OOM", "NOSCRIPT", "FULL", "SUPERSEDED"})

_CLASSES: dict[type[RedisError], str] = {
    MovedError: "MOVED",
    AskError: "ASK",
    TryAgainError: "TRYAGAIN",
    MasterDownError: "MASTERDOWN",
    ClusterDownError: "CLUSTERDOWN",
    BusyLoadingError: "LOADING",
    ReadOnlyError: "READONLY",
    OutOfMemoryError: "OOM",
    NoScriptError: "NOSCRIPT",
    NoPermissionError: "NOPERM",
    AuthenticationError: "NOAUTH",
}
"""The driver takes the code of these out of the message. A subclass stands before its base."""


class Refused(StoreUnavailable):
    """Nothing happened, and a short wait may help. `moved_to` names the server to ask instead, as host and port."""

    def __init__(self, operation: str, reason: str, *, moved_to: tuple[str, int] | None = None) -> None:
        super().__init__(operation, reason)
        self.moved_to = moved_to


class Cut(StoreUnavailable):
    """The reply was lost: nobody knows whether it happened."""


class Damaged(StoreUnavailable):
    """A key or a row is not what it must be, and nothing happened. The doctor says which, and mends it."""


def error_code(error: RedisError) -> str:
    """The code of a server's error; empty where it has none that is known here."""
    for kind, code in _CLASSES.items():
        if isinstance(error, kind):
            return code
    message = str(error)
    for found in _CODE.finditer(message):
        if found[1] in _PASSING or found[1] in _LASTING or found[1] in _OTHERS:
            return found[1]
    return "BUSY" if "max number of clients" in message else ""


def translate(operation: str, error: RedisError) -> QueueRuntimeError | None:
    """The error of the house that a server's error means; None: a fault of our own, to be seen as it is."""
    code = error_code(error)
    if code == "OOM":
        return StoreFull(operation, "the server has reached its maxmemory")
    if code == "FULL":
        return StoreFull(operation, f"task ids end at {U32}, and not enough are left")
    if code == "SUPERSEDED":
        return StoreUnavailable(operation, "a later call took its place")
    if code in _PASSING:
        return Refused(operation, _PASSING[code], moved_to=_address(error) if code == "MOVED" else None)
    if code in _LASTING:
        return StoreUnavailable(operation, _LASTING[code])
    if isinstance(error, ConnectionError | TimeoutError):
        return Cut(operation, f"the connection was lost ({reason_of(error)})")
    return None


def translate_damage(operation: str, error: RedisError) -> StoreUnavailable | None:
    """What else a server's error means, of the queue's own keys or of none that we know; None: a fault of our own."""
    words = " ".join(str(error).split())
    if _MISSING_COMMAND.search(words):
        return StoreUnavailable(operation, f"the server lacks a command that the queue needs ({words})")
    if _DAMAGE.search(words):
        return Damaged(operation, f"the queue is damaged, {MEND} ({words})")
    if isinstance(error, ResponseError | InvalidResponse) and not _OURS.search(words):
        return Cut(operation, f"the server, or somebody in between, answered: {words}")  # it may have happened
    return None


def reason_of(error: Exception) -> str:
    """An error in words, also where it has none itself."""
    return str(error) or ("no answer in time" if isinstance(error, OSError) else type(error).__name__)


def _address(error: RedisError) -> tuple[str, int] | None:
    """Host and port at the end of `MOVED 3999 127.0.0.1:6381`; None where the host is missing."""
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return (host, int(port)) if host and port.isdigit() else None

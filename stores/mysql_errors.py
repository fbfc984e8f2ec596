"""What the server's errors mean for a caller, in one place. Numbers are those of MySQL and MariaDB.

No list can have them all: releases, plugins and proxies bring their own. What no table here names is the server's
trouble and passes; only what is known to be a fault of our own statements is raised as it is.
"""

from enum import StrEnum

from queue_runtime.errors import InvalidRequest, QueueRuntimeError, StoreFull, StoreUnavailable


class Kind(StrEnum):
    """What to do about an error."""

    REPLAY = "replay"
    """The transaction is (or must be) rolled back; the same one may go through at once."""

    LOST = "lost"
    """The connection is gone. What had not been committed is rolled back."""

    READ_ONLY = "read-only"
    """The server takes no writes now, as during a failover; another connection may lead to another server."""

    DUPLICATE = "duplicate"
    """A unique key is there already."""

    INVALID = "invalid"
    """A value has no place in a column, and never will."""

    FULL = "full"
    AWAY = "away"
    """Not now, and for a reason that an operator should read."""


_REPLAY = {
    1213: "deadlock",
    1205: "a row was locked by somebody else for too long",
    1020: "a row changed since the snapshot",
    1479: "transaction forced to roll back",
    1614: "transaction branch was rolled back",
    3101: "another server of the group changed the same rows",
    3572: "lock not available at once",
}
_LOST = {
    0: "not connected",
    1047: "the server is not ready for work",
    1053: "the server is shutting down",
    1077: "the server is shutting down",
    1079: "the server is shutting down",
    1158: "network error",
    1159: "network time-out",
    1160: "network error",
    1161: "network time-out",
    1184: "the connection was aborted",
    1180: "nobody knows whether the COMMIT happened",
    1927: "the connection was killed",
    2000: "unknown client error",
    2003: "cannot connect",
    2002: "cannot connect",
    2006: "the server has gone away",
    2013: "the connection was lost",
    2014: "the connection is out of step",
    2027: "malformed packet",
    2055: "the connection was lost",
    3032: "the server is in offline mode",
    3159: "TLS is required",
    3168: "the server is not available",
    3169: "the connection was killed",
    4031: "the server closed an idle connection",
}
_OF_PROXIES = range(9000, 9100)
"""A proxy's own words (ProxySQL): it has no server for this line, or will not use it for more."""

_READ_ONLY = {1036, 1290, 1792, 1836, 1874, 3100}
_INVALID = {1264, 1265, 1292, 1366, 1367, 1406, 1690}
_FULL = {1021, 1114, 3675}
_AWAY = {
    1040: "too many connections",
    1203: "too many connections of this user",
    1226: "the account has used up its allowance",
    1094: "there is no such connection",
    1317: "it was interrupted",
    1969: "it took too long and was stopped",
    3024: "it took too long and was stopped",
    1044: "",  # the server's own text says it
    1045: "",
    1142: "",
    1143: "",
    1227: "",
    1698: "",
    1049: "the database does not exist",
    1146: "a table does not exist",
    1054: "a column does not exist",
    1932: "a table does not exist in the engine",
    1176: "an index does not exist",
    1364: "a column that is not Phorge's has no default",
    1665: "the binary log takes only statements",
    1030: "the storage engine reported an error",
    1037: "the server is out of memory",
    1038: "the server is out of memory",
    1041: "the server is out of memory",
    1105: "the server reported an error",
    1153: "a statement is larger than max_allowed_packet",
    1815: "the server reported an internal error",
    2012: "the login failed",
    2026: "TLS could not be set up",
    2049: "the login method is not supported",
    2054: "the character set is not supported",
    2059: "the login method is not supported",
    2061: "the login method needs TLS",
}
_OURS = {
    1048,
    1052,
    1055,
    1056,
    1064,
    1065,
    1066,
    1093,
    1109,
    1110,
    1111,
    1136,
    1140,
    1149,
    1210,
    1221,
    1222,
    1235,
    1241,
    1242,
    1248,
    1267,
    1270,
    1271,
    1305,
    1582,
    1630,
}
"""Faults of our own statements: what only their text can bring about."""

_WITH_VALUES = frozenset({"enqueue", "settle"})
"""Operations whose caller brings the values that are stored. Elsewhere such an error is about somebody else's row."""

_OF_STATEMENTS = frozenset({Kind.REPLAY, Kind.DUPLICATE, Kind.INVALID})
DUPLICATE = 1062
LOCK_WAIT_OVER = 1205
LOCKED = frozenset({LOCK_WAIT_OVER, 3572})
"""Numbers that say that a row is locked by somebody else, after a wait or at once."""

WAITED_LONG = frozenset({LOCK_WAIT_OVER, 1969, 3024})
"""Numbers that say that a statement has waited for rows as long as it may."""

MISSING = frozenset({1049, 1146, 1054, 1932})
"""Numbers that say that the schema is not as it was when it was last looked at."""

DENIED = frozenset({1044, 1142, 1143, 1227})


class ServerError(Exception):
    """An error of the server or the connection, sorted by what to do about it."""

    def __init__(self, kind: Kind, number: int, sentence: str) -> None:
        super().__init__(f"{sentence} ({number})" if number else sentence)
        self.kind = kind
        self.number = number

    @property
    def connection_lost(self) -> bool:
        """Whether the connection cannot be used any more."""
        return self.kind in {Kind.LOST, Kind.READ_ONLY}


def translate(error: Exception, *, connecting: bool = False) -> ServerError | None:
    """The error sorted; None: it is a fault of our own and should be seen as it is."""
    if isinstance(error, ServerError):
        return error
    number = _number(error)
    if number is not None:
        cause = error.__cause__
        text = (
            str(cause) if isinstance(cause, OSError) else _text(error)
        )  # the driver's own names a host, not the socket
        found = _sorted(number, text)
        if connecting and (found is None or found.kind in _OF_STATEMENTS):  # no statement of ours was sent
            return ServerError(Kind.AWAY, number, text)
        return found or (None if number in _OURS else ServerError(Kind.AWAY, number, text))
    if isinstance(error, UnicodeDecodeError):
        return ServerError(Kind.LOST, 0, f"a reply is not in the character set that was asked for: {error}")
    if isinstance(error, TimeoutError):
        return ServerError(Kind.LOST, 0, "no answer in time")
    if isinstance(error, OSError | EOFError):  # IncompleteReadError is an EOFError
        return ServerError(Kind.LOST, 0, str(error) or type(error).__name__)
    if connecting and isinstance(error, RuntimeError):  # a driver's word for a login it cannot do
        return ServerError(Kind.AWAY, 0, str(error))
    if type(error).__name__ in {"InterfaceError", "InternalError"}:  # a closed connection, or packets out of order
        return ServerError(Kind.LOST, 0, str(error))
    return None


def _number(error: Exception) -> int | None:
    """The server's or driver's number; both drivers put it first."""
    if not any(kind.__name__ == "MySQLError" for kind in type(error).__mro__):
        return None
    number = error.args[0] if error.args else None
    return number if type(number) is int else None


def _text(error: Exception) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _sorted(number: int, text: str) -> ServerError | None:
    if number in _REPLAY:
        return ServerError(Kind.REPLAY, number, _REPLAY[number])
    if number in _LOST:
        return ServerError(Kind.LOST, number, f"{_LOST[number]}: {text}")
    if number in _OF_PROXIES:
        return ServerError(Kind.LOST, number, text)
    if number in _INVALID:
        return ServerError(Kind.INVALID, number, text)
    if number in _READ_ONLY:
        return ServerError(Kind.READ_ONLY, number, f"the server is read-only: {text}")
    if number == DUPLICATE:
        return ServerError(Kind.DUPLICATE, number, text)
    if number in _FULL:
        return ServerError(Kind.FULL, number, f"no room left on the server: {text}")
    if number in _AWAY:
        return ServerError(Kind.AWAY, number, f"{_AWAY[number]}: {text}" if _AWAY[number] else text)
    return None


def for_caller(error: ServerError, operation: str, address: str) -> QueueRuntimeError:
    """The error of the house."""
    if error.kind is Kind.INVALID and operation in _WITH_VALUES:
        return InvalidRequest("value", f"the server refuses it: {error}")
    reason = f"{address}: {error}"
    return StoreFull(operation, reason) if error.kind is Kind.FULL else StoreUnavailable(operation, reason)

"""Which server holds the queue: a URL names it, sentinels know it, or another node of its cluster says so."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from queue_runtime.errors import StoreUnusable
from stores.redis_errors import Refused

CONNECT_SECONDS = 3.0
REPLY_SECONDS = 15.0
"""How long a reply may take, and so how long a half-open connection goes unnoticed."""

_FORMS = (
    "redis://[user:password@]host:port/db, rediss://…, unix:///path/to/socket, or "
    "redis+sentinel://[user:password@]host:port,host:port/service/db"
)
_SENTINEL = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_OURS = ("max_connections", "timeout", "retry_on_timeout", "health_check_interval", "protocol", "decode_responses")
"""Settings of the driver's own pool and clients, which nobody reads here."""

_SENTINEL_SETTINGS = frozenset({"username", "password"})


class Address:
    """Where to connect. `moved_to` is where a cluster node said that the queue is; it is forgotten when that fails.

    `url_now` is asked at each connect. What it gives names the same server; user and password may be others.
    """

    def __init__(self, url: str, url_now: Callable[[], str] | None = None) -> None:
        self._url = url
        self._url_now = url_now or (lambda: url)
        scheme = urlsplit(url).scheme
        self._sentinels: list[tuple[str, int]] = []
        self._service = ""
        self._sentinel_login: dict[str, str] = {}
        problem = ", and may set what the driver knows"
        try:
            if scheme in _SENTINEL:
                url = self._read_sentinels(url, scheme)
            settings: dict[str, Any] = dict(parse_url(url))
            self._class: type[AbstractConnection] = settings.pop("connection_class", Connection)
            for name in _OURS:
                settings.pop(name, None)
            self.reply_seconds = float(settings.pop("socket_timeout", REPLY_SECONDS))
            self._settings = {"socket_connect_timeout": CONNECT_SECONDS, **settings}
            unknown = self._unknown_sentinel_settings() | _unknown(self._class, settings)
            if unknown:
                problem = f"; nobody knows its setting {', '.join(sorted(unknown))}"
            self._class(**_plain(self._settings))  # connects to nothing yet, but knows its settings
            fits = not unknown
        except (ValueError, TypeError, RedisError):
            fits = False  # the driver's own message may hold the URL, and so the password
        if not fits:
            raise StoreUnusable(f"the Redis URL must be {_FORMS}{problem}")
        self.moved_to: tuple[str, int] | None = None

    def _read_sentinels(self, url: str, scheme: str) -> str:
        """Keep the sentinels and the service; the URL of a plain server with the rest of the settings."""
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        for host in hosts.split(","):
            name, _, port = host.rpartition(":")
            self._sentinels.append((name, int(port)) if name else (port, 26379))
        self._service, _, database = parts.path.strip("/").partition("/")
        if not self._service:
            raise ValueError
        self._service = unquote(self._service)
        for name, (value, *_) in parse_qs(parts.query).items():
            if name.startswith("sentinel_"):
                self._sentinel_login[name.removeprefix("sentinel_")] = value
        query = "&".join(part for part in parts.query.split("&") if not part.startswith("sentinel_"))
        netloc = f"{login}@sentinel" if login else "sentinel"
        return urlunsplit((_SENTINEL[scheme], netloc, f"/{database or 0}", query, ""))

    def _unknown_sentinel_settings(self) -> set[str]:
        return {f"sentinel_{name}" for name in self._sentinel_login.keys() - _SENTINEL_SETTINGS}

    async def open(self) -> AbstractConnection:
        """A connection to the server, logged in."""
        self._take_login()
        kind, settings = self._class, self._settings
        place: Mapping[str, Any] = {}
        if self.moved_to is not None:
            place = {"host": self.moved_to[0], "port": self.moved_to[1]}
            if issubclass(kind, UnixDomainSocketConnection):  # other nodes of a cluster are reached over the network
                kind, settings = Connection, {name: value for name, value in settings.items() if name != "path"}
        elif self._sentinels:
            host, port = await self._ask_sentinels()
            place = {"host": host, "port": port}
        connection = kind(**_plain({**settings, **place}))
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await hang_up(connection)
            raise
        if (writer := connection._writer) is not None:
            _transports[connection] = writer.transport
        return connection

    def _take_login(self) -> None:
        if (url := self._url_now()) != self._url:
            changed = Address(url)
            self._url, self._settings, self._sentinel_login = url, changed._settings, changed._sentinel_login

    async def _ask_sentinels(self) -> tuple[str, int]:
        """Host and port of the master. The sentinel that knew it is asked first the next time.

        They share the time for connecting, so that each is asked and some is left for the master.
        """
        seconds = CONNECT_SECONDS / len(self._sentinels)
        for host, port in list(self._sentinels):
            try:
                async with asyncio.timeout(seconds):
                    found = await self._ask(host, port)
            except (RedisError, OSError):
                continue
            if found is not None:
                self._sentinels.remove((host, port))
                self._sentinels.insert(0, (host, port))
                return found[0].decode(), int(found[1])
        raise Refused("connect", f"no sentinel knows the master of {self._service}")

    async def _ask(self, host: str, port: int) -> list[bytes] | None:
        settings: dict[str, Any] = {"host": host, "port": port, "socket_connect_timeout": CONNECT_SECONDS}
        kind = SSLConnection if issubclass(self._class, SSLConnection) else Connection
        if kind is SSLConnection:
            settings |= {name: value for name, value in self._settings.items() if name.startswith("ssl_")}
        connection = kind(**_plain(settings | self._sentinel_login | {"socket_timeout": CONNECT_SECONDS}))
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            found: list[bytes] | None = await connection.read_response()
            return found
        finally:
            await hang_up(connection)


_transports: WeakKeyDictionary[AbstractConnection, asyncio.WriteTransport] = WeakKeyDictionary()


async def hang_up(connection: AbstractConnection) -> None:
    """Close it at once: what is left to be sent would keep it open as long as the server does not read.

    The driver lets go of its transport when it closes by itself, as it does when a call is cancelled.
    """
    if (transport := _transports.get(connection)) is not None:
        transport.abort()
    await connection.disconnect(nowait=True)


def _unknown(kind: type, settings: Mapping[str, Any]) -> set[str]:
    """Settings that no class of this connection takes."""
    known = {name for base in kind.__mro__ if "__init__" in vars(base) for name in _parameters(base)}
    return set(settings) - known


def _parameters(kind: type) -> Mapping[str, object]:
    return inspect.signature(vars(kind)["__init__"]).parameters


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a connection that tries nothing again by itself, and whose replies stay bytes."""
    return {
        "socket_timeout": None,
        **settings,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }

"""Connections to Phorge, by asyncio alone. Each call has one of its own, so they must be cheap."""

import asyncio
import socket
import ssl
from ipaddress import ip_address
from typing import Protocol

CONNECT_SECONDS = 10.0
"""How long connecting may take, TLS included."""

SECOND_ADDRESS_AFTER = 0.25
"""Seconds after which the next address of a name is tried beside the first one."""

READ_BYTES = 64 * 2**10

# A call may be silent for a day: a peer that died, or a firewall that forgot, shall be noticed all the same.
_OPTIONS: list[tuple[int, int, int]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    ),
]


class Lost(Exception):
    """Whatever may become of an exchange but its reply."""


class ConnectError(Lost):
    """It ended before the first byte of the request had left."""


class Connection(Protocol):
    """One connection. Raises Lost when it breaks."""

    async def read(self) -> bytes:
        """What has arrived; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send; wait while the other side does not keep up."""
        ...

    def close(self) -> None:
        """End it at once: a server that does not read must not keep what is left to be sent."""
        ...


class Address:
    """Where connections lead to. `tls` None: plain TCP."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._family = _family(host)

    async def connect(self) -> Connection:
        """Open one. Raises ConnectError; nothing but this has a time-out."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self._family is None or self._tls is not None:
                    return await self._open_streams()
                return await self._open_socket(self._family)
        except TimeoutError as error:
            raise ConnectError(f"no connection within {CONNECT_SECONDS:g} s") from error
        except UnicodeError as error:  # no resolver can be asked for such a host
            raise ConnectError(f"the host name cannot be looked up: {error}") from error
        except OSError as error:
            raise ConnectError(_words(error)) from error

    async def _open_streams(self) -> Connection:
        delay = SECOND_ADDRESS_AFTER if self._family is None else None
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, happy_eyeballs_delay=delay
        )
        _set_options(writer.get_extra_info("socket"))
        return _Streams(reader, writer)

    async def _open_socket(self, family: socket.AddressFamily) -> Connection:
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setblocking(False)
            _set_options(opened)
            await asyncio.get_running_loop().sock_connect(opened, (self._host, self._port))
        except BaseException:
            opened.close()
            raise
        return _Socket(opened)


class _Streams:
    """One that asyncio's streams have opened: by the name of a host, or with TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(READ_BYTES)
        except OSError as error:
            raise Lost(_words(error)) from error

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Lost(_words(error)) from error

    def close(self) -> None:
        self._writer.transport.abort()


class _Socket:
    """One to an address, without TLS: a socket and no more, which costs a third less than streams do."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened

    async def read(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, READ_BYTES)
        except OSError as error:
            raise Lost(_words(error)) from error

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            raise Lost(_words(error)) from error

    def close(self) -> None:
        self._socket.close()


def _family(host: str) -> socket.AddressFamily | None:
    """That of an address; None for a name."""
    try:
        version = ip_address(host).version
    except ValueError:
        return None
    return socket.AF_INET if version == 4 else socket.AF_INET6


def _set_options(opened: socket.socket) -> None:
    for option in _OPTIONS:
        opened.setsockopt(*option)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

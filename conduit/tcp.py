"""Plain TCP for httpcore on asyncio's own streams: a third less CPU for each call than through anyio's."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import httpcore2
from httpcore2 import SOCKET_OPTION

SECOND_ADDRESS_AFTER = 0.25
"""Seconds after which the next address of a name is tried beside the first one."""


class PlainTcp(httpcore2.AsyncNetworkBackend):
    """Opens connections. Nothing but connecting has a time-out: whoever calls bounds the whole exchange."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> "_Stream":
        try:
            async with asyncio.timeout(timeout):
                delay = None if _is_address(host) else SECOND_ADDRESS_AFTER
                reader, writer = await asyncio.open_connection(host, port, happy_eyeballs_delay=delay)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout:g} s") from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        for option in socket_options or ():
            writer.get_extra_info("socket").setsockopt(*option)
        return _Stream(reader, writer)


class _Stream(httpcore2.AsyncNetworkStream):
    """One connection. What is written first, a head, leaves together with what follows it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._head: bytes | None = None
        self._has_begun = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._head is not None:
            with suppress(httpcore2.WriteError):  # the server may have said already why it does not listen
                await self.write(b"")
        try:
            return await self._reader.read(max_bytes)
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._head = buffer
            return
        if self._head is not None:
            buffer, self._head = self._head + buffer, None
        try:
            self._writer.write(buffer)
            await self._writer.drain()
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._writer.transport.abort()  # a server that does not read must not keep what is left to be sent

    def get_extra_info(self, info: str) -> Any:
        return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

"""The transports of the running loop: what is left open when a connection was given up."""

import asyncio
from typing import Any

HIGH = 2**22
"""More bytes than the buffers of a Unix socket take."""


def open_transports() -> set[asyncio.WriteTransport]:
    """Those that have a socket."""
    loop: Any = asyncio.get_running_loop()  # which has no public list of them
    return {one for one in loop._transports.values() if one._sock is not None}


def unsent() -> int:
    """Bytes that wait for servers that do not read."""
    return sum(one.get_write_buffer_size() for one in open_transports())

"""The transports of this process: what is left open when a connection was given up."""

import asyncio
import gc

HIGH = 2**22
"""More bytes than the buffers of a Unix socket take."""


def open_transports() -> set[asyncio.WriteTransport]:
    """Those that have a socket."""
    found = [one for one in gc.get_objects() if isinstance(one, asyncio.WriteTransport)]
    return {one for one in found if getattr(one, "_sock", None) is not None}


def unsent() -> int:
    """Bytes that wait for servers that do not read."""
    return sum(one.get_write_buffer_size() for one in open_transports())

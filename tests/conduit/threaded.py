"""The stub of Phorge in a thread of its own, for tests whose processes come and go."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.conduit.stub import StubPhp


@contextmanager
def phorge(php: StubPhp) -> Iterator[StubPhp]:
    """The stub in a thread of its own: it lives on when the process under test dies."""
    ready, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        stop = asyncio.Event()
        async with php.listening():
            loops.append((asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield php
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)

"""Calls a plain function in a thread, and knows whether it has really ended."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.to_thread

Ended = tuple[object, BaseException | None]


async def call_in_thread(function: Callable[..., object], *arguments: object, limiter: anyio.CapacityLimiter) -> Ended:
    """Call it, and return its result or what it raised, once it has ended.

    A cancellation frees the place in the limiter at once, but cannot stop a thread: unless the function had not
    begun, this call goes on until the function has ended, however often it is cancelled.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Ended] = loop.create_future()
    begun_by: dict[str, str] = {}  # setdefault is atomic: the thread and the event loop agree who came first

    def call() -> None:
        if begun_by.setdefault("first", "thread") != "thread":
            return
        end: Ended
        try:
            end = function(*arguments), None
        except BaseException as error:  # noqa: BLE001  whatever it is, it is how the run ended
            end = None, error
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            loop.call_soon_threadsafe(ended.set_result, end)

    try:
        await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
    except asyncio.CancelledError:
        if begun_by.setdefault("first", "cancellation") == "cancellation":
            raise
    while not ended.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait((ended,))
    return ended.result()

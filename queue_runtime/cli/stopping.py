"""How a command that writes to the store is stopped: a signal ends its work in order, so that it can tidy up."""

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import click

from queue_runtime.signals import owned_signals

Answer = TypeVar("Answer")


def run_until_told(work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run it in an event loop of its own. At SIGTERM, SIGINT or SIGHUP it is cancelled, which it may take its time for,
    and the process ends by 128 + the number of the signal, as it would have ended without this."""

    async def run() -> Answer:
        told: list[signal.Signals] = []
        with anyio.CancelScope() as scope:

            def stop(name: str) -> None:
                told.append(signal.Signals[name])
                scope.cancel()

            with owned_signals(stop, lambda: stop("SIGHUP")):
                return await work()
        click.echo(f"queue-runtime: stopped by {told[0].name}", err=True)
        raise SystemExit(128 + told[0])

    return anyio.run(run)

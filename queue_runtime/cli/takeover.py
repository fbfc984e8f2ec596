"""`queue-runtime takeover`: from Phorge's own taskmasters to this runtime in checked steps, and back."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from queue_runtime.cli.environment import fail, quiet_logs, reading_or_exit
from queue_runtime.cli.findings import show

if TYPE_CHECKING:
    from queue_runtime.config import Config
    from queue_runtime.findings import Finding
    from queue_runtime.store import Store

Answer = TypeVar("Answer")

MINUTES = click.option(
    "--minutes", default=15, show_default=True, type=click.IntRange(1, 24 * 60), help="How far back."
)

PLAN = """\
The store stays where it is, Phorge's own tables, so each step can be taken back.

1. The store is in order. Nothing changes yet.
     queue-runtime init
     queue-runtime doctor --store

2. Phorge runs its classes for this runtime. Native taskmasters go on meanwhile.
     queue-runtime phorge install {phorge}          (not for the fork, which has the method)
     {phorge}/bin/config set queue-runtime.token TOKEN
     systemctl reload 'php*-fpm'
     queue-runtime serve                            (with CONDUIT_URL, CONDUIT_TOKEN, and CONDUIT_HOST where needed)
     queue-runtime takeover check

3. The fork only: new tasks come over HTTP.
     {phorge}/bin/config set gorge.taskqueue.uri http://THIS-HOST:8090

4. Native taskmasters off, on every host that runs phd. The other daemons go on: the trigger daemon is not replaced.
     {phorge}/bin/config get phd.taskmasters        (write the number down)
     {phorge}/bin/config set phd.taskmasters 0
     {phorge}/bin/phd stop
     {phorge}/bin/phd start --keep-leases           (without it all leases, delays and waits of the queue end at once)

5. The loop is closed: a quarter of an hour later nobody else has acted.
     queue-runtime takeover status

The way back, from any step:
     {phorge}/bin/config delete gorge.taskqueue.uri (the fork only)
     stop `queue-runtime serve` by SIGTERM: it gives back what it holds
     {phorge}/bin/config set phd.taskmasters NUMBER
     {phorge}/bin/phd stop
     {phorge}/bin/phd start --keep-leases
     queue-runtime phorge remove {phorge}
"""


@click.group()
def takeover() -> None:
    """From Phorge's own taskmasters to this runtime: what to do, whether it can be done, whether it is done."""


@takeover.command()
@click.option("--phorge", default="/srv/phorge", show_default=True, metavar="DIR", help="Phorge's folder.")
def plan(phorge: str) -> None:
    """Print the commands of each step, and those of the way back. Changes nothing."""
    click.echo(PLAN.format(phorge=phorge), nl=False)


@takeover.command()
@MINUTES
def status(minutes: int) -> None:
    """Print who holds tasks now and who ended them lately. Reads only.

    Exit code 0: tasks were ended by workers of this runtime, and no native taskmaster has acted. 1: not so.
    """
    from queue_runtime.takeover import describe, look

    config = _config()
    show(describe(_with_store(config, lambda store: look(store, minutes * 60))))


@takeover.command()
@click.option("--canary", "task_class", metavar="CLASS", help="Task class to try with; it is run.")
@click.option(
    "--seconds", default=60.0, show_default=True, type=click.FloatRange(1, 3600), help="How long to wait for it."
)
def check(task_class: str | None, seconds: float) -> None:
    """Look at the store, then send a task that does nothing the whole way and see who ends it, and how.

    A process of this runtime must be running. With CONDUIT_URL the class of the extension is taken, which Phorge runs;
    else PhabricatorTestWorker, which has a handler here (and does nothing under the fork too). Exit code 0: no fault.
    """
    from queue_runtime import compose
    from queue_runtime.errors import StoreUnavailable, StoreUnusable
    from queue_runtime.findings import Level, ok
    from queue_runtime.takeover import CANARY, look, send_canary

    config = _config()
    wanted = task_class or ("PhabricatorTestWorker" if config.conduit_url is None else CANARY)
    try:
        found = compose.examine(config, repair=False)
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")
    trouble = [one for one in found if one.level in {Level.WARNING, Level.FAULT}]
    if any(one.level is Level.FAULT for one in trouble):
        show(trouble)  # and the end: no canary into a store that is not in order
    trouble = trouble or [ok("store", f"{len(found)} things were looked at: queue-runtime doctor --store")]
    canary = _with_store(config, lambda store: send_canary(store, wanted, seconds))
    show([*trouble, canary, *_natives(_with_store(config, lambda store: look(store, 60)).native_hosts)])


def _natives(hosts: frozenset[str]) -> "list[Finding]":
    from queue_runtime.findings import note, ok

    if not hosts:
        return [ok("native taskmasters", "none has acted in the last minute")]
    return [note("native taskmasters", f"those of {', '.join(sorted(hosts))} work on the queue: step 4 of the plan")]


def _config() -> "Config":
    """The settings; the end where the queue is not in Phorge's tables, which no taskmaster sees."""
    _, config = reading_or_exit()
    if "mysql" not in {config.store, config.record if config.store == "streams" else ""}:
        fail(f"Phorge's taskmasters work on the store mysql alone, and this one is {config.store}")
    quiet_logs(config)
    return config


def _with_store(config: "Config", ask: "Callable[[Store], Awaitable[Answer]]") -> Answer:
    import anyio

    from queue_runtime import compose
    from queue_runtime.errors import StoreUnavailable, StoreUnusable

    async def run() -> Answer:
        async with compose.BACKENDS[config.store].opening(config, compose.options_of(config)) as store:
            return await ask(store)

    try:
        return anyio.run(run)
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")

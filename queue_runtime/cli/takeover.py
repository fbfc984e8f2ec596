"""`queue-runtime takeover`: from Phorge's own taskmasters to this runtime in checked steps, and back."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from queue_runtime.cli.environment import fail, quiet_logs, reading_or_exit, refuse_in_shadow
from queue_runtime.cli.findings import show

if TYPE_CHECKING:
    from queue_runtime.config import Config
    from queue_runtime.findings import Finding
    from queue_runtime.store import Place, Store
    from queue_runtime.takeover import Activity, Waiting, Worker

Answer = TypeVar("Answer")

MINUTES = click.option(
    "--minutes", default=15, show_default=True, type=click.IntRange(1, 24 * 60), help="How far back."
)
PHORGE = click.option("--phorge", default="/srv/phorge", show_default=True, metavar="DIR", help="Phorge's folder.")
ALLOW = click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="OWNER",
    help="Owners (or *patterns) of your own that may go on. No pattern stands for a native taskmaster.",
)


@click.group()
def takeover() -> None:
    """From Phorge's own taskmasters to this runtime: what to do, whether it can be done, whether it is done."""


@takeover.command()
@PHORGE
def plan(phorge: str) -> None:
    """Print the commands of each step, and those of the way back. Changes nothing."""
    from queue_runtime import takeover_plan

    click.echo(takeover_plan.plan(phorge), nl=False)


@takeover.command()
@MINUTES
@ALLOW
@click.option(
    "--worker",
    "addresses",
    multiple=True,
    metavar="ADDRESS",
    help="Where a worker answers (host:port, unix:/path or a URL); may be given more than once. Default: LISTEN.",
)
def status(minutes: int, allowed: tuple[str, ...], addresses: tuple[str, ...]) -> None:
    """Print who enqueued, leased, executed and archived lately, and whether that is all there is to do. Reads only.

    Exit code 0: tasks were ended by workers of this runtime, nobody else has acted, every worker is ready, and each
    task that waits has one that leases it. 1: not so.
    """
    from queue_runtime import compose
    from queue_runtime.cli.there import look_there
    from queue_runtime.takeover import describe, verdict

    config = _config()
    quiet_logs(config)
    here = _place(config)
    workers = [look_there(one, here) for one in addresses or config.listen[:1]]
    activity, waiting = _look(config, minutes, allowed)
    phd = compose.look_at_phd(config)
    show([_enqueued(_enqueues(workers), workers)])
    show(describe(activity, waiting, _here(config), phd))
    show(verdict(activity, waiting, workers, phd))


@takeover.command()
@click.option("--canary", "task_class", metavar="CLASS", help="Task class to try with; it is run.")
@click.option(
    "--seconds", default=60.0, show_default=True, type=click.FloatRange(1, 3600), help="How long to wait for it."
)
@MINUTES
@ALLOW
@PHORGE
def check(task_class: str | None, seconds: float, minutes: int, allowed: tuple[str, ...], phorge: str) -> None:
    """Walk the steps of the plan: try the store, have a task run the whole way, look who works, and say what is next.

    The canary is run by the worker that answers at LISTEN, or by this command where none does. With CONDUIT_URL it is
    a task that PHP runs. Exit code 0: the step that the last lines name can be taken. 1: that step is not passed yet.
    """
    from queue_runtime import compose
    from queue_runtime.cli import takeover_check as walk
    from queue_runtime.cli.heard import Heard
    from queue_runtime.cli.there import look_there
    from queue_runtime.errors import ConfigError, StoreUnavailable, StoreUnusable
    from queue_runtime.findings import Level
    from queue_runtime.takeover import describe
    from queue_runtime.takeover_plan import Step

    config = _config()
    refuse_in_shadow(config, "a canary is written to the store")
    heard = Heard(config)
    here = _here(config)
    try:
        found = walk.examine(config)
        broken = any(one.level is Level.FAULT for one in found)
        walk.show_step(found, Step.STORE, phorge, stop=broken)
        found = _with_store(config, walk.selftest)
        broken = any(one.level is Level.FAULT for one in found)
        walk.show_step(found, Step.STORE, phorge, stop=broken)
        worker = look_there(config.listen[0], _place(config))
        wish = walk.Wish(task_class, seconds)
        proof = _with_store(config, lambda store: walk.prove(config, store, worker, wish, heard))
    except ConfigError as error:
        fail("; ".join(error.problems))
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")
    walk.show_step(proof.found, Step.CONDUIT, phorge, stop=proof.failed)
    activity, waiting = _look(config, minutes, allowed)
    phd = compose.look_at_phd(config)
    enqueues = _enqueues([worker])
    show([_enqueued(enqueues, [worker])])
    show(describe(activity, waiting, here, phd))
    walk.say_the_rest(walk.Seen(activity, waiting, phd, enqueues.get(worker.address)), worker, proof, phorge)


def _enqueues(workers: "list[Worker]") -> dict[str, int]:
    """How many requests to enqueue came over HTTP to those that can say it: each process counts its own."""
    from queue_runtime.cli.there import enqueues_there

    counts = {one.address: enqueues_there(one) for one in workers}
    return {address: count for address, count in counts.items() if count is not None}


def _enqueued(enqueues: dict[str, int], workers: "list[Worker]") -> "Finding":
    """Who enqueued, as far as anybody knows: rows do not say it."""
    from queue_runtime.findings import note

    if not enqueues:
        asked = ", ".join(one.address for one in workers)
        return note("enqueued", f"nobody can say at {asked}, and rows do not say who enqueued them")
    return note(
        "enqueued",
        f"{sum(enqueues.values())} requests to enqueue came over HTTP to {', '.join(enqueues)} since it started; what"
        " PHP enqueues by itself leaves no name in the rows",
    )


def _here(config: "Config") -> frozenset[str]:
    """The classes that have a handler in this runtime."""
    from queue_runtime import compose
    from queue_runtime.errors import ConfigError

    try:
        return compose.load_handlers(config).classes
    except ConfigError as error:
        fail("; ".join(error.problems))


def _config() -> "Config":
    """The settings; the end where the queue is not in Phorge's tables, which no taskmaster sees."""
    _, config = reading_or_exit()
    if "mysql" not in {config.store, config.record if config.store == "streams" else ""}:
        fail(f"Phorge's taskmasters work on the store mysql alone, and this one is {config.store}")
    return config


def _look(config: "Config", minutes: int, allowed: tuple[str, ...]) -> "tuple[Activity, Waiting]":
    """What the rows say. The store is opened for reading alone, so that nothing is made where nothing was."""
    from msgspec.structs import replace

    from queue_runtime.errors import StoreUnavailable, StoreUnusable
    from queue_runtime.takeover import look, look_at_waiting

    async def read(store: "Store") -> "tuple[Activity, Waiting]":
        return await look(store, minutes * 60, allowed=allowed), await look_at_waiting(store)

    try:
        return _with_store(replace(config, shadow=True), read)
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")


def _place(config: "Config") -> "Place | None":
    """Which store these settings name, by its own word."""
    from msgspec.structs import replace

    from queue_runtime.errors import StoreUnavailable, StoreUnusable
    from queue_runtime.store import place_of

    try:
        return _with_store(replace(config, shadow=True), place_of)
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")


def _with_store(config: "Config", ask_store: "Callable[[Store], Awaitable[Answer]]") -> Answer:
    """The answer of an opened store. Raises StoreUnavailable or StoreUnusable."""
    from queue_runtime import compose
    from queue_runtime.cli.stopping import run_until_told
    from queue_runtime.current import Current

    async def run() -> Answer:
        async with compose.opening(Current(config)) as store:
            return await ask_store(store)

    return run_until_told(run)

"""`queue-runtime takeover`: from Phorge's own taskmasters to this runtime in checked steps, and back."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from queue_runtime.cli.environment import fail, quiet_logs, reading_or_exit, refuse_in_shadow
from queue_runtime.cli.findings import show
from queue_runtime.cli.http import ask

if TYPE_CHECKING:
    from queue_runtime.canary import Canary
    from queue_runtime.config import Config
    from queue_runtime.findings import Finding
    from queue_runtime.store import Store
    from queue_runtime.takeover import Activity

Answer = TypeVar("Answer")

MINUTES = click.option(
    "--minutes", default=15, show_default=True, type=click.IntRange(1, 24 * 60), help="How far back."
)
PHORGE = click.option("--phorge", default="/srv/phorge", show_default=True, metavar="DIR", help="Phorge's folder.")
ALLOW = click.option(
    "--allow", "allowed", multiple=True, metavar="OWNER", help="Owners (or *patterns) of your own that may go on."
)


@click.group()
def takeover() -> None:
    """From Phorge's own taskmasters to this runtime: what to do, whether it can be done, whether it is done."""


@takeover.command()
@PHORGE
def plan(phorge: str) -> None:
    """Print the commands of each step, and those of the way back. Changes nothing."""
    from queue_runtime import takeover as steps

    click.echo(steps.plan(phorge), nl=False)


@takeover.command()
@MINUTES
@ALLOW
def status(minutes: int, allowed: tuple[str, ...]) -> None:
    """Print who enqueued, leased, executed and archived lately. Reads only.

    Exit code 0: tasks were ended by workers of this runtime, and nobody else has acted. 1: not so.
    """
    from queue_runtime.takeover import describe, look, verdict

    config = _config()
    activity = _with_store(config, lambda store: look(store, minutes * 60, allowed=allowed))
    show([*_enqueued(config), *describe(activity, _here(config)), *verdict(activity)])


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
    a task that PHP runs. Exit code 0: what was tried works; the last lines say what is next. 1: not so.
    """
    from queue_runtime import compose
    from queue_runtime.errors import ConfigError, StoreUnavailable, StoreUnusable
    from queue_runtime.findings import Level, ok
    from queue_runtime.takeover import Step, look

    config = _config()
    refuse_in_shadow(config, "a canary is written to the store")
    try:
        found = compose.examine(config, repair=False)
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")
    trouble = [one for one in found if one.level in {Level.WARNING, Level.FAULT}]
    _show_step(
        trouble or [ok("store", f"{len(found)} things were looked at: queue-runtime doctor --store")],
        Step.STORE,
        phorge,
    )
    _show_step([_with_store(config, _selftest)], Step.STORE, phorge)
    try:
        canary = _with_store(config, lambda store: _try_canary(config, store, task_class, seconds))
    except ConfigError as error:
        fail("; ".join(error.problems))
    _show_step(canary, Step.CONDUIT, phorge)
    activity = _with_store(config, lambda store: look(store, minutes * 60, allowed=allowed))
    _say_the_rest(config, activity, phorge)


def _say_the_rest(config: "Config", activity: "Activity", phorge: str) -> None:
    """Who works on the queue, and the step that is next because of that."""
    from queue_runtime.findings import note, ok
    from queue_runtime.takeover import Step, Who, acting, commands_of, describe

    minutes = activity.seconds // 60
    foreign = [note(one.subject, one.sentence) for one in acting(activity)]
    show([*_enqueued(config), *describe(activity, _here(config)), *foreign])
    if not foreign:
        show([ok("native taskmasters", f"none has acted in the last {minutes} minutes")])
    if not activity.ended[Who.OURS] and _supported(config) is None:
        # with the taskmasters off, nobody would work at all
        show([note("worker", f"none has ended a task in {minutes} minutes, and none answers at {config.listen[0]}")])
        step = Step.CONDUIT
    else:
        step = Step.TASKMASTERS if foreign else Step.CLOSED
    click.echo(commands_of(step, phorge), nl=False)


def _show_step(found: "list[Finding]", step: int, phorge: str) -> None:
    """Print what a step found; a fault is the end, with the commands that belong to the step."""
    from queue_runtime.findings import Level
    from queue_runtime.takeover import Step, commands_of

    if any(one.level is Level.FAULT for one in found):
        try:
            show(found)
        finally:
            click.echo(commands_of(Step(step), phorge), nl=False)
    show(found)


async def _selftest(store: "Store") -> "Finding":
    from queue_runtime.findings import fault, ok
    from queue_runtime.selftest import run_selftest

    report = await run_selftest(store)
    return ok("selftest", report.sentence) if report.ok else fault("selftest", report.sentence)


async def _try_canary(config: "Config", store: "Store", task_class: str | None, seconds: float) -> "list[Finding]":
    """Ask Phorge, and have a task run: by the worker that runs already, else here."""
    from queue_runtime import compose
    from queue_runtime.canary import choose, goes_through, run_here, send
    from queue_runtime.findings import fault, note, ok

    trial = compose.trial(config)
    found: list[Finding] = []
    extension = False
    if trial.phorge is not None:
        await trial.phorge.look()
        terms = trial.phorge.terms
        if terms is None:
            return [fault("conduit", f"Phorge at {config.conduit_url} cannot run tasks: {trial.phorge.trouble}")]
        extension = terms.locks
        method = "queue-runtime's extension" if extension else "a method of its own, as the fork has"
        found.append(ok("conduit", f"Phorge at {config.conduit_url} runs tasks by {method}, version {terms.version}"))
    canary = choose(task_class, seconds, by_phorge=trial.phorge is not None, extension=extension)
    supported = _supported(config)
    if supported is None:
        found.append(note("canary", f"no worker answers at {config.listen[0]}: this command runs the task itself"))
    elif goes_through(canary, supported):
        return [*found, await send(store, canary)]
    else:
        found.append(note("canary", f"{_not_through(canary)}: this command runs the task itself"))
    handler = trial.registry.fallback_spec if canary.by_phorge else trial.registry.find(canary.task_class)
    if handler is None or not handler.accepts(canary.task_class):
        return [*found, fault("canary", f"nobody here may run {canary.task_class} (TASK_CLASSES, CONDUIT_CLASSES)")]
    outcome = await run_here(store, canary, handler, lease_seconds=config.lease_seconds, patience=config.patience)
    return [*found, outcome]


def _not_through(canary: "Canary") -> str:
    why = "has a handler of its own for it" if canary.by_phorge else "does not take it"
    return f"the worker that runs already would not bring {canary.task_class} to PHP: it {why}"


def _supported(config: "Config") -> list[str] | None:
    """What the worker at LISTEN leases; None: there is none, or it is a shadow."""
    facts = _ask(config, "/readyz?verbose=1")
    if facts is None or json.loads(facts).get("details", {}).get("shadow"):
        return None
    stats = _ask(config, "/api/worker/stats")
    return None if stats is None else [str(one) for one in json.loads(stats)["data"]["supported"]]


def _enqueued(config: "Config") -> "list[Finding]":
    """Who enqueued, as far as anybody knows: rows do not say it, and the process at LISTEN counts its own."""
    from queue_runtime.findings import note

    figures = _ask(config, "/metrics")
    if figures is None:
        return [note("enqueued", f"nobody answers at {config.listen[0]}, and the rows do not say who enqueued them")]
    count = sum(_count(line) for line in figures.splitlines() if _is_enqueue(line))
    return [
        note(
            "enqueued",
            f"{count} requests to enqueue came over HTTP to {config.listen[0]} since it started; what PHP enqueues by"
            " itself leaves no name in the rows",
        )
    ]


def _is_enqueue(line: str) -> bool:
    return line.startswith("queue_runtime_http_request_seconds_count{") and "enqueue" in line and 'status="200"' in line


def _count(line: str) -> int:
    return int(float(line.rpartition(" ")[2]))


def _ask(config: "Config", path: str) -> str | None:
    """What the process at the first address of LISTEN says; None where none of ours does."""
    address = config.listen[0]
    if address.endswith(":0"):
        return None
    try:
        status, text = ask(address, "GET", path, token=config.token)
    except OSError:
        return None
    return text if status in {200, 503} else None


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
    quiet_logs(config)
    return config


def _with_store(config: "Config", ask_store: "Callable[[Store], Awaitable[Answer]]") -> Answer:
    import anyio

    from queue_runtime import compose
    from queue_runtime.current import Current
    from queue_runtime.errors import StoreUnavailable, StoreUnusable

    async def run() -> Answer:
        async with compose.opening(Current(config)) as store:
            return await ask_store(store)

    try:
        return anyio.run(run)
    except (StoreUnavailable, StoreUnusable) as error:
        fail(f"the store cannot be used: {error}")

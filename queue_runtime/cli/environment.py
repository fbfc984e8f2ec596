"""How every command reads the environment, and how it ends when something is wrong."""

import os
from collections.abc import Iterable
from typing import NoReturn

import click

from queue_runtime.config import Config, Reading, read_environment

EXIT_FAILED = 1
EXIT_CONFIG = 2


def reading_or_exit() -> tuple[Reading, Config]:
    """The environment, or the end of the process with every fault on stderr."""
    reading = read_environment(os.environ)
    if reading.config is None:
        stop(reading.problems)
    return reading, reading.config


def quiet_logs(config: Config) -> None:
    """For a command that prints its result: the log of what it uses goes to stderr, and only where something fails."""
    from queue_runtime import logs

    logs.configure(config.log_format, "error", config.secrets)


def refuse_in_shadow(config: Config, why: str) -> None:
    """The end, where this process must not write."""
    if config.shadow:
        fail(f"QUEUE_RUNTIME_SHADOW=1 is set, and {why}: run it without")


def stop(problems: Iterable[str]) -> NoReturn:
    """End with exit code 2 because the configuration is wrong."""
    click.echo("queue-runtime cannot start with this configuration:", err=True)
    for problem in problems:
        click.echo(f"  {problem}", err=True)
    raise SystemExit(EXIT_CONFIG)


def fail(reason: str) -> NoReturn:
    """End with exit code 1 and one sentence."""
    click.echo(f"queue-runtime: {reason}", err=True)
    raise SystemExit(EXIT_FAILED)

"""`queue-runtime serve`: runs the queue until it is told to stop."""

import os
from functools import partial

import click

from queue_runtime.cli.environment import fail, reading_or_exit, stop
from queue_runtime.config import read_environment


@click.command()
def serve() -> None:
    """Serve the API, run tasks and sweep, until SIGTERM or SIGINT.

    Exit code 0: every task was settled or given back. 1: it could not start or go on, the log says why. 2: the
    configuration has faults. 3: stopped with tasks still held, the log has their ids.
    """
    reading, config = reading_or_exit()

    # from here on, because `health` and `--help` start faster without
    import structlog

    from queue_runtime import logs
    from queue_runtime.errors import ConfigError, StoreUnavailable, StoreUnusable
    from queue_runtime.neighbours import hidden_neighbours

    if problems := hidden_neighbours():
        stop(problems)
    logs.configure(config.log_format, config.log_level, config.secrets)
    log = structlog.get_logger()
    for notice in reading.notices:
        log.info("setting", note=notice)
    for warning in reading.warnings:
        log.warning("setting", note=warning)

    from queue_runtime import compose

    try:
        code = compose.run(config, partial(read_environment, os.environ))
    except ConfigError as error:
        stop(error.problems)
    except (StoreUnusable, StoreUnavailable) as error:
        fail(f"the store cannot be used: {error}")
    raise SystemExit(code)

"""`queue-runtime init`: makes what the chosen store needs before the first start."""

import click

from queue_runtime.cli.environment import fail, quiet_logs, reading_or_exit, refuse_in_shadow, stop
from queue_runtime.cli.findings import show


@click.command()
def init() -> None:
    """Make what the chosen store needs. May be run again at any time.

    sqlite: the file. mysql: the database {namespace}_queue_runtime, for which the account needs the right to create it;
    nothing in Phorge's own databases is touched. redis, remote: nothing to make, the server is looked at. streams: what
    the store that RECORD names needs; nothing in Redis.
    """
    _, config = reading_or_exit()
    refuse_in_shadow(config, "init makes what the store needs")

    from queue_runtime.errors import ConfigError, StoreUnavailable, StoreUnusable
    from queue_runtime.neighbours import hidden_neighbours

    if problems := hidden_neighbours():
        stop(problems)
    quiet_logs(config)

    from queue_runtime import compose

    try:
        found = compose.create(config)
    except ConfigError as error:
        stop(error.problems)
    except (StoreUnusable, StoreUnavailable) as error:
        fail(f"the store cannot be used: {error}")
    show(found)

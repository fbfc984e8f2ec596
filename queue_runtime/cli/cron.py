"""`queue-runtime cron`: the periodic work and when it comes next."""

from pathlib import Path

import click

from queue_runtime.cli.environment import reading_or_exit, stop

SLOTS = 3


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
def cron(file: Path | None) -> None:
    """Check FILE (default: the one that QUEUE_RUNTIME_CRON_FILE names) and print each entry with its next slots.

    Exit code 0: the file is in order. 2: it has faults, each of which is printed.
    """
    if file is None:
        _, config = reading_or_exit()
        file = config.cron_file
    if file is None:
        click.echo("no periodic work: QUEUE_RUNTIME_CRON_FILE is not set")
        return

    import time

    from queue_runtime.cron_file import read_cron_file
    from queue_runtime.errors import ConfigError

    try:
        entries = read_cron_file(file)
    except ConfigError as error:
        stop(error.problems)
    now = int(time.time())
    for entry in entries:
        schedule = entry.schedule
        missed = f", missed slots: {entry.missed}"
        click.echo(f"{entry.name}: {entry.task.task_class} at {schedule.expression} {schedule.zone}{missed}")
        for slot in schedule.next(now, SLOTS):
            click.echo(f"  {slot:%a %Y-%m-%d %H:%M:%S %Z}")
    if not entries:
        click.echo(f"no periodic work: {file} has no entries")

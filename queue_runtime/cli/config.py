"""`queue-runtime config`: every setting in force and where it came from."""

import os

import click

from queue_runtime.cli.environment import stop
from queue_runtime.config import read_environment


@click.command()
def config() -> None:
    """Print each setting in force, where it came from, and every fault. Secrets are masked."""
    reading = read_environment(os.environ)
    name_width = max(len(one.variable) for one in reading.effective)
    text_width = max(len(one.text) for one in reading.effective)
    for one in reading.effective:
        click.echo(f"{one.variable:{name_width}}  {one.text or '-':{min(text_width, 40)}}  {one.origin}")
    for notice in (*reading.notices, *reading.warnings):
        click.echo(f"note: {notice}")
    if reading.problems:
        stop(reading.problems)

"""`queue-runtime reload`: has a running process read its settings again, and prints what came of it."""

import json
import os
import signal

import click

from queue_runtime.cli.environment import EXIT_FAILED, fail, reading_or_exit
from queue_runtime.cli.http import ask

SECONDS = 30


@click.command()
@click.option("--url", help="Base URL of the process. Default: the first address of QUEUE_RUNTIME_LISTEN.")
@click.option("--pid", type=click.IntRange(1), help="Send this process SIGHUP instead; its log says the rest.")
def reload(url: str | None, pid: int | None) -> None:
    """Have the process at QUEUE_RUNTIME_LISTEN read its files again (the same as SIGHUP), and print what changed.

    Exit code 0: all that they say is in force. 1: something is not, because it has faults or needs a restart, or
    because the process does not answer. 2: the settings have faults as they are seen from here.
    """
    if pid is not None:
        _signal(pid)
        return
    _, config = reading_or_exit()
    address = url or config.listen[0]
    try:
        status, text = ask(address, "POST", "/api/queue/reload", body=b"{}", token=config.token, seconds=SECONDS)
        answer = json.loads(text)
    except OSError as error:
        fail(f"{address} does not answer: {error}")
    except ValueError:
        fail(f"{address} is not a queue: it answers {status} and no JSON")
    if status == 401:
        fail("the process has another service token still: send it SIGHUP, or give --pid")
    if status != 200:
        fail(f"nothing has changed: {answer.get('error', {}).get('message', '')}")
    changed, needs_restart = answer["data"]["changed"], answer["data"]["needsRestart"]
    for name in changed:
        click.echo(f"changed: {name}")
    for name in needs_restart:
        click.echo(f"needs a restart, the old value stays: {name}", err=True)
    if not changed and not needs_restart:
        click.echo("nothing to change")
    if needs_restart:
        raise SystemExit(EXIT_FAILED)


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        fail(f"process {pid}: {error.strerror}")
    click.echo(f"told process {pid}; its log says what came of it")

"""`queue-runtime health`: asks a running process how it is, for a container's HEALTHCHECK."""

import click

from queue_runtime.cli.environment import fail, reading_or_exit
from queue_runtime.cli.http import ask


@click.command()
@click.option("--ready", is_flag=True, help="Ask /readyz (store reachable, not stopping) instead of /healthz.")
@click.option("--url", help="Base URL to ask. Default: the first address of QUEUE_RUNTIME_LISTEN.")
def health(ready: bool, url: str | None) -> None:
    """Exit with 0 when the process at QUEUE_RUNTIME_LISTEN answers that it is well, else with 1."""
    _, config = reading_or_exit()
    address = url or config.listen[0]
    path = "/readyz" if ready else "/healthz"
    try:
        status, text = ask(address, "GET", path)
    except OSError as error:
        fail(f"{address} does not answer: {error}")
    if status != 200:
        fail(f"{path} answers {status}: {text[:500]}")
    click.echo("ok")

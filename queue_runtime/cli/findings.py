"""How findings are printed, one a line, and which exit code they make."""

from collections.abc import Iterable

import click

from queue_runtime.cli.environment import EXIT_FAILED
from queue_runtime.findings import Finding, Level


def show(findings: Iterable[Finding]) -> None:
    """Print each as soon as it is there. Ends with exit code 1 when one of them is a fault."""
    worst = False
    for one in findings:
        click.echo(f"{one.level:<8} {one.subject}: {_shown(one.sentence)}")
        worst = worst or one.level is Level.FAULT
    if worst:
        raise SystemExit(EXIT_FAILED)


def _shown(text: str) -> str:
    """On one line, and without what a terminal would obey: parts of it may come from a peer."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one.isspace() else "\N{REPLACEMENT CHARACTER}" for one in text)

"""The command `queue-runtime`: its group, its help with the table of settings, and its version."""

import click

from queue_runtime.cli.config import config
from queue_runtime.cli.cron import cron
from queue_runtime.cli.doctor import doctor
from queue_runtime.cli.enqueue import enqueue
from queue_runtime.cli.health import health
from queue_runtime.cli.init import init
from queue_runtime.cli.phorge import phorge
from queue_runtime.cli.reload import reload
from queue_runtime.cli.selftest import selftest
from queue_runtime.cli.serve import serve
from queue_runtime.cli.takeover import takeover


class SettingsGroup(click.Group):
    """A group whose help ends with the variables, taken from the table that reads them."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from queue_runtime.settings import SETTINGS

        with formatter.section("Environment"):
            formatter.write_dl(
                [
                    (
                        one.variable,
                        f"{one.sentence} [{one.rule.words}]"
                        + (f" Default: {one.default_words}." if one.default else "")
                        + (f" {one.file_variable} names a file that holds it." if one.secret else ""),
                    )
                    for one in SETTINGS
                ]
            )


@click.group(cls=SettingsGroup)
@click.version_option(package_name="queue-runtime", message="queue-runtime %(version)s")
def cli() -> None:
    """A work queue: HTTP API, worker and sweep over one store. Settings come from the environment."""


@cli.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    click.echo(f"queue-runtime {installed('queue-runtime')}")


for command in (serve, init, doctor, selftest, config, health, enqueue, cron, reload, phorge, takeover):
    cli.add_command(command)

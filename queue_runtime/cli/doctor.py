"""`queue-runtime doctor`: looks at everything that a start needs, and says what is wrong before it goes wrong."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec import Struct

from queue_runtime.cli.environment import quiet_logs, refuse_in_shadow
from queue_runtime.cli.findings import show
from queue_runtime.cli.http import ask
from queue_runtime.config import Config, Reading, read_environment
from queue_runtime.config_values import is_local
from queue_runtime.findings import Finding, fault, note, ok, warning
from queue_runtime.neighbours import hidden_neighbours
from queue_runtime.settings import BY_FIELD, PREFIX

SHORT_TOKEN = 16
"""A service token of fewer characters can be guessed."""


@click.command()
@click.option("--store", is_flag=True, help="Ask the store too: its tables or keys, rights, version, room.")
@click.option("--repair", is_flag=True, help="With --store: rebuild what the store can rebuild by itself.")
@click.option(
    "--conduit", is_flag=True, help="Ask Phorge too, by calls that run no task: host, token, limits, who else may call."
)
@click.option(
    "--phorge",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Look into the Phorge in this folder: the extension, and Phorge's configuration.",
)
@click.option(
    "--php-fpm",
    "pools",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Look into this file of php-fpm's pools: children, token, limits. May be given more than once.",
)
def doctor(store: bool, repair: bool, conduit: bool, folder: Path | None, pools: tuple[Path, ...]) -> None:
    """Print what is found, one a line: ok, note, warning or fault, what was looked at, and a sentence.

    It does not disturb a running queue. Exit code 0: no fault. 1: at least one.
    """
    if repair and not store:
        raise click.UsageError("--repair needs --store")
    reading = read_environment(os.environ)
    if repair and reading.config is not None:
        refuse_in_shadow(reading.config, "--repair writes to the store")
    show(_findings(reading, _Wanted(store=store, repair=repair, conduit=conduit, folder=folder, pools=pools)))


class _Wanted(Struct, frozen=True):
    """What is looked at beside the settings."""

    store: bool
    repair: bool
    conduit: bool
    folder: Path | None
    pools: Sequence[Path]


def _findings(reading: Reading, wanted: _Wanted) -> Iterator[Finding]:
    yield from _settings(reading)
    if hidden := hidden_neighbours():
        yield from (fault("packages", problem) for problem in hidden)
        return  # what else there is to look at would run the wrong code
    if (config := reading.config) is None:
        return
    yield from _token(config)
    yield from _addresses(config)
    extras = list(_extras(config))
    yield from extras
    yield from _handlers(config)
    yield from _periodic_work(config)
    yield from _files(config, wanted)
    if wanted.conduit:
        yield from _conduit(config, wanted)
    if wanted.store and not extras:
        yield from _store(config, wanted.repair)


def _settings(reading: Reading) -> Iterator[Finding]:
    yield from (fault("settings", problem) for problem in reading.problems)
    yield from (warning("settings", line) for line in reading.warnings)
    yield from (note("settings", line) for line in reading.notices)
    if reading.config is not None:
        given = sum(one.origin != "default" for one in reading.effective)
        yield ok("settings", f"{given} given, the others have their defaults; the store is {reading.config.store}")


def _token(config: Config) -> Iterator[Finding]:
    name = BY_FIELD["token"].variable
    reachable = [address for address in config.listen if not is_local(address)]
    if reachable and not config.token:
        yield warning("token", f"everybody who can reach {', '.join(reachable)} may use the queue")
    elif not config.token:
        yield note("token", f"everybody on this machine may use the queue, because {name} is not set")
    elif len(config.token) < SHORT_TOKEN:
        yield warning("token", f"{name} has {len(config.token)} characters, which can be guessed")
    else:
        yield ok("token", "callers must send it as X-Service-Token")


def _addresses(config: Config) -> Iterator[Finding]:
    from queue_runtime.listen import ListenError, files_of, open_all, remove_files

    for address in config.listen:
        if _answers(address):
            yield note("listen", f"a queue answers at {address} already; a second one could not start there")
            continue
        try:
            opened = open_all([address])
        except ListenError as error:
            yield fault("listen", str(error))
            continue
        remove_files(files_of(opened))
        for one in opened:
            one.close()
        yield ok("listen", f"{address} is free")


def _answers(address: str) -> bool:
    """Whether a process of ours is there."""
    if address.endswith(":0"):
        return False
    try:
        status, text = ask(address, "GET", "/healthz")
    except OSError:
        return False
    return status == 200 and text.strip() == '{"status":"ok"}'


def _extras(config: Config) -> Iterator[Finding]:
    from queue_runtime.compose import check_extras
    from queue_runtime.errors import ConfigError

    try:
        check_extras(config)
    except ConfigError as error:
        yield from (fault("extras", problem) for problem in error.problems)


def _handlers(config: Config) -> Iterator[Finding]:
    from queue_runtime.compose import load_handlers
    from queue_runtime.errors import ConfigError

    if "worker" not in config.roles:
        yield note("handlers", f"none are loaded, because {PREFIX}ROLES has no worker")
        return
    try:
        registry = load_handlers(config)
    except ConfigError as error:
        yield from (fault("handlers", problem) for problem in error.problems)
        return
    others = "" if registry.fallback_spec is None else ", and a fallback for all others"
    if config.conduit_url is not None:
        others = f", and Phorge at {config.conduit_url} runs {', '.join(config.conduit_classes)}"
    yield ok("handlers", f"there are some for {', '.join(sorted(registry.classes))}{others}")


def _periodic_work(config: Config) -> Iterator[Finding]:
    from queue_runtime.errors import ConfigError
    from queue_runtime.live import cron_entries

    if config.cron_file is None or "sweep" not in config.roles:
        return
    try:
        entries = cron_entries(config)
    except ConfigError as error:
        yield from (fault("periodic work", problem) for problem in error.problems)
        return
    yield ok("periodic work", f"{config.cron_file} has {len(entries)} entries; `queue-runtime cron` says when they run")


def _files(config: Config, wanted: _Wanted) -> Iterator[Finding]:
    from queue_runtime import compose
    from queue_runtime.cli.phorge import look_into

    checkout = None
    if wanted.folder is not None:
        checkout, found = look_into(wanted.folder)
        yield from found
    if checkout is not None or wanted.pools:
        yield from compose.examine_files(config, checkout, wanted.pools)


def _conduit(config: Config, wanted: _Wanted) -> Iterator[Finding]:
    from queue_runtime import compose

    quiet_logs(config)
    yield from compose.examine_phorge(config, children_known=bool(wanted.pools))


def _store(config: Config, repair: bool) -> Iterator[Finding]:
    from queue_runtime import compose
    from queue_runtime.errors import StoreUnavailable, StoreUnusable

    quiet_logs(config)
    try:
        yield from compose.examine(config, repair=repair)
    except (StoreUnavailable, StoreUnusable) as error:
        yield fault("store", str(error))

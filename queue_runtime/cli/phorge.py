"""`queue-runtime phorge`: puts the extension into a Phorge on this machine, looks at it, takes it out again."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from queue_runtime.cli.environment import fail
from queue_runtime.cli.findings import show
from queue_runtime.findings import Finding, fault, note, ok, warning

if TYPE_CHECKING:
    from conduit.phorge.checkout import Checkout

FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))

RELOAD = "systemctl reload 'php*-fpm'   (or restart the web server that runs PHP: it may keep old code)"


@click.group()
def phorge() -> None:
    """The extension that lets a stock Phorge run its own task classes for this queue. DIR is Phorge's folder."""


@phorge.command()
@FOLDER
def install(folder: Path) -> None:
    """Put the extension into DIR/src/extensions, or the newer one in place of the older.

    Nothing is changed where that would harm: a syntax that this PHP does not take, or another file that answers
    worker.execute, as the fork's own does. May be run again at any time. Exit code 0: it is there. 1: it is not.
    """
    from conduit.phorge.checkout import EXTENSION, TOKEN_KEY, State, classes_of, shipped
    from conduit.phorge.errors import RefusedError

    try:
        checkout = _checkout(folder)
        if rivals := checkout.rivals():
            names = ", ".join(str(path) for path in rivals)
            fail(f"{names} answers worker.execute already; two of them would stop all of Conduit. Nothing was changed")
        if declared := checkout.declared(EXTENSION, classes_of(shipped())):
            fail(f"another file has a class {', '.join(declared)}, a stub perhaps. Nothing was changed")
        if checkout.state(EXTENSION, shipped()) is State.SAME:
            click.echo(f"{checkout.extensions / EXTENSION} is there already, and is the one of this version")
        else:
            checked = checkout.write(EXTENSION, shipped())
            click.echo(f"{checkout.extensions / EXTENSION} is in place; {checked}")
    except RefusedError as error:
        fail(str(error))
    click.echo("What remains:")
    if not checkout.token_is_set():
        click.echo(
            # no argument of a command, which every account of the machine may read
            f"  printf %s TOKEN | {quote(str(folder))}/bin/config set --stdin {TOKEN_KEY}"
            "   (the one of QUEUE_RUNTIME_CONDUIT_TOKEN here)"
        )
        click.echo(
            "      or env[QUEUE_RUNTIME_CONDUIT_TOKEN] = TOKEN in php-fpm's pool: the other file is readable by all"
        )
    click.echo(f"  {RELOAD}")
    click.echo("  queue-runtime doctor --conduit")


@phorge.command()
@FOLDER
def check(folder: Path) -> None:
    """Print what is found in DIR, one a line, as the doctor does. Exit code 1 when there is a fault."""
    from conduit.phorge.errors import RefusedError

    try:
        show(_findings(_checkout(folder)))
    except RefusedError as error:
        fail(str(error))


@phorge.command()
@FOLDER
def remove(folder: Path) -> None:
    """Take the extension and the stubs out of DIR again. Files that are not ours stay."""
    from conduit.phorge.checkout import EXTENSION, STUBS, TOKEN_KEY
    from conduit.phorge.errors import RefusedError

    removed = False
    try:
        checkout = _checkout(folder)
        for name in (EXTENSION, STUBS):
            if checkout.remove(name):
                removed = True
                click.echo(f"{checkout.extensions / name} is removed")
    except RefusedError as error:
        fail(str(error))
    if not removed:
        click.echo(f"there is nothing of queue-runtime in {checkout.extensions}")
        return
    click.echo("What remains:")
    if checkout.token_is_set():
        # afterwards Phorge does not know the option, and says so
        click.echo(f"  {quote(str(folder))}/bin/config delete {TOKEN_KEY}")
    click.echo(f"  {RELOAD}")


@phorge.command()
@FOLDER
@click.argument("classes", metavar="CLASS...", nargs=-1, required=True)
def stubs(folder: Path, classes: tuple[str, ...]) -> None:
    """Write a PHP class for each task class that has a handler here and no PHP code.

    Without one Phorge's page of such a task is an error. The classes named now replace those of the last call.

    A second class of one name would take the whole site down. So names are refused that PHP, Phorge, Arcanist beside it
    or a library of load-libraries has already; and all of them, where it cannot be known what those have.
    """
    from conduit.phorge.checkout import STUBS, State
    from conduit.phorge.errors import RefusedError
    from conduit.phorge.php import try_stubs
    from conduit.phorge.stubs import is_class_name, is_taken, stub_file

    if wrong := [name for name in classes if not is_class_name(name)]:
        raise click.UsageError(f"not a name of a PHP class: {', '.join(wrong)}")
    if taken := [name for name in classes if is_taken(name)]:
        fail(f"PHP or the extension has {', '.join(taken)} by itself. Nothing was changed")
    text = stub_file(classes)
    try:
        checkout = _checkout(folder)
        if unknown := checkout.unknown_code():
            fail(f"who knows which classes Phorge has: {'; '.join(unknown)}. Nothing was changed")
        if declared := checkout.declared(STUBS, list(classes)):
            fail(f"Phorge has {', '.join(declared)} already. Nothing was changed")
        if checkout.state(STUBS, text) is State.SAME:
            click.echo(f"{checkout.extensions / STUBS} has them already")
            return
        checked = checkout.write(STUBS, text, partial(try_stubs, names=classes))
    except RefusedError as error:
        fail(str(error))
    click.echo(f"{checkout.extensions / STUBS} has {len(set(classes))} classes; {checked}")
    click.echo("What remains:")
    click.echo(f"  {RELOAD}")
    phd = f"{quote(str(folder))}/bin/phd"
    click.echo(f"  {phd} stop && {phd} start --keep-leases   (where native taskmasters run)")


def _checkout(folder: Path) -> "Checkout":
    from conduit.phorge.checkout import Checkout

    return Checkout(folder.resolve())


def look_into(folder: Path) -> "tuple[Checkout | None, list[Finding]]":
    """The Phorge in this folder, None where there is none, and what is found there."""
    from conduit.phorge.errors import RefusedError

    try:
        checkout = _checkout(folder)
        return checkout, list(_findings(checkout))
    except RefusedError as error:
        return None, [fault("phorge", str(error))]


def _findings(checkout: "Checkout") -> Iterator[Finding]:
    from conduit.phorge.checkout import EXTENSION, STUBS, State, shipped
    from conduit.phorge.errors import RefusedError
    from conduit.phorge.php import lint

    path = checkout.extensions / EXTENSION
    match checkout.state(EXTENSION, shipped()):
        case State.SAME:
            yield ok("extension", f"{path} is the one of this version")
        case State.OTHER:
            yield warning("extension", f"{path} is not the one of this version: queue-runtime phorge install")
        case State.FOREIGN:
            yield fault("extension", f"{path} is not a file of queue-runtime")
        case State.ABSENT:
            yield note("extension", "not installed: queue-runtime phorge install")
    for name in (EXTENSION, STUBS):
        if (checkout.extensions / name).exists():
            try:
                yield ok("syntax", f"{name}: {lint(checkout.extensions / name)}")
            except RefusedError as error:
                yield fault("syntax", f"{name}: {error}")
    if (names := checkout.stubs()) and (declared := checkout.declared(STUBS, names)):
        yield fault("stubs", f"Phorge has {', '.join(declared)} by now: write {STUBS} without, or the site may go down")
    yield from _rivals(checkout, installed=path.exists())
    match checkout.token_is_set():
        case True:
            yield ok("token", "Phorge's configuration has one")
        case None:
            yield note("token", "conf/local/local.json cannot be read here, so who knows")
        case False:
            yield note("token", "not in conf/local/local.json: without one in PHP's environment every call is refused")


def _rivals(checkout: "Checkout", *, installed: bool) -> Iterator[Finding]:
    rivals = checkout.rivals()
    for rival in rivals:
        if installed:
            yield fault("worker.execute", f"{rival} answers it too: remove one of the two")
        else:
            yield note("worker.execute", f"{rival} answers it, so the extension must not be installed")
    if not rivals:
        yield ok("worker.execute", "no other file answers it")

"""Asks Phorge what an administrator may have got wrong, for `queue-runtime doctor --conduit`. No task is run by it."""

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from conduit.client import ConduitClient
from conduit.errors import (
    CallFailed,
    ConduitError,
    Misconfigured,
    NotReached,
    OutcomeUnknown,
    TokenRefused,
    UnknownParameters,
)
from conduit.replies import MALFORMED
from handlers.execution import METHOD, NO_CLASS, PROBE, Terms, Unreadable
from handlers.phorge import PROBE_SECONDS, ask
from queue_runtime.findings import Finding, fault, note, ok, warning

LARGE = 9 * 2**20
"""More than the 8 MiB that PHP takes by default, and the 1 MiB of nginx."""

LARGE_SECONDS = 60.0


class Asked(Struct, frozen=True):
    """Which Phorge is asked, and what of this process its answers are compared with."""

    url: str
    token: str = ""
    host: str = ""
    tls_ca: Path | None = None
    concurrency: int = 4
    patterns: tuple[str, ...] = ("*",)
    namespace: str | None = None
    """None: the queue is not in Phorge's tables"""

    def client(self, token: str) -> ConduitClient:
        """A client that sends this token. Raises OSError where the file of authorities cannot be used."""
        return ConduitClient(self.url, token=token, host=self.host, tls_ca=self.tls_ca)

    @property
    def host_sent(self) -> str:
        """The host that Phorge is asked for."""
        return urlsplit(f"//{self.host or urlsplit(self.url).netloc}").hostname or ""


class _Facts(Struct, rename="camel"):
    """What our extension tells of the PHP that it runs in."""

    php: str
    sapi: str
    token_from: str
    post_max_size: str
    memory_limit: str
    time_limit: int
    namespace: str
    taskmasters: int
    classes: list[str]
    children_used_up: int | None = None


class _Capabilities(Struct):
    facts: _Facts | None = None


async def examine(asked: Asked, *, children_known: bool = False) -> list[Finding]:
    """All that calls can tell. Ends early where Phorge does not answer the first one.

    `children_known`: the number of php-fpm's children is looked at elsewhere.
    """
    try:
        client = asked.client(asked.token)
    except OSError as error:
        return [fault("conduit", f"QUEUE_RUNTIME_CONDUIT_TLS_CA must be a file of certificates: {error}")]
    try:
        terms, answer = await ask(client)
    except (ConduitError, Unreadable) as error:
        return [*_first_call(error), *_dotless(asked)]
    facts = _read_facts(answer)
    return [
        _reached(asked, terms),
        *_dotless(asked),
        await _stranger(asked),
        await _large_payload(client, terms),
        *([] if facts is None else _facts(asked, facts)),
        *_children(asked, facts, children_known),
    ]


async def examine_gateway(asked: Asked) -> Finding:
    """Whether the Phorge behind the gateway answers."""
    try:
        await asked.client(asked.token).call("conduit.ping", {}, seconds=PROBE_SECONDS)
    except OSError as error:
        return fault("gateway", f"QUEUE_RUNTIME_CONDUIT_TLS_CA must be a file of certificates: {error}")
    except ConduitError as error:
        return fault("gateway", f"Phorge at {asked.url}: {error}")
    return ok("gateway", f"Phorge at {asked.url} answers")


def _first_call(error: ConduitError | Unreadable) -> Iterator[Finding]:
    match error:
        case Misconfigured():
            yield fault("conduit", str(error))
        case NotReached():
            fix = "see whether QUEUE_RUNTIME_CONDUIT_URL is right and the web server there runs"
            yield fault("conduit", f"{error}: {fix}")
        case OutcomeUnknown():
            fix = "the logs of the web server and of php-fpm say why"
            yield fault("conduit", f"no answer to a question that takes no work ({error}): {fix}")
        case _:
            yield fault("conduit", f"{error}: Phorge's own log says more")


def _reached(asked: Asked, terms: Terms) -> Finding:
    if terms.version == 0:
        return warning(
            "conduit",
            f"{METHOD} at {asked.url} is that of the first release, without the waits, maxima and follow-ups of"
            " classes: use a newer one",
        )
    if not terms.locks:
        held = "it does not lock a task that it runs, so rows are held for as long as their class may take"
        return ok("conduit", f"Phorge at {asked.url} runs tasks; {held}")
    return ok("conduit", f"Phorge at {asked.url} runs tasks")


def _dotless(asked: Asked) -> Iterator[Finding]:
    if "." not in asked.host_sent and ":" not in asked.host_sent:
        yield warning(
            "host",
            f"Phorge is asked for the host {asked.host_sent}, and refuses a name without a dot whenever its web server"
            " has just been started: set QUEUE_RUNTIME_CONDUIT_HOST to the host of phabricator.base-uri",
        )


# ---- who else may call


async def _stranger(asked: Asked) -> Finding:
    """Try as somebody who has no token, and as one who guesses."""
    for who, token in (("without a token", ""), ("with a wrong token", secrets.token_hex(16))):
        try:
            await asked.client(token).call(METHOD, PROBE, seconds=PROBE_SECONDS)
        except TokenRefused:
            continue
        except UnknownParameters:
            return _open_door(who)
        except CallFailed as error:
            if error.code.startswith("ERR-WORKER-") or error.code == NO_CLASS:
                return _open_door(who)  # it got as far as what it says
            return warning("access", f"a call {who} was neither answered nor refused: {error}")
        except ConduitError as error:
            return warning("access", f"a call {who} was neither answered nor refused: {error}")
        return _open_door(who)
    return ok("access", f"{METHOD} refuses calls without the token")


def _open_door(who: str) -> Finding:
    return fault(
        "access",
        f"{METHOD} answers calls {who}, so everybody who reaches Phorge may have any task class run: use a version that"
        " asks for the token, and until then have the web server refuse /api/worker.execute to all other hosts",
    )


# ---- what gets through


async def _large_payload(client: ConduitClient, terms: Terms) -> Finding:
    size = f"{LARGE // 2**20} MiB"
    try:
        await client.call(METHOD, {**PROBE, "data": "x" * LARGE}, seconds=LARGE_SECONDS)
    except (UnknownParameters, CallFailed) as error:
        refused = not isinstance(error, UnknownParameters) and error.code != NO_CLASS
        if terms.version or refused:
            return _too_large(size, error)
    except ConduitError as error:
        return _too_large(size, error)
    return ok("payloads", f"one of {size} gets to Phorge")


def _too_large(size: str, error: ConduitError) -> Finding:
    fix = (
        "raise post_max_size of PHP and the web server's limit (nginx: client_max_body_size, Apache: LimitRequestBody)"
    )
    reason = error.reason if isinstance(error, Misconfigured) else error  # its own fix is much the same
    return warning("payloads", f"one of {size} does not get to Phorge ({reason}): {fix}")


# ---- what the extension tells


def _read_facts(answer: Raw) -> _Facts | None:
    """None where it tells nothing, as other versions of the method do."""
    try:
        return msgspec.json.decode(answer, type=_Capabilities).facts
    except MALFORMED:
        return None


_SOURCES = {
    "option": "Phorge's configuration",
    "server": "php-fpm's pool or the web server",
    "environment": "PHP's environment",
}


def _facts(asked: Asked, facts: _Facts) -> Iterator[Finding]:
    source = _SOURCES.get(facts.token_from, facts.token_from)
    yield ok("php", f"{facts.php} ({facts.sapi}), post_max_size {facts.post_max_size}; it has the token from {source}")
    if facts.memory_limit not in {"-1", "0", ""}:
        yield warning(
            "memory",
            f"Phorge cannot lift memory_limit, which stays at {facts.memory_limit}: set it by php_value in php-fpm's"
            " pool, not by php_admin_value",
        )
    if facts.time_limit > 0:
        yield warning(
            "time limit",
            f"a run ends after {facts.time_limit} s of processor time, because max_execution_time cannot be lifted: set"
            " it by php_value in php-fpm's pool, not by php_admin_value, and do not disable set_time_limit",
        )
    if asked.namespace is not None and facts.namespace != asked.namespace:
        yield fault(
            "namespace",
            f"Phorge's queue is that of the namespace {facts.namespace}, and this process works on {asked.namespace}:"
            f" set QUEUE_RUNTIME_NAMESPACE to {facts.namespace}",
        )
    if asked.namespace is not None and facts.taskmasters > 0:
        yield note("taskmasters", natives_note(facts.taskmasters))
    yield from refused_classes(facts.classes, asked.patterns)


def natives_note(count: int) -> str:
    """What a phd.taskmasters above zero means."""
    return (
        f"phd.taskmasters is {count}, so Phorge's daemons run tasks too: when everything runs here set it to 0, then"
        " bin/phd stop and bin/phd start --keep-leases (without which all leases and delays end at once)"
    )


def refused_classes(allowed: Sequence[str], patterns: Sequence[str]) -> Iterator[Finding]:
    """Where Phorge runs fewer classes than are leased for it."""
    more = [one for one in patterns if one not in allowed]
    if "*" not in allowed and more:
        yield warning(
            "classes",
            f"Phorge runs only {', '.join(allowed) or 'none'}, and tasks of others ({', '.join(more)}) are leased for"
            " it and put off again and again: give QUEUE_RUNTIME_CONDUIT_CLASSES and queue-runtime.classes the same"
            " names",
        )


def _children(asked: Asked, facts: _Facts | None, known: bool) -> Iterator[Finding]:
    if facts is not None and facts.children_used_up:
        yield warning(
            "children",
            f"php-fpm ran out of children {facts.children_used_up} times since it was started: raise pm.max_children,"
            f" or lower QUEUE_RUNTIME_CONDUIT_CONCURRENCY ({asked.concurrency})",
        )
    elif not known and (facts is None or facts.sapi.startswith("fpm")):
        yield note(
            "children",
            f"up to {asked.concurrency} runs take that many of php-fpm's children from the people who use the site:"
            " --php-fpm FILE compares it with pm.max_children",
        )

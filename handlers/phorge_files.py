"""Looks into Phorge's configuration and php-fpm's pools, for `queue-runtime doctor --phorge` and `--php-fpm`."""

import configparser
import hmac
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from conduit.phorge.checkout import TOKEN_KEY, Checkout
from handlers.delegate import CLASS_SECONDS
from handlers.phorge_doctor import Asked, natives_note, refused_classes
from queue_runtime.findings import Finding, fault, note, ok, warning

TOKEN_VARIABLE = "QUEUE_RUNTIME_CONDUIT_TOKEN"
"""What PHP has the token in, where Phorge's configuration does not have it."""

BASE_URI = "phabricator.base-uri"
ALLOWED_URIS = "phabricator.allowed-uris"

# ---- conf/local/local.json


def examine_checkout(checkout: Checkout, asked: Asked) -> Iterator[Finding]:
    """What Phorge's own configuration file says. Keys that are set elsewhere, as in the web console, are not seen."""
    config = checkout.config()
    if config is None:
        yield note("configuration", f"{checkout.config_file} cannot be read by this account")
        return
    yield from _host(checkout, config, asked)
    if config.get("security.require-https") is True and asked.url.startswith("http:"):
        yield warning(
            "https",
            f"security.require-https is set and QUEUE_RUNTIME_CONDUIT_URL is {asked.url}: use the https address",
        )
    yield from _same_token(config.get(TOKEN_KEY), asked.token, TOKEN_KEY)
    if asked.namespace is not None:
        yield from _namespace(config, asked.namespace)
    taskmasters = config.get("phd.taskmasters")
    if asked.namespace is not None and isinstance(taskmasters, int) and taskmasters > 0:
        yield note("taskmasters", natives_note(taskmasters))
    if isinstance(classes := config.get("queue-runtime.classes"), list):
        yield from refused_classes([str(one) for one in classes], asked.patterns)


def _host(checkout: Checkout, config: Mapping[str, object], asked: Asked) -> Iterator[Finding]:
    base, allowed = config.get(BASE_URI), config.get(ALLOWED_URIS)
    if not isinstance(base, str) or not (base_host := urlsplit(base).hostname):
        yield note(
            "host", f"{checkout.config_file} has no {BASE_URI}, so nobody can say here which hosts Phorge serves"
        )
        return
    uris = [one for one in allowed if isinstance(one, str)] if isinstance(allowed, list) else []
    hosts = [base_host, *(host for uri in uris if (host := urlsplit(uri).hostname))]
    if asked.host_sent in hosts:
        yield ok("host", f"Phorge serves {asked.host_sent}")
        return
    merged = json.dumps([*uris, f"{urlsplit(base).scheme}://{asked.host_sent}/"])
    yield fault(
        "host",
        f"Phorge serves {', '.join(dict.fromkeys(hosts))}, and is asked for {asked.host_sent}: set"
        f" QUEUE_RUNTIME_CONDUIT_HOST to {base_host} (or {checkout.root}/bin/config set {ALLOWED_URIS} '{merged}',"
        " which keeps what is in the list)",
    )


def _namespace(config: Mapping[str, object], ours: str) -> Iterator[Finding]:
    theirs = config.get("storage.default-namespace", "phabricator")
    if theirs != ours:
        yield fault(
            "namespace",
            f"Phorge's queue is that of the namespace {theirs}, and this process works on {ours}: set"
            f" QUEUE_RUNTIME_NAMESPACE to {theirs}",
        )


def _same_token(theirs: object, ours: str, where: str) -> Iterator[Finding]:
    if not isinstance(theirs, str) or not theirs:
        return
    if hmac.compare_digest(theirs.encode(errors="replace"), ours.encode()):
        yield ok("token", f"{where} has the one of this process")
    else:
        yield fault("token", f"{where} has another one than this process: set {TOKEN_VARIABLE} here to the same")


# ---- pools of php-fpm


def examine_pool(path: Path, asked: Asked) -> Iterator[Finding]:
    """What a pool file means for runs of tasks."""
    # `=` alone divides, because keys look like `env[NAME]` and values like `a:b`
    reader = configparser.RawConfigParser(
        strict=False,
        delimiters=("=",),
        comment_prefixes=(";", "#"),
        inline_comment_prefixes=(";",),
        allow_no_value=True,
    )
    reader.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep capitals
    try:
        reader.read_string(path.read_text(errors="replace"))
    except OSError as error:
        yield fault("php-fpm", f"{path} cannot be read: {error.strerror}")
        return
    except configparser.Error:
        yield fault("php-fpm", f"{path} is not a file of php-fpm's pools: give one as /etc/php/8.2/fpm/pool.d/www.conf")
        return
    pools = [name for name in reader.sections() if name != "global"]
    if not pools:
        yield fault("php-fpm", f"{path} has no pool: give one as /etc/php/8.2/fpm/pool.d/www.conf")
    for name in pools:
        values = {key: (value or "").strip().strip("\"'") for key, value in reader.items(name)}
        yield from _pool(f"pool {name}", values, asked)


def _pool(subject: str, values: Mapping[str, str], asked: Asked) -> Iterator[Finding]:
    if "pm.max_children" in values:
        yield _pool_children(subject, values["pm.max_children"], asked.concurrency)
    yield from _pool_token(subject, values, asked.token)
    seconds = _seconds(values.get("request_terminate_timeout", "0"))
    if 0 < seconds < CLASS_SECONDS:
        yield warning(
            subject,
            f"request_terminate_timeout cuts a run off after {seconds} s, and classes may take {CLASS_SECONDS}: set it"
            " to 0, or above the longest task",
        )
    limit = values.get("php_admin_value[memory_limit]", "-1")
    if limit != "-1":
        yield warning(subject, f"php_admin_value[memory_limit] of {limit} cannot be lifted by Phorge: use php_value")
    limit = values.get("php_admin_value[max_execution_time]", "0")
    if limit != "0":
        yield warning(subject, f"php_admin_value[max_execution_time] of {limit} ends long runs: use php_value")


def _pool_children(subject: str, text: str, concurrency: int) -> Finding:
    children = int(text) if text.isdecimal() else 0
    sentence = f"pm.max_children is {text}, of which tasks may take {concurrency} (QUEUE_RUNTIME_CONDUIT_CONCURRENCY)"
    if children <= concurrency:
        return fault(subject, f"{sentence}, which leaves none for the people who use the site: raise it, or lower ours")
    if children < 2 * concurrency:
        return warning(subject, f"{sentence}, more than half: raise it, or lower ours")
    return ok(subject, sentence)


def _pool_token(subject: str, values: Mapping[str, str], ours: str) -> Iterator[Finding]:
    given = values.get(f"env[{TOKEN_VARIABLE}]")
    if given is None:
        if values.get("clear_env", "yes").lower() in {"yes", "1", "true", "on"}:
            yield note(
                subject,
                f"a variable {TOKEN_VARIABLE} of php-fpm's service does not reach PHP (clear_env), so the token must be"
                f" in Phorge's configuration or as env[{TOKEN_VARIABLE}] in this file",
            )
    elif given.startswith("$"):
        yield note(subject, f"env[{TOKEN_VARIABLE}] is taken from the variable {given} of php-fpm's service")
    else:
        yield from _same_token(given, ours, f"env[{TOKEN_VARIABLE}] of {subject}")


def _seconds(text: str) -> int:
    """A time as php-fpm has it: a number, with s, m, h or d."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    return int(number) * unit if number.isdecimal() else 0

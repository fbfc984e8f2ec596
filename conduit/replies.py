"""Reads the reply to a Conduit call: the result, or the error that says what became of the work.

Conduit answers 200 for its errors too, and web servers, php-fpm and Phorge's own start-up checks answer in HTML. A
reply counts as an answer only if it is 200, a JSON object and has `error_code` null.
"""

import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from conduit.errors import (
    CallFailed,
    ConduitError,
    Misconfigured,
    NotReached,
    OutcomeUnknown,
    RequestTooLarge,
    TokenRefused,
    UnknownParameters,
)

EXCERPT = 300
MAX_CODE = 100
"""So many characters of an error code are told."""

AUTH_CODES = frozenset({"ERR-INVALID-SESSION", "ERR-INVALID-AUTH", "ERR-CONDUIT-AUTH", "ERR-WORKER-AUTH"})
"""The last one is the code of `worker.execute`, the one before it that of a gateway."""

CUT_OFF = frozenset({408, 502, 503, 504, 598, 599, *range(520, 531)})
"""Somebody between us and PHP lost it, lost patience or shed load. After a 504 the work goes on; after a 502 it may
have ended in the middle. From 520 on they are what large networks of proxies say, each in its own way. Of a 408 nobody
says whom they waited for: some proxies mean PHP."""

IN_BETWEEN = frozenset({501, 505, 506, 508, 510, 511})
"""What only a server in between says, of a request that it will not pass on."""

TURNED_AWAY = frozenset({429})

NO_ACCESS = frozenset({401, 403, 407})
"""What a web server says where a rule of its own forbids the call. Phorge itself has other words for that."""

TOO_LARGE = 413
"""What a web server says of one request, while others pass."""

NO_FORM = "exceeds the 'post_max_size'"
"""What Phorge says by a fatal error of its start, where PHP has dropped a form for its size."""

NO_TOKEN = "No service token is set"
"""How our extension begins to say that Phorge has none: then no caller has the right one."""

TOKEN_FIX = (
    "give this process and Phorge the same token (QUEUE_RUNTIME_CONDUIT_TOKEN here; there the option "
    "queue-runtime.token, or gorge.conduit.token in the fork)"
)
NO_TOKEN_FIX = (
    "set it by Phorge's bin/config set queue-runtime.token, or as env[QUEUE_RUNTIME_CONDUIT_TOKEN] in php-fpm's pool "
    "(clear_env keeps a variable of the service from PHP), and reload php-fpm"
)
HOST_FIX = (
    "set QUEUE_RUNTIME_CONDUIT_HOST to the host of Phorge's phabricator.base-uri, or add this one to what "
    "phabricator.allowed-uris has already (bin/config set replaces the whole list)"
)
METHOD_FIX = (
    "put queue-runtime's extension into Phorge by `queue-runtime phorge install DIR`, and reload php-fpm if it caches "
    "code"
)
SETUP_FIX = (
    "open Phorge in a browser and resolve what it asks for; if Host has no dot, set QUEUE_RUNTIME_CONDUIT_HOST to the "
    "host of phabricator.base-uri"
)
URL_FIX = "QUEUE_RUNTIME_CONDUIT_URL must be the address of Phorge itself, without /api"
SIZE_FIX = (
    "raise the limit for bodies of what stands in front of Phorge (nginx client_max_body_size, Apache "
    "LimitRequestBody, QUEUE_RUNTIME_GATEWAY_MAX_BODY) and PHP's post_max_size above the largest payload, which grows "
    "to several times its size in the form"
)
ACCESS_FIX = (
    "have the web server in front of Phorge (its access rules, a password, an application firewall) let this host POST "
    "to /api/worker.execute; or QUEUE_RUNTIME_CONDUIT_URL is not the address of Phorge itself"
)


class _Envelope(Struct):
    error_code: str | None
    result: Raw = Raw(b"null")
    error_info: object = None


_decode = msgspec.json.Decoder(_Envelope).decode

TRUNCATED = "Input data was truncated"
"""What msgspec says of JSON that is good as far as it goes."""

MALFORMED = (msgspec.DecodeError, RecursionError)
"""What is raised for text that is no JSON, or JSON nested so deep that nobody means it."""


def read_reply(status: int, headers: Mapping[str, str], body: bytes) -> Raw:
    """The result as JSON text. Raises one of the errors of `errors.py`."""
    if status == 200:
        return _read_answer(body)
    raise _judge(status, headers, body)


def _read_answer(body: bytes) -> Raw:
    if not body.strip():
        raise OutcomeUnknown("PHP ended without an answer (an empty reply: exit() in a worker, or a crash)")
    try:
        envelope = _decode(body)
    except MALFORMED as error:
        text = body.decode(errors="replace")
        if problem := _page_problem(text):
            raise problem from None
        if str(error) == TRUNCATED and _is_cut(text):
            raise OutcomeUnknown(f"the answer ends in the middle: {excerpt(text)}") from None
        raise CallFailed(f"the reply is not a Conduit answer ({error}): {excerpt(text)}") from None
    if envelope.error_code is not None:
        raise _error(envelope.error_code, _info(envelope.error_info))
    return envelope.result


def _is_cut(text: str) -> bool:
    """Whether an object ends in the middle; half a surrogate pair is called so too."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def _error(code: str, info: str) -> ConduitError:
    """What one of Conduit's own error codes means."""
    code = code[:MAX_CODE]
    text = f"{code}: {info}" if info else code or "an error without a code"
    if code in AUTH_CODES:
        return TokenRefused(f"Phorge refuses the token ({text})", NO_TOKEN_FIX if NO_TOKEN in info else TOKEN_FIX)
    if code == "ERR-CONDUIT-CALL" and "does not exist" in info:
        return Misconfigured(f"Phorge does not have the method ({text})", METHOD_FIX)
    if code == "ERR-CONDUIT-CALL" and "does not define these parameters" in info:
        return UnknownParameters(text, code)
    if code == "ERR-CONDUIT-CORE" and "returned the same key" in info:
        fix = "two files define one Conduit method, which stops all of Conduit: remove one from src/extensions"
        return Misconfigured(f"Phorge's Conduit is broken ({text})", fix)
    return CallFailed(text, code)


def _judge(status: int, headers: Mapping[str, str], body: bytes) -> ConduitError:
    """What a reply means that is no answer of Conduit's."""
    text = body.decode(errors="replace")
    said = f"HTTP {status}: {excerpt(text)}"
    if status in CUT_OFF or 200 <= status < 300:  # Phorge says 200 and no other: whose answer is it, and what ran?
        return OutcomeUnknown(said)
    if 300 <= status < 400:
        return _redirected(status, headers.get("location", ""))
    if status in TURNED_AWAY:
        return NotReached(said)
    if problem := _page_problem(text):
        return problem
    if status == TOO_LARGE or (status == 500 and NO_FORM in text):
        return RequestTooLarge(f"this call is too large for Phorge or its web server ({said})", SIZE_FIX)
    if 400 <= status < 500 or status in IN_BETWEEN:
        return _refused(said, body, ACCESS_FIX if status in NO_ACCESS else URL_FIX)
    return CallFailed(said)


def _redirected(status: int, location: str) -> Misconfigured:
    # followed, it would turn the POST into a GET; and only its origin is told, for a query may hold a secret
    try:
        target = urlsplit(location)
        place = f"{target.hostname}:{target.port}" if target.port else target.hostname  # who may enter is no news
    except ValueError:
        return Misconfigured(f"Phorge redirects to an address that is none (HTTP {status})", URL_FIX)
    origin = f"{target.scheme}://{place}"[:EXCERPT] if place else "another page"
    return Misconfigured(f"Phorge redirects to {origin} (HTTP {status})", "set QUEUE_RUNTIME_CONDUIT_URL to that one")


def _refused(said: str, body: bytes, fix: str) -> ConduitError:
    """A status that says so: nothing ran. A gateway in between answers in Conduit's shape."""
    try:
        envelope = _decode(body)
    except MALFORMED:
        return Misconfigured(f"this is not Phorge's Conduit ({said})", fix)
    error = _error(envelope.error_code or "no code", _info(envelope.error_info))
    return error if isinstance(error, Misconfigured) else Misconfigured(str(error), fix)


def _page_problem(text: str) -> ConduitError | None:
    """What Phorge says by a page of its own before any method is looked at; None: it is something else."""
    title = title_of(text)
    if title == "Site Not Found":
        return Misconfigured("Phorge does not serve this host (Site Not Found)", HOST_FIX)
    if title.startswith("Setup Error"):
        return Misconfigured(f"Phorge is not set up ({excerpt(text)})", SETUP_FIX)
    if text.lstrip().startswith("[Core Exception/") and "ParseError" in text[:200]:
        fix = "a file of Phorge has a syntax error, which takes the whole site down: correct or remove it"
        return Misconfigured(excerpt(text), fix)
    return None


def title_of(text: str) -> str:
    """The title of an HTML page; empty where there is none."""
    found = re.search(r"<title[^>]*>([^<]*)</title>", text[:10_000], re.IGNORECASE)
    return found[1].strip() if found else ""


def excerpt(text: str) -> str:
    """The beginning of a reply as one line without tags; a page by its title."""
    if title := title_of(text):
        return f"a page titled {title[:EXCERPT]!r}"
    plain = " ".join(re.sub(r"<[^>]*>", " ", text[: EXCERPT * 10]).split())
    return (plain[:EXCERPT] + "…" if len(plain) > EXCERPT else plain) or "nothing"


def _info(info: object) -> str:
    return info[: EXCERPT * 4] if isinstance(info, str) else ""

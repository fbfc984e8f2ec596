"""Readers of the variables that say where a database server is, and how to log in."""

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from queue_runtime.config_values import Rule, is_host


def _read_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold a NUL")
    return text


TEXT = Rule("any text", _read_text)


def _read_account(text: str) -> str:
    if len(text) > 80 or not text.isprintable():
        raise ValueError("must be an account name of 1 to 80 printable characters")
    return text


ACCOUNT = Rule("an account name of 1 to 80 printable characters", _read_account)


def _read_host(text: str) -> str:
    fits = re.fullmatch(r"[A-Za-z0-9._-]+|(?=.*:.*:)[0-9A-Fa-f:.]{2,39}(%\w+)?", text, re.ASCII) is not None
    if not (fits and is_host(text)):
        raise ValueError("must be a host name or an IP address, without a port")
    return text


HOST = Rule("a host name or an IP address, without a port", _read_host)


def _read_namespace(text: str) -> str:
    if re.fullmatch(r"\w{1,48}", text, re.ASCII) is None:
        raise ValueError("must be 1 to 48 letters, digits or underscores")
    return text


NAMESPACE = Rule("1 to 48 letters, digits or underscores", _read_namespace)


def _read_prefix(text: str) -> str:
    # no braces: the store puts the prefix into a pair of them, so that a cluster keeps all keys in one slot
    if re.fullmatch(r"[\w.:-]{1,64}", text, re.ASCII) is None:
        raise ValueError("must be 1 to 64 letters, digits or _ . : -")
    return text


REDIS_PREFIX = Rule("1 to 64 letters, digits or _ . : -", _read_prefix)

_REDIS_WORDS = (
    "redis://[user:password@]host:port/db, rediss://… (TLS), unix:///path?db=0, or "
    "redis+sentinel://[user:password@]host:port,host:port/service/db"
)


def _read_redis_url(text: str) -> str:
    # no message shows the text: there may be a password in it
    try:
        parts = urlsplit(text)
        fits = text.isprintable() and " " not in text and _is_redis_place(parts)
    except ValueError:
        raise ValueError(f"must be {_REDIS_WORDS}; a special character in a password is percent-encoded") from None
    if not fits:
        raise ValueError(f"must be {_REDIS_WORDS}")
    return text


def _is_redis_place(parts: SplitResult) -> bool:
    """Whether the parts name a server. Raises ValueError where the port is none."""
    if parts.scheme == "unix":
        return bool(parts.path.strip("/"))
    if parts.scheme in {"redis", "rediss"}:
        named = is_host(parts.hostname or "") and parts.port != 0
        return named and re.fullmatch(r"/?\d{0,5}", parts.path, re.ASCII) is not None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return (
        parts.scheme in {"redis+sentinel", "rediss+sentinel"}
        and all(re.fullmatch(r"[\w.-]+(:\d{1,5})?", host, re.ASCII) and is_host(host.split(":")[0]) for host in hosts)
        and re.fullmatch(r"/[^/]+(/\d{1,5})?", parts.path) is not None
    )


REDIS_URL = Rule(_REDIS_WORDS, _read_redis_url)


_REMOTE_WORDS = "http://host:port, https://[user:password@]host[:port][/prefix], or unix:/path"


def _read_remote_url(text: str) -> str:
    # no message shows the text: there may be a password in it
    try:
        parts = urlsplit(text)
        fits = text.isprintable() and " " not in text and not parts.query and not parts.fragment
        if parts.scheme == "unix":
            fits = fits and text.startswith("unix:/") and len(parts.path.encode()) in range(2, 108)
        else:
            fits = fits and parts.scheme in {"http", "https"} and is_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"must be {_REMOTE_WORDS}")
    return text


REMOTE_URL = Rule(_REMOTE_WORDS, _read_remote_url)


_LOGIN = frozenset({"username", "password", "sentinel_username", "sentinel_password"})


def without_login(url: str) -> str:
    """The URL without user and password: two that differ in nothing else name the same server."""
    parts = urlsplit(url)
    query = urlencode([(name, text) for name, text in parse_qsl(parts.query) if name not in _LOGIN])
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query))


def passwords_in(url: str) -> tuple[str, ...]:
    """The passwords that a URL holds, as they are written there and as they are meant."""
    try:
        parts = urlsplit(url)
        found = [parts.password or "", *(text for name, text in parse_qsl(parts.query) if name.endswith("password"))]
    except ValueError:
        return ()
    return tuple(dict.fromkeys(form for one in found if one for form in (one, unquote(one))))

"""Readers of the variables that say where Phorge is, what it may run, and how the gateway passes calls on."""

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from queue_runtime.config_values import Rule, is_host
from queue_runtime.task import MAX_DATA_BYTES

_URL_WORDS = "http://host[:port] or https://host[:port], with a path where Phorge has one, and without /api"


def _read_url(text: str) -> str:
    # no message shows the text: somebody may have put a password into it
    try:
        parts = urlsplit(text)
        fits = (
            parts.scheme in {"http", "https"}
            and re.fullmatch(r"[A-Za-z0-9._-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", parts.netloc) is not None
            and is_host(parts.hostname or "")
            and parts.port != 0
            and re.fullmatch(r"(/[\w.~-]+)*/?", parts.path, re.ASCII) is not None
            and not parts.path.rstrip("/").endswith("/api")
            and not (parts.query or parts.fragment)
        )
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"must be {_URL_WORDS}")
    return text.rstrip("/")


PHORGE_URL = Rule(_URL_WORDS, _read_url)

_EVERYWHERE = {"": {4, 6}, "0.0.0.0": {4}, "::": {6}}
"""hosts of LISTEN that stand for all addresses of this machine, and the versions of IP that they are of"""

_LOCALHOST = {ip_address("127.0.0.1"), ip_address("::1")}


def listens_there(url: str, listen: Sequence[str]) -> str | None:
    """The address of LISTEN that a URL evidently leads to; None: none, or one that only the network could tell.

    No name is looked up, so that the answer is the same wherever the configuration is checked.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    for address in listen:
        host, _, own = address.rpartition(":")
        if not address.startswith("unix:") and int(own) == port and _is_here(parts.hostname or "", host.strip("[]")):
            return address
    return None


def _is_here(asked: str, host: str) -> bool:
    places = _places(asked)
    if (versions := _EVERYWHERE.get(host)) is not None:
        return asked == socket.gethostname().lower() or any(p.is_loopback and p.version in versions for p in places)
    return asked == host.lower() or not places.isdisjoint(_places(host))


def _places(host: str) -> set[IPv4Address | IPv6Address]:
    """The addresses that a host is without asking anybody."""
    if host == "localhost":
        return _LOCALHOST
    try:
        place = ip_address(host)
    except ValueError:
        return set()
    # who connects to "all addresses" gets to this machine
    return {one for one in _LOCALHOST if one.version == place.version} if place.is_unspecified else {place}


_HOST_WORDS = "a host name, with :port where wanted, as a Host header has it"


def _read_host(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._-]{1,255}(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", text, re.ASCII) is None:
        raise ValueError(f"must be {_HOST_WORDS}")
    return text


HOST_HEADER = Rule(_HOST_WORDS, _read_host)

_CLASSES_WORDS = "task class names or *Patterns, comma-separated"


def _read_classes(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part for part in (piece.strip() for piece in text.split(",")) if part))
    if not found or any(len(part) > 64 or not part.isprintable() for part in found):
        raise ValueError(f"must be {_CLASSES_WORDS}")
    return found


CLASS_PATTERNS = Rule(_CLASSES_WORDS, _read_classes)

_METHODS_WORDS = "names of Conduit methods, comma-separated"


def _read_methods(text: str) -> frozenset[str]:
    found = frozenset(part for part in (piece.strip() for piece in text.split(",")) if part)
    if any(re.fullmatch(r"[\w.-]{1,128}", part, re.ASCII) is None for part in found):
        raise ValueError(f"must be {_METHODS_WORDS}")
    return found


CONDUIT_METHODS = Rule(_METHODS_WORDS, _read_methods)


def _size(least: int, most: int) -> Rule:
    words = f"a whole number of bytes from {least} to {most}, K and M allowed"

    def read(text: str) -> int:
        match = re.fullmatch(r"(\d{1,9})([KM]?)B?", text, re.ASCII | re.IGNORECASE)
        size = int(match[1]) * {"": 1, "K": 2**10, "M": 2**20}[match[2].upper()] if match else 0
        if not least <= size <= most:
            raise ValueError(f"must be {words}")
        return size

    return Rule(words, read)


BODY_SIZE = _size(1024, MAX_DATA_BYTES)
REPLY_SIZE = _size(2**20, 2**30)

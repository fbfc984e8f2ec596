"""Encodes the parameters of a Conduit call the one way in which types survive: a form with one JSON object in it."""

import json
import string
from collections.abc import Mapping

CONTENT_TYPE = b"application/x-www-form-urlencoded"

# `%` first, or it would be escaped twice. One pass for each character is faster than one look at each character:
# a payload may have 64 MiB, and the event loop waits meanwhile.
_ESCAPES = [
    (char.encode(), f"%{ord(char):02X}".encode())
    for char in ["%", *sorted(set(string.punctuation) - set("%-._~")), "\x7f"]
]


def form(params: Mapping[str, object], *, token: str = "") -> bytes:
    """The body of a call: `params` as JSON (with the token in its `__conduit__` part) and the wish for a JSON reply.

    JSON bodies are refused by Conduit, and plain form fields would turn every number into text.
    """
    asked = {**params, "__conduit__": {"token": token}} if token else params
    # ASCII only, and `json` alone escapes a lone surrogate instead of refusing it
    return b"params=" + escaped(json.dumps(asked, separators=(",", ":")).encode("ascii")) + b"&output=json"


def escaped(text: bytes) -> bytes:
    """ASCII text without control characters, escaped for a form."""
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    return text.replace(b" ", b"+")

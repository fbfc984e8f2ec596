"""Encodes the parameters of a Conduit call the one way in which types survive: a form with one JSON object in it."""

import json
import string
from collections.abc import Iterator, Mapping

CONTENT_TYPE = b"application/x-www-form-urlencoded"

# ASCII only, and `json` alone escapes a lone surrogate instead of refusing it
_json = json.JSONEncoder(separators=(",", ":")).encode

CHUNK = 64 * 2**10
"""So many characters of a text are encoded at once: a thread that does it lets the event loop go on in between."""

# `%` first, or it would be escaped twice. One pass for each character is faster than one look at each character.
_ESCAPES = [
    (char.encode(), f"%{ord(char):02X}".encode())
    for char in ["%", *sorted(set(string.punctuation) - set("%-._~")), "\x7f"]
]


def form(params: Mapping[str, object], *, token: str = "") -> bytes:
    """The body of a call: `params` as JSON (with the token in its `__conduit__` part) and the wish for a JSON reply.

    JSON bodies are refused by Conduit, and plain form fields would turn every number into text.
    """
    asked = {**params, "__conduit__": {"token": token}} if token else params
    pieces = _in_pieces(asked) if is_large(params) else [_json(asked)]
    return b"".join([b"params=", *(escaped(piece.encode("ascii")) for piece in pieces), b"&output=json"])


def is_large(params: Mapping[str, object]) -> bool:
    """Whether encoding them takes so long that a thread of its own is worth it."""
    return any(len(value) > CHUNK for value in params.values() if isinstance(value, str))


def _in_pieces(params: Mapping[str, object]) -> Iterator[str]:
    """The same JSON, of which no piece takes long."""
    before = "{"
    for name, value in params.items():
        yield f"{before}{_json(name)}:"
        before = ","
        if isinstance(value, str):
            yield '"'
            for start in range(0, len(value), CHUNK):
                yield _json(value[start : start + CHUNK])[1:-1]
            yield '"'
        else:
            yield _json(value)
    yield "}"


def escaped(text: bytes) -> bytes:
    """ASCII text without control characters, escaped for a form."""
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    return text.replace(b" ", b"+")

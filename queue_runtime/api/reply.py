"""An HTTP reply, and the envelope that the contract puts around what it says."""

import orjson

from queue_runtime.plain_text import fit

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"


class Reply:
    """Status, headers and a whole body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: bytes, status: int = 200, *, media: bytes = JSON, headers: Headers | None = None) -> None:
        self.body = body
        self.status = status
        self.headers: Headers = [(b"content-type", media), (b"content-length", b"%d" % len(body))]
        if headers:
            self.headers += headers


def data(value: object, headers: Headers | None = None) -> Reply:
    """A success in the envelope: always 200, always exactly one key."""
    return Reply(orjson.dumps({"data": value}), headers=headers)


def failure(status: int, code: str, message: str, headers: Headers | None = None) -> Reply:
    """A failure in the envelope."""
    return Reply(orjson.dumps({"error": {"code": code, "message": fit(message)}}), status, headers=headers)

"""The access log: one line a request, without the secrets that callers put into their query."""

import structlog
from starlette.types import Scope

_SECRET_WORDS = ("token", "secret", "passw", "credential", "auth", "api_key", "apikey", "signature")

log = structlog.get_logger()


def line(scope: Scope, status: int, seconds: float, request_id: str, client: str) -> None:
    """Write down one request that was answered."""
    log.info(
        "request",
        method=scope["method"],
        uri=uri(scope),
        status=status,
        ms=round(seconds * 1000, 1),
        client=client,
        request_id=request_id,
    )


def uri(scope: Scope) -> str:
    """The address that was asked for, as it was sent, with credentials masked."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{masked(query)}" if query else path


def masked(query: str) -> str:
    """The query with the value of every name that sounds like a credential replaced."""
    return "&".join(_masked_pair(pair) for pair in query.split("&"))


def _masked_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    lowered = name.lower()
    secret = value and (any(word in lowered for word in _SECRET_WORDS) or "%" in lowered)
    return f"{name}{equals}***" if secret else pair

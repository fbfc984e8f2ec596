"""The service token: who may use the queue and the worker face."""

import hmac
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from queue_runtime.api.errors import ApiError
from queue_runtime.api.request import Request

PREFIXES = ("/api/queue", "/api/worker")


class Guard:
    """Lets a request pass when it is outside the guarded prefixes or carries the token. No token: all pass."""

    def __init__(self, token: str) -> None:
        self.change(token)

    def change(self, token: str) -> None:
        """Ask for this token from now on."""
        self._token = token.encode()

    def check(self, request: Request) -> None:
        """Raise the 401 unless the request may go on to the routes."""
        if _is_guarded(request.scope["path"]) and not self.allows(request.scope):
            raise ApiError(401, "ERR_UNAUTHORIZED", "the service token is missing or wrong")

    def allows(self, scope: Scope) -> bool:
        """Whether the request carries the token, or none is needed."""
        if not self._token:
            return True
        given = dict(scope["headers"]).get(b"x-service-token") or _query_token(scope["query_string"])
        return hmac.compare_digest(given, self._token)


def _is_guarded(path: str) -> bool:
    return any(path.startswith(prefix) and path[len(prefix) :][:1] in ("", "/") for prefix in PREFIXES)


def _query_token(query: bytes) -> bytes:
    """The first `token` of the query, looked at only where the header is absent or empty."""
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name == b"token":
            return unquote_to_bytes(value.replace(b"+", b" "))
    return b""

"""Which reply an error becomes. What went wrong inside is never told: a 5xx always says the same words."""

from queue_runtime.api.reply import Headers, Reply, failure
from queue_runtime.errors import EventConflict, InvalidRequest, StoreFull, StoreUnavailable, WritesRefused
from queue_runtime.wire import wire_name

INTERNAL = "internal server error"
SHADOW = "this process only reads the queue (QUEUE_RUNTIME_SHADOW=1); send writes to another one"


class ApiError(Exception):
    """A request that is refused, with the reply it gets."""

    def __init__(self, status: int, code: str, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


class ClientGone(Exception):
    """The caller hung up before it was answered; there is nobody to reply to."""


def bad_request(message: str) -> ApiError:
    """The request breaks a rule of the contract."""
    return ApiError(400, "ERR_BAD_REQUEST", message)


def not_found(message: str) -> ApiError:
    """There is no such path or task."""
    return ApiError(404, "ERR_NOT_FOUND", message)


def method_not_allowed(allowed: str) -> ApiError:
    """The path is known, and not for this method."""
    return ApiError(405, "ERR_METHOD_NOT_ALLOWED", "method not allowed", [(b"allow", allowed.encode())])


def too_large(limit: int) -> ApiError:
    """The body is larger than the server takes."""
    return ApiError(413, "ERR_TOO_LARGE", f"the request body must have at most {limit} bytes")


def too_slow() -> ApiError:
    """The body did not arrive in time."""
    return ApiError(408, "ERR_BAD_REQUEST", "the request body did not arrive in time")


def lease_conflict() -> ApiError:
    """The receipt is not, or no longer, valid."""
    return ApiError(409, "ERR_LEASE_CONFLICT", "the task is not held by this lease (any more)")


def reply_to(error: Exception) -> Reply:
    """The reply an error becomes; anything that was not raised on purpose is a plain 500."""
    match error:
        case ApiError():
            return failure(error.status, error.code, error.message, error.headers)
        case InvalidRequest():
            return failure(400, "ERR_BAD_REQUEST", f"{wire_name(error.field)}: {error.reason}")
        case EventConflict():
            return failure(409, "ERR_EVENT_CONFLICT", "this event was delivered before with another task")
        case WritesRefused():
            return failure(503, "ERR_SHADOW", SHADOW)
        case StoreFull():
            return failure(507, "ERR_INTERNAL", INTERNAL)
        case StoreUnavailable() | TimeoutError():
            return failure(503, "ERR_INTERNAL", INTERNAL, [(b"retry-after", b"1")])
        case _:
            return failure(500, "ERR_INTERNAL", INTERNAL)

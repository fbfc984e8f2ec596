"""What the query of a list may say: page, keyset and filters."""

from queue_runtime.api.errors import bad_request
from queue_runtime.api.request import Request
from queue_runtime.errors import InvalidRequest
from queue_runtime.task import MAX_LIST, U32, Result, State, TaskFilter, check_range
from queue_runtime.wire import INT64

DEFAULT_LIMIT = 100


def limit(request: Request) -> int:
    """Rows of a page. What is not a positive number means the default (the Go service's rule)."""
    asked = integer(request.query.get("limit", [""])[0])
    return DEFAULT_LIMIT if asked is None or asked <= 0 else min(asked, MAX_LIST)


def offset(request: Request) -> int:
    """Rows to pass over. What is not a number means 0 (the Go service's rule)."""
    asked = integer(request.query.get("offset", [""])[0]) or 0
    check_range("offset", asked, 0, INT64)
    return asked


def after(request: Request) -> tuple[int, int] | None:
    """The last row of the page before: its priority and id."""
    text = request.query.get("after", [""])[0]
    if not text:
        return None
    priority, _, task_id = text.partition(",")
    found = integer(priority), integer(task_id)
    if found[0] is None or found[1] is None:
        raise bad_request("after: must be the priority and the id of the last row seen, such as 2000,17")
    return found[0], found[1]


def number(request: Request, name: str, high: int = U32) -> int | None:
    """A number from 0 to `high`; None when absent."""
    text = request.query.get(name, [""])[0]
    if not text:
        return None
    found = integer(text)
    if found is None:
        raise bad_request(f"{name}: must be a whole number")
    check_range(name, found, 0, high)
    return found


def task_id(request: Request) -> int:
    """The id in the path."""
    found = integer(request.parameters["id"])
    if found is None:
        raise bad_request("id: must be a whole number")
    return found


def task_filter(request: Request) -> TaskFilter:
    """The filter of a list. Names that may stand several times mean any of their values."""
    query = request.query
    return TaskFilter(
        classes=_names(query, "taskClass"),
        queues=_names(query, "queue"),
        states=_states(query),
        results=_results(query),
        object_phid=query.get("objectPHID", [""])[0] or None,
        container_phid=query.get("containerPHID", [""])[0] or None,
        min_failures=number(request, "minFailures"),
        max_failures=number(request, "maxFailures"),
        min_priority=number(request, "minPriority"),
        max_priority=number(request, "maxPriority"),
    )


def _names(query: dict[str, list[str]], name: str) -> frozenset[str] | None:
    found = frozenset(filter(None, query.get(name, ())))
    if len(found) > MAX_NAMES:
        raise InvalidRequest(name, f"must stand at most {MAX_NAMES} times")
    return found or None


MAX_NAMES = 1000
"""Classes or queues that one request may name."""


def _states(query: dict[str, list[str]]) -> frozenset[State] | None:
    found = _names(query, "state")
    if found is None:
        return None
    try:
        return frozenset(State(name) for name in found)
    except ValueError:
        raise bad_request(f"state: must be one of {', '.join(State)}") from None


def _results(query: dict[str, list[str]]) -> frozenset[Result] | None:
    found = _names(query, "result")
    if found is None:
        return None
    known = {word: one for one in Result for word in (one.name.lower(), str(one.value))}
    if not known.keys() >= found:
        raise bad_request(f"result: must be one of {', '.join(one.name.lower() for one in Result)}")
    return frozenset(known[word] for word in found)


def integer(text: str) -> int | None:
    """The decimal number of 64 bits that the text is; None when it is none."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return None
    found = int(text)
    return found if -INT64 - 1 <= found <= INT64 else None

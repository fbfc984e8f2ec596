"""Readers: the text of one variable becomes a checked value, or a ValueError that says the rule."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from queue_runtime.errors import InvalidRequest
from queue_runtime.plain_file import read_plain
from queue_runtime.store import Routes
from queue_runtime.task import check_name, check_queue

Reader = Callable[[str], object]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Rule(NamedTuple):
    """How a variable is read, and the rule in words, as errors and `--help` show it."""

    words: str
    read: Reader


def is_host(text: str) -> bool:
    """Whether a resolver can be asked for it: no part is empty or above 63 characters, and the whole not above 253."""
    return len(text) <= 253 and all(0 < len(label) <= 63 for label in text.removesuffix(".").split("."))


def whole(low: int, high: int, unit: str = "") -> Rule:
    """A whole number in plain digits: `1e3`, `+4` and `4.0` are slips of the pen, so they are refused."""
    words = f"a whole number{f' of {unit}' if unit else ''} from {low} to {high}"

    def read(text: str) -> int:
        return _digits(text, low, high, words)

    return Rule(words, read)


def seconds(low: float, high: float, unit: str = "seconds") -> Rule:
    """A duration in seconds (or some other figure), with a decimal point where wanted."""
    words = f"{unit} from {low:g} to {high:g}, decimals allowed"

    def read(text: str) -> float:
        if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text, re.ASCII) or not low <= float(text) <= high:
            raise ValueError(f"must be {words}")
        return float(text)

    return Rule(words, read)


def one_of(*choices: str) -> Rule:
    """One word of a list; upper and lower case are the same."""
    words = f"one of {', '.join(choices)}"
    by_fold = {choice.casefold(): choice for choice in choices}

    def read(text: str) -> str:
        if text.casefold() not in by_fold:
            close = get_close_matches(text.casefold(), by_fold, 1)
            raise ValueError(f"must be {words}{f': did you mean {by_fold[close[0]]}?' if close else ''}")
        return by_fold[text.casefold()]

    return Rule(words, read)


def some_of(*choices: str) -> Rule:
    """Some words of a list, comma-separated."""
    words = f"some of {', '.join(choices)}, comma-separated"

    def read(text: str) -> frozenset[str]:
        found = frozenset(part.casefold() for part in _parts(text))
        if not found or not found <= frozenset(choices):
            raise ValueError(f"must be {words}")
        return found

    return Rule(words, read)


def switch() -> Rule:
    """On or off."""
    words = "1 or 0 (also true/false, yes/no, on/off)"

    def read(text: str) -> bool:
        if text.casefold() in _TRUE:
            return True
        if text.casefold() in _FALSE:
            return False
        raise ValueError(f"must be {words}")

    return Rule(words, read)


def days_or_forever(low: int, high: int) -> Rule:
    """A number of days, or `forever`."""
    words = f"a whole number of days from {low} to {high}, or forever"

    def read(text: str) -> int | None:
        return None if text.casefold() == "forever" else _digits(text, low, high, words)

    return Rule(words, read)


def _digits(text: str, low: int, high: int, words: str) -> int:
    # isascii: full-width digits are digits too; the length bound keeps int() cheap whatever the text
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high):
        raise ValueError(f"must be {words}")
    return int(text)


def _parts(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in text.split(",")) if part]


def _read_token(text: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise ValueError("must be printable ASCII, because it travels in an HTTP header")
    return text


TOKEN = Rule("printable ASCII", _read_token)


def _read_path(text: str) -> Path:
    if "\0" in text:
        raise ValueError("must not hold a NUL")
    return Path(text)


PATH = Rule("a path", _read_path)


def _read_file(text: str) -> Path:
    path = _read_path(text)
    try:
        read_plain(path)
    except OSError as error:
        raise ValueError(f"must be a readable file: {error.strerror}") from None
    return path


READABLE_FILE = Rule("a readable file", _read_file)


def _read_address(text: str) -> str:
    if text.startswith("unix:"):
        if len(text.removeprefix("unix:").encode()) not in range(1, 108):
            raise ValueError(f"{text!r}: the path of a Unix socket has 1 to 107 bytes")
        return text
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([A-Za-z0-9._-]*)):(\d{1,5})", text, re.ASCII)
    if match is None or (match[2] and not is_host(match[2])):
        raise ValueError(f"{text!r} is not host:port, :port, [IPv6]:port or unix:/path")
    if int(match[3]) > 65535:
        raise ValueError(f"{text!r}: a port is from 0 to 65535")
    return text


def _read_listen(text: str) -> tuple[str, ...]:
    found = tuple(_read_address(part) for part in _parts(text))
    if not found:
        raise ValueError("must name at least one address")
    if repeated := _repeated([address for address in found if not address.endswith(":0")]):
        raise ValueError(f"names {repeated} twice")
    return found


LISTEN = Rule("host:port, :port (all interfaces), [IPv6]:port or unix:/path, comma-separated", _read_listen)


def _read_classes(text: str) -> frozenset[str]:
    found = frozenset(_parts(text))
    for task_class in found:
        _check_class(task_class)
        if "*" in task_class:
            raise ValueError(f"{task_class!r}: names are exact here, patterns are for QUEUE_RUNTIME_ROUTES")
    if not found:
        raise ValueError("must name at least one task class")
    return found


TASK_CLASSES = Rule("exact task class names, comma-separated", _read_classes)


def _read_queues(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_parts(text)))
    for queue in found:
        _check_queue(queue)
    if not found:
        raise ValueError("must name at least one queue")
    return found


QUEUES = Rule("queue names (letters, digits, _ . : -), comma-separated", _read_queues)


def _read_routes(text: str) -> Routes:
    patterns: list[tuple[str, str]] = []
    for part in _parts(text):
        pattern, equals, queue = (piece.strip() for piece in part.partition("="))
        if not (pattern and equals):
            raise ValueError(f"{part!r} is not Class=queue")
        _check_class(pattern)
        _check_queue(queue)
        patterns.append((pattern, queue))
    if repeated := _repeated([pattern for pattern, _ in patterns]):
        raise ValueError(f"routes {repeated} twice")
    return Routes(tuple(patterns))


ROUTES = Rule("Class=queue or *Pattern=queue, comma-separated, the first that fits wins", _read_routes)


def _read_caps(text: str) -> dict[str, int]:
    caps: dict[str, int] = {}
    for part in _parts(text):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not (name and equals):
            raise ValueError(f"{part!r} is not Class=number")
        _check_class(name)
        if name in caps:
            raise ValueError(f"names {name} twice")
        try:
            caps[name] = _digits(number, 1, 10_000, "a whole number from 1 to 10000")
        except ValueError as error:
            raise ValueError(f"{part!r}: {error}") from None
    return caps


CLASS_CAPS = Rule("Class=number, comma-separated", _read_caps)


def _read_handlers(text: str) -> tuple[str, ...]:
    found = tuple(_parts(text))
    for part in found:
        module, colon, attribute = part.rpartition(":")
        named = module.endswith(".py") or all(piece.isidentifier() for piece in module.split("."))
        if not (colon and named and attribute.isidentifier()):
            raise ValueError(f"{part!r} is not module:attribute or path/to/file.py:attribute")
    if repeated := _repeated(list(found)):
        raise ValueError(f"names {repeated} twice")
    return found


HANDLERS = Rule("module:attribute or path/to/file.py:attribute, comma-separated", _read_handlers)


def _check_class(name: str) -> None:
    try:
        check_name(repr(name), name, limit=64)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def _check_queue(name: str) -> None:
    try:
        check_queue(repr(name), name)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def _repeated(names: list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def is_local(address: str) -> bool:
    """Whether only this machine can reach the address: a loopback one, or a Unix socket."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host, re.ASCII) is not None

"""One handler: its settings, and how it reads the data of a task."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from queue_runtime.context import PermanentFailure
from queue_runtime.errors import ConfigError
from queue_runtime.task import MAX_ATTEMPTS, U32

RetryPolicy = Callable[[int], float]

ANY_CLASS = "*"
"""How the fallback is named where classes are listed."""


class Gate(Protocol):
    """Says of a fallback which classes may be leased for it, and whether any may be leased just now."""

    @property
    def open(self) -> bool: ...

    @property
    def patterns(self) -> Sequence[str]:
        """Shell-like patterns of class names; case counts."""
        ...

    @property
    def held(self) -> Collection[str]:
        """Classes that none shall be leased of just now, while others may."""
        ...


class HandlerSpec:
    """One handler with its settings. `task_class` is ANY_CLASS for the fallback."""

    __slots__ = (
        "_decode",
        "_own_concurrency",
        "concurrency",
        "finish_unsure",
        "function",
        "gate",
        "is_async",
        "max_attempts",
        "origin",
        "retry",
        "task_class",
        "timeout",
    )

    def __init__(
        self,
        task_class: str,
        function: Callable[..., object],
        *,
        timeout: float | None = None,
        max_attempts: int | None = None,
        retry: float | RetryPolicy | None = None,
        concurrency: int | None = None,
        finish_unsure: bool = False,
        gate: Gate | None = None,
    ) -> None:
        counted = f"a whole number from 1 to {MAX_ATTEMPTS}"
        problems = [
            f"{name} must be {rule}, not {value!r}"
            for name, value, rule, right in (
                ("timeout", timeout, f"seconds above 0, and at most {U32}", _is_seconds(timeout) and timeout != 0),
                ("max_attempts", max_attempts, counted, _is_count(max_attempts)),
                ("concurrency", concurrency, counted, _is_count(concurrency)),
                ("retry", retry, f"seconds from 0 to {U32} or a function", callable(retry) or _is_seconds(retry)),
                ("finish_unsure", finish_unsure, "True or False", isinstance(finish_unsure, bool)),
            )
            if value is not None and not right
        ]
        self.task_class = task_class
        self.function = function
        self.timeout = timeout
        self.max_attempts = max_attempts
        self.retry = retry
        self.concurrency = self._own_concurrency = concurrency
        self.finish_unsure = finish_unsure
        self.gate = gate
        self.origin = _origin(function)
        self.is_async = _is_async(function)
        self._decode: Callable[[str], object] | None = None
        problems += _call_problems(function)
        try:
            self._decode = _decoder(function)
        except NameError:
            pass  # a type defined further down in its module is found at the first use
        except TypeError as error:
            problems.append(f"the type of its data cannot be decoded: {error}")
        if problems:
            raise ConfigError([f"{task_class} ({self.origin}): {problem}" for problem in problems])

    def cap(self, concurrency: int | None) -> None:
        """Bound the runs at once by this in place of what the handler says; None: by what it says again."""
        self.concurrency = self._own_concurrency if concurrency is None else concurrency

    def accepts(self, task_class: str) -> bool:
        """Whether its gate lets this class through."""
        return self.gate is None or any(fnmatchcase(task_class, pattern) for pattern in self.gate.patterns)

    def read(self, data: str | None) -> object:
        """The payload as the handler's own type; raises PermanentFailure where it does not fit."""
        if self._decode is None:
            self._decode = _decoder(self.function)
        try:
            return self._decode(data or "")
        except msgspec.DecodeError as error:
            reason = _plain(str(error)) if data else "is empty, and the handler asks for JSON"
            raise PermanentFailure(f"data: {reason}") from None


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_ATTEMPTS


def _is_seconds(value: object) -> bool:
    """Whether it is a duration that every clock and every store can take."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= U32  # which NaN is not


def _origin(function: Callable[..., object]) -> str:
    """Where the handler is defined, for messages."""
    plain = inspect.unwrap(function)
    name = getattr(plain, "__qualname__", type(plain).__qualname__)
    module = getattr(plain, "__module__", "?")
    code = getattr(plain, "__code__", None)
    if code is None:
        return f"{module}.{name}"
    # a file of the deployer's is loaded under a private name, which nobody would know
    place = f"{code.co_filename}: " if module.startswith("_") else f"{module}."
    return f"{place}{name}, line {code.co_firstlineno}"


def _is_async(function: Callable[..., object]) -> bool:
    if inspect.isroutine(function) or isinstance(function, functools.partial):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(type(function).__call__)


def _call_problems(function: Callable[..., object]) -> list[str]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return ["is a generator, which would never run"]
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return ["must take two arguments, (context, data)"]
    except ValueError:
        pass  # a builtin without a signature: its first call tells
    return []


def _decoder(function: Callable[..., object]) -> Callable[[str], object]:
    """How the second argument is read: as text when it is untyped or `str`, else from JSON."""
    wanted = _data_type(function)
    return str if wanted is str else msgspec.json.Decoder(Any if wanted is object else wanted).decode


def _data_type(function: Callable[..., object]) -> Any:  # a type form, for which 3.11 has no name
    try:
        annotation = list(inspect.signature(function).parameters.values())[1].annotation
    except (ValueError, TypeError, IndexError):
        return str
    if annotation is inspect.Parameter.empty:
        return str
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    names = getattr(plain if inspect.isroutine(plain) else type(plain).__call__, "__globals__", {})
    # only this one: the type of the context may well be imported for type checkers alone
    alone = types.SimpleNamespace(__annotations__={"data": annotation})
    return typing.get_type_hints(alone, globalns=names, include_extras=True)["data"]


def _plain(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.x`" as "expected int, got str at $.x"."""
    text = message.replace("`", "").replace(" - at ", " at ")
    return text[:1].lower() + text[1:] if not text.startswith("JSON") else text

"""Task classes and the handlers that run them: all that the author of a handler needs to know."""

from collections.abc import Callable, Mapping
from typing import Self, TypeVar

from queue_runtime.context import Context, Ending, PermanentFailure, Retry, Unknown, Yield
from queue_runtime.errors import ConfigError
from queue_runtime.handler_spec import ANY_CLASS, Gate, HandlerSpec, RetryPolicy
from queue_runtime.task import check_name

__all__ = [
    "ANY_CLASS",
    "Context",
    "Ending",
    "HandlerSpec",
    "PermanentFailure",
    "Registry",
    "Retry",
    "RetryPolicy",
    "Unknown",
    "Yield",
]

Function = TypeVar("Function", bound=Callable[..., object])


class Registry:
    """Handlers by task class, and perhaps one for all other classes."""

    def __init__(self) -> None:
        self._specs: dict[str, HandlerSpec] = {}
        self._fallback: HandlerSpec | None = None

    def task(
        self,
        task_class: str,
        *,
        timeout: float | None = None,
        max_attempts: int | None = None,
        retry: float | RetryPolicy | None = None,
        concurrency: int | None = None,
        finish_unsure: bool = False,
    ) -> Callable[[Function], Function]:
        """Register the decorated function for a task class.

        `async def` runs in the event loop, `def` in a thread. `timeout` in seconds; `max_attempts` counts runs
        that end in failure; `retry` is seconds, or a function of the failures so far (this one included), and
        None means the setting RETRY_SECONDS. Plain seconds are stretched by a random part of up to a quarter.
        `concurrency` bounds the runs of this class in one process. `finish_unsure`: go on to the end although
        the lease can no longer be renewed and somebody else may run the task too.
        """
        check_name("task_class", task_class, limit=64)

        def register(function: Function) -> Function:
            self._add(
                HandlerSpec(
                    task_class,
                    function,
                    timeout=timeout,
                    max_attempts=max_attempts,
                    retry=retry,
                    concurrency=concurrency,
                    finish_unsure=finish_unsure,
                )
            )
            return function

        return register

    def fallback(
        self,
        function: Function,
        *,
        timeout: float | None = None,
        max_attempts: int | None = None,
        retry: float | RetryPolicy | None = None,
        concurrency: int | None = None,
        finish_unsure: bool = False,
        gate: Gate | None = None,
    ) -> Function:
        """Register the handler of every class that has none of its own. Settings as for `task`; `gate` narrows
        from one moment to the next what is leased for it."""
        self._add(
            HandlerSpec(
                ANY_CLASS,
                function,
                timeout=timeout,
                max_attempts=max_attempts,
                retry=retry,
                concurrency=concurrency,
                finish_unsure=finish_unsure,
                gate=gate,
            )
        )
        return function

    def merge(self, other: Self) -> None:
        """Take over all handlers of `other`; a class that both have is an error, and nothing is taken."""
        problems = [_conflict(mine, spec) for spec in other.specs if (mine := self._own(spec.task_class)) is not None]
        if problems:
            raise ConfigError(problems)
        for spec in other.specs:
            self._add(spec)

    def _add(self, spec: HandlerSpec) -> None:
        known = self._own(spec.task_class)
        if known is not None:
            raise ConfigError([_conflict(known, spec)])
        if spec.task_class == ANY_CLASS:
            self._fallback = spec
        else:
            self._specs[spec.task_class] = spec

    def _own(self, task_class: str) -> HandlerSpec | None:
        return self._fallback if task_class == ANY_CLASS else self._specs.get(task_class)

    @property
    def classes(self) -> frozenset[str]:
        """The classes that have a handler of their own."""
        return frozenset(self._specs)

    @property
    def fallback_spec(self) -> HandlerSpec | None:
        """The handler of all other classes."""
        return self._fallback

    def cap(self, caps: Mapping[str, int]) -> None:
        """Bound the runs of these classes at once, and all others as their handlers say."""
        for spec in self._specs.values():
            spec.cap(caps.get(spec.task_class))

    @property
    def specs(self) -> list[HandlerSpec]:
        """All handlers, the fallback last."""
        return [*self._specs.values(), *([self._fallback] if self._fallback else [])]

    def find(self, task_class: str) -> HandlerSpec | None:
        """The handler that runs this class: its own, else the fallback."""
        own = self._specs.get(task_class)
        if own is not None:
            return own
        return self._fallback if self._fallback is not None and self._fallback.accepts(task_class) else None


def _conflict(known: HandlerSpec, new: HandlerSpec) -> str:
    what = "the fallback" if new.task_class == ANY_CLASS else f"task class {new.task_class}"
    return f"{what} has two handlers: {known.origin} and {new.origin}"

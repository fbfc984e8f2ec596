"""Whatever a handler, its retry policy or its exception does: the run ends in an outcome, and the worker goes on."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any

import pytest

from queue_runtime.context import MAX_DURATION_US
from queue_runtime.registry import Context, PermanentFailure, Registry, Retry, Unknown, Yield
from queue_runtime.stats import Ending
from queue_runtime.task import ArchivedTask, Attempt, AttemptKind, Result
from tests.runtime.harness import Worker, all_succeeded, enqueue, open_reference, until

Handler = Callable[[Context, str], Awaitable[None]]


async def attempt_of(handler: Handler, *, retry: Any = 1000) -> Attempt:
    """The one entry of the history that a run of this handler leaves; afterwards the worker still works."""
    store, registry = open_reference(), Registry()
    registry.task("Odd", retry=retry)(handler)

    @registry.task("Plain")
    async def plain(context: Context, data: str) -> None: ...

    worker = Worker(store, registry, slots=1, retry_seconds=1000)
    (odd,) = await enqueue(store, "Odd")
    async with worker.running():
        await until(lambda: sum(worker.stats.of("Odd").endings.values()))
        plain_ids = await enqueue(store, "Plain", 2)
        await until(lambda: all_succeeded(store, plain_ids))
    assert worker.stats.of("Odd").endings[Ending.RETRIED] == 1
    ((entry,),) = await store.history([odd])
    assert entry.kind is AttemptKind.RETRY
    return entry


def broken(name: str, fault: BaseException) -> Any:
    """Something that raises this where its `name` is looked at."""

    def look(self: object, *more: object) -> Any:
        raise fault

    special = name in {"__str__", "__repr__", "__format__", "__getitem__", "__bool__", "__len__"}
    return look if special else property(look)


FAULTS = [RuntimeError("no"), SystemExit(3), asyncio.CancelledError(), AttributeError("no"), KeyboardInterrupt()]
PLACES = ["__cause__", "__context__", "__suppress_context__", "__notes__", "__traceback__", "__class__"]
PLACES += ["__str__", "__repr__", "wait", "reason", "max_attempts", "exceptions", "text", "lineno", "name"]


@pytest.mark.parametrize("base", [Exception, Retry, SyntaxError, NameError, BaseException])
@pytest.mark.parametrize("place", PLACES)
async def test_an_exception_whose_own_code_raises_is_one_temporary_failure(place: str, base: type[Any]) -> None:
    for fault in FAULTS:
        kind = type("Odd", (base,), {"__init__": lambda self: None, place: broken(place, fault)})

        async def handler(context: Context, data: str, kind: type[BaseException] = kind) -> None:
            raise kind

        entry = await attempt_of(handler)
        assert entry.message
        assert entry.duration_us >= 0


class OddText(str):
    """What `__str__` may return, too."""

    __slots__ = ()
    __getitem__ = __format__ = __len__ = encode = isascii = broken("__str__", SystemExit(3))


class Told(Exception):
    def __str__(self) -> str:
        return OddText("text")


class OddName(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit(3)


class Nameless(Exception, metaclass=OddName): ...


def syntax_error_without_text() -> SyntaxError:
    error = SyntaxError("bad")
    error.lineno, error.text = 1, 5  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    "make",
    [
        lambda: Told("x"),
        lambda: Nameless("x"),
        syntax_error_without_text,
        lambda: type("\udcff", (Exception,), {})("x"),
        lambda: Retry(wait="soon"),  # type: ignore[arg-type]
        lambda: Retry(wait=math.nan),
        lambda: Retry(wait=math.inf),
        lambda: Yield(math.nan),
        lambda: Yield(None),  # type: ignore[arg-type]
        lambda: Unknown(-math.inf),
        lambda: Retry(1000, reason=OddText("why")),
    ],
)
async def test_an_exception_of_which_no_outcome_can_be_made_is_one_temporary_failure(
    make: Callable[[], BaseException],
) -> None:
    async def handler(context: Context, data: str) -> None:
        raise make()

    entry = await attempt_of(handler)
    assert entry.message.encode()


@pytest.mark.parametrize("answer", [math.nan, math.inf, "soon", None, [], 10**400, *FAULTS])
async def test_a_retry_policy_that_says_nonsense_costs_no_outcome(answer: object) -> None:
    def policy(failures: int) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def handler(context: Context, data: str) -> None:
        raise ValueError("the handler's own")

    assert (await attempt_of(handler, retry=policy)).message == "ValueError: the handler's own"


async def archived(handler: Handler) -> ArchivedTask:
    store, registry = open_reference(), Registry()
    registry.task("A", max_attempts=1)(handler)
    (task_id,) = await enqueue(store, "A")
    async with Worker(store, registry).running():
        await until(lambda: store.tables.archived.get(task_id))
    return store.tables.archived[task_id]


async def test_a_handler_that_cancels_its_own_task_and_returns_has_succeeded() -> None:
    """It would be given back as not begun, and run again without an end."""

    async def handler(context: Context, data: str) -> None:
        own = asyncio.current_task()
        assert own is not None
        own.cancel()

    assert (await archived(handler)).result is Result.SUCCESS


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        (250_000.0, 250_000),
        (123_456.789, 123_457),
        (Fraction(7, 2), 4),
        (-3.2, 0),
        (0, 0),
        (1e300, MAX_DURATION_US),
        (10**400, MAX_DURATION_US),
    ],
)
async def test_a_measured_time_is_stored_in_whole_microseconds(said: float, stored: int) -> None:
    async def handler(context: Context, data: str) -> None:
        context.worked(said)

    row = await archived(handler)
    assert (row.result, row.duration_us, type(row.duration_us)) == (Result.SUCCESS, stored, int)


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf, "1", None, [], 1j])
async def test_a_measured_time_that_is_no_number_is_an_error_in_the_handler(said: Any) -> None:
    heard: list[str] = []

    async def handler(context: Context, data: str) -> None:
        try:
            context.worked(said)
        except Exception as error:
            heard.append(str(error))
            raise PermanentFailure("heard") from error

    row = await archived(handler)
    assert row.result is Result.FAILURE
    assert heard == [f"duration_us: must be a number of microseconds, not {said!r}"]

"""Registration: every fault is found when the module is loaded, and named with its place."""

from __future__ import annotations

import functools
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from queue_runtime.errors import ConfigError, InvalidRequest
from queue_runtime.registry import PermanentFailure, Registry
from queue_runtime.task import MAX_ATTEMPTS, U32

if TYPE_CHECKING:
    from queue_runtime.registry import Context

REGISTRY = Registry()


class Point(msgspec.Struct):
    x: int


@REGISTRY.task("Typed")
async def typed(context: Context, data: Point) -> None: ...


@REGISTRY.task("Later")
def later(context: Context, data: DefinedBelow) -> None: ...


@REGISTRY.task("Untyped")
async def untyped(context, data): ...  # type: ignore[no-untyped-def]  # as authors write them


class DefinedBelow(msgspec.Struct):
    y: int


def read(name: str, data: str | None) -> object:
    spec = REGISTRY.find(name)
    assert spec is not None
    return spec.read(data)


def test_data_is_read_as_the_annotation_says_even_when_the_context_is_imported_for_type_checkers_alone() -> None:
    assert read("Typed", '{"x": 1}') == Point(1)
    assert read("Later", '{"y": 1}') == DefinedBelow(1)
    assert read("Untyped", '{"y": 1}') == '{"y": 1}'
    assert read("Untyped", None) == ""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('{"x": "1"}', "data: expected int, got str at $.x"),
        ("[]", "data: expected object, got array"),
        ("", "data: is empty, and the handler asks for JSON"),
        ("{]", "data: JSON is malformed: object keys must be strings (byte 1)"),
    ],
)
def test_data_that_does_not_fit_says_where(data: str, reason: str) -> None:
    with pytest.raises(PermanentFailure) as caught:
        read("Typed", data)
    assert caught.value.reason == reason


def test_async_functions_run_in_the_loop_and_plain_ones_in_threads() -> None:
    kinds = {spec.task_class: spec.is_async for spec in REGISTRY.specs}
    assert kinds == {"Typed": True, "Later": False, "Untyped": True}


def test_a_class_twice_names_both_places() -> None:
    registry = Registry()
    registry.task("Typed")(untyped)
    with pytest.raises(ConfigError) as caught:
        registry.merge(REGISTRY)
    (problem,) = caught.value.problems
    assert "task class Typed has two handlers" in problem
    assert f"{__name__}.untyped, line" in problem
    assert f"{__name__}.typed, line" in problem
    assert registry.classes == {"Typed"}  # nothing was taken over
    with pytest.raises(ConfigError, match="two handlers"):
        registry.task("Typed")(typed)


def test_two_fallbacks_are_an_error_too() -> None:
    one, two = Registry(), Registry()
    one.fallback(typed)
    two.fallback(untyped)
    with pytest.raises(ConfigError, match="the fallback has two handlers"):
        one.merge(two)


def test_a_merged_registry_has_the_handlers_of_both_and_finds_the_fallback_last() -> None:
    registry, other = Registry(), Registry()
    registry.task("A")(typed)
    other.task("B")(untyped)
    other.fallback(later)
    registry.merge(other)
    assert registry.classes == {"A", "B"}
    found = [registry.find(name) for name in ("A", "B", "C")]
    functions: list[object] = [spec.function for spec in found if spec is not None]
    handlers: list[object] = [typed, untyped, later]
    assert functions == handlers
    assert Registry().find("A") is None


async def generator(context: object, data: str):  # type: ignore[no-untyped-def]  # the fault under test
    yield


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda data: None, "two arguments"),
        (lambda context, data, more: None, "two arguments"),
        (generator, "is a generator"),
        (functools.partial(untyped, None), "two arguments"),
    ],
)
def test_a_function_that_can_never_be_called_is_refused(function: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Registry().task("A")(function)  # type: ignore[type-var]  # the fault under test


def test_all_bad_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        Registry().task("A", timeout=0, max_attempts=0, concurrency=0, retry=-1)(typed)
    assert len(caught.value.problems) == 4
    assert all(problem.startswith(f"A ({__name__}.typed, line") for problem in caught.value.problems)


NUMBERS_THAT_NO_CLOCK_AND_NO_STORE_TAKES = [math.nan, math.inf, -math.inf, -1, 2**32, 10**400, "1", [], True, 1j]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("timeout", value) for value in [*NUMBERS_THAT_NO_CLOCK_AND_NO_STORE_TAKES, 0, 0.0]),
        *(("retry", value) for value in NUMBERS_THAT_NO_CLOCK_AND_NO_STORE_TAKES),
        *((name, value) for name in ("max_attempts", "concurrency") for value in (0, -1, 2.5, 2.0, True, "3")),
        *((name, value) for name in ("max_attempts", "concurrency") for value in (MAX_ATTEMPTS + 1, sys.maxsize)),
        *((name, math.nan) for name in ("max_attempts", "concurrency")),
        *(("finish_unsure", value) for value in (1, "no", 0.0)),
    ],
)
@pytest.mark.parametrize("way", ["task", "fallback"])
def test_a_setting_that_a_run_would_trip_over_is_refused_at_registration(way: str, setting: str, value: object) -> None:
    settings: dict[str, Any] = {setting: value}
    registry = Registry()
    register: Any = registry.task("A", **settings) if way == "task" else partial(registry.fallback, **settings)
    with pytest.raises(ConfigError) as caught:
        register(typed)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{'A' if way == 'task' else '*'} ({__name__}.typed, line")
    assert f"): {setting} must be " in problem


def test_the_last_values_that_are_allowed_are_taken() -> None:
    registry = Registry()
    registry.task("A", timeout=0.001, retry=0, max_attempts=1, concurrency=1, finish_unsure=True)(typed)
    registry.task("B", timeout=U32, retry=U32, max_attempts=MAX_ATTEMPTS, concurrency=MAX_ATTEMPTS)(typed)
    registry.task("C", retry=lambda failures: 0.5)(typed)
    assert registry.classes == {"A", "B", "C"}


def test_a_type_that_no_json_can_be_read_as_is_refused() -> None:
    class Odd:
        def __init__(self, one: int) -> None: ...

    async def handler(context: object, data: tuple[int, ...] | list[int]) -> None: ...

    with pytest.raises(ConfigError, match="cannot be decoded"):
        Registry().task("A")(handler)


@pytest.mark.parametrize("name", ["", "x" * 300, "a\0b"])
def test_a_class_name_that_no_row_can_hold_is_refused(name: str) -> None:
    """R101."""
    with pytest.raises(InvalidRequest, match="task_class"):
        Registry().task(name)

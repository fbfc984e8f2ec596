"""Plays many random histories, fast: one event loop for all of them, and no disk."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def play_many(
    play: Callable[[asyncio.Runner, T], None], histories: SearchStrategy[T], number: int, *, derandomize: bool
) -> None:
    """Play so many. Derandomized ones are the same every time, so that a failure in CI is a failure at the desk."""
    rules = settings(
        max_examples=number,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    with asyncio.Runner() as runner:

        @rules
        @given(histories)
        def every(history: T) -> None:
            play(runner, history)

        every()

"""Choices from a string of bytes: cheap to draw, and a failing history shrinks with its bytes."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Uses one byte for each choice. When the bytes are used up every choice is the first."""

    def __init__(self, rolls: bytes) -> None:
        self._rolls = iter(rolls)

    def below(self, bound: int) -> int:
        """A number from 0 up to, not including, the bound (at most 256)."""
        return next(self._rolls, 0) % bound

    def choose(self, options: Sequence[T]) -> T:
        """One of these; shrinking prefers the first."""
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """From none up to `most` of these, repeats allowed."""
        return [self.choose(options) for _ in range(self.below(most + 1))] if options else []

    def chance(self, one_in: int) -> bool:
        """True once in so many times; shrinking prefers False."""
        return self.below(one_in) == one_in - 1

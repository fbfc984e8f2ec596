"""Token buckets by address."""

import pytest

from conduit import buckets
from conduit.buckets import Buckets


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_as_many_as_come_in_again() -> None:
    clock = Clock()
    limit = Buckets(2, 3, now=clock)
    assert [limit.take("a") for _ in range(5)] == [True] * 3 + [False] * 2
    clock.now += 1
    assert [limit.take("a") for _ in range(3)] == [True, True, False]
    clock.now += 100
    assert [limit.take("a") for _ in range(4)] == [True] * 3 + [False]


def test_a_refusal_costs_nothing() -> None:
    clock = Clock()
    limit = Buckets(0.5, 1, now=clock)
    assert limit.take("a")
    for _ in range(3):
        clock.now += 0.5
        assert not limit.take("a")
    clock.now += 0.5
    assert limit.take("a")


def test_addresses_do_not_share() -> None:
    limit = Buckets(1, 1, now=Clock())
    assert limit.take("a")
    assert limit.take("b")
    assert not limit.take("a")


def test_memory_is_bounded_and_idle_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_BUCKETS", 3)
    clock = Clock()
    limit = Buckets(1, 2, now=clock)
    for address in "abc":
        assert limit.take(address)
    clock.now += 500
    assert not limit.take("d")
    assert limit.take("a")
    clock.now += 101  # b and c were idle for ten minutes, a was not
    assert [limit.take(address) for address in "def"] == [True, True, False]

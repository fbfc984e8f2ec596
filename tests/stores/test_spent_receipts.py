"""Spent expiries as ranges: the same answers as a plain set of seconds, in little room."""

import random

import pytest

from stores.spent_receipts import MAX_RANGES, first_unspent, is_receipt, spend


def spend_all(expiries: list[int], now: int = 0) -> str | None:
    spent = None
    for expires in expiries:
        spent = spend(spent, expires, now)
    return spent


def test_nothing_spent_leaves_every_expiry_as_it_is() -> None:
    assert first_unspent(None, 60) == 60


def test_a_spent_expiry_is_passed_over_and_its_neighbours_are_not() -> None:
    spent = spend(None, 60, 0)
    assert [first_unspent(spent, wanted) for wanted in (59, 60, 61)] == [59, 61, 61]


def test_seconds_in_a_row_become_one_range_in_whatever_order_they_come() -> None:
    assert spend_all([62, 60, 61, 63]) == spend_all([60, 61, 62, 63]) == "[[60,63]]"
    assert first_unspent(spend_all([62, 60, 61, 63]), 60) == 64


def test_the_same_expiry_twice_is_spent_once() -> None:
    assert spend_all([60, 60]) == "[[60,60]]"


@pytest.mark.parametrize(("now", "kept"), [(59, "[[60,60],[90,90]]"), (60, "[[90,90]]"), (90, None)])
def test_what_is_over_is_forgotten(now: int, kept: str | None) -> None:
    spent = spend_all([60, 90])
    assert spend(spent, now, now) == kept


def test_beyond_the_bound_the_two_nearest_become_one() -> None:
    expiries = [100 * place for place in range(1, MAX_RANGES + 1)]
    full = spend_all(expiries)
    assert [first_unspent(full, wanted) for wanted in (100, 150, 400)] == [101, 150, 401]
    more = spend(full, 410, 0)
    assert [first_unspent(more, wanted) for wanted in (100, 150, 400, 405, 410)] == [101, 150, 411, 411, 411]
    assert more is not None
    assert more.count("[") == MAX_RANGES + 1


def test_ranges_answer_as_a_set_of_seconds_does() -> None:
    dice = random.Random(5)
    for _ in range(300):
        spent, seconds, now = None, set[int](), 0
        for _ in range(MAX_RANGES):
            now += dice.randrange(3)
            expires = now + dice.randrange(1, 20)
            spent = spend(spent, expires, now)
            seconds.add(expires)
            for wanted in range(now + 1, now + 25):
                free = wanted
                while free in seconds:
                    free += 1
                assert first_unspent(spent, wanted) == free


def test_what_was_spent_stays_spent_beyond_the_bound() -> None:
    dice = random.Random(6)
    spent, seconds = None, set[int]()
    for _ in range(200):
        seconds.add(dice.randrange(1, 5000))
        spent = spend_all([*seconds])
    assert spent is not None
    assert all(first_unspent(spent, wanted) not in seconds for wanted in range(5000))


@pytest.mark.parametrize(
    ("owner", "answer"),
    [("web1:1", True), ("qr:0:1", False), ("(yield)", False), ("gorge-failure-pending", False), (None, False)],
)
def test_only_a_lease_of_an_http_caller_is_a_receipt(owner: str | None, answer: bool) -> None:
    assert is_receipt(owner) is answer

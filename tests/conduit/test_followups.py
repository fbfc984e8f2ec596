"""Reading the follow-ups of an answer: how PHP may write them, and how many there may be."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from handlers.execution import Answer, Unreadable
from handlers.followups import read_followups
from queue_runtime.errors import InvalidRequest
from queue_runtime.task import MAX_FOLLOWUPS, NewTask


def read(text: bytes) -> list[NewTask]:
    """The follow-ups of a success that has this in the place of them."""
    return read_followups(Answer("success", followups=Raw(text)))


def child_with(**options: object) -> NewTask:
    (child,) = read(msgspec.json.encode([{"taskClass": "C", "data": "{}", "options": options}]))
    return child


@pytest.mark.parametrize("text", [b"null", b"false", b'""', b"[]", b"{}", b"[ ]"])
def test_php_has_many_words_for_none(text: bytes) -> None:
    assert read(text) == []


@pytest.mark.parametrize("options", [b"null", b"false", b'""', b"[]", b"{}"])
def test_options_that_are_nothing_leave_those_beside_the_class(options: bytes) -> None:
    (child,) = read(b'[{"taskClass":"C","priority":5,"options":%s}]' % options)
    assert child.priority == 5


def test_a_list_with_gaps_is_an_object_in_php() -> None:
    assert [one.task_class for one in read(b'{"0":{"taskClass":"A"},"3":{"taskClass":"B"}}')] == ["A", "B"]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        (1500.0, 1500),
        ("1500", 1500),
        ("1500.0", 1500),
        ("0", 0),
        (0, 0),
        (False, None),
        ("", None),
        (None, None),
    ],
)
def test_a_number_that_lost_its_type_on_the_way_is_that_number(value: object, number: int | None) -> None:
    child = child_with(priority=value, delayUntil=value)
    assert child.priority == number
    assert child.delay_until == (number or None)


@pytest.mark.parametrize("value", [True, 1500.5, "1500.5", "high", "1e3", " 7", "\u0661", "9" * 5000, [7], {"a": 7}])
@pytest.mark.parametrize("name", ["priority", "delayUntil"])
def test_what_may_mean_anything_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(Unreadable, match=f"{name} is no whole number"):
        child_with(**{name: value})


@pytest.mark.parametrize("value", [False, "", None])
def test_an_object_that_is_false_is_none(value: object) -> None:
    child = child_with(objectPHID=value, containerPHID=value)
    assert (child.object_phid, child.container_phid) == (None, None)


@pytest.mark.parametrize("value", [True, 7, ["PHID-1"]])
@pytest.mark.parametrize("name", ["objectPHID", "containerPHID"])
def test_an_object_that_is_no_text_is_refused(name: str, value: object) -> None:
    with pytest.raises(Unreadable, match=f"{name} is no text"):
        child_with(**{name: value})


@pytest.mark.parametrize("value", ["9" * 20, -1, 2**40, 1e18])
def test_a_number_beyond_all_bounds_cannot_be_stored(value: object) -> None:
    with pytest.raises(InvalidRequest):
        child_with(priority=value)


# ---- how many there may be


def listed(child: Any, count: int) -> bytes:
    return f"[{','.join([child] * count)}]".encode()


def mapped(child: Any, count: int) -> bytes:
    return ("{" + ",".join(f'"{place}":{child}' for place in range(count)) + "}").encode()


CHILD = '{"taskClass":"C"}'
LARGE = '{"taskClass":"C","data":"' + "x" * 100 + '"}'


@pytest.mark.parametrize("child", [CHILD, LARGE])
@pytest.mark.parametrize("write", [listed, mapped])
def test_as_many_as_are_stored_are_read_and_no_more(write: Any, child: str) -> None:
    assert len(read(write(child, MAX_FOLLOWUPS))) == MAX_FOLLOWUPS
    with pytest.raises(InvalidRequest, match=f"PHP staged more than {MAX_FOLLOWUPS}"):
        read(write(child, MAX_FOLLOWUPS + 1))


@pytest.mark.parametrize("child", ["[]", CHILD])
@pytest.mark.parametrize("write", [listed, mapped])
def test_millions_are_not_taken_apart(write: Any, child: str) -> None:
    text = write(child, 500_000)
    with pytest.raises(InvalidRequest):  # what is made once is made now
        read(text)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            read(text)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_large_ones_are_read(count: int) -> None:
    child = {"taskClass": "C", "data": "[" + "0," * 2**19 + "0]"}
    assert [one.data for one in read(msgspec.json.encode([child] * count))] == [child["data"]] * count

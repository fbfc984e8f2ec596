"""The body of a call is a form that PHP reads as it was meant, whatever is in it."""

import json
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit import params as params_module
from conduit.params import CHUNK, escaped, form, is_large

AWKWARD = ["", "[]", "{}", "7", '"0"', "null", "1.0", str(2**60), "a+b & c=d;e%20f", 'ü😀\x00\x1f"\\', "\ud800", "{\n}"]


def params_of(body: bytes) -> object:
    fields = parse_qs(body.decode("ascii"), strict_parsing=True)
    assert fields.keys() == {"params", "output"}
    assert fields["output"] == ["json"]
    return json.loads(fields["params"][0])


@pytest.mark.parametrize("data", AWKWARD)
def test_a_payload_arrives_as_it_was(data: str) -> None:
    assert params_of(form({"data": data})) == {"data": data}


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none()))
def test_anything_arrives_as_it_was(params: dict[str, object]) -> None:
    assert params_of(form(params)) == params


@given(st.dictionaries(st.text(), st.text(min_size=3) | st.integers() | st.none(), min_size=1), st.integers(1, 4))
def test_what_is_encoded_in_pieces_is_what_it_would_be_in_one(params: dict[str, object], size: int) -> None:
    whole = form(params, token="t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(params_module, "CHUNK", size)
        assert form(params, token="t") == whole


def test_a_large_text_is_one_that_is_worth_a_thread() -> None:
    assert not is_large({"taskID": 1, "data": "x" * CHUNK})
    assert is_large({"taskID": 1, "data": "x" * (CHUNK + 1)})
    assert params_of(form({"data": "ü" * (3 * CHUNK), "b": [1]})) == {"data": "ü" * (3 * CHUNK), "b": [1]}


def test_numbers_stay_numbers() -> None:
    read = params_of(form({"taskID": 1, "version": 1.0}))
    assert [type(value) for value in read.values()] == [int, float]  # type: ignore[attr-defined]


def test_a_token_travels_inside_of_the_parameters_too() -> None:
    assert params_of(form({"a": 1}, token="t")) == {"a": 1, "__conduit__": {"token": "t"}}


def test_every_character_that_means_something_in_a_form_is_escaped() -> None:
    text = bytes(range(32, 127))
    kept = set(escaped(text).decode()) - set("0123456789ABCDEFabcdefghijklmnopqrstuvwxyz%+")
    assert kept <= set("GHIJKLMNOPQRSTUVWXYZ-._~")
    assert parse_qs("a=" + escaped(text).decode())["a"] == [text.decode()]

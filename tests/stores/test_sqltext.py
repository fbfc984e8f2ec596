"""Statements by name."""

import pytest

from stores.sqltext import load_statements, parse_statements


def test_a_statement_is_found_by_its_name_without_comments_and_with_its_fragments() -> None:
    text = "-- fragment: mine\n-- why\nowner = :owner\n-- name: take\n-- In: owner.\nUPDATE x\nWHERE {mine};\n"
    assert parse_statements(text) == {"take": "UPDATE x\nWHERE owner = :owner"}


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="take stands twice"):
        parse_statements("-- name: take\nSELECT 1;\n-- name: take\nSELECT 2;\n")


def test_an_unknown_fragment_is_refused() -> None:
    with pytest.raises(KeyError):
        parse_statements("-- name: take\nSELECT {nothing};\n")


def test_the_statements_of_sqlite_can_be_read() -> None:
    assert "renew" in load_statements("sqlite")

"""The knife that the fault tests cut a trip with."""

import pytest

from tests.statements import first, split


def packet(sql: str) -> bytes:
    body = b"\x03" + sql.encode()
    return len(body).to_bytes(3, "little") + b"\x00" + body


@pytest.mark.parametrize(
    "statements",
    [
        ["SELECT 1"],
        ["BEGIN", "SELECT 'a;b'", "SELECT 'it''s; \\'so; \\\\'", "COMMIT"],
        ["SELECT `odd;name` FROM t", " SET x = 1 /* ; */", "SELECT 4 / 2"],
    ],
)
def test_statements_are_told_apart_and_quoted_semicolons_are_none(statements: list[str]) -> None:
    whole = packet(";".join(statements))
    assert [part.decode() for part in split(whole)] == statements
    for count in range(1, len(statements)):
        assert first(whole, count) == packet(";".join(statements[:count]))
    assert first(whole, len(statements)) is None


def test_what_is_no_query_is_left_alone() -> None:
    assert split(b"\x01\x00\x00\x00\x0e") == []
    assert split(packet("SELECT 1; SELECT 2")[:-1]) == []
    assert first(b"", 1) is None

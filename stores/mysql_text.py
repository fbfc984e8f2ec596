"""Fills values into the statements of `sql/mysql.sql`.

A value stands as `:name`. Numbers are formatted and every text goes through the driver's escaping, which suits the
`sql_mode` that each of our sessions sets; nothing else is ever written into a statement. A list becomes `1,2,3`.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from pymysql.converters import escape_string

Value = int | str | bytes | None | Collection[int] | Collection[str] | Collection[bytes]


class Sql(str):
    """Text that is SQL already, such as the server's clock."""

    __slots__ = ()


_PLACE = re.compile(r"(?<![:\w]):([a-z_]+)")


class Statement:
    """One statement, cut at its places once."""

    __slots__ = ("_names", "_pieces")

    def __init__(self, text: str) -> None:
        pieces = _PLACE.split(text)
        self._pieces = pieces[::2]
        self._names = pieces[1::2]

    def fill(self, values: Mapping[str, Value]) -> str:
        """The text with these values. A value that is not there is a KeyError."""
        if not self._names:
            return self._pieces[0]
        parts = [self._pieces[0]]
        for name, piece in zip(self._names, self._pieces[1:], strict=True):
            parts += (literal(values[name]), piece)
        return "".join(parts)


def literal(value: Value) -> str:
    """A value as SQL. An empty list becomes NULL, which is in no list and equal to nothing."""
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    if type(value) is Sql:
        return value
    if isinstance(value, str):
        return f"'{escape_string(value)}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, int):  # bool, IntEnum
        return str(int(value))
    if set(map(type, value)) == {int}:  # ids, of which a statement may have hundreds
        return ",".join(map(str, value))
    return ",".join([literal(one) for one in value]) or "NULL"


def row_literal(values: Iterable[Value]) -> str:
    """The values of one row, in brackets."""
    return f"({','.join([literal(value) for value in values])})"

"""Takes a query of MySQL's protocol apart: what a client sends in one trip may be several statements."""

import re

QUERY = 0x03
"""The command of a packet that holds SQL."""

_HEAD = 4
"""Bytes before the command: three of length, and a number."""

_PIECE = re.compile(rb"'(?:[^'\\]|\\.|'')*'|`[^`]*`|/\*.*?\*/|[^;'`/]+|/|(;)", re.DOTALL)


def split(packet: bytes) -> list[bytes]:
    """The statements of a packet; none where it is not a whole query."""
    if len(packet) <= _HEAD or packet[_HEAD] != QUERY or len(packet) - _HEAD != int.from_bytes(packet[:3], "little"):
        return []
    sql = packet[_HEAD + 1 :]
    ends = [found.start() for found in _PIECE.finditer(sql) if found[1]]
    starts = [0, *(end + 1 for end in ends)]
    return [sql[start:end] for start, end in zip(starts, [*ends, len(sql)], strict=True)]


def first(packet: bytes, count: int) -> bytes | None:
    """The packet with only its first so many statements; None where it has no more than that."""
    statements = split(packet)
    if len(statements) <= count:
        return None
    body = bytes([QUERY]) + b";".join(statements[:count])
    return len(body).to_bytes(3, "little") + packet[3:4] + body

"""aiomysql's connection with a faster way to send statements and to read what they answer, on which that driver spends
most of its time.

Packets that have arrived are cut out of one buffer, without coroutines for each, and a value is decoded with one call.
Whatever is not plain (an error, a packet that is not there yet, columns that are new) is left to the driver.
"""

from collections.abc import Callable
from typing import Any

import aiomysql
from aiomysql.connection import MySQLResult
from msgspec import Struct
from pymysql.constants import COMMAND, CR, SERVER_STATUS

from stores.mysql_driver import Answer, Row

CHUNK = 2**16
"""Bytes to ask for at a time. So a packet of 16 MB, which goes on in the next one, is never at hand whole."""

_HEADER = 4
_NULL = 251
_WIDTHS = {252: 2, 253: 3, 254: 8}
"""Bytes of a length that begins so."""

_OK, _EOF, _ERROR = 0x00, 0xFE, 0xFF
_SHORTEST_LONG = 9
"""Bytes of a row that begins with the mark of the end: it stands for a length of eight bytes there."""

_MARK = _HEADER + 5
"""Bytes of the packet that marks the end of columns or of rows."""

Decode = Callable[[bytes], object]


class _Columns(Struct, frozen=True):
    """The packets that describe the columns of a table, and how its values are decoded (None: they are the bytes)."""

    packets: bytes
    decoders: list[Decode | None]


MOST_COLUMNS = 1000
_columns: dict[tuple[int, int, bytes], _Columns] = {}
"""By the number of the first packet, their count, and that packet: those of a statement are the same each time."""


class Connection(aiomysql.Connection):  # type: ignore[misc]  # aiomysql has no types
    """One connection. What has been read and not used is in `_at_hand`, from `_place` on."""

    _at_hand = b""
    _place = 0
    _next_seq_id: int

    async def ask(self, sql: str) -> list[Answer]:
        """Send statements in one trip; the answer of each. Raises the driver's errors."""
        await self._execute_command(COMMAND.COM_QUERY, sql.encode(self.encoding, "surrogateescape"))
        answers = []
        more = SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS
        while more & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            packet = self._arrived() or await self._coming()
            if packet[0] == _OK:
                affected, place = _number(packet, 1)
                insert_id, place = _number(packet, place)
                more = packet[place]
                answers.append(Answer((), affected, insert_id))
            elif packet[0] < _NULL:
                rows, more = await self._rows(await self._decoders(packet[0]))
                answers.append(Answer(rows, len(rows), 0))
            else:
                raise aiomysql.InternalError(CR.CR_MALFORMED_PACKET, "neither an answer nor a few columns")
        return answers

    def _arrived(self) -> bytes | None:
        """The payload of the next packet, where it has arrived whole, and is no error."""
        data, start = self._at_hand, self._place + _HEADER
        if len(data) <= start:
            return None
        end = start + (data[start - 4] | data[start - 3] << 8 | data[start - 2] << 16)
        if end > len(data) or data[start - 1] != self._next_seq_id or data[start] == _ERROR:
            return None
        self._next_seq_id = (self._next_seq_id + 1) % 256
        self._place = end
        return data[start:end]

    async def _coming(self) -> bytes:
        """The payload of the next packet. Raises what the server refused."""
        if self._place == len(self._at_hand):
            self._at_hand, self._place = await self._read_some(), 0
            if (packet := self._arrived()) is not None:
                return packet
        data: bytes = (await self._read_packet()).get_all_data()
        return data

    async def _decoders(self, count: int) -> list[Decode | None]:
        """How the values of a table are decoded, whose columns are described by the next packets."""
        data, start = self._at_hand, self._place
        size = int.from_bytes(data[start : start + 3], "little")
        key = self._next_seq_id, count, data[start : start + _HEADER + size]
        known = _columns.get(key)
        if known is not None and data.startswith(known.packets, start):
            self._place += len(known.packets)
            self._next_seq_id = (self._next_seq_id + count) % 256
            if self._arrived() is None:
                await self._coming()  # the mark behind them
            return known.decoders
        result = MySQLResult(self)
        result.field_count = count
        await result._get_descriptions()
        decoders = [_decoder(encoding, convert) for encoding, convert in result.converters]
        if data is self._at_hand:  # they had arrived whole
            if len(_columns) >= MOST_COLUMNS:
                _columns.clear()
            _columns[key] = _Columns(data[start : self._place - _MARK], decoders)
        return decoders

    async def _rows(self, decoders: list[Decode | None]) -> tuple[list[Row], int]:
        """All rows of a table, and the first byte of the server's status after them."""
        rows: list[Row] = []
        while True:
            self._cut_rows(decoders, rows)
            packet = self._arrived() or await self._coming()
            if packet[0] == _EOF and len(packet) < _SHORTEST_LONG:
                return rows, packet[3]
            rows.append(_row(packet, 0, decoders))

    def _cut_rows(self, decoders: list[Decode | None], rows: list[Row]) -> None:
        """Add rows that have arrived whole, up to the first packet that is something else or may be."""
        data, number, start = self._at_hand, self._next_seq_id, self._place + _HEADER
        while start < len(data) and data[start] < _EOF and data[start - 1] == number:
            end = start + (data[start - 4] | data[start - 3] << 8 | data[start - 2] << 16)
            if end > len(data):
                break
            rows.append(_row(data, start, decoders))
            number = (number + 1) % 256
            start = end + _HEADER
        self._next_seq_id, self._place = number, start - _HEADER

    async def _read_bytes(self, num_bytes: int) -> bytes:
        while (missing := num_bytes - (len(self._at_hand) - self._place)) > 0:
            # of a large packet all at once: what is at hand is copied each time
            more = await (super()._read_bytes(missing) if missing > CHUNK else self._read_some())
            self._at_hand, self._place = self._at_hand[self._place :] + more, 0
        start = self._place
        self._place += num_bytes
        return self._at_hand[start : self._place]

    async def _read_some(self) -> bytes:
        try:
            data: bytes = await self._reader.read(CHUNK)
        except OSError as error:
            self.close()
            raise aiomysql.OperationalError(CR.CR_SERVER_LOST, f"the connection was lost ({error})") from error
        if not data:
            self.close()
            raise aiomysql.OperationalError(CR.CR_SERVER_LOST, "the connection was lost")
        return data


def _number(data: bytes, place: int) -> tuple[int, int]:
    """A number of the width that it begins with, and the place behind it."""
    size = data[place]
    place += 1
    if size < _NULL:
        return size, place
    width = _WIDTHS[size]
    return int.from_bytes(data[place : place + width], "little"), place + width


def _row(data: bytes, place: int, decoders: list[Decode | None]) -> Row:
    row: list[object] = []
    for decode in decoders:
        size = data[place]
        place += 1
        if size == _NULL:
            row.append(None)
            continue
        if size > _NULL:
            size, place = _number(data, place - 1)
        raw = data[place : place + size]
        place += size
        row.append(raw if decode is None else decode(raw))
    return tuple(row)


def _decoder(encoding: str | None, convert: Callable[[Any], object] | None) -> Decode | None:
    """What makes a value of its bytes; None: they are the value."""
    if encoding is None:
        return convert
    if convert is int:
        return int  # takes ASCII bytes as they are
    if convert is not None:
        return lambda raw: convert(raw.decode(encoding))
    if encoding in {"utf8", "utf-8"}:
        return bytes.decode
    return lambda raw: raw.decode(encoding)

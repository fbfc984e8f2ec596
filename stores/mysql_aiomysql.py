"""aiomysql's connection with a faster way to read rows, on which that driver spends most of its time.

Rows that have arrived are cut out of one buffer, without coroutines for each, and decoded with one call for each value.
Whatever is not a plain row (an error, a packet that is not there yet) is left to the driver.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import aiomysql
from aiomysql.connection import MySQLResult
from pymysql.constants import CR, SERVER_STATUS

CHUNK = 2**16
"""Bytes to ask for at a time. So a packet of 16 MB, which goes on in the next one, is never at hand whole."""

_HEADER = 4
_NULL, _TWO, _THREE = 251, 252, 253
_EOF, _ERROR = 0xFE, 0xFF
_SHORTEST_LONG = 9
"""Bytes of a row that begins with the mark of the end: it stands for a length of eight bytes there."""

Decode = Callable[[bytes], object]

MOST_COLUMNS = 1000
_columns: dict[tuple[bytes, ...], Any] = {}
"""How the values of a table are converted, by the packets that describe its columns: those of a statement are the same
each time."""


class Connection(aiomysql.Connection):  # type: ignore[misc]  # aiomysql has no types
    """One connection. What has been read and not used is in `_at_hand`, from `_place` on."""

    _at_hand = b""
    _place = 0
    _next_seq_id: int

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

    def next_packet(self) -> bytes | None:
        """The payload of the next packet, where it has arrived whole, and is no error."""
        data, start = self._at_hand, self._place + _HEADER
        if len(data) <= start:
            return None
        size = data[start - 4] | data[start - 3] << 8 | data[start - 2] << 16
        end = start + size
        if end > len(data) or data[start - 1] != self._next_seq_id or data[start] == _ERROR:
            return None
        self._next_seq_id = (self._next_seq_id + 1) % 256
        self._place = end
        return data[start:end]

    def next_packets(self, count: int) -> tuple[bytes, ...] | None:
        """So many of them, or None and nothing has been read."""
        before = self._place, self._next_seq_id
        packets = []
        for _ in range(count):
            if (packet := self.next_packet()) is None:
                self._place, self._next_seq_id = before
                return None
            packets.append(packet)
        return tuple(packets)

    def unread(self, packets: Sequence[bytes]) -> None:
        """Put back what `next_packets` has just given."""
        self._place -= sum(map(len, packets)) + _HEADER * len(packets)
        self._next_seq_id = (self._next_seq_id - len(packets)) % 256

    async def _read_query_result(self, unbuffered: bool = False) -> None:
        assert not unbuffered, "our cursor reads all rows"
        self._result = None
        result = _Result(self)
        await result.read()
        self._result = result
        self._affected_rows = result.affected_rows
        if result.server_status is not None:
            self.server_status = result.server_status


class _Result(MySQLResult):  # type: ignore[misc]
    """The answer to one statement."""

    connection: Any
    affected_rows: int

    async def _get_descriptions(self) -> None:
        connection = self.connection
        packets = connection.next_packets(self.field_count)
        known = None if packets is None else _columns.get(packets)
        if known is not None:
            self.converters = known
            await connection._read_packet()  # the mark behind them
            return
        if packets is not None:
            connection.unread(packets)
        await super()._get_descriptions()
        if packets is not None:
            if len(_columns) >= MOST_COLUMNS:
                _columns.clear()
            _columns[packets] = self.converters

    async def _read_rowdata_packet(self) -> None:
        connection = self.connection
        decoders = [_decoder(encoding, convert) for encoding, convert in self.converters]
        rows = []
        while True:
            data = connection.next_packet()
            if data is None:
                data = (await connection._read_packet()).get_all_data()
            if data[0] == _EOF and len(data) < _SHORTEST_LONG:
                self.warning_count, status = struct.unpack_from("<HH", data, 1)
                self.has_next = bool(status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)
                self.connection = None
                break
            rows.append(_row(data, decoders))
        self.affected_rows = len(rows)
        self.rows = tuple(rows)


def _row(data: bytes, decoders: list[Decode | None]) -> tuple[object, ...]:
    row: list[object] = []
    place = 0
    for decode in decoders:
        size = data[place]
        place += 1
        if size == _NULL:
            row.append(None)
            continue
        if size > _NULL:
            width = 2 if size == _TWO else 3 if size == _THREE else 8
            size = int.from_bytes(data[place : place + width], "little")
            place += width
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

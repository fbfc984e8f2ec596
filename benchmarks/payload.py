"""The payload of every benchmark task: JSON text of about 100 bytes, as in the peers' drivers."""

from msgspec import Struct

_PADDING = "x" * 80


class Payload(Struct, frozen=True):
    """What a handler decodes."""

    i: int
    p: str


def payload_text(number: int) -> str:
    """The payload of task `number`."""
    bare = f'{{"i":{number},"p":""}}'
    return f'{{"i":{number},"p":"{_PADDING}{"y" * max(0, 20 - len(bare))}"}}'

"""What the fast engine adds to uvicorn: head and body of a reply leave in one piece."""

import asyncio

from queue_runtime.uvicorn_engine import JoiningTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire(asyncio.Transport):
    """Notes what is sent, and how many times."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes | bytearray | memoryview] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True


def test_head_and_body_are_sent_together() -> None:
    wire = Wire()
    transport = JoiningTransport(wire)
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"{}")
        transport.flush()
    assert wire.sent == [HEAD + b"{}"] * 2


def test_a_head_that_nothing_follows_is_sent_at_the_end() -> None:
    wire = Wire()
    transport = JoiningTransport(wire)
    transport.write(HEAD)
    assert wire.sent == []
    transport.flush()
    assert wire.sent == [HEAD]


def test_a_body_that_ends_as_a_head_does_is_sent_at_the_end_too() -> None:
    wire = Wire()
    transport = JoiningTransport(wire)
    for part in (HEAD, b"a", b"b\r\n\r\n"):
        transport.write(part)
    transport.flush()
    assert wire.sent == [HEAD + b"a", b"b\r\n\r\n"]


def test_the_word_to_go_on_is_sent_at_once() -> None:
    wire = Wire()
    JoiningTransport(wire).write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert wire.sent == [b"HTTP/1.1 100 Continue\r\n\r\n"]


def test_closing_sends_what_was_kept_back() -> None:
    wire = Wire()
    transport = JoiningTransport(wire)
    transport.write(HEAD)
    transport.close()
    assert (wire.sent, wire.closed) == ([HEAD], True)

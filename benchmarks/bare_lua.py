"""Drains tasks by two scripts and nothing else: `python -m benchmarks.bare_lua COUNT`.

What our drain on Redis is compared with: how fast the server and one Python process can be at the same work. The shape
is the leanest that still is a queue: one script claims 100 tasks by priority and id and answers them with their
payloads, one archives the 100 that this owner holds. ROUNDS claims are in flight on one connection, and each reply is
answered by its archiving and the next claim in one write. Every payload is decoded and counted, as a handler does.

There is no runtime around it: no tasks of asyncio, time-outs, renewals, metrics, retries, histories, classes, queues,
delays or keys. Fills the database itself, with as many tasks of the same payload, before the first one runs.
"""

import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import sha1
from pathlib import Path
from urllib.parse import urlsplit

import hiredis
import msgspec

from benchmarks.payload import Payload, payload_text
from benchmarks.tally import FOLDER_VARIABLE, Tally

BATCH = 100
ROUNDS = 4
"""Claims in flight: the server always has the next one while a reply is read."""

FILL = 1000
LEASE_SECONDS = 20
OWNER = "bare"
PRIORITY = 2000
RESULT = "0"
READY, BODY, OWNERS, LEASED, ARCHIVE, ENDED = (
    f"{{bare}}:{name}" for name in ("ready", "body", "owner", "leased", "archive", "ended")
)

Word = bytes | str | int


class Line:
    """One connection: commands go out in any number, replies come in their order."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def send(self, *commands: tuple[Word, ...]) -> None:
        """All of them in one write."""
        packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]  # its stub is wrong
        self._socket.sendall(b"".join(packed))

    def read(self) -> object:
        """The next reply. Raises what the server refused."""
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(data)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Let go."""
        self._socket.close()


class Drain:
    """The loop."""

    def __init__(self, line: Line, tally: Tally) -> None:
        self._line = line
        self._tally = tally
        self._claim = self._load("bare_claim.lua")
        self._archive = self._load("bare_archive.lua")

    def _load(self, name: str) -> str:
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        self._line.send(("SCRIPT", "LOAD", text))
        self._line.read()
        return sha1(text.encode(), usedforsecurity=False).hexdigest()

    def run(self) -> int:
        """Until a claim finds nothing; how many were archived."""
        claim = ("EVALSHA", self._claim, 4, READY, BODY, OWNERS, LEASED, BATCH, OWNER, LEASE_SECONDS)
        archive = ("EVALSHA", self._archive, 4, OWNERS, LEASED, ARCHIVE, ENDED, OWNER, RESULT)
        self._line.send(*[claim] * ROUNDS)
        expected = deque(["claim"] * ROUNDS)
        archived = 0
        while expected:
            kind, reply = expected.popleft(), self._line.read()
            if kind == "archive":
                assert isinstance(reply, int)
                archived += reply
                continue
            ids, bodies = _rows(reply)
            if not ids:
                continue
            for body in bodies:
                msgspec.json.decode(body, type=Payload)
                self._tally.hit()
            self._line.send((*archive, *ids), claim)
            expected += ("archive", "claim")
        return archived


def _rows(reply: object) -> tuple[Sequence[bytes], Sequence[bytes]]:
    assert isinstance(reply, list)
    ids, bodies = reply
    return ids, bodies


def fill(line: Line, count: int) -> None:
    """Put in the tasks."""
    for start in range(1, count + 1, FILL):
        numbers = range(start, min(start + FILL, count + 1))
        line.send(("ZADD", READY, *_words(numbers, score=True)), ("HSET", BODY, *_words(numbers, score=False)))
        line.read()
        line.read()


def _words(numbers: Sequence[int], *, score: bool) -> Iterator[Word]:
    for number in numbers:
        task_id = f"{number:016d}"
        yield from (PRIORITY, task_id) if score else (task_id, payload_text(number - 1))


def main(count: int) -> None:
    """Fill, then drain; print how many were archived."""
    url = urlsplit(os.environ["QUEUE_RUNTIME_REDIS_URL"])
    line = Line(url.hostname or "127.0.0.1", url.port or 6379)
    fill(line, count)
    archived = Drain(line, Tally(Path(os.environ[FOLDER_VARIABLE]))).run()
    line.close()
    print(archived)
    if archived != count:
        sys.exit(f"{count} tasks, {archived} archived")


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Hears that a stream has a new entry, by a blocking read that takes nothing.

It reads the streams and not the group: an entry that a blocked process took while its slots are busy, or that has no
worker at all, would wait there for nobody.
"""

import asyncio
from collections.abc import Callable, Sequence

import anyio
from redis.exceptions import RedisError

from queue_runtime.errors import StoreUnavailable
from stores.redis_address import hang_up
from stores.redis_errors import translate
from stores.redis_link import Reply
from stores.streams_line import Line, LineDownError, is_refusal
from stores.streams_replies import Entries, read_entries, read_news

BLOCK_SECONDS = 5.0

_MARGIN = 2.0
"""Seconds beyond the block after which a silent server is not there any more."""

_DOWN_SECONDS = 0.05
"""Between two looks at a line that is down."""


class Bell:
    """Calls `ring` when there is a new entry. `block_seconds` is asked how long each round shall last."""

    def __init__(self, line: Line, queues: Sequence[str], *, block_seconds: Callable[[], float]) -> None:
        self._line = line
        self._queues = queues
        self.ring: Callable[[], None] = lambda: None
        self._block_seconds = block_seconds
        self._ends: dict[str, tuple[int, int]] = {}
        self._listened = False
        """whether the ends tell what is new, because we have listened before"""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen, once. A fault of our own in there is raised here."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="streams-bell")
        elif self._task.done():
            self._task.result()

    def added(self, ends: Entries, *, rings: bool = True) -> None:
        """We have added entries ourselves: queue and last entry of each stream. They are heard now and not again."""
        for queue, entry in ends:
            self._ends[queue] = max(entry, self._ends.get(queue, entry))
        if ends and rings:
            self.ring()

    async def _run(self) -> None:
        while True:
            if not self._line.up:
                await anyio.sleep(_DOWN_SECONDS)
                continue
            try:
                await self._listen()
            except LineDownError:
                self._listened = False

    async def _listen(self) -> None:
        """Rounds on one connection, until the line is down."""
        line = self._line
        try:
            connection = await line.link.connect("changed")
        except StoreUnavailable as error:
            line.hang_up(error.reason, refused=is_refusal(error))
            raise LineDownError from error
        era = line.link.era
        try:
            while line.up and era == line.link.era:
                await self._look()
                seconds = self._block_seconds()
                words: list[str | int] = ["XREAD", "COUNT", 1, "BLOCK", round(seconds * 1000), "STREAMS"]
                words += [line.keys + queue for queue in self._ends]
                words += [f"{milliseconds}-{number}" for milliseconds, number in self._ends.values()]
                async with asyncio.timeout(seconds + _MARGIN):
                    await connection.send_command(*words, check_health=False)
                    self._heard(await connection.read_response())
        except (RedisError, ValueError) as error:
            meaning = translate("changed", error) if isinstance(error, RedisError) else None
            line.hang_up(str(meaning or line.disorder(error)), refused=is_refusal(meaning or error))
            raise LineDownError from error
        except OSError as error:  # TimeoutError is one
            line.hang_up(str(error) or "a blocking read had no answer")
            raise LineDownError from error
        finally:
            await hang_up(connection)

    async def _look(self) -> None:
        """Where the streams end now. What came while nobody listened is heard here."""
        for queue, entry in await self._line.script("streams_ends", *self._queues, read=read_entries):
            known = self._ends.get(queue, (0, 0))
            self._ends[queue] = entry
            if self._listened and known != entry:
                self.ring()
        self._listened = True

    def _heard(self, reply: Reply) -> None:
        """The answer of the blocking read: None when its time was over."""
        for stream, entry in read_news(reply):
            queue = stream.decode().removeprefix(self._line.keys)
            if entry > self._ends.get(queue, (0, 0)):
                self._ends[queue] = entry
                self.ring()

    async def aclose(self) -> None:
        """Stop at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

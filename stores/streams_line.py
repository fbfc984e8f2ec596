"""The line to the server that carries the dispatch: every call is bounded, and the first error hangs up.

While the line is down the record works alone. It comes up again when the server has answered every PING for a while
and everything that waits has been delivered once.
"""

import asyncio
import math
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from secrets import token_hex
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace
from redis.exceptions import RedisError

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import DispatchState
from stores.luatext import load_script
from stores.redis_errors import Cut, Refused, error_code
from stores.redis_link import Link, Reply

ANSWER_SECONDS = 1.0
"""Longest time for one call."""

BACK_SECONDS = 3.0
"""For so long the server must have answered every PING before it is trusted again."""

_SECOND_LOOK = 0.2
_HELD_UP = 0.02
"""After a time-out the answer gets a little more, because a handler may have held the event loop while it came; and
again where even that was noticed too late."""

_PINGS = 12
"""So many PINGs in that time."""

_RELAPSE_SECONDS = 15.0
"""A server that refuses again so soon after it was trusted is watched twice as long the next time: somebody has to do
something first."""

_MOST_DOUBLINGS = 3

LEARN_SECONDS = 30.0
"""For so long what the record calls itself is believed: its database may have moved to another server."""

_TAKEN = "TAKEN "
"""What a script answers where the streams are those of another record (lua/fragments/streams.lua)."""

Argument = bytes | str | int
Answer = TypeVar("Answer")

_IN_SCRIPT = re.compile(
    r"^(ERR )?Error running script .*?\): |^-ERR |@?user_script: ?\d+: ?-?|,? script: ([0-9a-f]{40}|on @).*", re.DOTALL
)
"""What a server says around an error about the place in our script, which nobody can use; each in its own words."""

_FORBIDDEN = re.compile(r"unknown (Redis )?command|can't (run|access)|no permissions", re.IGNORECASE)

_log = structlog.get_logger().bind(source="dispatch")


class LineDownError(Exception):
    """The server did not answer, or is not asked at present. Nobody knows whether the last call acted."""


class Line:
    """Runs the scripts of one dispatch.

    `up`: workers lease through the streams. `open`: calls are made; before `up`, while what waits is delivered.
    """

    def __init__(
        self,
        link: Link,
        names: Callable[[], Awaitable[Collection[str]]],
        *,
        prefix: str,
        group: str,
        back_seconds: float = BACK_SECONDS,
    ) -> None:
        self.link = link
        self._ask_names = names
        self._names: str | None = None
        """the record's, for the scripts; None: it has not said them yet"""
        self._learn_at = 0.0
        self._learning = asyncio.Lock()
        self.keys = f"{{{prefix}}}:"
        """All keys begin so; the braces make them one slot of a cluster."""
        self.group = group
        self.consumer = f"{socket.gethostname()[:64]}:{os.getpid()}:{token_hex(4)}"
        self._back_seconds = back_seconds
        self._relapses = 0
        self._trusted_at = -math.inf
        self.state = DispatchState(mode="streams", since=int(time.time()))
        self.open = True
        self.deliver_all: Callable[[], Awaitable[object]] | None = None
        """called before the line comes up again"""
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def up(self) -> bool:
        """Whether workers lease through the streams."""
        return self.state.mode == "streams"

    async def script(
        self, name: str, *arguments: Argument, read: Callable[[Reply], Answer], seconds: float = ANSWER_SECONDS
    ) -> Answer:
        """Run a script and read its answer. Its first arguments are always the names of the record, and the group.

        Raises LineDownError, also where `read` raises ValueError: then Redis holds what we did not put there.
        """
        if self._names is None and self.open:
            try:
                await self.learn()
            except StoreUnavailable as error:
                raise self._failed(f"the record does not say which it is ({error})") from error
        return await self._bounded(name, lambda: self._run(name, arguments), seconds, read)

    async def learn(self) -> None:
        """Ask the record what it calls itself, if it was not asked lately. Raises StoreUnavailable."""
        async with self._learning:
            if time.monotonic() >= self._learn_at:
                self._names = " ".join(sorted(await self._ask_names()))
                self._learn_at = time.monotonic() + LEARN_SECONDS

    @property
    def began(self) -> bool:
        """Whether anything can have been asked of the server."""
        return self._names is not None

    async def command(self, name: str, *words: Argument, seconds: float = ANSWER_SECONDS) -> None:
        """Send one command. Raises LineDownError."""
        await self._bounded(name, lambda: self.link.call(name, name, *words), seconds, lambda _: None)

    async def _bounded(
        self,
        name: str,
        call: Callable[[], Coroutine[Any, Any, Reply]],
        seconds: float,
        read: Callable[[Reply], Answer],
    ) -> Answer:
        if not self.open:
            raise LineDownError(name)
        try:
            reply = await _in_time(call(), seconds)
        except TimeoutError as error:
            raise self._failed(f"no answer within {seconds:g} s") from error
        except StoreUnavailable as error:
            raise self._failed(error.reason or str(error), refused=is_refusal(error)) from error
        except RedisError as error:
            raise self._failed(self.disorder(error), refused=True) from error
        try:
            return read(reply)
        except ValueError as error:
            raise self._failed(self.disorder(error), refused=True) from error

    def disorder(self, error: Exception) -> str:
        """The reason where the server or its keys are not as they must be."""
        words = " ".join(_IN_SCRIPT.sub("", str(error)).split())[:200]
        if _TAKEN in words:
            return (
                f"{self.keys}* in Redis belongs to another database of record: give each installation its own"
                " QUEUE_RUNTIME_STREAMS_PREFIX; where that database is no more, this one follows within half a minute"
            )
        if _FORBIDDEN.search(words):
            return f"Redis lacks a command that the dispatch needs, or its user may not run it ({words})"
        return (
            f"Redis refuses, or holds under {self.keys}* what is not ours ({words}); such keys are dropped and made "
            f"anew when it is tried again; where that does not help, delete all keys of {self.keys}*"
        )

    def _failed(self, reason: str, *, refused: bool = False) -> LineDownError:
        self.hang_up(reason, refused=refused)
        return LineDownError(reason)

    async def _run(self, name: str, arguments: Sequence[Argument]) -> Reply:
        script = load_script(name)
        words = (1, self.keys, self._names or "", self.group, *arguments)
        try:
            return await self.link.call(name, "EVALSHA", script.sha, *words)
        except RedisError as error:
            if error_code(error) != "NOSCRIPT":
                raise
        return await self.link.call(name, "EVAL", script.text, *words)

    @property
    def _watch_seconds(self) -> float:
        return self._back_seconds * 2.0**self._relapses

    def hang_up(self, reason: str, *, refused: bool = False) -> None:
        """The server cannot be relied on: the record works alone from now on. `refused`: it is there, and says no."""
        self.open = False
        if self._closed:
            return
        if self.up:
            again = refused and time.monotonic() - self._trusted_at < _RELAPSE_SECONDS
            self._relapses = min(self._relapses + 1, _MOST_DOUBLINGS) if again else 0
            _log.warning("dispatch lost: tasks are leased from the record", reason=reason)
            self.state = DispatchState(mode="record", since=int(time.time()), reason=reason, falls=self.state.falls + 1)
        elif refused and reason != self.state.reason:  # what it fell for may be over
            _log.warning("dispatch stays away: tasks are leased from the record", reason=reason)
            self.state = replace(self.state, reason=reason)
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._come_back(), name="streams-probe")

    def check(self) -> None:
        """Raise a fault of our own that ended the way back."""
        if self._probe is not None and self._probe.done() and not self._probe.cancelled():
            self._probe.result()

    async def _come_back(self) -> None:
        await self.link.drop_all()
        seconds = self._watch_seconds
        interval = seconds / _PINGS
        good_since: float | None = None
        while True:
            began = time.monotonic()
            if not await self._answers():
                good_since = None
            elif good_since is None:
                good_since = began
            elif began - good_since >= seconds:
                if await self._deliver_all():
                    break
                good_since = None
            await asyncio.sleep(interval)
        self.state = DispatchState(mode="streams", since=int(time.time()), falls=self.state.falls)
        self._trusted_at = time.monotonic()
        _log.info("dispatch back: tasks are leased from the streams", falls=self.state.falls)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS / 2):
                await self.link.call("ping", "PING")
        except (StoreUnavailable, RedisError, TimeoutError):
            return False
        return True

    async def _deliver_all(self) -> bool:
        """Deliver what waits. New tasks are given to the streams from the beginning of this on, so none is missed."""
        self.open = True
        try:
            if self.deliver_all is not None:
                await self.deliver_all()
        except (LineDownError, StoreUnavailable):
            self.open = False
            return False
        return self.open

    async def aclose(self) -> None:
        """Hang up for good."""
        self.open, self._closed = False, True
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait([self._probe])
        await self.link.aclose()


def is_refusal(error: Exception) -> bool:
    """Whether the server is there and says no, until somebody does something."""
    return not isinstance(error, Refused | Cut)


async def _in_time(call: Coroutine[Any, Any, Reply], seconds: float) -> Reply:
    """The answer, or TimeoutError. Time for which somebody held the event loop does not count."""
    task = asyncio.create_task(call)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(5):
            began = time.monotonic()
            if task.done():
                break
            await asyncio.wait({task}, timeout=_SECOND_LOOK)
            if time.monotonic() - began < _SECOND_LOOK + _HELD_UP:
                break
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})

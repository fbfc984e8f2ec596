"""Runs the scripts of the store: loads them where they are missing, and tries again what may be tried again."""

import random
import time
from collections.abc import Callable

import anyio
from redis.exceptions import RedisError

from queue_runtime.errors import StoreUnavailable
from stores.luatext import load_script
from stores.redis_errors import Cut, Refused, error_code, translate_damage
from stores.redis_link import Link, Reply

TRY_SECONDS = 1.5
"""For so long a call is tried again inside; then its caller hears of it."""

_FIRST_WAIT = 0.01
_LONGEST_WAIT = 0.4

Argument = bytes | str | int


class Calls:
    """One queue on one server. Every script gets the beginning of all keys, and the time where a test sets it."""

    def __init__(self, link: Link, prefix: str, now: Callable[[], int] | None) -> None:
        self.link = link
        self.keys = f"{{{prefix}}}:"
        """All keys begin so; the braces make them one slot of a cluster."""
        self._now = now
        self.highest_id = 0
        """The highest id this process has seen. None below it is drawn, whatever the server may have forgotten."""

    def saw(self, task_id: int) -> None:
        """Remember an id."""
        self.highest_id = max(self.highest_id, task_id)

    async def script(self, name: str, *arguments: Argument, repeatable: bool = False) -> Reply:
        """Run a script; `repeatable` where running it twice does no harm and gives the same answer.

        A refusal is tried again for a short while. A lost reply is only where it is repeatable.
        """
        until = time.monotonic() + TRY_SECONDS
        wait = _FIRST_WAIT
        while True:
            try:
                return await self._run(name, arguments)
            except (Refused, Cut) as error:
                last = error
            if (isinstance(last, Cut) and not repeatable) or time.monotonic() + wait > until:
                raise StoreUnavailable(name, last.reason) from last
            await anyio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _LONGEST_WAIT)

    async def _run(self, name: str, arguments: tuple[Argument, ...]) -> Reply:
        script = load_script(name)
        now = "" if self._now is None else self._now()
        try:
            return await self.link.call(name, "EVALSHA", script.sha, 1, self.keys, now, *arguments)
        except RedisError as error:
            if error_code(error) != "NOSCRIPT":
                raise translate_damage(name, error) or error from error
        # Nothing ran. This runs the text, and leaves it in the server's cache for the next time.
        try:
            return await self.link.call(name, "EVAL", script.text, 1, self.keys, now, *arguments)
        except RedisError as error:
            raise translate_damage(name, error) or error from error

    async def command(self, operation: str, *words: Argument) -> Reply:
        """A plain command that only reads."""
        until = time.monotonic() + TRY_SECONDS
        while True:
            try:
                return await self.link.call(operation, *words)
            except (Refused, Cut) as error:
                if time.monotonic() + _LONGEST_WAIT > until:
                    raise StoreUnavailable(operation, error.reason) from error
            except RedisError as error:
                raise translate_damage(operation, error) or error from error
            await anyio.sleep(_LONGEST_WAIT * random.uniform(0.5, 1.0))

"""Standing orders of one opened store: what it waits for, and the tasks that messages have brought."""

import re
import secrets
from collections.abc import Callable, Collection, Sequence

from queue_runtime.task import U32, Task
from stores.redis_rows import APART, Body, held_task

TOKEN = 16
"""Digits of the token of an order: whoever cannot read the orders on the server cannot forge what fills them."""

_HEAD = re.compile(rb"([0-9a-f]{%d})(\d{10})(\d{10})" % TOKEN)
_FIXED = 17
"""Bytes of the shortest body."""

_MOST = 1000
"""Orders that are remembered at most; the oldest are forgotten first."""


class Orders:
    """A message that fits no order that stands is no more than noise: anybody may send one."""

    def __init__(self, keys: str) -> None:
        self.channel = f"{keys}hand:{secrets.token_hex(8)}"
        self._owners: dict[bytes, str] = {}
        """token -> owner, of orders that stand or may stand"""
        self._tokens: dict[str, bytes] = {}
        self._came: dict[str, Task] = {}
        self._ended: set[str] = set()
        self.listener: Callable[[str], None] | None = None

    def draw(self, owner: str) -> bytes:
        """The token of an order that may stand from now on."""
        token = secrets.token_hex(TOKEN // 2).encode()
        self._owners[token], self._tokens[owner] = owner, token
        if len(self._tokens) > _MOST:
            self.end([next(iter(self._tokens))])
        return token

    def end(self, owners: Collection[str]) -> None:
        """Nothing that comes for these any more is of use."""
        for owner in owners:
            token = self._tokens.pop(owner, None)
            if token is not None:
                self._owners.pop(token)
            self._came.pop(owner, None)

    def heard(self, message: bytes) -> None:
        """Keep the task that the message brings for an order that stands, if it does, and tell the listener."""
        if (head := _HEAD.match(message)) is None or (owner := self._owners.get(head[1])) is None:
            return
        task = _task(int(head[2]), int(head[3]), message[head.end() :], owner)
        if task is None or owner in self._came:
            return
        self._came[owner] = task
        if self.listener is not None:
            self.listener(owner)

    def take(self, owners: Collection[str]) -> list[Task] | None:
        """The tasks that came for these orders, which end; None unless one came for each, so that all is known here."""
        if not owners or not all(owner in self._came for owner in owners):
            return None
        tasks = [self._came[owner] for owner in owners]
        self.end(owners)
        self._ended.update(owners)
        return tasks

    @property
    def ended(self) -> list[str]:
        """Owners whose tasks came by message, of which the server still keeps a note."""
        return list(self._ended)

    def forgotten(self, owners: Sequence[str]) -> None:
        """The server keeps no note of these any more."""
        self._ended.difference_update(owners)


def _task(task_id: int, expires: int, body: bytes, owner: str) -> Task | None:
    """The task of a message; None where it is none."""
    if not 0 < task_id <= U32 or len(body) < _FIXED:
        return None
    parts = Body(body)
    if not parts.readable or not all(parts.lane) or parts.flags & APART or parts.head > len(body):
        return None
    try:
        text = body[parts.head :].decode()
    except UnicodeDecodeError:
        return None
    return held_task(task_id, parts, None, owner=owner, expires=expires, data=text)

"""Names under which our workers lease: a new one for each call, so that (id, owner) is a fence."""

import itertools
import os
import secrets
import socket

from queue_runtime.task import WORKER_PREFIX

HOST_CHARACTERS = 24


class Owners:
    """`qr:{8 hex of this process}:{sequence}:{pid}@{host}`, at most 64 characters, never the same twice."""

    def __init__(self, *, host: str | None = None) -> None:
        host = socket.gethostname() if host is None else host
        self._head = f"{WORKER_PREFIX}{secrets.token_hex(4)}:"
        self._tail = f":{os.getpid()}@{host[:HOST_CHARACTERS]}"
        self._sequence = itertools.count(1)

    def next(self) -> str:
        """The owner of one lease call."""
        return f"{self._head}{next(self._sequence)}{self._tail}"

"""What a handler under test is given: a context without a lease loop, and a hook that listens on the loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from msgspec import Struct

from queue_runtime.context import Context
from queue_runtime.task import NewTask, Task
from tests.listener import listening


class FakeRun:
    """Stands in for the lease loop's side of a run; remembers what was asked of it."""

    def __init__(self) -> None:
        self.followups: list[NewTask] | None = []
        self.deadline = float("inf")
        self.stopped = False
        self.renewals: list[int] = []
        self.worked_us: int | None = None

    async def renew(self, seconds: int) -> bool:
        self.renewals.append(seconds)
        return True


def context_for(task_class: str, *, failures: int = 0, run: FakeRun | None = None) -> Context:
    """A context of a task that has failed this often."""
    task = Task(
        id=7, task_class=task_class, data_id=7, priority=2000, date_created=1, date_modified=1,
        lease_owner="qr:test", lease_expires=100, failure_count=failures,
    )  # fmt: skip
    return Context(task, run or FakeRun())


class Request(Struct, frozen=True):
    """One request as the hook saw it; header names in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


class Hook:
    """A hook's server: answers every request with `reply` and keeps what it got. `reply` None: never answers."""

    def __init__(self) -> None:
        self.origin = ""
        self.requests: list[Request] = []
        self.reply: bytes | None = answer(200)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(Request(head[0], headers, body))
        if self.reply is None:
            await reader.read()  # until the client gives up
        else:
            writer.write(self.reply)


def answer(status: int, headers: str = "", body: bytes = b"") -> bytes:
    """An HTTP reply."""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@contextlib.asynccontextmanager
async def hook_server() -> AsyncIterator[Hook]:
    """A hook on a free port of the loopback interface."""
    hook = Hook()
    async with listening(hook._serve) as port:
        hook.origin = f"http://127.0.0.1:{port}"
        yield hook

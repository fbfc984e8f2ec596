"""A stub of Phorge on a real socket: Conduit's manners, `worker.execute` in both versions, and every way to go wrong.

A run goes on when its caller has hung up, as PHP's does.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from msgspec import Struct

from tests.listener import listening

TOKEN = "stub-token-of-the-service"
HOST = "phorge.test"


class Call(Struct, frozen=True):
    """One request as Phorge got it; header names in lower case."""

    line: str
    method: str
    headers: dict[str, str]
    fields: dict[str, list[str]]
    params: dict[str, Any]

    @property
    def phase(self) -> str:
        return str(self.params.get("phase", ""))


class Http(Struct, frozen=True):
    """A reply that is not Conduit's. `cut`: the connection ends before the body does. `stall`: it never ends."""

    status: int
    body: bytes = b""
    headers: tuple[str, ...] = ()
    cut: bool = False
    stall: bool = False


class Early(Struct, frozen=True):
    """A reply that is sent after `after` seconds while the work goes on for `seconds`, as behind a web server that has
    lost patience."""

    reply: Http
    after: float
    seconds: float


HANG_UP = Http(0)
"""The connection is closed without a reply."""


def page(status: int, title: str) -> Http:
    """An HTML page."""
    return Http(status, f"<html><head><title>{title}</title></head><body>{title}</body></html>".encode())


def error(code: str, info: str = "") -> Http:
    """One of Conduit's own errors, which come with status 200."""
    return Http(200, json.dumps({"result": None, "error_code": code, "error_info": info}).encode())


def result(value: object) -> Http:
    """A Conduit result."""
    return Http(200, json.dumps({"result": value, "error_code": None, "error_info": None}).encode())


SITE_NOT_FOUND = page(500, "Site Not Found")
SETUP_ERROR = page(500, "Setup Error")
NO_METHOD = error("ERR-CONDUIT-CALL", 'Conduit API method "worker.execute" does not exist.')
BAD_TOKEN = error("ERR-WORKER-AUTH", "A valid service token is required.")
FATAL = Http(500, b">>> UNRECOVERABLE FATAL ERROR <<<\n\nAllowed memory size exhausted")
PARSE_ERROR = Http(500, b"[Core Exception/Exception] ParseError: syntax error, unexpected token")
NO_FORM = Http(
    500, b">>> UNRECOVERABLE FATAL ERROR <<<\n\nNo POST data: normally it exceeds the 'post_max_size' setting in PHP"
)
PHP_CUT_OFF = page(502, "502 Bad Gateway")
NGINX_TIMEOUT = page(504, "504 Gateway Time-out")
EXIT = Http(200, b"")
HTTPS_ONLY = Http(302, b"", ("Location: https://phorge.test/api/worker.execute?secret=1",))

Work = Callable[[Call], Awaitable[dict[str, Any] | Http | Early]]
V0_PARAMS = {"taskID", "taskClass", "data"}


class StubPhp:
    """One Phorge. Tests set how it behaves, and read what it was asked and what it ran."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[Call] = []
        self.version = 1
        self.locks = False
        self.keeps = False
        """whether it says that it keeps answers for callers who have lost them"""
        self.facts: dict[str, Any] | None = None
        """what our extension tells beside what it can do"""
        self.guarded = True
        """whether it asks for the token"""
        self.broken: Http | None = None
        """what everything is answered with, instead of being looked at"""
        self.lease_durations: dict[str, int] = {}
        self.prepare: dict[str, dict[str, Any] | Http] = {}
        """answers to `prepare` by class, in place of `prepared`"""
        self.work: Work = succeed
        self.runs: list[int] = []
        """ids of tasks in the order in which PHP began to run them"""
        self.ended: list[int] = []
        self.running: Counter[int] = Counter()
        self.doubled: set[int] = set()
        """tasks of which two runs went on at one time"""
        self.asked: dict[int, list[float]] = {}
        """when each task was to be run, also where the answer was that it is busy"""
        self.busy = 0
        """how often that was the answer"""
        self.most_at_once = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def phases(self) -> list[str]:
        """The phases that were asked for, without the questions about capabilities."""
        return [call.phase or "plain" for call in self.calls if call.phase != "capabilities"]

    def probes(self) -> int:
        """How often it was asked what it can do."""
        return sum(call.phase == "capabilities" for call in self.calls)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["StubPhp"]:
        """Serve on a free port, or on the same one again."""
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        async with listening(self._serve, port=port) as port:
            self.url = f"http://127.0.0.1:{port}"
            try:
                yield self
            finally:
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        call = read_call(head[0], headers, body)
        self.calls.append(call)
        # as PHP does, it goes on when its caller is gone
        work = asyncio.create_task(self.answer(call))
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)
        reply = await work
        if reply.status == 0:
            writer.transport.abort()
            return
        length = len(reply.body) + (10 if reply.cut or reply.stall else 0)
        lines = [f"HTTP/1.1 {reply.status} X", f"Content-Length: {length}", "Set-Cookie: phsid=A%2F1", *reply.headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + reply.body)
        await writer.drain()
        if reply.stall:
            await reader.read()

    async def answer(self, call: Call) -> Http:
        """What is replied, after the work."""
        if self.broken is not None:
            return self.broken
        if call.method != "worker.execute":
            return result(f"{call.method} was called")
        if not call.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return error("ERR-CONDUIT-CORE", "Use form-encoded data to submit parameters to Conduit endpoints.")
        if self.version == 0:
            return await self._plain(call)
        return await self._phase(call)

    async def _plain(self, call: Call) -> Http:
        unknown = call.params.keys() - V0_PARAMS
        if unknown:
            names = ", ".join(f"'{name}'" for name in sorted(unknown))
            info = f'API Method "worker.execute" does not define these parameters: {names}.'
            return error("ERR-CONDUIT-CALL", info)
        return await self._run(call)

    async def _phase(self, call: Call) -> Http:
        params = call.params
        if self.guarded and call.headers.get("x-service-token") != TOKEN:
            return BAD_TOKEN
        if call.phase == "capabilities" and params["executionVersion"] == 1 and params["taskClass"] == "":
            told = {"keepsAnswers": True} if self.keeps else {}
            return self._result({"result": "capabilities", **told, **({"facts": self.facts} if self.facts else {})})
        whole = all(type(params.get(name)) is int for name in ("taskID", "failureCount", "priority", "leaseExpires"))
        if not whole or params.get("executionVersion") != 1 or params["taskID"] <= 0 or not params["leaseOwner"]:
            return error("ERR-WORKER-CONTEXT", "A valid versioned execution context is required.")
        if call.phase == "prepare":
            task_class = params["taskClass"]
            answer = self.prepare.get(task_class)
            if isinstance(answer, Http):
                return answer
            usual = {"result": "prepared", "leaseDuration": self.lease_durations.get(task_class)}
            return self._result(answer or usual)
        return await self._run(call)

    async def _run(self, call: Call) -> Http:
        task_id = int(call.params["taskID"])
        self.asked.setdefault(task_id, []).append(time.monotonic())
        if self.locks and self.running[task_id]:
            self.busy += 1
            return self._result({"result": "busy"})
        if self.running[task_id]:
            self.doubled.add(task_id)
        self.running[task_id] += 1
        self.runs.append(task_id)
        self.most_at_once = max(self.most_at_once, self.running.total())
        try:
            answer = await self.work(call)
            if isinstance(answer, Early):
                await asyncio.sleep(answer.after)
                self._go_on(task_id, answer.seconds - answer.after)
                return answer.reply
        finally:
            self.running[task_id] -= 1
        self.ended.append(task_id)
        if isinstance(answer, Http):
            return answer
        return self._result(answer) if self.version else result(answer)

    def _go_on(self, task_id: int, seconds: float) -> None:
        self.running[task_id] += 1

        async def work() -> None:
            try:
                await asyncio.sleep(seconds)
                self.ended.append(task_id)
            finally:
                self.running[task_id] -= 1

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _result(self, answer: dict[str, Any]) -> Http:
        return result({"executionVersion": 1, **({"taskLock": True} if self.locks else {}), **answer})


def read_call(line: str, headers: dict[str, str], body: bytes) -> Call:
    """What a request asks for; the form is read as PHP reads it."""
    fields = parse_qs(body.decode(), keep_blank_values=True)
    method = line.split(" ")[1].partition("?")[0].removeprefix("/api/")
    params = json.loads(fields["params"][0]) if "params" in fields else {}
    params.pop("__conduit__", None)
    return Call(line, method, headers, fields, params)


async def succeed(call: Call) -> dict[str, Any]:
    """A worker that does nothing, quickly."""
    return {"result": "success", "duration": 46, "followups": []}


def answers(**answer: object) -> Work:
    """A worker that ends so."""

    async def work(call: Call) -> dict[str, Any]:
        return dict(answer)

    return work


def replies(reply: Http) -> Work:
    """A worker whose reply becomes this one on the way."""

    async def work(call: Call) -> Http:
        return reply

    return work

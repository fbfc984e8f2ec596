"""A Starlette app that answers a constant, on our server: `python -m benchmarks.constant_app SERVER HOST:PORT`.

What the enqueue route costs beyond this is ours: parsing, checking and storing a task.
"""

import asyncio
import signal
import sys
from typing import Literal, cast

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queue_runtime.lifecycle import Lifecycle
from queue_runtime.server import Server

ANSWER = b'{"data":{"id":1}}'


async def answer(request: Request) -> Response:
    """Read the request, answer always the same."""
    await request.body()
    return Response(ANSWER, media_type="application/json")


async def main(kind: Literal["hypercorn", "uvicorn"], address: str) -> None:
    """Serve until SIGTERM."""
    lifecycle = Lifecycle()
    app = Starlette(routes=[Route("/api/queue/enqueue", answer, methods=["POST"])])
    server = Server(app, listen=[address], kind=kind, lifecycle=lifecycle)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                lifecycle.stopping.set()
                lifecycle.closing.set()
                break


if __name__ == "__main__":
    asyncio.run(main(cast(Literal["hypercorn", "uvicorn"], sys.argv[1]), sys.argv[2]))

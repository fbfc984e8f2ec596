"""Clients that hang up in the middle of a request, on every store and behind both servers."""

import asyncio
from contextlib import AsyncExitStack
from types import CoroutineType

import pytest
from structlog.testing import capture_logs

from tests.http.house import Running, until
from tests.http.raw import connect, get, post

pytestmark = pytest.mark.usefixtures("no_traceback")

ENQUEUE = post("/api/queue/enqueue", {"taskClass": "Work"})
LEASE = post("/api/queue/lease", {"limit": 5})
LONG_POLL = post("/api/queue/lease", {"limit": 5, "waitSeconds": 30})
UNFINISHED = ENQUEUE[:-4]


@pytest.mark.parametrize("count", [50, pytest.param(250, marks=pytest.mark.long)])
async def test_clients_that_reset_leave_nothing_behind(running: Running, count: int) -> None:
    """R123: and that is nobody's error, neither in the log nor in the metrics."""
    house = running.house
    await house.post("enqueue-batch", {"tasks": [{"taskClass": "Work"}] * 50})
    tasks_before = http_tasks()
    with capture_logs() as lines:
        for request in (ENQUEUE, LEASE, LONG_POLL, UNFINISHED):
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(connect(running)) for _ in range(count)]
                for client in clients:
                    await client.send(request)
                    client.reset()
        await until(lambda: http_tasks() <= tasks_before)
    assert {line["log_level"] for line in lines} <= {"info", "debug"}
    assert 'status="5' not in (await house.client.get("/metrics")).text
    stats = (await house.get("stats")).data
    assert stats["leasedCount"] == 0
    assert 50 <= stats["activeCount"] <= 50 + count
    async with connect(running) as client:
        assert (await client.ask(ENQUEUE)).status == 200
        assert len((await client.ask(LEASE)).json["data"]) == 5


async def test_clients_that_close_a_used_connection_leave_nothing_behind(running: Running) -> None:
    tasks_before = http_tasks()
    for _ in range(50):
        async with connect(running) as client:
            assert (await client.ask(get("/healthz"))).status == 200
    await until(lambda: http_tasks() <= tasks_before)


async def test_a_client_that_closes_its_half_leaves_nothing_behind(running: Running) -> None:
    tasks_before = http_tasks()
    async with connect(running) as client:
        await client.send(ENQUEUE)
        client.end_sending()
        await client.ended()  # hypercorn answers first, uvicorn does not
    await until(lambda: http_tasks() <= tasks_before)
    async with connect(running) as client:
        assert (await client.ask(ENQUEUE)).status == 200


def http_tasks() -> int:
    """Tasks of connections and requests, in the library or in the faces."""
    places = ("hypercorn", "uvicorn", "queue_runtime/api", "queue_runtime/engine", "queue_runtime/server")
    files = [
        coro.cr_code.co_filename for task in asyncio.all_tasks() if isinstance(coro := task.get_coro(), CoroutineType)
    ]
    return len([file for file in files if any(place in file for place in places)])

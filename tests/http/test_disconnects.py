"""Clients that hang up in the middle of a request, on every store and behind both servers."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.http.house import Running, until
from tests.http.raw import connect, get, post

pytestmark = pytest.mark.usefixtures("no_traceback")

ENQUEUE = post("/api/queue/enqueue", {"taskClass": "Work"})
LEASE = post("/api/queue/lease", {"limit": 5})
LONG_POLL = post("/api/queue/lease", {"limit": 5, "waitSeconds": 30})
UNFINISHED = ENQUEUE[:-4]


async def test_two_hundred_clients_that_reset_leave_nothing_behind(running: Running) -> None:
    house = running.house
    await house.post("enqueue-batch", {"tasks": [{"taskClass": "Work"}] * 50})
    tasks_before = len(asyncio.all_tasks())
    for request in (ENQUEUE, LEASE, LONG_POLL, UNFINISHED):
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(running)) for _ in range(50)]
            for client in clients:
                await client.send(request)
                client.reset()
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
    stats = (await house.get("stats")).data
    assert stats["leasedCount"] == 0
    assert 50 <= stats["activeCount"] <= 100
    async with connect(running) as client:
        assert (await client.ask(ENQUEUE)).status == 200
        assert len((await client.ask(LEASE)).json["data"]) == 5


async def test_clients_that_close_a_used_connection_leave_nothing_behind(running: Running) -> None:
    tasks_before = len(asyncio.all_tasks())
    for _ in range(50):
        async with connect(running) as client:
            assert (await client.ask(get("/healthz"))).status == 200
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before)


async def test_a_client_that_closes_its_half_after_the_request_is_answered(running: Running) -> None:
    tasks_before = len(asyncio.all_tasks())
    async with connect(running) as client:
        await client.send(ENQUEUE)
        client.end_sending()
        assert (await client.reply()).status == 200
        assert await client.ended() == b""
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before)

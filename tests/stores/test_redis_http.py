"""The HTTP side over a Redis store with fewer connections than callers."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from queue_runtime.store import StoreOptions
from stores.redis import open_store
from tests.http.house import Answer, House, open_house, receipt_of
from tests.servers import RedisServer
from tests.stores.redis_house import assert_whole, client_of

CONNECTIONS = 5
CALLERS = 200


@pytest.fixture
async def house(redis_server: RedisServer) -> AsyncIterator[House]:
    """The app over an emptied server."""
    with client_of(redis_server) as client:
        client.flushall()
    async with (
        open_store(redis_server.url, StoreOptions(), connections=CONNECTIONS) as store,
        open_house(store) as house,
    ):
        yield house
        await assert_whole(store)


async def test_two_hundred_requests_at_once_of_every_kind_share_five_connections(
    redis_server: RedisServer, house: House
) -> None:
    """R046: they wait for each other; none is answered with an error of the server."""
    dice = random.Random(7)
    ids = [await house.enqueue(data="x" * 10) for _ in range(20)]
    held = await house.lease(10)
    others = [task_id for task_id in ids if task_id != held[0]["id"]]

    def some() -> dict[str, Any]:
        return {"taskIDs": dice.sample(others, 2)}

    requests: dict[str, Callable[[], Awaitable[Answer]]] = {
        "enqueue": lambda: house.post("enqueue", {"taskClass": "Work"}),
        "enqueue-batch": lambda: house.post("enqueue-batch", {"tasks": [{"taskClass": "Work"}] * 3}),
        "enqueue-event": lambda: house.post(
            "enqueue-event", {"eventID": f"e{dice.randrange(5)}", "task": {"taskClass": "Work"}}
        ),
        "lease": lambda: house.post("lease", {"limit": 2}, headers={"X-Lease-Owner": f"host:{dice.random()}"}),
        "renew": lambda: house.post("renew", receipt_of(held[0]) | {"duration": 60}),
        "complete": lambda: house.post("complete", receipt_of(dice.choice(held[1:]))),
        "fail": lambda: house.post("fail", receipt_of(dice.choice(held[1:]))),
        "yield": lambda: house.post("yield", receipt_of(dice.choice(held[1:]))),
        "cancel": lambda: house.post("cancel", {"taskID": dice.choice(others)}),
        "awaken": lambda: house.post("awaken", some()),
        "free": lambda: house.post("free", some()),
        "priority": lambda: house.post("priority", some() | {"priority": 5}),
        "delay": lambda: house.post("delay", some() | {"delayUntil": 1}),
        "retry": lambda: house.post("retry", some()),
        "pause": lambda: house.post("pause", {"queue": "other"}),
        "resume": lambda: house.post("resume", {"queue": "other"}),
        "stats": lambda: house.get("stats"),
        "tasks": lambda: house.get("tasks"),
        "paused": lambda: house.get("paused"),
        "operations": lambda: house.get("operations"),
        "/readyz": lambda: house.get("/readyz"),
        "/metrics": lambda: house.get("/metrics"),
    }
    names = ([*requests] * (CALLERS // len(requests) + 1))[:CALLERS]
    dice.shuffle(names)
    with client_of(redis_server) as client:
        before = client.info("stats")["total_connections_received"]
        answers = await asyncio.gather(*[requests[name]() for name in names])
        opened = client.info("stats")["total_connections_received"] - before
    failed = {(name, one.status) for name, one in zip(names, answers, strict=True) if one.status >= 500}
    assert failed == set()
    assert opened <= CONNECTIONS
    good = Counter(name for name, one in zip(names, answers, strict=True) if one.status == 200)
    assert good.keys() >= requests.keys() - {"complete", "fail", "yield"}
    assert good["complete"] + good["fail"] + good["yield"] > 0

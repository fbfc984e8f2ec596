"""Requests for rows that somebody else keeps locked: what they are told, and what becomes of them without a caller."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from queue_runtime import store_wire as wire
from queue_runtime.api import operators, request
from queue_runtime.server import Kind
from queue_runtime.store import Store
from queue_runtime.task import Settled, Settlement, Verdict
from tests.faulty_store import FaultyStore, Reply
from tests.http.house import OWNER, open_house, receipt_of, serve_with, until
from tests.http.raw import connect, post
from tests.runtime.harness import open_reference

VERSION = f"{wire.VERSION_HEADER}: {wire.VERSION}"
BODY = {"taskIDs": [1], "taskID": 1, "priority": 5, "delayUntil": 4_000_000_000}
CHANGES = ["cancel", "awaken", "free", "priority", "delay", "retry"]
STORE_CALLS = {
    route: msgspec.json.encode(call)
    for route, call in {
        "cancel": wire.TasksCall([1]),
        "awaken": wire.TasksCall([1]),
        "free": wire.TasksCall([1]),
        "priority": wire.PriorityCall([1], 5),
        "delay": wire.DelayCall([1], 4_000_000_000),
        "retry": wire.RetryCall([1], repeat=False),
    }.items()
}


class LockedStore(FaultyStore):
    """Somebody else has these rows locked: outcomes are BUSY, and changes wait until the rows are free."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.locked: set[int] = set()
        self.free_again = asyncio.Event()
        self.waiting = 0
        self.done = 0

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        free = [one for one in settlements if one.task_id not in self.locked]
        answers = iter(await super().settle(free))
        return [Settled(Verdict.BUSY) if one.task_id in self.locked else next(answers) for one in settlements]

    async def _call(self, method: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        if method in CHANGES:
            self.waiting += 1
            try:
                await self.free_again.wait()
                answer = await super()._call(method, call)
            finally:
                self.waiting -= 1
            self.done += 1
            return answer
        return await super()._call(method, call)


async def test_a_batch_tells_which_of_its_rows_stay_locked_and_what_became_of_the_others() -> None:
    """Without it the others would be written, and nobody told: sent again they are lost."""
    store = LockedStore(open_reference())
    async with open_house(store, request_seconds=operators.IN_TIME + 0.2) as house:
        await house.post("enqueue-batch", {"tasks": [{"taskClass": "A"}] * 3})
        held = (await house.post("lease", {"limit": 3}, headers=OWNER)).data
        store.locked = {held[1]["id"]}
        body = [{**receipt_of(task), "outcome": "retry", "retryWait": 60} for task in held]
        answer = await house.post("settle-batch", {"settlements": body})
        assert [one["verdict"] for one in answer.data] == ["settled", "busy", "settled"]
        again = await house.post("settle-batch", {"settlements": body[1:2]})
        assert [one["verdict"] for one in again.data] == ["busy"]
        store.locked.clear()
        again = await house.post("settle-batch", {"settlements": body[1:2]})
        assert [one["verdict"] for one in again.data] == ["settled"]


@pytest.mark.parametrize("route", CHANGES)
@pytest.mark.parametrize("at", ["/api/queue/", wire.PATH])
async def test_a_change_that_waits_ends_when_its_caller_has_gone(
    kind: Kind, route: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "LONG_SECONDS", 0.02)
    store = LockedStore(open_reference())
    asked = post(at + route, BODY if at != wire.PATH else STORE_CALLS[route], VERSION)
    async with serve_with(store, kind) as running:
        async with connect(running) as client:
            await client.send(asked)
            await until(lambda: store.waiting == 1)
        await until(lambda: store.waiting == 0)
        assert store.done == 0
        async with connect(running) as client:
            await client.send(asked)
            await until(lambda: store.waiting == 1)
            store.free_again.set()
            assert (await client.reply()).status in {200, 404}


async def test_a_short_change_is_brought_to_its_end_whether_its_caller_is_there_or_not(kind: Kind) -> None:
    store = LockedStore(open_reference())
    async with serve_with(store, kind) as running:
        async with connect(running) as client:
            await client.send(post("/api/queue/awaken", BODY))
            await until(lambda: store.waiting == 1)
        store.free_again.set()
        await until(lambda: store.done == 1)

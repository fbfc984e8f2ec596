"""Leasing over HTTP: who holds, what is taken, long polls, and callers that hang up."""

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any

import orjson
import pytest

from queue_runtime.api.lease import Gate
from queue_runtime.doorbell import Doorbell
from queue_runtime.store import Store
from queue_runtime.task import MAX_LEASE_BYTES, Task
from tests.backends import Opened
from tests.clock import START, Clock
from tests.faulty_store import FaultyStore
from tests.http.house import OWNER, House, open_house, until


async def test_a_lease_holds_the_task_for_the_contracts_time(house: House) -> None:
    task = await house.leased(data="[1]")
    assert task["leaseOwner"] == OWNER["X-Lease-Owner"]
    assert task["leaseExpires"] == START + 7200
    assert (task["data"], task["failureCount"]) == ("[1]", 0)


async def test_the_time_of_a_lease_is_a_setting_and_a_wish(opened: Opened) -> None:
    async with open_house(opened.store, http_lease_seconds=90) as house:
        assert (await house.leased("A"))["leaseExpires"] == START + 90
        await house.enqueue("B")
        (task,) = await house.lease(duration=604800)
        assert task["leaseExpires"] == START + 604800


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"duration": 0}, "duration"),
        ({"duration": -1}, "duration"),
        ({"duration": 604801}, "duration"),
        ({"waitSeconds": -1}, "waitSeconds"),
        ({"waitSeconds": 31}, "waitSeconds"),
        ({"taskClasses": ["x"] * 1001}, "taskClasses"),
        ({"queues": ["x"] * 1001}, "queues"),
    ],
)
async def test_a_wish_outside_its_bounds_is_refused(house: House, body: dict[str, object], names: str) -> None:
    await house.enqueue()
    answer = await house.post("lease", body, headers=OWNER)
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")
    assert (await house.get("stats")).data["leasedCount"] == 0


@pytest.mark.parametrize(("limit", "found"), [(None, 1), (0, 1), (-5, 1), (3, 3), (10**9, 1000)])
async def test_a_limit_is_lowered_and_never_refused(house: House, limit: int | None, found: int) -> None:
    for _ in range(2):
        await house.post("enqueue-batch", {"tasks": [{"taskClass": "A"}] * 600})
    assert len((await house.post("lease", {"limit": limit})).data) == found


async def test_an_owner_is_stored_and_answered_as_it_was_sent(house: House) -> None:
    for owner in ("a", "x" * 64, "caf\u00e9:1:\u4e16", "a b", "qr", "((half"):
        await house.enqueue()
        (task,) = (await house.post("lease", {}, headers={"X-Lease-Owner": owner.encode()})).data
        assert task["leaseOwner"] == owner


@pytest.mark.parametrize("headers", [{}, {"X-Lease-Owner": ""}])
async def test_without_an_owner_the_callers_address_stands_in(house: House, headers: dict[str, str]) -> None:
    await house.enqueue()
    (task,) = (await house.post("lease", {}, headers=headers)).data
    assert task["leaseOwner"] == "127.0.0.1:gorge-taskqueue"


@pytest.mark.parametrize(
    "owner",
    [b"x" * 65, b"(yield)", b"(anything)", b"()", b"qr:1:2:3@host", b"gorge-completion-pending", b"\xff"],
)
async def test_a_name_that_cannot_hold_a_lease_is_refused(house: House, owner: bytes) -> None:
    await house.enqueue()
    answer = await house.post("lease", {}, headers={"X-Lease-Owner": owner})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith("X-Lease-Owner: ")
    assert (await house.get("stats")).data["leasedCount"] == 0


async def test_calls_under_one_name_get_different_tasks(house: House) -> None:
    for _ in range(5):
        await house.enqueue()
    found = [await house.lease() for _ in range(3)]
    found += await asyncio.gather(house.lease(), house.lease(), house.lease())
    assert sorted(task["id"] for tasks in found for task in tasks) == [1, 2, 3, 4, 5]


async def test_the_reply_lists_phase_by_phase_and_each_by_priority(house: House, clock: Clock) -> None:
    due = [await house.enqueue(delayUntil=START - 5, priority=priority) for priority in (3, 1)]
    fresh = [await house.enqueue(priority=priority) for priority in (9, 8)]
    assert [task["id"] for task in await house.lease(4)] == [*reversed(fresh), *reversed(due)]


async def test_filters_narrow_before_anything_is_taken(house: House) -> None:
    a, b, high = await house.enqueue("A"), await house.enqueue("B"), await house.enqueue("A", queue="high")
    assert await house.lease(9, taskClasses=["C"]) == []
    assert [task["id"] for task in await house.lease(9, taskClasses=["B"])] == [b]
    assert [task["id"] for task in await house.lease(9, queues=["high"], taskClasses=["A", "B"])] == [high]
    assert [task["id"] for task in await house.lease(9, taskClasses=[], queues=None)] == [a]


async def test_a_long_poll_is_answered_when_work_arrives(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    async with open_house(store) as house:
        poll = asyncio.create_task(house.lease(waitSeconds=30))
        await until(lambda: store.calls["lease"] >= 1)
        task_id = await house.enqueue()
        async with asyncio.timeout(5):
            assert [task["id"] for task in await poll] == [task_id]


async def test_a_long_poll_ends_empty_when_its_time_is_over(house: House) -> None:
    began = asyncio.get_running_loop().time()
    assert await house.lease(waitSeconds=1) == []
    assert 0.9 < asyncio.get_running_loop().time() - began < 5


class CountingStore(FaultyStore):
    """Counts leases under way, and holds them while `gate` is closed."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.gate = asyncio.Event()
        self.gate.set()

    async def lease(self, *args: Any, **named: Any) -> list[Task]:
        tasks = await super().lease(*args, **named)
        await self.gate.wait()
        return tasks


async def test_one_task_sends_one_waiting_caller_to_the_store_and_not_all(opened: Opened) -> None:
    store = CountingStore(opened.store)
    async with open_house(store) as house:
        polls = [asyncio.create_task(house.lease(waitSeconds=30, taskClasses=["A"])) for _ in range(50)]
        await until(lambda: store.calls["lease"] == 50)
        await house.enqueue("A")
        done, waiting = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        assert len(done) == 1
        assert len(done.pop().result()) == 1
        for _ in range(2000):
            await asyncio.sleep(0)  # turns of the loop for the others to look, if they would
        assert store.calls["lease"] <= 50 + 10
        house.lifecycle.stopping.set()
        assert [tasks for poll in waiting for tasks in await poll] == []


@pytest.mark.parametrize("letter", ["x", "\N{PEACH}"])
async def test_a_reply_that_was_cut_at_its_size_is_no_sign_that_nothing_is_left(letter: str) -> None:
    """A store answers with fewer tasks than asked for where their data are large; the next caller must look."""

    def task(size: int) -> Task:
        data = letter * (size // len(letter.encode()))
        return Task(id=1, task_class="A", data_id=1, priority=0, date_created=0, date_modified=0, data=data)

    for found, looks in (([task(MAX_LEASE_BYTES // 4)] * 3, 2), ([task(1000)] * 3, 1), ([], 1)):
        gate, looked = Gate(Doorbell()), 0

        async def take(found: list[Task] = found) -> list[Task]:
            nonlocal looked
            looked += 1
            return found

        assert await gate.look(take, 20) == found
        await gate.look(take, 20)
        assert looked == looks


async def test_while_stopping_nothing_is_leased_and_long_polls_end(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    async with open_house(store) as house:
        poll = asyncio.create_task(house.lease(waitSeconds=30))
        await until(lambda: store.calls["lease"] >= 1)
        house.lifecycle.stopping.set()
        async with asyncio.timeout(5):
            assert await poll == []
        before = store.calls["lease"]
        await house.enqueue()
        assert await house.lease() == []
        assert store.calls["lease"] == before


class Caller:
    """One request by hand, whose client may hang up at any moment."""

    def __init__(self, house: House, body: object) -> None:
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._events.put_nowait({"type": "http.request", "body": orjson.dumps(body), "more_body": False})
        self.sent: list[MutableMapping[str, Any]] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/queue/lease",
            "query_string": b"",
            "http_version": "1.1",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"9")],
            "client": ("10.0.0.9", 1),
        }
        self.request = asyncio.create_task(self._run(house, scope))

    def hang_up(self) -> None:
        self._events.put_nowait({"type": "http.disconnect"})

    async def _run(self, house: House, scope: dict[str, Any]) -> None:
        async def send(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        await house.app(scope, self._events.get, send)


def _free(tasks: Sequence[dict[str, Any]]) -> bool:
    return all("leaseOwner" not in task and "leaseExpires" not in task for task in tasks)


async def test_a_caller_that_has_gone_before_the_lease_gets_none(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    async with open_house(store) as house:
        await house.enqueue()
        caller = Caller(house, {"limit": 1})
        caller.hang_up()
        await caller.request
        assert caller.sent == []
        assert store.calls["lease"] == 0


async def test_a_caller_that_goes_during_the_lease_gives_its_tasks_back(opened: Opened) -> None:
    store = CountingStore(opened.store)
    async with open_house(store) as house:
        for _ in range(3):
            await house.enqueue()
        store.gate.clear()
        caller = Caller(house, {"limit": 3})
        await until(lambda: store.calls["lease"] == 1)
        caller.hang_up()
        store.gate.set()
        await caller.request
        assert caller.sent == []
        tasks = (await house.get("tasks")).data
        assert len(tasks) == 3
        assert _free(tasks)


async def test_a_long_poll_whose_caller_has_gone_takes_nothing(opened: Opened) -> None:
    store = CountingStore(opened.store)
    async with open_house(store) as house:
        caller = Caller(house, {"limit": 1, "waitSeconds": 30})
        await until(lambda: store.calls["lease"] >= 1)
        caller.hang_up()
        async with asyncio.timeout(5):
            await caller.request
        before = store.calls["lease"]
        await house.enqueue()
        assert _free((await house.get("tasks")).data)
        assert store.calls["lease"] == before


async def test_a_lease_that_comes_too_late_gives_its_tasks_back(opened: Opened) -> None:
    store = CountingStore(opened.store)
    async with open_house(store, request_seconds=0.05) as house:
        await house.enqueue()
        store.gate.clear()
        assert (await house.post("lease", {})).error == (503, "ERR_INTERNAL")
        store.gate.set()
        async with asyncio.timeout(5):
            while not _free((await house.get("tasks")).data):  # noqa: ASYNC110  another request is what is waited for
                await asyncio.sleep(0.01)


async def test_an_outage_ends_a_long_poll_with_503(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    async with open_house(store) as house:
        store.refuse("lease")
        assert (await house.post("lease", {"waitSeconds": 5})).error == (503, "ERR_INTERNAL")

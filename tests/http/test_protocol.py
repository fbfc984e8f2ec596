"""Execution protocol 1: receipts fence, replays are told apart, events happen once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from queue_runtime.task import QueueStats
from tests.backends import Opened
from tests.clock import START, Clock
from tests.faulty_store import FaultyStore
from tests.http.house import House, open_house, receipt_of

FENCED = ["renew", "finalize", "resolve"]
MORE: dict[str, dict[str, object]] = {
    "renew": {"duration": 60},
    "finalize": {"duration": 5},
    "resolve": {"outcome": "retry"},
}


async def test_meta_says_what_the_workers_look_for(house: House) -> None:
    assert (await house.get("meta")).data == {"executionVersion": 1, "leaseOutcomes": True}


@pytest.mark.parametrize("path", FENCED)
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"taskID": None}, "taskID"),
        ({"taskID": 0}, "taskID"),
        ({"taskID": -4}, "taskID"),
        ({"leaseOwner": None}, "leaseOwner"),
        ({"leaseOwner": ""}, "leaseOwner"),
        ({"leaseOwner": "x" * 65}, "leaseOwner"),
        ({"leaseExpires": None}, "leaseExpires"),
        ({"leaseExpires": 0}, "leaseExpires"),
        ({"leaseExpires": -1}, "leaseExpires"),
    ],
)
async def test_a_receipt_is_whole_or_refused(house: House, path: str, change: dict[str, object], names: str) -> None:
    task = await house.leased()
    answer = await house.post(path, {**receipt_of(task), **MORE[path], **change})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")


@pytest.mark.parametrize("path", FENCED)
@pytest.mark.parametrize(
    "change",
    [
        {"taskID": 99},
        {"taskID": 2**63 - 1},
        {"leaseOwner": "other"},
        {"leaseOwner": "(yield)"},
        {"leaseExpires": START + 7201},
        {"leaseExpires": 2**63 - 1},
    ],
)
async def test_a_receipt_that_does_not_fit_the_row_changes_nothing(
    house: House, path: str, change: dict[str, object]
) -> None:
    task = await house.leased()
    answer = await house.post(path, {**receipt_of(task), **MORE[path], **change})
    assert answer.error == (409, "ERR_LEASE_CONFLICT")
    (row,) = (await house.get("tasks")).data
    assert row == {key: value for key, value in task.items() if key != "data"}


@pytest.mark.parametrize("path", FENCED)
async def test_a_receipt_ends_with_its_last_second(house: House, clock: Clock, path: str) -> None:
    task = await house.leased()
    clock.advance(7199)
    clock.advance(1)
    answer = await house.post(path, {**receipt_of(task), **MORE[path]})
    assert answer.error == (409, "ERR_LEASE_CONFLICT")


@pytest.mark.parametrize(
    ("path", "more", "names"),
    [
        ("renew", {}, "duration"),
        ("renew", {"duration": 0}, "duration"),
        ("renew", {"duration": 604801}, "duration"),
        ("finalize", {"duration": -1}, "duration"),
        ("finalize", {"followups": [{"taskClass": "A"}, {}]}, "followups[1].taskClass"),
        ("finalize", {"followups": [{"taskClass": "A", "priority": -1}]}, "followups[0].priority"),
        ("finalize", {"followups": [{"taskClass": "A"}] * 1001}, "followups"),
        ("resolve", {}, "outcome"),
        ("resolve", {"outcome": "success"}, "outcome"),
        ("resolve", {"outcome": "complete"}, "outcome"),
        ("resolve", {"outcome": "retry", "retryWait": -1}, "retryWait"),
        ("resolve", {"outcome": "retry", "retryWait": 604801}, "retryWait"),
        ("resolve", {"outcome": "yield", "duration": -1}, "duration"),
        ("resolve", {"outcome": "yield", "duration": 604801}, "duration"),
    ],
)
@pytest.mark.parametrize("held", [True, False])
async def test_a_bad_body_is_400_before_a_bad_receipt_is_409(
    house: House, path: str, more: dict[str, object], names: str, held: bool
) -> None:
    task = await house.leased()
    receipt = receipt_of(task) if held else {**receipt_of(task), "leaseOwner": "other"}
    answer = await house.post(path, {**receipt, **more})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")
    assert (await house.get("stats")).data["activeCount"] == 1


async def test_renew_moves_the_expiry_on_and_never_back(house: House, clock: Clock) -> None:
    task = await house.leased(data="x")
    clock.advance(100)
    same = (await house.post("renew", {**receipt_of(task), "duration": 60})).data
    assert same == {key: value for key, value in task.items() if key != "data"}
    later = (await house.post("renew", {**receipt_of(task), "duration": 604800})).data
    assert later["leaseExpires"] == START + 100 + 604800
    assert later["leaseOwner"] == task["leaseOwner"]
    assert (await house.post("renew", {**receipt_of(task), "duration": 60})).error == (409, "ERR_LEASE_CONFLICT")
    assert (await house.post("finalize", receipt_of(later))).data == {"status": "finalized"}


async def test_finalize_archives_and_creates_the_followups_in_one_step(house: House) -> None:
    task = await house.leased(priority=1234)
    followups = [
        {"taskClass": "Child", "data": "[]", "objectPHID": "PHID-1"},
        {"taskClass": "Child", "priority": 0, "delayUntil": START + 50},
        {"taskClass": "Child", "priority": None, "containerPHID": "PHID-2"},
    ]
    answer = await house.post("finalize", {**receipt_of(task), "duration": 77, "followups": followups})
    assert answer.data == {"status": "finalized"}
    archived = (await house.get(f"archive/{task['id']}")).data
    assert (archived["result"], archived["duration"]) == (0, 77)
    assert receipt_of({**archived}) == receipt_of(task)
    children = (await house.get("tasks")).data
    assert [child["priority"] for child in children] == [0, 1234, 1234]
    assert children[0]["leaseExpires"] == START + 50
    assert (await house.get(f"tasks/{children[1]['id']}")).data["data"] == "[]"


@pytest.mark.parametrize("followups", [None, []])
async def test_no_followups_are_no_followups(house: House, followups: list[object] | None) -> None:
    task = await house.leased()
    body = {**receipt_of(task), "duration": None, "followups": followups}
    assert (await house.post("finalize", body)).data == {"status": "finalized"}


async def test_a_thousand_followups_are_taken(house: House) -> None:
    task = await house.leased()
    body = {**receipt_of(task), "followups": [{"taskClass": "Child"}] * 1000}
    assert (await house.post("finalize", body)).data == {"status": "finalized"}
    assert (await house.get("stats")).data["activeCount"] == 1000


async def test_finalize_may_be_repeated_for_ever_and_creates_no_second_followup(house: House, clock: Clock) -> None:
    task = await house.leased()
    body = {**receipt_of(task), "followups": [{"taskClass": "Child"}]}
    for later in (0, 1, 100_000):
        clock.advance(later)
        assert (await house.post("finalize", body)).data == {"status": "finalized"}
    other = {**receipt_of(task), "duration": 9, "followups": [{"taskClass": "Other"}] * 3}
    assert (await house.post("finalize", other)).data == {"status": "finalized"}
    assert (await house.get("stats")).data["activeCount"] == 1
    for change in ({"leaseOwner": "other"}, {"leaseExpires": task["leaseExpires"] + 1}):
        assert (await house.post("finalize", {**body, **change})).error == (409, "ERR_LEASE_CONFLICT")


@pytest.mark.parametrize("how", ["cancel", "fail"])
async def test_a_task_that_ended_otherwise_is_not_finalized(house: House, how: str) -> None:
    task = await house.leased()
    await house.post(how, {"taskID": task["id"], "permanent": True})
    assert (await house.post("finalize", receipt_of(task))).error == (409, "ERR_LEASE_CONFLICT")


async def test_resolve_retry_is_a_temporary_failure(opened: Opened) -> None:
    async with open_house(opened.store, retry_seconds=300) as house:
        for asked, wait in (({}, 300), ({"retryWait": 0}, 0), ({"retryWait": 604800}, 604800)):
            task = await house.leased(f"Class{wait}")
            body = {**receipt_of(task), "outcome": "retry", "message": "why", **asked}
            assert (await house.post("resolve", body)).data == {"status": "resolved"}
            row = (await house.get(f"tasks/{task['id']}")).data
            assert (row["failureCount"], row["leaseExpires"]) == (1, START + wait)
            assert row["errors"][0]["message"] == "why"


async def test_resolve_yield_has_the_floor_and_counts_no_failure(house: House) -> None:
    for duration, wait in ((None, 5), (0, 5), (4, 5), (60, 60)):
        task = await house.leased(f"Class{duration}")
        body = {**receipt_of(task), "outcome": "yield", "duration": duration}
        assert (await house.post("resolve", body)).data == {"status": "resolved"}
        row = (await house.get(f"tasks/{task['id']}")).data
        assert (row["leaseOwner"], row["leaseExpires"], row["failureCount"]) == ("(yield)", START + wait, 0)


async def test_resolve_failure_archives_for_good(house: House) -> None:
    task = await house.leased()
    assert (await house.post("resolve", {**receipt_of(task), "outcome": "failure"})).data == {"status": "resolved"}
    archived = (await house.get(f"archive/{task['id']}")).data
    assert (archived["result"], archived["duration"]) == (1, 0)


@pytest.mark.parametrize("outcome", ["retry", "yield", "failure"])
async def test_a_repeated_resolve_is_409_and_counts_nothing_twice(house: House, outcome: str) -> None:
    task = await house.leased()
    body = {**receipt_of(task), "outcome": outcome}
    assert (await house.post("resolve", body)).status == 200
    before = (await house.get("tasks")).data
    assert (await house.post("resolve", body)).error == (409, "ERR_LEASE_CONFLICT")
    assert (await house.get("tasks")).data == before


async def test_an_old_receipt_stays_dead_when_the_same_name_leases_again(house: House) -> None:
    task = await house.leased()
    await house.post("resolve", {**receipt_of(task), "outcome": "retry", "retryWait": 0})
    await house.post("free", {"taskIDs": [task["id"]]})
    (again,) = await house.lease()
    assert again["leaseOwner"] == task["leaseOwner"]
    assert (await house.post("finalize", receipt_of(task))).error == (409, "ERR_LEASE_CONFLICT")
    assert (await house.post("finalize", receipt_of(again))).data == {"status": "finalized"}


async def test_an_event_is_enqueued_once_and_answers_the_same_for_ever(house: House) -> None:
    body = {"eventID": "event-1", "task": {"taskClass": "A", "data": "[]", "priority": 0}}
    first = (await house.post("enqueue-event", body)).data
    assert first["id"] > 0
    await house.post("complete", {"taskID": first["id"]})
    assert (await house.post("enqueue-event", body)).data == first
    for change in ({"data": "[1]"}, {"priority": None}, {"taskClass": "B"}, {"queue": "high"}):
        answer = await house.post("enqueue-event", {**body, "task": {**body["task"], **change}})  # type: ignore[dict-item]
        assert answer.error == (409, "ERR_EVENT_CONFLICT")
    assert (await house.get("stats")).data["activeCount"] == 0


async def test_a_delay_of_nothing_is_a_difference_between_events_as_the_go_service_has_it(house: House) -> None:
    for event, delay in (("plain", None), ("zero", 0), ("past", -3)):
        body = {"eventID": event, "task": {"taskClass": "A", "delayUntil": delay}}
        first = (await house.post("enqueue-event", body)).data
        assert "leaseExpires" not in first
        assert (await house.post("enqueue-event", body)).data == first
        for other in {None, 0, -3, -4} - {delay}:
            changed = {"eventID": event, "task": {"taskClass": "A", "delayUntil": other}}
            assert (await house.post("enqueue-event", changed)).error == (409, "ERR_EVENT_CONFLICT")


async def test_fifty_deliveries_of_one_event_make_one_task(house: House) -> None:
    body = {"eventID": "event-1", "task": {"taskClass": "A"}}
    answers = await asyncio.gather(*(house.post("enqueue-event", body) for _ in range(50)))
    assert len({answer.data["id"] for answer in answers}) == 1
    assert (await house.get("stats")).data["activeCount"] == 1


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"task": {"taskClass": "A"}}, "eventID"),
        ({"eventID": "", "task": {"taskClass": "A"}}, "eventID"),
        ({"eventID": "x" * 129, "task": {"taskClass": "A"}}, "eventID"),
        ({"eventID": "\u00e9" * 65, "task": {"taskClass": "A"}}, "eventID"),
        ({"eventID": "e"}, "task"),
        ({"eventID": "e", "task": None}, "task"),
        ({"eventID": "e", "task": {}}, "task.taskClass"),
        ({"eventID": "e", "task": {"taskClass": "A", "priority": -1}}, "task.priority"),
    ],
)
async def test_an_event_without_id_or_task_is_refused(house: House, body: dict[str, Any], names: str) -> None:
    answer = await house.post("enqueue-event", body)
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")


async def test_operations_tells_the_backend_first(house: House) -> None:
    inventory = (await house.get("operations")).data
    assert next(iter(inventory)) == "backend"


@pytest.fixture
async def broken(opened: Opened) -> AsyncIterator[House]:
    class Broken(FaultyStore):
        async def operations(self) -> dict[str, object]:
            raise RuntimeError("SELECT password")

        async def stats(self) -> QueueStats:
            return replace(await super().stats(), estimated=True)

    async with open_house(Broken(opened.store)) as house:
        yield house


async def test_an_inventory_that_cannot_be_taken_is_503_and_says_no_more(broken: House) -> None:
    answer = await broken.get("operations")
    assert answer.error == (503, "ERR_OPERATIONS")
    assert "password" not in answer.message


async def test_counts_that_are_estimates_are_marked(broken: House) -> None:
    assert (await broken.get("stats")).headers["x-queue-runtime-stats"] == "estimated"

"""Our own routes: batches, what an operator does to tasks, the archive, pauses."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.clock import START, Clock
from tests.http.house import House, receipt_of


async def test_a_batch_is_enqueued_in_its_order(house: House) -> None:
    tasks = [{"taskClass": "A", "priority": 9}, {"taskClass": "B"}, {"taskClass": "C", "queue": "high"}]
    rows = (await house.post("enqueue-batch", {"tasks": tasks})).data
    assert [row["taskClass"] for row in rows] == ["A", "B", "C"]
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert rows[2]["queue"] == "high"


@pytest.mark.parametrize(
    ("tasks", "names"),
    [
        (None, "tasks"),
        ([], "tasks"),
        ([{"taskClass": "A"}] * 1001, "tasks"),
        ([{"taskClass": "A"}, {}], "tasks[1].taskClass"),
        ([{"taskClass": "A"}, {"taskClass": "B", "priority": 2**32}], "tasks[1].priority"),
    ],
)
async def test_a_batch_is_taken_whole_or_not_at_all(house: House, tasks: object, names: str) -> None:
    answer = await house.post("enqueue-batch", {"tasks": tasks})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")
    assert (await house.get("stats")).data["activeCount"] == 0


async def test_a_batch_of_outcomes_is_answered_one_by_one(house: House) -> None:
    await house.post("enqueue-batch", {"tasks": [{"taskClass": "A", "maxAttempts": 1}] + [{"taskClass": "A"}] * 6})
    held = {task["id"]: receipt_of(task) for task in await house.lease(7)}
    body: list[dict[str, Any]] = [
        {**held[1], "outcome": "retry"},
        {**held[2], "outcome": "complete", "duration": 5, "followups": [{"taskClass": "Child"}]},
        {**held[2], "outcome": "complete"},
        {**held[3], "outcome": "failure", "message": "broken"},
        {**held[4], "outcome": "retry", "retryWait": 30, "message": "later"},
        {**held[5], "outcome": "yield", "duration": 60},
        {**held[6], "outcome": "release"},
        {**held[7], "leaseOwner": "other", "outcome": "complete"},
    ]
    answer = await house.post("settle-batch", {"settlements": body})
    assert answer.data == [
        {"taskID": 1, "verdict": "settled", "result": 1},
        {"taskID": 2, "verdict": "settled", "result": 0},
        {"taskID": 2, "verdict": "replayed", "result": 0},
        {"taskID": 3, "verdict": "settled", "result": 1},
        {"taskID": 4, "verdict": "settled"},
        {"taskID": 5, "verdict": "settled"},
        {"taskID": 6, "verdict": "settled"},
        {"taskID": 7, "verdict": "lost"},
    ]
    rows = {row["id"]: row for row in (await house.get("tasks")).data}
    assert sorted(rows) == [4, 5, 6, 7, 8]
    assert rows[4]["leaseExpires"] == START + 30
    assert rows[5]["leaseOwner"] == "(yield)"
    assert "leaseExpires" not in rows[6]
    assert rows[8]["taskClass"] == "Child"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"outcome": "success"}, "settlements[1].outcome"),
        ({"outcome": None}, "settlements[1].outcome"),
        ({"taskID": None}, "settlements[1].taskID"),
        ({"leaseOwner": ""}, "settlements[1].leaseOwner"),
        ({"leaseExpires": 0}, "settlements[1].leaseExpires"),
        ({"duration": -1}, "settlements[1].duration"),
        ({"outcome": "yield", "duration": 604801}, "settlements[1].duration"),
        ({"outcome": "retry", "retryWait": 604801}, "settlements[1].retryWait"),
        ({"followups": [{}]}, "settlements[1].followups[0].taskClass"),
        ({"followups": [{"taskClass": "A"}] * 1001}, "settlements[1].followups"),
    ],
)
async def test_one_bad_entry_refuses_the_whole_batch(house: House, change: dict[str, object], names: str) -> None:
    task = await house.leased()
    good = {**receipt_of(task), "outcome": "complete"}
    answer = await house.post("settle-batch", {"settlements": [good, {**good, **change}]})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")
    assert (await house.get("stats")).data["activeCount"] == 1


@pytest.mark.parametrize("settlements", [None, [], [{}] * 1001])
async def test_a_batch_of_outcomes_has_1_to_1000_entries(house: House, settlements: object) -> None:
    answer = await house.post("settle-batch", {"settlements": settlements})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith("settlements: ")


@pytest.mark.parametrize("path", ["free", "retry", "priority", "delay"])
@pytest.mark.parametrize("ids", [None, []])
async def test_an_operator_names_at_least_one_task(house: House, path: str, ids: object) -> None:
    answer = await house.post(path, {"taskIDs": ids, "priority": 1, "delayUntil": 1})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message == "taskIDs: is required"


async def test_free_takes_tasks_from_their_owner(house: House, clock: Clock) -> None:
    task = await house.leased()
    assert (await house.post("free", {"taskIDs": [task["id"], 99]})).data == {"freed": 1}
    assert (await house.post("finalize", receipt_of(task))).status == 409
    assert [again["id"] for again in await house.lease()] == [task["id"]]


async def test_retry_brings_back_what_failed_and_with_repeat_what_succeeded(house: House) -> None:
    failed, done = await house.enqueue("A"), await house.enqueue("B")
    await house.post("fail", {"taskID": failed, "permanent": True})
    await house.post("complete", {"taskID": done})
    assert [row["id"] for row in (await house.post("retry", {"taskIDs": [failed, done, 99]})).data] == [failed]
    (row,) = (await house.post("retry", {"taskIDs": [done], "repeat": True})).data
    assert (row["id"], row["failureCount"], row["leaseExpires"]) == (done, 0, 0)
    assert len(await house.lease(5)) == 2
    assert (await house.get("archive")).data == []


async def test_priority_moves_active_tasks(house: House) -> None:
    first, second = await house.enqueue(), await house.enqueue()
    assert (await house.post("priority", {"taskIDs": [second, 99], "priority": 0})).data == {"changed": 1}
    assert [task["id"] for task in await house.lease(2)] == [second, first]


async def test_delay_puts_off_what_nobody_holds(house: House, clock: Clock) -> None:
    held, task_id = await house.leased(), await house.enqueue()
    body = {"taskIDs": [held["id"], task_id], "delayUntil": START + 60}
    assert (await house.post("delay", body)).data == {"changed": 1}
    assert await house.lease() == []
    clock.advance(60)
    assert [task["id"] for task in await house.lease()] == [task_id]


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("priority", {}, "priority"),
        ("priority", {"priority": -1}, "priority"),
        ("priority", {"priority": 2**32}, "priority"),
        ("delay", {}, "delayUntil"),
        ("delay", {"delayUntil": 0}, "delayUntil"),
        ("delay", {"delayUntil": 2**32}, "delayUntil"),
    ],
)
async def test_a_change_outside_its_bounds_is_refused(
    house: House, path: str, body: dict[str, int], names: str
) -> None:
    task_id = await house.enqueue()
    answer = await house.post(path, {"taskIDs": [task_id], **body})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")


async def _fill_archive(house: House) -> None:
    for place in range(6):
        await house.enqueue(f"Class{place % 2}", objectPHID=f"PHID-{place}", data="payload")
    await house.post("complete", {"taskID": 1})
    await house.post("complete", {"taskID": 2})
    await house.post("fail", {"taskID": 3, "permanent": True})
    await house.post("cancel", {"taskID": 4})
    await house.post("fail", {"taskID": 5, "retryWait": 0})
    await house.post("complete", {"taskID": 5})


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", [5, 4, 3, 2, 1]),
        ("?limit=2", [5, 4]),
        ("?limit=2&before=4", [3, 2]),
        ("?before=1", []),
        ("?result=success", [5, 2, 1]),
        ("?result=1", [3]),
        ("?result=cancelled&result=failure", [4, 3]),
        ("?taskClass=Class1", [4, 2]),
        ("?objectPHID=PHID-2", [3]),
        ("?minFailures=1", [5]),
    ],
)
async def test_the_archive_is_listed_newest_first_and_filtered(house: House, query: str, ids: list[int]) -> None:
    await _fill_archive(house)
    rows = (await house.get(f"archive{query}")).data
    assert [row["id"] for row in rows] == ids
    assert all("data" not in row for row in rows)


@pytest.mark.parametrize("query", ["result=good", "before=x", "before=-1"])
async def test_an_archive_page_that_cannot_be_is_refused(house: House, query: str) -> None:
    assert (await house.get(f"archive?{query}")).error == (400, "ERR_BAD_REQUEST")


async def test_an_archived_task_is_shown_with_payload_and_errors(house: House) -> None:
    await _fill_archive(house)
    task = (await house.get("archive/5")).data
    assert (task["data"], task["result"], task["failureCount"]) == ("payload", 0, 1)
    assert [error["kind"] for error in task["errors"]] == ["retry"]
    assert "errors" not in (await house.get("archive/1")).data
    assert (await house.get("archive/6")).error == (404, "ERR_NOT_FOUND")


@pytest.mark.parametrize("what", [{"taskClass": "A"}, {"queue": "high"}, {"all": True}])
async def test_what_is_paused_is_not_leased_until_it_is_resumed(house: House, what: dict[str, object]) -> None:
    await house.enqueue("A", queue="high")
    for _ in range(2):
        assert (await house.post("pause", what)).data == {"status": "paused"}
    assert (await house.get("paused")).data == [what]
    assert await house.lease() == []
    assert (await house.post("resume", what)).data == {"resumed": True}
    assert (await house.post("resume", what)).data == {"resumed": False}
    assert (await house.get("paused")).data == []
    assert len(await house.lease()) == 1


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"all": False},
        {"taskClass": ""},
        {"taskClass": "A", "queue": "b"},
        {"all": True, "queue": "b"},
        {"queue": "two words"},
        {"taskClass": "x" * 65},
    ],
)
@pytest.mark.parametrize("path", ["pause", "resume"])
async def test_a_pause_names_one_thing(house: House, path: str, what: dict[str, object]) -> None:
    assert (await house.post(path, what)).error == (400, "ERR_BAD_REQUEST")


async def test_a_failure_a_loss_and_a_cancel_are_a_line_each(house: House) -> None:
    task = await house.leased("A", objectPHID="PHID-1")
    with capture_logs() as lines:
        await house.post("resolve", {**receipt_of(task), "outcome": "retry", "message": "later"})
        await house.post("resolve", {**receipt_of(task), "outcome": "retry"})
        await house.post("cancel", {"taskID": task["id"]})
    failed, lost, cancelled = [line for line in lines if line["event"] != "request"]
    assert (failed["log_level"], failed["reason"], failed["owner"]) == ("warning", "later", task["leaseOwner"])
    assert (lost["task_id"], lost["owner"]) == (task["id"], task["leaseOwner"])
    assert (cancelled["task_class"], cancelled["object_phid"], cancelled["attempt"]) == ("A", "PHID-1", 1)

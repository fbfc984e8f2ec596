"""The routes of the contract's first stratum, as PHP and the first Go worker use them."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.backends import Opened
from tests.clock import START, Clock
from tests.http.house import OWNER, House, open_house

KEYS_OF_A_FRESH_TASK = {"id", "taskClass", "failureCount", "dataID", "priority", "dateCreated", "dateModified"}
ARCHIVE_KEYS = {"result", "duration", "archivedEpoch"}


async def test_enqueue_replies_the_row_without_owner_and_data(house: House) -> None:
    task = (await house.post("enqueue", {"taskClass": "Work", "data": '{"a":1}'})).data
    assert set(task) == KEYS_OF_A_FRESH_TASK
    assert task["taskClass"] == "Work"
    assert (task["priority"], task["failureCount"]) == (2000, 0)
    assert task["dateCreated"] == START


@pytest.mark.parametrize(("asked", "kept"), [(None, 2000), (0, 0), (1, 1), (4000, 4000), (2**32 - 1, 2**32 - 1)])
async def test_a_priority_of_zero_is_kept_and_only_an_absent_one_is_2000(
    house: House, asked: int | None, kept: int
) -> None:
    assert (await house.post("enqueue", {"taskClass": "A", "priority": asked})).data["priority"] == kept


@pytest.mark.parametrize("until", [None, 0, -5])
async def test_a_delay_of_nothing_is_no_delay(house: House, until: int | None) -> None:
    task = (await house.post("enqueue", {"taskClass": "A", "delayUntil": until})).data
    assert "leaseExpires" not in task
    assert len(await house.lease()) == 1


@pytest.mark.parametrize(("until", "early"), [(START + 60, True), (START - 60, False), (1, False)])
async def test_a_delayed_task_shows_its_time_and_no_owner(house: House, clock: Clock, until: int, early: bool) -> None:
    task = (await house.post("enqueue", {"taskClass": "A", "delayUntil": until})).data
    assert task["leaseExpires"] == until
    assert "leaseOwner" not in task
    if early:
        assert await house.lease() == []
        clock.advance(61)
    assert [task["id"] for task in await house.lease()] == [task["id"]]


async def test_phids_are_kept_and_empty_ones_are_absent(house: House) -> None:
    task = (await house.post("enqueue", {"taskClass": "A", "objectPHID": "PHID-1", "containerPHID": ""})).data
    assert task["objectPHID"] == "PHID-1"
    assert "containerPHID" not in task


async def test_our_options_show_only_when_they_are_set(house: House) -> None:
    options = {"queue": "high", "idempotencyKey": "k-1", "maxAttempts": 3}
    first = (await house.post("enqueue", {"taskClass": "A", **options})).data
    again = (await house.post("enqueue", {"taskClass": "B", **options})).data
    assert set(first) == KEYS_OF_A_FRESH_TASK | set(options)
    assert again == first


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "taskClass: is required"),
        ({"taskClass": None}, "taskClass: is required"),
        ({"taskClass": ""}, "taskClass: is required"),
        ({"taskClass": "x" * 65}, "taskClass: must have 1 to 64 characters, not 65"),
        ({"taskClass": "a\0b"}, "taskClass: must not hold a NUL"),
        ({"taskClass": "A", "priority": -1}, "priority: must be from 0 to 4294967295, not -1"),
        ({"taskClass": "A", "priority": 2**32}, "priority: must be from 0 to 4294967295, not 4294967296"),
        ({"taskClass": "A", "delayUntil": 2**32}, "delayUntil: must be from 1 to 4294967295, not 4294967296"),
        ({"taskClass": "A", "objectPHID": "x" * 65}, "objectPHID: must have 1 to 64 bytes, not 65"),
        ({"taskClass": "A", "containerPHID": "\u00e9" * 33}, "containerPHID: must have 1 to 64 bytes, not 66"),
        ({"taskClass": "A", "queue": "two words"}, "queue: must have 1 to 64 letters, digits or _ . : -"),
        ({"taskClass": "A", "maxAttempts": 0}, "maxAttempts: must be from 1 to 2147483647, not 0"),
        ({"taskClass": "A", "idempotencyKey": "x" * 256}, "idempotencyKey: must have 1 to 255 bytes, not 256"),
    ],
)
async def test_an_enqueue_that_breaks_a_bound_is_refused_in_the_words_of_the_wire(
    house: House, body: dict[str, object], message: str
) -> None:
    answer = await house.post("enqueue", body)
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message == message
    assert (await house.get("tasks")).data == []


PAYLOADS = [
    "",
    "[]",
    "{}",
    "null",
    "0",
    '"text"',
    '{"b":1.0,"a":[]}',
    "\0",
    "\u00e9\u2028\U0001f600",
    "9007199254740993",
]


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_a_payload_comes_back_as_it_was_sent(house: House, payload: str) -> None:
    await house.post("enqueue", {"taskClass": "A", "data": payload})
    listed = (await house.get("tasks")).data
    (task,) = await house.lease()
    assert "data" not in listed[0]
    assert task.get("data", "") == payload
    assert (await house.get(f"tasks/{task['id']}")).data.get("data", "") == payload
    assert ("data" in task) == (payload != "")


async def test_complete_archives_and_keeps_the_receipt(house: House, clock: Clock) -> None:
    task = await house.leased(objectPHID="PHID-1")
    clock.advance(3)
    archived = (await house.post("complete", {"taskID": task["id"], "duration": 1234})).data
    assert set(archived) == KEYS_OF_A_FRESH_TASK | ARCHIVE_KEYS | {"leaseOwner", "leaseExpires", "objectPHID"}
    assert (archived["result"], archived["duration"]) == (0, 1234)
    assert archived["archivedEpoch"] == archived["dateModified"] == START + 3
    assert archived["leaseOwner"] == task["leaseOwner"]
    assert archived["leaseExpires"] == task["leaseExpires"]
    assert (await house.get(f"tasks/{task['id']}")).error == (404, "ERR_NOT_FOUND")


async def test_complete_needs_no_lease(house: House) -> None:
    task_id = await house.enqueue()
    assert (await house.post("complete", {"taskID": task_id})).data["duration"] == 0


async def test_a_temporary_failure_waits_and_counts(house: House, clock: Clock) -> None:
    task = await house.leased()
    assert (await house.post("fail", {"taskID": task["id"], "retryWait": 60})).data == {"status": "ok"}
    waiting = (await house.get(f"tasks/{task['id']}")).data
    assert (waiting["failureCount"], waiting["failureTime"]) == (1, START)
    assert waiting["leaseExpires"] == START + 60
    assert "leaseOwner" not in waiting
    clock.advance(60)
    assert await house.lease() == []
    clock.advance(1)
    assert [again["id"] for again in await house.lease()] == [task["id"]]


@pytest.mark.parametrize(("asked", "wait"), [({}, 77), ({"retryWait": None}, 77), ({"retryWait": 0}, 0)])
async def test_a_wait_of_zero_is_kept_and_only_an_absent_one_is_the_default(
    opened: Opened, asked: dict[str, int | None], wait: int
) -> None:
    async with open_house(opened.store, retry_seconds=77) as house:
        task_id = await house.enqueue()
        await house.post("fail", {"taskID": task_id, **asked})
        assert (await house.get(f"tasks/{task_id}")).data["leaseExpires"] == START + wait


async def test_a_permanent_failure_archives_without_counting(house: House) -> None:
    task = await house.leased()
    with capture_logs() as lines:
        answer = await house.post("fail", {"taskID": task["id"], "permanent": True, "message": "no such repository"})
    assert answer.data == {"status": "ok"}
    archived = (await house.get(f"archive/{task['id']}")).data
    assert (archived["result"], archived["duration"], archived["failureCount"]) == (1, 0, 0)
    assert archived["errors"][0]["message"] == "no such repository"
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert (line["task_id"], line["task_class"], line["reason"]) == (task["id"], "Work", "no such repository")


async def test_the_message_of_a_failure_is_kept_in_the_history(house: House) -> None:
    task = await house.leased()
    await house.post("fail", {"taskID": task["id"], "retryWait": 0, "message": "timeout"})
    (error,) = (await house.get(f"tasks/{task['id']}")).data["errors"]
    assert error == {
        "attempt": 1,
        "kind": "retry",
        "when": START,
        "leaseOwner": OWNER["X-Lease-Owner"],
        "duration": 0,
        "message": "timeout",
        "trace": "",
    }


@pytest.mark.parametrize(
    ("asked", "wait"), [({}, 5), ({"duration": 0}, 5), ({"duration": -9}, 5), ({"duration": 40}, 40)]
)
async def test_a_yield_shows_its_sentinel_and_never_waits_less_than_five_seconds(
    house: House, asked: dict[str, int], wait: int
) -> None:
    task = await house.leased()
    assert (await house.post("yield", {"taskID": task["id"], **asked})).data == {"status": "ok"}
    waiting = (await house.get(f"tasks/{task['id']}")).data
    assert (waiting["leaseOwner"], waiting["leaseExpires"]) == ("(yield)", START + wait)
    assert waiting["failureCount"] == 0


async def test_awaken_makes_a_yield_due_once(house: House) -> None:
    task = await house.leased()
    await house.post("yield", {"taskID": task["id"], "duration": 3600})
    body = {"taskIDs": [task["id"], task["id"], 99, 0, -1, 2**63 - 1]}
    assert (await house.post("awaken", body)).data == {"awakened": 1}
    assert (await house.post("awaken", body)).data == {"awakened": 0}
    assert [again["id"] for again in await house.lease()] == [task["id"]]


@pytest.mark.parametrize("body", [{}, {"taskIDs": None}, {"taskIDs": []}])
async def test_awaken_needs_ids(house: House, body: dict[str, object]) -> None:
    assert (await house.post("awaken", body)).error == (400, "ERR_BAD_REQUEST")


async def test_awaken_takes_more_ids_than_a_store_takes_at_once(house: House) -> None:
    task = await house.leased()
    await house.post("yield", {"taskID": task["id"], "duration": 3600})
    ids = [*range(100, 25_000), task["id"]]
    assert (await house.post("awaken", {"taskIDs": ids})).data == {"awakened": 1}


async def test_cancel_archives_whatever_the_state(house: House) -> None:
    held, fresh = await house.leased(), await house.enqueue()
    for task_id in (held["id"], fresh):
        archived = (await house.post("cancel", {"taskID": task_id})).data
        assert (archived["result"], archived["duration"]) == (2, 0)


@pytest.mark.parametrize("path", ["complete", "fail", "yield", "cancel"])
@pytest.mark.parametrize("more", [{}, {"permanent": True}])
async def test_a_report_on_an_unknown_task_is_404_and_creates_nothing(
    house: House, path: str, more: dict[str, bool]
) -> None:
    ended = await house.enqueue()
    await house.post("complete", {"taskID": ended})
    for task_id in (ended, 99, 2**40, 2**63 - 1):
        assert (await house.post(path, {"taskID": task_id, **more})).error == (404, "ERR_NOT_FOUND")
    assert (await house.get("tasks")).data == []
    assert (await house.get("stats")).data["archivedCount"] == 1


@pytest.mark.parametrize("path", ["complete", "fail", "yield", "cancel"])
@pytest.mark.parametrize("task_id", [None, 0, -1])
async def test_a_report_needs_a_positive_id(house: House, path: str, task_id: int | None) -> None:
    answer = await house.post(path, {"taskID": task_id})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith("taskID: ")


@pytest.mark.parametrize(
    ("path", "more", "names"),
    [
        ("complete", {"duration": -1}, "duration"),
        ("fail", {"retryWait": -1}, "retryWait"),
        ("fail", {"retryWait": 2**32}, "retryWait"),
        ("yield", {"duration": 2**32}, "duration"),
    ],
)
async def test_a_duration_outside_its_bounds_is_refused(
    house: House, path: str, more: dict[str, int], names: str
) -> None:
    task = await house.leased()
    answer = await house.post(path, {"taskID": task["id"], **more})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")
    assert (await house.get(f"tasks/{task['id']}")).data["leaseOwner"] == task["leaseOwner"]


async def test_the_longest_waits_stay_inside_the_column(house: House) -> None:
    for path, key in (("fail", "retryWait"), ("yield", "duration")):
        task_id = await house.enqueue()
        assert (await house.post(path, {"taskID": task_id, key: 2**32 - 1})).status == 200
        assert (await house.get(f"tasks/{task_id}")).data["leaseExpires"] == 2**32 - 1


async def test_stats_counts_as_the_contract_says(house: House, clock: Clock) -> None:
    await house.enqueue("fresh")
    await house.enqueue("delayed", delayUntil=START + 500)
    await house.leased("held")
    await house.post("yield", {"taskID": (await house.leased("yielded"))["id"], "duration": 100})
    await house.post("fail", {"taskID": (await house.leased("failed"))["id"], "retryWait": 100})
    await house.post("complete", {"taskID": (await house.leased("done"))["id"]})
    answer = await house.get("stats")
    assert answer.data == {"activeCount": 5, "leasedCount": 2, "archivedCount": 1, "failedCount": 1}
    assert "x-queue-runtime-stats" not in answer.headers
    clock.advance(101)
    assert (await house.get("stats")).data["leasedCount"] == 1


async def test_tasks_lists_all_live_rows_by_priority_then_id(house: House) -> None:
    for priority in (3000, 1000, 2000, 1000):
        await house.enqueue(priority=priority)
    await house.lease()
    await house.post("complete", {"taskID": 3})
    assert [task["id"] for task in (await house.get("tasks")).data] == [2, 4, 1]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", range(1, 101)),
        ("?limit=0", range(1, 101)),
        ("?limit=-3", range(1, 101)),
        ("?limit=x", range(1, 101)),
        ("?limit=1e3", range(1, 101)),
        ("?limit=99999999999999999999", range(1, 101)),
        ("?limit=7", range(1, 8)),
        ("?limit=9999", range(1, 121)),
        ("?limit=5&offset=3", range(4, 9)),
        ("?limit=5&offset=x", range(1, 6)),
        ("?offset=118", range(119, 121)),
        ("?offset=500", range(0)),
        ("?limit=3&after=2000,4", range(5, 8)),
    ],
)
async def test_a_list_is_paged(house: House, query: str, ids: range) -> None:
    await house.post("enqueue-batch", {"tasks": [{"taskClass": "A"}] * 120})
    assert [task["id"] for task in (await house.get(f"tasks{query}")).data] == list(ids)


@pytest.mark.parametrize(
    "query",
    ["offset=-1", "after=1", "after=a,b", "state=gone", "minFailures=x", "maxFailures=-1", "minPriority=4294967296"],
)
async def test_a_page_that_cannot_be_is_refused(house: House, query: str) -> None:
    answer = await house.get(f"tasks?{query}")
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{query.partition('=')[0]}: ")


async def test_a_query_that_is_not_utf8_is_refused(house: House) -> None:
    assert (await house.get("tasks?taskClass=%ff")).error == (400, "ERR_BAD_REQUEST")


@pytest.mark.parametrize(
    ("query", "classes"),
    [
        ("taskClass=held", ["held"]),
        ("taskClass=held&taskClass=fresh", ["fresh", "held"]),
        ("queue=high", ["high"]),
        ("state=leased", ["held"]),
        ("state=waiting", ["failed"]),
        ("state=ready", ["fresh", "high"]),
        ("state=ready&state=leased", ["fresh", "held", "high"]),
        ("objectPHID=PHID-1", ["fresh"]),
        ("containerPHID=PHID-2", ["fresh"]),
        ("minFailures=1", ["failed"]),
        ("maxFailures=0", ["fresh", "held", "high"]),
        ("minPriority=2001", ["high"]),
        ("maxPriority=2000", ["failed", "fresh", "held"]),
        ("taskClass=none", []),
    ],
)
async def test_a_list_is_filtered(house: House, query: str, classes: list[str]) -> None:
    await house.leased("held")
    await house.post("fail", {"taskID": (await house.leased("failed"))["id"]})
    await house.enqueue("fresh", objectPHID="PHID-1", containerPHID="PHID-2")
    await house.enqueue("high", queue="high", priority=3000)
    assert sorted(task["taskClass"] for task in (await house.get(f"tasks?{query}")).data) == classes


@pytest.mark.parametrize(
    ("task_id", "status"),
    [
        ("x", 400),
        ("1.0", 400),
        ("%2B1", 400),
        ("9223372036854775808", 400),
        ("1e2", 400),
        ("%D9%A1", 400),
        ("99", 404),
        ("0", 404),
        ("-1", 404),
        ("9223372036854775807", 404),
    ],
)
@pytest.mark.parametrize("path", ["tasks", "archive"])
async def test_an_id_in_a_path_is_a_decimal_number_of_64_bits(
    house: House, path: str, task_id: str, status: int
) -> None:
    assert (await house.get(f"{path}/{task_id}")).status == status


async def test_rows_parked_by_php_are_shown_and_not_counted(house: House, opened: Opened) -> None:
    task_id = await house.enqueue()
    await opened.plant(task_id, "gorge-completion-pending", 2147483647)
    (row,) = (await house.get("tasks")).data
    assert row["leaseOwner"] == "gorge-completion-pending"
    assert (await house.get("stats")).data["activeCount"] == 0
    assert await house.lease() == []
    assert (await house.post("cancel", {"taskID": task_id})).status == 200


async def test_a_task_that_was_lost_says_how_often(opened: Opened, clock: Clock) -> None:
    async with open_house(opened.store) as house:
        task_id = await house.enqueue()
        await opened.plant(task_id, "qr:0:1:2@host", START - 100)
        task: dict[str, Any]
        (task,) = await house.lease()
        assert task["lostCount"] == 1
        (error,) = (await house.get(f"tasks/{task_id}")).data["errors"]
        assert (error["kind"], error["leaseOwner"]) == ("lost", "qr:0:1:2@host")

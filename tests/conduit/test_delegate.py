"""Tasks that Phorge runs: each answer of PHP becomes the outcome that Phorge's own taskmaster would write."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from structlog.testing import capture_logs

from handlers import catalog
from handlers import delegate as delegate_module
from handlers.feed_publisher import TASK_CLASS as FEED_CLASS
from queue_runtime.registry import Context, Registry
from queue_runtime.task import MAX_FOLLOWUPS, Result
from tests.conduit import stub
from tests.conduit.house import House
from tests.conduit.stub import Call, Http, StubPhp, answers, replies
from tests.runtime.harness import until


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        yield stubbed


def from_now(expires: int | None) -> float:
    """Seconds until a moment of the store's clock."""
    assert expires is not None
    return expires - time.time()


# ---- what PHP is told


async def test_a_task_of_any_class_is_run_by_php_and_archived(php: StubPhp) -> None:
    async with House(php).running() as house:
        row = await house.end_of(await house.add("AnyWorker", '{"a":1}', priority=1500))
    assert (row.result, row.duration_us, row.failure_count) == (Result.SUCCESS, 46, 0)
    assert php.phases() == ["prepare", "execute"]
    told = php.calls[-1].params
    assert (told["taskClass"], told["data"], told["priority"], told["failureCount"]) == (
        "AnyWorker",
        '{"a":1}',
        1500,
        0,
    )
    assert told["leaseOwner"].startswith("qr:")


@pytest.mark.parametrize(
    "data", ["7", "[]", "{}", "", "null", '"0"', "1.0", str(2**60), '{"b":1,"a":{}}', '"\\ud800é😀"']
)
async def test_data_is_passed_on_byte_for_byte_also_the_bare_number_of_a_mail(php: StubPhp, data: str) -> None:
    async with House(php).running() as house:
        await house.end_of(await house.add("PhabricatorMetaMTAWorker", data))
    assert php.calls[-1].params["data"] == data


async def test_a_native_class_never_reaches_php(php: StubPhp) -> None:
    registry = Registry()

    @registry.task("NativeWorker")
    async def native(context: Context, data: str) -> None:
        pass

    async with House(php, registry=registry).running() as house:
        await house.end_of(await house.add("NativeWorker"))
        await house.end_of(await house.add("PhpWorker"))
    assert [call.params["taskClass"] for call in php.calls if call.phase == "execute"] == ["PhpWorker"]


# ---- how it ends


async def test_a_yield_is_no_failure_and_lasts_five_seconds_at_least(php: StubPhp) -> None:
    for retry, wait in ((0, 5), (77, 77), ("60", 60), (None, 5)):
        php.work = answers(result="yield", retry=retry)
        async with House(php).running() as house:
            row = await house.waiting(await house.add(), "(yield)")
        assert row.failure_count == 0
        assert wait - 2 <= from_now(row.lease_expires) <= wait


async def test_a_temporary_failure_waits_as_long_as_its_class_wants(php: StubPhp) -> None:
    php.work = answers(result="failure", failureType="transient", failureReason="no such host", retry=45, duration=3652)
    async with House(php).running() as house:
        task_id = await house.add()
        row = await house.waiting(task_id, "(retry)")
        assert row.failure_count == 1
        assert 43 <= from_now(row.lease_expires) <= 45
        assert house.history(task_id) == ["no such host"]
        (attempt,) = house.store.tables.history[task_id]
        assert attempt.duration_us == 3652


async def test_a_failure_without_a_wait_gets_the_default_one_and_they_spread(php: StubPhp) -> None:
    php.work = answers(result="failure", failureReason="x")
    async with House(php).running() as house:
        ids = [await house.add() for _ in range(20)]
        rows = [await house.waiting(task_id, "(retry)") for task_id in ids]
    waits = {row.lease_expires for row in rows}
    assert len(waits) > 5
    assert all(298 <= from_now(wait) <= 376 for wait in waits)


async def test_a_permanent_failure_ends_the_task_and_its_reason_is_kept(php: StubPhp) -> None:
    php.work = answers(result="permanent-failure", failureType="permanent", failureReason="No such mail.", duration=188)
    async with House(php).running() as house:
        task_id = await house.add()
        row = await house.end_of(task_id)
        assert (row.result, row.failure_count) == (Result.FAILURE, 0)
        assert house.history(task_id) == ["No such mail."]


async def test_the_failure_count_is_told_so_that_php_can_give_up(php: StubPhp) -> None:
    async def give_up(call: Call) -> dict[str, Any]:
        if call.params["failureCount"] > 0:
            return {"result": "permanent-failure", "failureReason": "Task has exceeded its maximum number of failures."}
        return {"result": "failure", "failureReason": "x", "retry": 0}

    php.work = give_up
    async with House(php).running() as house:
        row = await house.end_of(await house.add())
    assert (row.result, row.failure_count) == (Result.FAILURE, 1)


async def test_a_run_that_prepare_calls_needless_is_a_success_of_no_duration(php: StubPhp) -> None:
    """Also where other tasks of the class have run: only the fork's `prepare` looks at this one."""
    async with House(php).running() as house:
        await house.end_of(await house.add("FeedWorker"))
        php.prepare["FeedWorker"] = {"result": "skipped"}
        for _ in range(2):
            row = await house.end_of(await house.add("FeedWorker"))
            assert (row.result, row.duration_us) == (Result.SUCCESS, 0)
        php.prepare["FeedWorker"] = {"result": "permanent-failure", "failureReason": "no such hook"}
        assert (await house.end_of(await house.add("FeedWorker"))).result is Result.FAILURE
    assert php.phases() == ["prepare", "execute", "prepare", "prepare", "prepare"]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"result": "permanent-failure", "failureReason": "no such class"}, Result.FAILURE),
        ({"result": "failure", "failureReason": "database away", "retry": 5}, None),
    ],
)
async def test_a_failure_of_prepare_is_a_failure_of_the_task(
    php: StubPhp, answer: dict[str, Any], result: Result | None
) -> None:
    php.prepare["PhpWorker"] = answer
    async with House(php).running() as house:
        task_id = await house.add()
        await until(lambda: house.history(task_id))
        row = house.archived(task_id)
        assert (None if row is None else row.result) is result
    assert php.runs == []


STRANGE = [
    {"result": "finished"},
    {"result": None},
    {"result": "failure", "executionVersion": 2},
    {"outcome": "success"},
]


@pytest.mark.parametrize("answer", STRANGE)
async def test_an_answer_that_is_not_understood_is_a_temporary_failure(php: StubPhp, answer: dict[str, Any]) -> None:
    php.work = answers(**answer)
    async with House(php).running() as house:
        task_id = await house.add()
        row = await house.waiting(task_id, "(retry)")
        assert row.failure_count == 1
        (message,) = house.history(task_id)
    assert "worker.execute" in message


MISTAKES = {
    "no list": "many",
    "a number": 7,
    "a child that is none": [7],
    "a child as a list": [["C", "{}", {}]],
    "no class": [{"data": "{}"}],
    "a class that is null": [{"taskClass": None}],
    "an empty class": [{"taskClass": ""}],
    "a class with a NUL": [{"taskClass": "C\0"}],
    "a class too long": [{"taskClass": "C" * 65}],
    "half a priority": [{"taskClass": "C", "options": {"priority": 1500.5}}],
    "a priority in words": [{"taskClass": "C", "options": {"priority": "high"}}],
    "a priority below zero": [{"taskClass": "C", "options": {"priority": -1}}],
    "a priority beyond all bounds": [{"taskClass": "C", "options": {"priority": 2**32}}],
    "a delay beyond all bounds": [{"taskClass": "C", "options": {"delayUntil": 2**40}}],
    "a delay that never was": [{"taskClass": "C", "options": {"delayUntil": -5}}],
    "an object that is none": [{"taskClass": "C", "options": {"objectPHID": ["P"]}}],
    "an object too long": [{"taskClass": "C", "options": {"objectPHID": "P" * 65}}],
    "options that are none": [{"taskClass": "C", "options": [1]}],
    "options in words": [{"taskClass": "C", "options": "none"}],
    "too many": [{"taskClass": "C"}] * (MAX_FOLLOWUPS + 1),
}


@pytest.mark.parametrize("case", MISTAKES)
async def test_a_task_that_ran_is_not_run_again_for_a_mistake_in_its_follow_ups(php: StubPhp, case: str) -> None:
    """Equal mistakes end equally, and with a reason."""
    php.work = answers(result="success", followups=MISTAKES[case])
    house = House(php, classes=frozenset({"PhpWorker"}))
    async with house.running():
        task_id = await house.add()
        assert (await house.end_of(task_id)).result is Result.FAILURE
        (message,) = house.history(task_id)
    assert message.startswith("it ran, but ")
    assert len(message) < 1000
    assert php.runs == [task_id]
    assert house.store.tables.active == {}


async def test_a_success_in_another_version_is_not_run_again_and_the_version_is_asked_anew(php: StubPhp) -> None:
    php.work = answers(result="success", executionVersion=2)
    async with House(php).running() as house:
        task_id = await house.add()
        assert (await house.end_of(task_id)).result is Result.FAILURE
        assert "it ran, but worker.execute answered in version 2" in house.history(task_id)[0]
        await until(lambda: php.probes() == 2)


async def test_a_task_that_ran_is_not_run_again_because_its_reply_is_too_large(php: StubPhp) -> None:
    php.work = answers(result="success", followups=[{"taskClass": "C", "data": "x" * 2**21}])
    async with House(php, max_reply=2**20).running() as house:
        task_id = await house.add()
        assert (await house.end_of(task_id)).result is Result.FAILURE
        assert "it ran, but the reply has more than" in house.history(task_id)[0]
    assert php.runs == [task_id]


@pytest.mark.parametrize(
    ("retry", "wait"),
    [(0, (1, 1)), (-5, (1, 1)), ("-7", (1, 1)), ("soon", (300, 375)), ([7], (300, 375)), (True, (300, 375))],
)
async def test_a_failure_is_never_tried_again_at_once_and_a_wait_that_is_no_number_is_none(
    php: StubPhp, retry: object, wait: tuple[int, int]
) -> None:
    php.work = answers(result="failure", failureReason="x", retry=retry)
    async with House(php).running() as house:
        assert wait[0] <= await house.wait_of(await house.add(), "(retry)") <= wait[1]


@pytest.mark.parametrize("number", [10**400, "1e999", "soon", -(10**30), 1.5e300, [7], {"a": 1}, True, None])
async def test_numbers_that_make_no_sense_spoil_no_outcome(php: StubPhp, number: object) -> None:
    php.prepare["PhpWorker"] = {"result": "prepared", "leaseDuration": number}
    php.work = answers(result="success", duration=number, retry=number)
    async with House(php).running() as house:
        assert (await house.end_of(await house.add())).result is Result.SUCCESS
        php.work = answers(result="yield", duration=number, retry=number)
        assert (await house.waiting(await house.add(), "(yield)")).failure_count == 0
        php.work = answers(result="failure", duration=number, retry=number)
        assert (await house.waiting(await house.add(), "(retry)")).failure_count == 1


# ---- follow-ups


CHILDREN = [
    {"taskClass": "NestedWorker", "data": '{"a":{},"b":[]}', "options": {"priority": 4000, "objectPHID": "PHID-1"}},
    {"taskClass": "FlatWorker", "data": "[ ]", "priority": "3000", "containerPHID": "PHID-2"},
    {"taskClass": "PlainWorker", "data": "9", "options": []},
    {"taskClass": "LateWorker", "data": "null", "options": {"delayUntil": 4000000000, "priority": None}},
]


async def test_follow_ups_are_committed_with_the_success_and_their_data_is_what_php_wrote(php: StubPhp) -> None:
    php.work = answers(result="success", duration=46, followups=CHILDREN)
    house = House(php, classes=frozenset({"PhpWorker"}))
    async with house.running():
        await house.end_of(await house.add(priority=1500))
    children = {row.task_class: row for row in house.store.tables.active.values()}
    datas = {name: house.store.tables.data[row.data_id] for name, row in children.items()}
    assert datas == {"NestedWorker": '{"a":{},"b":[]}', "FlatWorker": "[ ]", "PlainWorker": "9", "LateWorker": "null"}
    priorities = {name: row.priority for name, row in children.items()}
    assert priorities == {"NestedWorker": 4000, "FlatWorker": 3000, "PlainWorker": 1500, "LateWorker": 1500}
    assert children["NestedWorker"].object_phid == "PHID-1"
    assert children["FlatWorker"].container_phid == "PHID-2"
    assert children["LateWorker"].lease_expires == 4000000000


async def test_data_of_a_follow_up_that_is_no_text_is_kept_as_it_stands_there(php: StubPhp) -> None:
    body = (
        b'{"error_code":null,"error_info":null,"result":{"executionVersion":1,"result":"success","followups":'
        b'[{"taskClass":"ChildWorker","data":{"z":1.0,"a":123456789012345678901234567890,"e":[],"o":{}}}]}}'
    )
    php.work = replies(Http(200, body))
    house = House(php, classes=frozenset({"PhpWorker"}))
    async with house.running():
        await house.end_of(await house.add())
    (child,) = house.store.tables.active.values()
    assert house.store.tables.data[child.data_id] == '{"z":1.0,"a":123456789012345678901234567890,"e":[],"o":{}}'


async def test_thousands_of_follow_ups_are_stored_with_the_success(php: StubPhp) -> None:
    """As an import may stage them. A taskmaster of Phorge's own takes any number."""
    php.work = answers(result="success", followups=[{"taskClass": "ChildWorker", "data": "1"}] * 3000)
    house = House(php, classes=frozenset({"PhpWorker"}))
    async with house.running():
        assert (await house.end_of(await house.add())).result is Result.SUCCESS
    assert len(house.store.tables.active) == 3000


async def test_follow_ups_of_a_failure_are_not_stored(php: StubPhp) -> None:
    """R097. They come with the run that succeeds."""
    php.work = answers(result="failure", failureReason="x", followups=CHILDREN)
    house = House(php, classes=frozenset({"PhpWorker"}))
    async with house.running():
        await house.waiting(await house.add(), "(retry)")
    assert len(house.store.tables.active) == 1


@pytest.mark.parametrize("reply", [stub.HANG_UP, stub.NGINX_TIMEOUT, Http(200, b'{"result"', cut=True)])
async def test_follow_ups_of_a_run_whose_answer_was_lost_are_stored_once_with_the_next_one(
    php: StubPhp, reply: Http
) -> None:
    """R097. Nobody had read those of the first run, which the extension does not store in PHP."""

    async def work(call: Call) -> dict[str, Any] | Http:
        return reply if len(php.runs) == 1 else {"result": "success", "followups": CHILDREN}

    php.work = work
    house = House(php, classes=frozenset({"PhpWorker"}))
    async with house.running():
        task_id = await house.add()
        await house.waiting(task_id, "(unknown)")
        assert len(house.store.tables.active) == 1
        await house.hurry(task_id)
        assert (await house.end_of(task_id)).failure_count == 0
    assert php.runs == [task_id, task_id]
    assert len(house.store.tables.active) == len(CHILDREN)


# ---- what is said of it


async def test_each_failure_in_php_is_one_log_line_with_the_facts(php: StubPhp) -> None:
    """R110."""

    async def work(call: Call) -> dict[str, Any]:
        how = "failure" if call.params["taskClass"] == "NowWorker" else "permanent-failure"
        return {"result": how, "failureReason": f"a {how}", "retry": 60}

    php.work = work
    with capture_logs() as lines:
        async with House(php).running() as house:
            now = await house.add("NowWorker", object_phid="PHID-1")
            never = await house.add("NeverWorker", object_phid="PHID-2")
            await house.waiting(now, "(retry)")
            await house.end_of(never)
    told = {line["task_id"]: line for line in lines if "task_id" in line}
    assert len([line for line in lines if "task_id" in line]) == 2
    facts = ("task_class", "object_phid", "attempt", "reason", "log_level")
    assert [told[now][fact] for fact in facts] == ["NowWorker", "PHID-1", 1, "a failure", "warning"]
    assert [told[never][fact] for fact in facts] == ["NeverWorker", "PHID-2", 1, "a permanent-failure", "error"]
    assert {line["owner"][:3] for line in told.values()} == {"qr:"}


# ---- nobody knows


LOST = {
    "php-fpm ended the request": stub.PHP_CUT_OFF,
    "the web server lost patience": stub.NGINX_TIMEOUT,
    "a worker called exit()": stub.EXIT,
    "the connection was lost": stub.HANG_UP,
    "the reply was cut off": Http(200, b'{"result"', cut=True),
}


@pytest.mark.parametrize("case", LOST)
async def test_a_lost_answer_counts_nothing_and_the_task_comes_back_after_the_lease_of_its_class(
    php: StubPhp, case: str
) -> None:
    php.lease_durations["LongWorker"] = 14_400
    php.work = replies(LOST[case])
    async with House(php).running() as house:
        for task_class, seconds in (("PhpWorker", 7200), ("LongWorker", 14_400)):
            task_id = await house.add(task_class)
            row = await house.waiting(task_id, "(unknown)")
            assert (row.failure_count, row.lost_count, house.history(task_id)) == (0, 0, [])
            assert seconds - 2 <= from_now(row.lease_expires) <= seconds
            assert await house.store.awaken([task_id]) == 0
    assert len(php.runs) == 2


def times_allowed(house: House, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each call to run a task is given from now on."""
    allowed: list[float] = []
    call = house.client.call

    async def noted(method: str, params: Mapping[str, object], *, seconds: float) -> Raw:
        if params["phase"] == "execute":
            allowed.append(seconds)
        return await call(method, params, seconds=seconds)

    monkeypatch.setattr(house.client, "call", noted)
    return allowed


@pytest.mark.parametrize("locks", [False, True])
@pytest.mark.parametrize(("wanted", "seconds"), [(None, 7200), (14_400, 14_400), (10**9, 604_800)])
async def test_a_call_may_last_as_long_as_the_lease_of_its_class(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch, locks: bool, wanted: int | None, seconds: int
) -> None:
    """R124. A time-out below the lease would lose answers of runs that go on."""
    php.locks = locks
    if wanted is not None:
        php.lease_durations["PhpWorker"] = wanted
    house = House(php)
    allowed = times_allowed(house, monkeypatch)
    async with house.running():
        await house.end_of(await house.add())
    assert allowed == [seconds]


async def test_with_a_lock_a_call_may_always_last_two_hours_because_another_task_of_the_class_may_need_them(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class is asked once in ten minutes, and its answer may depend on the task."""
    php.locks = True
    php.lease_durations["PhpWorker"] = 1
    house = House(php)
    allowed = times_allowed(house, monkeypatch)
    async with house.running():
        await house.end_of(await house.add())
    assert allowed == [7200]


async def test_a_class_is_asked_anew_after_a_run_that_took_longer_than_its_lease(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegate_module, "CLASS_SECONDS", 0.05)
    done = asyncio.Event()

    async def slow(call: Call) -> dict[str, Any]:
        await done.wait()
        return {"result": "success"}

    php.locks = True
    php.lease_durations["PhpWorker"] = 1
    php.work = slow
    async with House(php).running() as house:
        task_id = await house.add()
        await house.waiting(task_id, "(unknown)")
        php.lease_durations["PhpWorker"] = 14_400
        done.set()
        await house.hurry(task_id)
        await house.end_of(task_id)
    assert php.phases().count("prepare") == 2


async def test_a_call_lasts_no_longer_than_the_lease_of_its_class(php: StubPhp) -> None:
    done = asyncio.Event()

    async def slow(call: Call) -> dict[str, Any]:
        await done.wait()
        return {"result": "success"}

    php.lease_durations["PhpWorker"] = 1
    php.work = slow
    async with House(php).running() as house:
        task_id = await house.add()
        row = await house.waiting(task_id, "(unknown)")
        assert (row.failure_count, row.lost_count) == (0, 0)
        assert php.running[task_id] == 1
    done.set()


@pytest.mark.parametrize("reply", [stub.PHP_CUT_OFF, stub.NGINX_TIMEOUT, stub.HANG_UP, stub.EXIT])
async def test_an_answer_that_is_lost_before_the_run_is_no_failure_and_comes_back_soon(
    php: StubPhp, reply: Http
) -> None:
    """Nothing runs in that phase, so that nobody has to wait for the lease of the class."""
    php.prepare["PhpWorker"] = reply
    async with House(php).running() as house:
        task_id = await house.add()
        row = await house.waiting(task_id, "(yield)")
        assert (row.failure_count, row.lost_count, house.history(task_id)) == (0, 0, [])
        assert 13 <= from_now(row.lease_expires) <= 15
    assert php.runs == []


async def test_with_a_lock_a_task_whose_answers_are_always_lost_is_asked_for_ever_more_seldom(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegate_module, "CLASS_SECONDS", 50)
    php.locks = True
    php.lease_durations["PhpWorker"] = 100
    php.work = replies(stub.PHP_CUT_OFF)
    async with House(php, lease_seconds=20).running() as house:
        task_id = await house.add()
        waits = [await house.wait_of(task_id, "(unknown)")]
        for _ in range(3):
            await house.hurry(task_id)
            waits.append(await house.wait_of(task_id, "(unknown)"))
    assert waits == [20, 40, 80, 100]


async def test_a_run_that_a_stopping_process_leaves_behind_is_not_given_back_as_if_it_had_not_run(php: StubPhp) -> None:
    async def slow(call: Call) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"result": "success"}

    php.work = slow
    house = House(php)
    async with house.running():
        task_id = await house.add()
        await until(lambda: php.runs == [task_id])
    row = house.active(task_id)
    assert row.lease_owner == "(unknown)"
    assert 7190 <= from_now(row.lease_expires) <= 7200


# ---- busy


@pytest.mark.parametrize(
    ("retry", "wait"), [(None, 20), (15, 15), ("30", 30), (0, 1), (-3, 1), (10**12, 7200), ("soon", 20), ([], 20)]
)
async def test_a_busy_task_comes_back_after_a_wait_that_makes_sense(php: StubPhp, retry: object, wait: int) -> None:
    php.locks = True
    php.work = answers(result="busy", retry=retry)
    async with House(php, lease_seconds=20).running() as house:
        assert await house.wait_of(await house.add(), "(unknown)") == wait


async def test_the_log_tells_a_lock_that_is_stuck_from_an_answer_that_was_lost(php: StubPhp) -> None:
    php.locks = True
    php.work = answers(result="busy")
    with capture_logs() as lines:
        async with House(php).running() as house:
            task_id = await house.add()
            for _ in range(5):
                await house.waiting(task_id, "(unknown)")
                await house.hurry(task_id)
            await house.waiting(task_id, "(unknown)")
            assert house.delegate.setbacks == {"busy": 6}
    busy = [line for line in lines if "busy" in line["event"]]
    assert [line["times"] for line in busy] == [1, 2, 4]  # the others are left out
    assert {(line["task_id"], line["wait"], "lock" in line["reason"]) for line in busy} == {(task_id, 20, True)}
    assert not [line for line in lines if "nobody knows" in line["event"]]


# ---- leases


async def slowly(call: Call) -> dict[str, Any]:
    await asyncio.sleep(0.3)
    return {"result": "success"}


@pytest.mark.parametrize(("wanted", "held"), [(None, 7200), (600, 600)])
async def test_without_a_lock_in_php_the_row_is_held_for_a_whole_run_before_it_begins(
    php: StubPhp, wanted: int | None, held: int
) -> None:
    php.work = slowly
    if wanted is not None:
        php.lease_durations["PhpWorker"] = wanted
    async with House(php).running() as house:
        task_id = await house.add()
        await until(lambda: php.runs == [task_id])
        assert held - 3 <= from_now(house.active(task_id).lease_expires) <= held
        told = php.calls[-1].params["leaseExpires"]
        assert abs(told - (house.active(task_id).lease_expires or 0)) <= 1
        await house.end_of(task_id)


async def test_with_a_lock_in_php_the_ordinary_short_lease_will_do(php: StubPhp) -> None:
    php.locks = True
    php.work = slowly
    async with House(php).running() as house:
        task_id = await house.add()
        await until(lambda: php.runs == [task_id])
        assert from_now(house.active(task_id).lease_expires) <= 20
        await house.end_of(task_id)


async def test_a_task_that_php_still_runs_is_not_begun_a_second_time(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was lost; the lock says that the run goes on; it comes again until the lock is free."""
    monkeypatch.setattr(delegate_module, "CLASS_SECONDS", 1)
    php.locks = True
    release = asyncio.Event()

    async def outlive(call: Call) -> dict[str, Any]:
        if len(php.runs) == 1:
            await release.wait()
        return {"result": "success"}

    php.work = outlive
    php.lease_durations["PhpWorker"] = 1
    async with House(php, lease_seconds=3).running() as house:
        task_id = await house.add()
        await house.waiting(task_id, "(unknown)")  # the call took as long as its class may
        count = len(php.calls)
        await until(lambda: sum(call.phase == "execute" for call in php.calls[count:]) > 0)
        assert php.runs == [task_id]
        release.set()
        row = await house.end_of(task_id)
    assert (row.result, row.failure_count, row.lost_count) == (Result.SUCCESS, 0, 0)
    assert php.doubled == set()


async def test_renewals_go_on_while_php_works(php: StubPhp) -> None:
    """R001, R124: a call that lasts longer than the lease of the worker."""
    php.locks = True

    async def longer(call: Call) -> dict[str, Any]:
        await asyncio.sleep(3.5)
        return {"result": "success"}

    php.work = longer
    house, other = House(php, lease_seconds=1), None
    async with house.running():
        other = House(php, store=house.store, lease_seconds=1)
        async with other.running():
            task_id = await house.add()
            row = await house.end_of(task_id)
    assert (row.result, php.runs) == (Result.SUCCESS, [task_id])


async def test_another_method_in_the_old_ones_place_is_noticed_at_its_first_answer(php: StubPhp) -> None:
    """The fork's does not lock what it runs: from then on rows are held for a whole run."""
    php.locks = True
    async with House(php).running() as house:
        await house.end_of(await house.add())
        php.locks = False
        await house.end_of(await house.add())
        await until(lambda: house.delegate.open)
        php.work = slowly
        task_id = await house.add()
        await until(lambda: php.running[task_id])
        assert from_now(house.active(task_id).lease_expires) > 7000
        php.locks = True
        await house.end_of(task_id)
        await until(lambda: house.delegate.open)
        task_id = await house.add()
        await until(lambda: php.running[task_id])
        assert from_now(house.active(task_id).lease_expires) <= 20
        await house.end_of(task_id)


# ---- round trips


async def test_a_task_costs_one_call_once_its_class_is_known(php: StubPhp) -> None:
    php.locks = True
    async with House(php).running() as house:
        for task_class in ("OneWorker", "TwoWorker"):
            for _ in range(5):
                await house.end_of(await house.add(task_class))
    assert php.probes() == 1
    assert php.phases().count("prepare") == 2
    assert php.phases().count("execute") == 10


async def test_with_the_forks_own_method_a_task_costs_two_calls(php: StubPhp) -> None:
    """Its `prepare` may say of any task that it is needless, or not to be run."""
    async with House(php).running() as house:
        for _ in range(5):
            await house.end_of(await house.add())
    assert php.probes() == 1
    assert php.phases() == ["prepare", "execute"] * 5


async def test_what_a_class_needs_is_asked_again_when_that_was_long_ago(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    php.locks = True
    async with House(php).running() as house:
        monkeypatch.setattr(delegate_module, "PREPARED_FOR", 0.0)
        await house.end_of(await house.add())
        monkeypatch.undo()
        await house.end_of(await house.add())
        await house.end_of(await house.add())
    assert php.phases() == ["prepare", "execute", "prepare", "execute", "execute"]


async def test_what_is_remembered_of_classes_is_bounded(php: StubPhp, monkeypatch: pytest.MonkeyPatch) -> None:
    php.locks = True
    monkeypatch.setattr(delegate_module, "MAX_CLASSES", 3)
    async with House(php).running() as house:
        for number in (*range(4), 0, 3):
            await house.end_of(await house.add(f"Worker{number}"))
    prepared = [call.params["taskClass"] for call in php.calls if call.phase == "prepare"]
    assert prepared == ["Worker0", "Worker1", "Worker2", "Worker3", "Worker0"]


async def test_calls_at_once_are_bounded(php: StubPhp) -> None:
    php.work = slowly
    async with House(php, concurrency=2).running() as house:
        ids = [await house.add() for _ in range(6)]
        for task_id in ids:
            await house.end_of(task_id)
    assert php.most_at_once == 2


async def test_calls_are_bounded_together_with_those_of_a_native_class_that_hands_work_on(
    php: StubPhp, tmp_path: Path
) -> None:
    php.work = slowly
    policy = tmp_path / "policy.json"
    policy.write_text('{"silent": false, "uris": []}')
    async with House(php, registry=catalog.native(feed_policy_file=policy), concurrency=2).running() as house:
        await until(lambda: house.delegate.open)
        data = '{"key":"1","uri":"https://example.test/"}'
        ids = [await house.add(name, data) for _ in range(4) for name in (FEED_CLASS, "PhpWorker")]
        for task_id in ids:
            await house.end_of(task_id)
    assert php.most_at_once == 2


# ---- classes


async def test_only_classes_that_php_may_run_are_leased(php: StubPhp) -> None:
    async with House(php, patterns=("Exact", "*IndexWorker")).running() as house:
        others = [await house.add(name) for name in ("Exacter", "IndexWorkers", "exact")]
        for name in ("Exact", "SearchIndexWorker"):
            await house.end_of(await house.add(name))
        assert [house.active(task_id).lease_owner for task_id in others] == [None] * 3
        assert house.worker.lease_loop.supported == ["*IndexWorker", "Exact"]
    assert {call.params["taskClass"] for call in php.calls if call.phase == "execute"} == {"Exact", "SearchIndexWorker"}


async def test_a_mail_that_the_forks_method_cannot_read_is_kept(php: StubPhp) -> None:
    php.work = answers(result="permanent-failure", failureReason='Task data for "X" was not valid JSON: scalar')
    async with House(php).running() as house:
        row = await house.waiting(await house.add("PhabricatorMetaMTAWorker", "12"), "(yield)")
        assert row.failure_count == 0
        broken = await house.add("PhabricatorMetaMTAWorker", '{"a"')
        assert (await house.end_of(broken)).result is Result.FAILURE

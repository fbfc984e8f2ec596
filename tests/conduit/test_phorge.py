"""When tasks are leased for Phorge: only while it can run them, in the way that it wants to be called."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from handlers import phorge as phorge_module
from handlers.execution import Terms
from queue_runtime.registry import Context, Registry
from queue_runtime.task import Result
from tests.conduit import stub
from tests.conduit.house import House
from tests.conduit.stub import Http, StubPhp, answers, error
from tests.runtime.harness import until


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        yield stubbed


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phorge_module, "REPAIR_SECONDS", 0.1)
    monkeypatch.setattr(phorge_module, "RED_AFTER", 0.2)


async def test_a_phorge_where_all_goes_well_is_asked_again_now_and_then(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its side may have been upgraded, and the plain calls of the first release go on being answered."""
    monkeypatch.setattr(phorge_module, "LOOK_AGAIN_SECONDS", 0.05)
    php.version = 0
    async with House(php).running() as house:
        await until(lambda: house.phorge.terms == Terms(0))
        php.version, php.locks = 1, True
        await until(lambda: house.phorge.terms == Terms(1, locks=True))
        assert house.delegate.open


@pytest.mark.parametrize(
    "fault",
    [stub.NO_METHOD, stub.BAD_TOKEN, stub.SITE_NOT_FOUND, stub.SETUP_ERROR, stub.HTTPS_ONLY, stub.PARSE_ERROR],
    ids=["method", "token", "host", "set-up", "https", "syntax"],
)
async def test_a_fault_of_the_configuration_burns_no_retry_and_is_one_loud_line(php: StubPhp, fault: Http) -> None:
    registry = Registry()

    @registry.task("NativeWorker")
    async def native(context: Context, data: str) -> None:
        pass

    php.broken = fault
    with capture_logs() as lines:
        async with House(php, registry=registry).running() as house:
            task_id = await house.add()
            await until(lambda: php.probes() >= 3)
            assert (await house.end_of(await house.add("NativeWorker"))).result is Result.SUCCESS
            row = house.active(task_id)
            assert (row.lease_owner, row.failure_count, php.phases()) == (None, 0, [])
            assert not house.delegate.open
            (reason,) = house.lifecycle.faults.values()
            php.broken = None  # repaired
            assert (await house.end_of(task_id)).failure_count == 0
            assert house.lifecycle.faults == {}
    (loud,) = [line for line in lines if line["log_level"] == "error"]
    assert loud["event"] == "Phorge cannot run tasks, none is leased for it"
    assert loud["fix"] in reason
    assert [line["event"] for line in lines if line["event"] == "Phorge runs tasks"] == ["Phorge runs tasks"]


async def test_a_fault_that_comes_up_while_work_goes_on_costs_no_task_a_retry(php: StubPhp) -> None:
    async with House(php).running() as house:
        await house.end_of(await house.add())
        php.broken = stub.NO_METHOD
        ids = [await house.add() for _ in range(30)]
        await until(lambda: "conduit" in house.lifecycle.faults)
        rows = [house.active(task_id) for task_id in ids]
        assert sum(row.lease_owner == "(yield)" for row in rows) <= 4
        assert {row.lease_owner for row in rows} <= {"(yield)", None}
        assert {row.failure_count for row in rows} == {0}
        php.broken = None
        await until(lambda: house.delegate.open)
        for row in rows:
            if row.lease_owner is None:
                await house.end_of(row.id)


async def test_an_answer_that_nobody_expected_is_told_and_ends_nothing(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(raw: object) -> None:
        raise ZeroDivisionError(raw)

    with capture_logs() as lines:
        async with House(php).running() as house:
            await until(lambda: house.delegate.open)
            with monkeypatch.context() as patch:
                patch.setattr(phorge_module, "read_terms", broken)
                house.phorge.doubt()
                await until(lambda: "ZeroDivisionError" in house.phorge.trouble)
            await until(lambda: house.delegate.open)
    assert any(line["log_level"] == "error" and "exc_info" in line for line in lines)


async def test_a_long_version_of_another_protocol_is_cut(php: StubPhp) -> None:
    for version in ("9" * 10**6, [9] * 10**5, {"9": 9}, 10**400, None):
        php.broken = stub.result({"result": "capabilities", "executionVersion": version})
        phorge = House(php).phorge
        await phorge.look()
        assert "speaks version" in phorge.trouble
        assert len(phorge.trouble) < 200


async def test_a_new_token_is_tried_at_once(php: StubPhp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phorge_module, "REPAIR_SECONDS", 600)
    php.broken = stub.BAD_TOKEN
    async with House(php).running() as house:
        await until(lambda: "conduit" in house.lifecycle.faults)
        php.broken = None
        house.phorge.ask_again()
        await until(lambda: house.delegate.open)
        probes = php.probes()
        house.phorge.ask_again()  # also where all is well, which stays open meanwhile
        assert house.delegate.open
        await until(lambda: php.probes() == probes + 1)


async def test_the_first_start_may_come_before_phorge(php: StubPhp) -> None:
    """R111. It stays up, says why it is not ready, and goes on by itself."""
    late = StubPhp()
    async with late.listening():
        pass
    async with House(late).running() as house:
        task_id = await house.add()
        await until(lambda: "was not reached" in house.lifecycle.faults.get("conduit", ""))
        assert house.active(task_id).lease_owner is None
        async with late.listening():
            assert (await house.end_of(task_id)).result is Result.SUCCESS
            assert house.lifecycle.faults == {}


async def test_an_outage_is_asked_for_with_growing_waits_and_few_tasks_meet_it(php: StubPhp) -> None:
    """R084. PHP answers 503 while 300 tasks wait for it."""
    async with House(php).running() as house:
        await house.end_of(await house.add())
        php.broken = stub.page(503, "Service Unavailable")
        before = len(php.calls)
        ids = [await house.add() for _ in range(300)]
        await until(lambda: php.probes() >= 4)
        assert len(php.calls) - before <= 4 + php.probes()
        met = [task_id for task_id in ids if house.active(task_id).lease_owner == "(yield)"]
        assert 1 <= len(met) <= 4
        php.broken = None
        for task_id in set(ids) - set(met):
            await house.end_of(task_id)
    assert php.most_at_once <= 4


async def test_a_lost_answer_makes_it_ask_before_the_next_task(php: StubPhp) -> None:
    async with House(php, concurrency=1).running() as house:
        php.work = stub.replies(stub.NGINX_TIMEOUT)
        for _ in range(3):
            await house.waiting(await house.add(), "(unknown)")
    asked = [call.phase for call in php.calls if call.phase != "prepare"]
    assert asked[:6] == ["capabilities", "execute"] * 3


# ---- versions


async def test_the_first_release_of_the_fork_is_called_in_its_own_way(php: StubPhp) -> None:
    php.version = 0
    async with House(php).running() as house:
        row = await house.end_of(await house.add("PhpWorker", "7"))
        assert house.phorge.terms == Terms(0)
    assert (row.result, row.duration_us) == (Result.SUCCESS, 46)
    assert php.phases() == ["plain"]
    assert php.calls[-1].params == {"taskID": row.id, "taskClass": "PhpWorker", "data": "7"}


@pytest.mark.parametrize(
    ("answer", "owner", "wait"),
    [
        ({"result": "yield", "retry": 1}, "(yield)", (3, 5)),
        ({"result": "failure", "failureReason": "x"}, "(retry)", (298, 376)),
    ],
)
async def test_answers_of_the_first_release_are_mapped_too(
    php: StubPhp, answer: dict[str, Any], owner: str, wait: tuple[int, int]
) -> None:
    php.version = 0
    php.work = answers(**answer)
    async with House(php).running() as house:
        row = await house.waiting(await house.add(), owner)
        assert row.lease_expires is not None
        assert wait[0] <= row.lease_expires - time.time() <= wait[1]


async def test_a_first_release_in_front_of_which_nobody_checks_parameters_is_recognised(php: StubPhp) -> None:
    php.broken = error("ERR-NO-TASK-CLASS", 'A "taskClass" is required.')
    house = House(php)
    await house.phorge.look()
    assert house.phorge.terms == Terms(0)


async def test_an_unknown_version_is_not_called(php: StubPhp) -> None:
    php.broken = stub.result({"executionVersion": 2, "result": "capabilities"})
    house = House(php)
    await house.phorge.look()
    assert not house.delegate.open


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
async def test_a_phorge_that_changes_its_version_is_asked_anew_and_no_task_fails(
    php: StubPhp, before: int, after: int
) -> None:
    php.version = before
    async with House(php).running() as house:
        await house.end_of(await house.add())
        php.version = after
        met = await house.add()
        await until(lambda: house.phorge.terms == Terms(after))
        row = await house.waiting(met, "(yield)")
        assert row.failure_count == 0
        await house.end_of(await house.add())


async def test_what_is_learnt_of_a_class_is_asked_again_when_php_has_changed(php: StubPhp) -> None:
    async with House(php).running() as house:
        await house.end_of(await house.add())
        php.locks = True
        house.phorge.doubt()
        await until(lambda: house.phorge.terms == Terms(1, locks=True))
        await house.end_of(await house.add())
    assert php.phases() == ["prepare", "execute", "prepare", "execute"]


async def test_it_stops_at_once_when_told_to(php: StubPhp) -> None:
    began = time.monotonic()
    async with House(php).running() as house:
        await until(lambda: house.delegate.open)
    assert time.monotonic() - began < 5

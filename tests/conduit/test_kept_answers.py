"""Answers that were lost on the way: the extension keeps them, so that work that is done is not done again."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from handlers import delegate as delegate_module
from queue_runtime.task import Result
from tests.conduit.house import House
from tests.conduit.php import TOKEN, Php, Reply, served
from tests.conduit.stub import NGINX_TIMEOUT, Call, Http, StubPhp
from tests.conduit.test_real_php import Address
from tests.runtime.harness import until

LONG = {"do": "take 1.1 s", "end": "stage"}
"""A run of which the answer is kept, with a follow-up."""


@pytest.fixture
def real_php(tmp_path: Path) -> Php:
    return Php(tmp_path)


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        stubbed.locks = stubbed.keeps = True
        yield stubbed


# ---- the extension


def run(php: Php, data: object, owner: str, lost: object = None) -> Reply:
    """One run under this lease; `lost`: leases whose answers the caller did not get."""
    more: dict[str, Any] = {} if lost is None else {"lostLeaseOwners": lost}
    reply = php.execute(data, leaseOwner=owner, **more)
    assert reply.error_code is None
    return reply


def test_a_caller_who_lost_the_answer_is_given_it_and_nothing_is_run_again(real_php: Php) -> None:
    first = run(real_php, LONG, "qr:1")
    assert len(first.result["followups"]) == 1
    again = run(real_php, LONG, "qr:3", ["qr:1", "qr:2"])
    assert (again.result, again.logged("RAN")) == (first.result, [])
    assert run(real_php, LONG, "qr:4", ["qr:1"]).result == first.result  # it may be lost once more


def test_an_answer_that_is_a_failure_is_kept_too(real_php: Php) -> None:
    first = run(real_php, {"do": "take 1.1 s", "end": "throw"}, "qr:1")
    again = run(real_php, {}, "qr:2", ["qr:1"])
    assert (again.result, again.logged("RAN")) == (first.result, [])
    assert first.result["result"] == "failure"


def test_the_answer_of_a_lease_that_the_caller_has_not_lost_is_dropped_and_the_task_is_run(real_php: Php) -> None:
    run(real_php, LONG, "qr:1")
    assert run(real_php, {}, "qr:2", ["qr:0"]).logged("RAN")
    assert run(real_php, {}, "qr:3", ["qr:1"]).logged("RAN")  # there was a newer run, whatever became of it


def test_each_task_has_an_answer_of_its_own(real_php: Php) -> None:
    run(real_php, LONG, "qr:1")
    assert real_php.execute({}, taskID=78, leaseOwner="qr:2", lostLeaseOwners=["qr:1"]).logged("RAN")


def test_the_answer_of_a_short_run_is_not_kept(real_php: Php) -> None:
    run(real_php, {}, "qr:1")
    assert run(real_php, {}, "qr:2", ["qr:1"]).logged("RAN")


def test_a_run_does_not_fail_because_its_answer_cannot_be_kept(real_php: Php) -> None:
    real_php.config["cache"] = "broken"
    reply = run(real_php, LONG, "qr:1", ["qr:0"])
    assert (reply.result["result"], len(reply.logged("LOG"))) == ("success", 2)


# ---- the runtime


async def test_php_is_told_of_each_lost_answer_until_the_task_has_an_outcome(php: StubPhp) -> None:
    ends: list[Http | dict[str, Any]] = [NGINX_TIMEOUT, NGINX_TIMEOUT, {"result": "yield", "retry": 60}]

    async def work(call: Call) -> Http | dict[str, Any]:
        return ends.pop(0) if ends else {"result": "success"}

    php.work = work
    async with House(php).running() as house:
        task_id = await house.add()
        for owner, runs in (("(unknown)", 1), ("(unknown)", 2), ("(yield)", 3)):
            await until(lambda runs=runs: len(php.runs) == runs)  # type: ignore[misc]  # bound in this turn
            await house.waiting(task_id, owner)
            await house.hurry(task_id)
        assert (await house.end_of(task_id)).failure_count == 0
    told = [call.params for call in php.calls if call.phase == "execute"]
    owners = [params["leaseOwner"] for params in told]
    assert [params.get("lostLeaseOwners") for params in told] == [None, owners[:1], owners[:2], None]


async def test_a_method_that_keeps_no_answers_is_not_told_of_lost_ones(php: StubPhp) -> None:
    php.keeps = False
    ends = [NGINX_TIMEOUT]

    async def work(call: Call) -> Http | dict[str, Any]:
        return ends.pop() if ends else {"result": "success"}

    php.work = work
    async with House(php).running() as house:
        task_id = await house.add()
        await house.waiting(task_id, "(unknown)")
        await house.hurry(task_id)
        await house.end_of(task_id)
    assert not any("lostLeaseOwners" in call.params for call in php.calls)


async def test_a_run_whose_answer_came_too_late_is_made_once_and_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits one second for it, and is given the answer when it asks again."""
    monkeypatch.setattr(delegate_module, "CLASS_SECONDS", 1)
    async with served(Php(tmp_path), tmp_path, workers=3) as url:
        house = House(Address(url), token=TOKEN, lease_seconds=1)
        async with house.running():
            row = await house.end_of(await house.add("ActingWorker", json.dumps(LONG)))
            child = await house.end_of(row.id + 1)
    assert (row.result, row.failure_count, child.result) == (Result.SUCCESS, 0, Result.SUCCESS)
    assert row.duration_us is not None
    assert row.duration_us > 1_000_000
    assert (tmp_path / "php.log").read_text().count("RAN ") == 2  # the task, and its follow-up
    assert house.delegate.setbacks["answer lost"] >= 1
    assert row.id + 1 == max(house.store.tables.archived)

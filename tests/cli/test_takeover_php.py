"""`queue-runtime takeover check` where Phorge runs the canary, or ought to."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.selftest import CANARY
from tests.backends import Servers
from tests.cli.takeovers import (
    CLASS,
    NOBODY_THERE,
    PHP_CLASS,
    check,
    executed,
    hangs,
    native_run,
    nothing_is_active,
    one_ended,
    phorge_of,
    serving,
    stub_phorge,
)
from tests.conduit import stub
from tests.conduit.php import TOKEN, Php, served
from tests.conduit.stub import Call, Http, StubPhp


async def _fails(call: Call) -> dict[str, Any]:
    return {"result": "permanent-failure", "failureReason": "it cannot be done"}


async def _lost(call: Call) -> Http:
    return stub.NGINX_TIMEOUT


async def _waits(call: Call) -> dict[str, Any]:
    return {"result": "yield", "retry": 61}


async def _busy(call: Call) -> dict[str, Any]:
    return {"result": "busy"}


async def _not_allowed(call: Call) -> Http:
    return stub.error("ERR-WORKER-CLASS", "this class may not be run")


@pytest.mark.parametrize(
    ("php", "task_class", "words"),
    [
        pytest.param(phorge_of(1, locks=True), CANARY, "queue-runtime's extension", id="extension"),
        pytest.param(phorge_of(1, locks=False), CLASS, "as the fork has", id="fork"),
        pytest.param(phorge_of(0, locks=False), CLASS, "version 0", id="first release"),
    ],
)
def test_php_runs_the_canary_from_a_real_row(  # noqa: PLR0917  fixtures first, then what is varied
    settings: dict[str, str], tmp_path: Path, servers: Servers, php: StubPhp, task_class: str, words: str
) -> None:
    with stub_phorge(php, settings) as delegating:
        code, said = check(delegating, tmp_path)
    assert (code, "must stay on yet: no worker answers" in said) == (1, True), said
    assert words in said
    assert "was run by Phorge" in said
    ((task_id, result, owner),) = servers.phorge.execute(
        "SELECT id, result, leaseOwner FROM worker_archivetask WHERE taskClass = %s AND priority = 1000", (task_class,)
    )
    assert (executed(php), result, owner[:3]) == ([(task_class, task_id)], 0, "qr:")
    assert nothing_is_active(servers)


async def test_the_shipped_extension_runs_the_canary_in_real_php(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    (tmp_path / "locks").mkdir()
    async with served(Php(tmp_path / "locks"), tmp_path) as url:
        delegating = settings | {"CONDUIT_URL": url, "CONDUIT_TOKEN": TOKEN, "CONDUIT_HOST": stub.HOST}
        code, said = await asyncio.to_thread(check, delegating, tmp_path)
    assert (code, f"({CANARY}) was run by Phorge" in said) == (1, True), said
    assert f"must stay on yet: no worker answers at {NOBODY_THERE}" in said
    assert nothing_is_active(servers)


def test_step_four_is_next_when_the_worker_that_runs_would_do_what_native_taskmasters_do(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    native_run(servers, PHP_CLASS)
    php = phorge_of(1, locks=True)
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(found, tmp_path)
        assert f":{served.inner_pid()}@" in said
        served.tell_and_wait()
    assert (code, "was run by Phorge" in said) == (0, True), said
    assert [task_class for task_class, _ in executed(php)] == [CANARY]
    assert "native taskmasters of web1 still act" in said
    assert "none has acted" not in said
    assert "next is step 4" in said
    assert "bin/config set phd.taskmasters 0" in said


def test_with_the_fork_php_and_the_worker_are_tried_by_a_canary_each(settings: dict[str, str], tmp_path: Path) -> None:
    php = StubPhp()
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(found, tmp_path)
        assert f":{served.inner_pid()}@" in said
        served.tell_and_wait()
    assert (code, "has a handler of its own for" in said) == (0, True), said
    assert [task_class for task_class, _ in executed(php)] == [CLASS]
    assert "was run by Phorge" in said
    assert "was run by a handler here" in said
    assert "config set gorge.taskqueue.uri" in said.partition("the way back")[0]


def test_with_the_fork_its_own_step_is_shown_until_tasks_come_over_http(
    settings: dict[str, str], tmp_path: Path
) -> None:
    with stub_phorge(StubPhp(), settings) as delegating, serving(tmp_path, delegating) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        _, before = check(found, tmp_path)
        one_ended(served)
        _, after = check(found, tmp_path)
        served.tell_and_wait()
    assert [line[:18] for line in before.splitlines() if " step " in line] == [
        "next is step 3: Th",
        "after it step 5: T",
    ]
    assert [line[:18] for line in after.splitlines() if " step " in line] == ["next is step 5: Th"]


@pytest.mark.parametrize(
    ("narrow", "next_step"),
    [
        ({"CONDUIT_CLASSES": PHP_CLASS}, 5),
        ({"CONDUIT_CLASSES": PHP_CLASS, "TASK_CLASSES": PHP_CLASS}, 2),
        ({"TASK_CLASSES": PHP_CLASS}, 2),
        ({"TASK_CLASSES": f"{PHP_CLASS},{CLASS}"}, 5),
    ],
)
def test_a_worker_that_leaves_the_canary_out_is_tried_otherwise_and_both_sides_are_named(
    settings: dict[str, str], tmp_path: Path, servers: Servers, narrow: dict[str, str], next_step: int
) -> None:
    php = phorge_of(1, locks=True)
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating | narrow) as (served, found):
        code, said = check(found, tmp_path)
        served.tell_and_wait()
    assert [task_class for task_class, _ in executed(php)] == [CANARY], said
    assert f"does not lease {CANARY}: where CONDUIT_CLASSES or TASK_CLASSES are set, add {CANARY}" in said
    assert "queue-runtime.classes" in said
    assert (code, f"next is step {next_step}" in said) == (int(next_step == 2), True), said
    assert ("no canary was run by the worker" in said) == (next_step == 2)
    assert ("all other classes have native taskmasters alone" in said) == (next_step == 5)
    assert nothing_is_active(servers)


@pytest.mark.parametrize(
    "narrow",
    [
        {"CONDUIT_CLASSES": f"{PHP_CLASS},{CANARY}"},
        {"TASK_CLASSES": f"{PHP_CLASS},{CANARY}"},
        {"QUEUES": "search,low"},
    ],
)
def test_with_the_canary_among_the_classes_it_goes_through_the_worker(
    settings: dict[str, str], tmp_path: Path, narrow: dict[str, str]
) -> None:
    php = phorge_of(1, locks=True)
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating | narrow) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(found, tmp_path)
        assert f":{served.inner_pid()}@" in said
        served.tell_and_wait()
    assert (code, "was run by Phorge" in said) == (0, True), said
    assert "next is step 5" in said


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (
            _not_allowed,
            [
                "was taken, and put off for 300 s",
                "(yield)",
                "says: Phorge does not allow this class here",
                "ERR-WORKER-CLASS",
            ],
        ),
        (_waits, ["was taken, and put off for 61 s", "(yield)"]),
    ],
)
def test_a_canary_that_the_worker_was_refused_ends_the_check_at_once_with_the_reason(
    settings: dict[str, str], tmp_path: Path, servers: Servers, work: stub.Work, words: list[str]
) -> None:
    php = phorge_of(1, locks=True)
    php.work = work
    with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating) as (served, found):
        served.wait_for_event("Phorge runs tasks")
        code, said = check(found, tmp_path)
        served.tell_and_wait()
    assert (code, [one for one in words if one not in said]) == (1, []), said
    assert "queue-runtime.classes" in said
    assert "next is step 2" in said
    assert nothing_is_active(servers)


@pytest.mark.parametrize("broken", [stub.BAD_TOKEN, stub.NO_METHOD, stub.SITE_NOT_FOUND, stub.PHP_CUT_OFF])
def test_a_phorge_that_cannot_run_tasks_gets_none_and_the_step_is_shown(
    settings: dict[str, str], tmp_path: Path, servers: Servers, broken: Http
) -> None:
    php = StubPhp()
    php.broken = broken
    with stub_phorge(php, settings) as delegating:
        code, said = check(delegating, tmp_path)
    assert (code, "cannot run tasks: " in said) == (1, True), said
    assert "next is step 2" in said
    assert stub.TOKEN not in said
    assert executed(php) == []
    assert nothing_is_active(servers)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (_fails, ["failed: it cannot be done"]),
        (_lost, ["504", "PHP may be running it still", "It is (unknown) now"]),
        (_busy, ["PHP may be running it still", "It is (unknown) now"]),
        (_waits, ["it was put off", "It is (yield) now"]),
        (_not_allowed, ["ERR-WORKER-CLASS", "this class may not be run", "queue-runtime.classes"]),
        (hangs, ["did not end within 2 s", "PHP may still be running it"]),
    ],
)
def test_a_canary_that_php_does_not_end_well_is_a_fault_with_the_reason_and_no_row_of_it_stays_active(
    settings: dict[str, str], tmp_path: Path, servers: Servers, work: stub.Work, words: list[str]
) -> None:
    php = phorge_of(1, locks=True)
    php.work = work
    with stub_phorge(php, settings) as delegating:
        code, said = check(delegating, tmp_path, "--seconds", "2" if work is hangs else "60")
    assert (code, [one for one in words if one not in said]) == (1, []), said
    assert "next is step 2" in said
    assert "is above" not in said
    assert nothing_is_active(servers)

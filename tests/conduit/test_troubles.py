"""Who pays for a call that went wrong: the task, its class, or everything that Phorge runs."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from handlers import brakes as brakes_module
from handlers import catalog
from handlers import phorge as phorge_module
from handlers import setbacks as setbacks_module
from handlers.brakes import Brakes
from handlers.feed_publisher import TASK_CLASS as FEED_CLASS
from handlers.setbacks import Setbacks, grown
from queue_runtime.task import Result
from tests.conduit import stub
from tests.conduit.house import House
from tests.conduit.stub import HANG_UP, Call, Http, StubPhp, answers, error, page, replies
from tests.runtime.harness import until


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        stubbed.locks = True
        yield stubbed


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(brakes_module, "time", clock)
    monkeypatch.setattr(setbacks_module, "time", clock)
    return clock


def poisoned(bad: dict[str, Any] | Http) -> stub.Work:
    """A PHP that answers so to one class, and runs every other."""

    async def work(call: Call) -> dict[str, Any] | Http:
        return bad if call.params["taskClass"] == "PoisonWorker" else {"result": "success"}

    return work


NOT_ALLOWED = error("ERR-WORKER-CLASS", "This task class may not be run here.")
NOT_NOW = error("ERR-WORKER-CONTEXT", "A valid versioned execution context is required.")

EXITED = error("ERR-WORKER-EXIT", "The worker ended PHP itself, by exit().")

POISON: dict[str, dict[str, Any] | Http] = {
    "the class is not allowed": NOT_ALLOWED,
    "the call is refused unread": NOT_NOW,
    "exit() in a worker": EXITED,
    "an uncaught exception": error("ERR-CONDUIT-CORE", "Undefined index"),
    "a result that is not UTF-8": error("Exception", "Failed to JSON encode value"),
    "out of memory": stub.FATAL,
    "maintenance of one class": page(503, "Service Unavailable"),
    "an unknown result": {"result": "finished"},
    "no answer of Conduit's": page(200, "Welcome"),
    "php-fpm ends it": stub.PHP_CUT_OFF,
    "the web server loses patience": stub.NGINX_TIMEOUT,
    "PHP crashes": HANG_UP,
    "too slow for some proxy": page(408, "Request Timeout"),
    "an answer that is not Phorge's": Http(201, b"{}"),
    "too large": page(413, "413 Request Entity Too Large"),
    "forbidden": page(403, "403 Forbidden"),
    "not found": page(404, "404 Not Found"),
    "too many requests": Http(429, b"slow down"),
    "a redirect": stub.HTTPS_ONLY,
    "a page of the set-up": stub.SETUP_ERROR,
    "the token is refused": stub.BAD_TOKEN,
    "busy": {"result": "busy"},
}


@pytest.mark.parametrize("case", POISON)
async def test_a_class_that_always_goes_wrong_costs_the_others_nothing(php: StubPhp, case: str) -> None:
    """Sixty of its tasks are before them, and Phorge itself is well."""
    php.work = poisoned(POISON[case])
    house = House(php)
    for _ in range(60):
        await house.add("PoisonWorker", priority=1000)
    good = [await house.add("GoodWorker") for _ in range(20)]
    async with house.running():
        with anyio.fail_after(8):
            for task_id in good:
                assert (await house.end_of(task_id)).result is Result.SUCCESS
        assert house.lifecycle.faults == {}


async def test_many_classes_that_go_wrong_cost_the_others_no_more(php: StubPhp) -> None:
    async def work(call: Call) -> dict[str, Any] | Http:
        return stub.FATAL if call.params["taskClass"].startswith("Poison") else {"result": "success"}

    php.work = work
    house = House(php)
    for number in range(60):
        await house.add(f"Poison{number % 20}", priority=1000)
    good = await house.add("GoodWorker")
    async with house.running():
        await house.end_of(good)


@pytest.mark.parametrize("bad", [stub.FATAL, HANG_UP, page(503, "Service Unavailable")], ids=["500", "lost", "503"])
async def test_a_class_that_goes_wrong_now_and_then_does_not_have_the_others_wait(php: StubPhp, bad: Http) -> None:
    """Another call was fine after that one began: Phorge is asked all the same, and meanwhile the others go on."""
    go_on = anyio.Event()

    async def work(call: Call) -> dict[str, Any] | Http:
        if call.params["taskClass"] != "PoisonWorker":
            return {"result": "success"}
        await go_on.wait()
        return bad

    php.work = work
    async with House(php).running() as house:
        poisoned_id = await house.add("PoisonWorker")
        await until(lambda: php.running[poisoned_id])
        await house.end_of(await house.add("GoodWorker"))
        shut = []
        with_doubt = house.phorge.doubt

        def noted(*arguments: Any, **more: Any) -> None:
            with_doubt(*arguments, **more)
            shut.append(not house.delegate.open)

        house.phorge.doubt = noted  # type: ignore[method-assign]
        go_on.set()
        await until(lambda: php.probes() == 2)
        assert shut == [False]
        assert house.delegate.open


async def test_calls_that_go_wrong_while_none_is_fine_have_all_wait(php: StubPhp) -> None:
    async with House(php).running() as house:
        await house.end_of(await house.add("GoodWorker"))
        began = time.monotonic()
        house.phorge.doubt("PoisonWorker", "x", began=began)
        assert not house.delegate.open
        await until(lambda: house.delegate.open)


async def test_an_answer_of_the_method_about_one_task_proves_that_phorge_is_there(php: StubPhp) -> None:
    php.work = replies(EXITED)
    async with House(php).running() as house:
        for _ in range(2):
            row = await house.waiting(await house.add(), "(retry)")
            assert row.failure_count == 1
            assert house.delegate.open
    assert php.probes() == 1


# ---- a class that is refused


@pytest.mark.parametrize("phase", ["prepare", "execute"])
async def test_a_class_that_php_does_not_allow_is_put_off_without_a_failure_and_not_leased_for_a_while(
    php: StubPhp, phase: str
) -> None:
    if phase == "prepare":
        php.prepare["PoisonWorker"] = NOT_ALLOWED
    php.work = poisoned(NOT_ALLOWED)
    with capture_logs() as lines:
        async with House(php).running() as house:
            first = await house.add("PoisonWorker")
            assert await house.wait_of(first, "(yield)") == 300
            calls = len(php.calls)
            ids = [await house.add("PoisonWorker") for _ in range(30)]
            await house.end_of(await house.add("GoodWorker"))
            assert {house.active(task_id).lease_owner for task_id in ids} == {None}
            assert {house.active(task_id).failure_count for task_id in (first, *ids)} == {0}
            asked = [call for call in php.calls[calls:] if call.params["taskClass"] == "PoisonWorker"]
            assert asked == []
            assert "ERR-WORKER-CLASS" in house.delegate.held["PoisonWorker"]
            assert php.probes() == 1
    (loud,) = [line for line in lines if line["log_level"] == "error"]
    assert (loud["task_class"], loud["task_id"]) == ("PoisonWorker", first)
    assert "ERR-WORKER-CLASS" in loud["reason"]


async def test_a_task_that_was_leased_although_its_class_waits_is_put_off_unasked(php: StubPhp, tmp_path: Path) -> None:
    """Leased before that, or by a native class that hands it on."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"silent": false, "uris": []}')
    async with House(php, registry=catalog.native(feed_policy_file=policy)).running() as house:
        await until(lambda: house.delegate.open)
        house.phorge.brakes.hold(FEED_CLASS, 200, "a reason")
        task_id = await house.add(FEED_CLASS, '{"key":"1","uri":"https://example.test/"}')
        assert 195 <= await house.wait_of(task_id, "(yield)") <= 200
        assert house.active(task_id).failure_count == 0
        assert house.delegate.setbacks == {"not asked": 1}
    assert php.phases() == []


async def test_a_call_that_php_refuses_unread_is_put_off_without_a_failure(php: StubPhp) -> None:
    """The fork's own method compares the lease with a clock of its own, which may be an hour fast."""
    php.locks = False
    php.work = replies(NOT_NOW)
    with capture_logs() as lines:
        async with House(php).running() as house:
            for _ in range(2):
                task_id = await house.add()
                assert await house.wait_of(task_id, "(yield)") == 300
                assert (house.active(task_id).failure_count, house.history(task_id)) == (0, [])
            assert php.probes() == 1
    (loud,) = [line for line in lines if line["log_level"] == "error"]
    assert "clocks" in loud["reason"]


@pytest.mark.parametrize("reply", [page(413, "413 Request Entity Too Large"), stub.NO_FORM], ids=["413", "PHP"])
@pytest.mark.parametrize("phase", ["prepare", "execute"])
async def test_a_payload_too_large_for_the_web_server_is_put_off_with_the_fix_and_its_class_goes_on(
    php: StubPhp, reply: Http, phase: str
) -> None:
    async def work(call: Call) -> dict[str, Any] | Http:
        return reply if len(call.params["data"]) > 100 else {"result": "success"}

    php.work = work
    if phase == "prepare":
        php.prepare["BigWorker"] = reply
    with capture_logs() as lines:
        async with House(php).running() as house:
            for _ in range(4):
                large = await house.add("BigWorker", "x" * 200)
                assert await house.wait_of(large, "(yield)") == 300
                assert (house.active(large).failure_count, house.history(large)) == (0, [])
            php.prepare.clear()
            assert (await house.end_of(await house.add("BigWorker"))).result is Result.SUCCESS
            assert (house.delegate.held, house.delegate.setbacks) == ({}, {"size": 4})
            assert php.probes() == 1
    (loud,) = [line for line in lines if line["log_level"] == "error"]  # the others are folded
    assert "client_max_body_size" in loud["reason"]


# ---- a task that is turned away while Phorge is well


@pytest.mark.parametrize(
    ("reply", "words", "kind"),
    [
        (page(403, "403 Forbidden"), "403 Forbidden", "turned away"),
        (page(404, "404 Not Found"), "404 Not Found", "turned away"),
        (Http(429, b"slow down"), "slow down", "not reached"),
        (stub.HTTPS_ONLY, "redirects", "turned away"),
        (stub.SETUP_ERROR, "not set up", "turned away"),
        (stub.BAD_TOKEN, "refuses the token", "turned away"),
    ],
)
async def test_a_task_that_is_turned_away_alone_waits_longer_each_time_and_leaves_its_reason(
    php: StubPhp, reply: Http, words: str, kind: str
) -> None:
    php.work = poisoned(reply)
    with capture_logs() as lines:
        async with House(php).running() as house:
            task_id = await house.add("PoisonWorker")
            waits = [await house.wait_of(task_id, "(yield)")]
            for _ in range(2):
                await house.hurry(task_id)
                waits.append(await house.wait_of(task_id, "(yield)"))
                await house.end_of(await house.add("GoodWorker"))
            assert (house.active(task_id).failure_count, house.history(task_id)) == (0, [])
            assert house.delegate.setbacks == {kind: 3}
    assert waits == [15, 30, 60]
    (said,) = [line for line in lines if "did not run this task" in line["event"]]  # the others are folded
    assert words in said["reason"]
    assert (said["task_class"], said["wait"]) == ("PoisonWorker", 15)


async def test_an_outage_is_no_fault_of_the_classes_that_it_met(php: StubPhp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phorge_module, "LONGEST_WAIT", 0.2)
    async with House(php).running() as house:
        for _ in range(4):
            await until(lambda: house.delegate.open)
            php.broken = page(500, "Internal Server Error")
            await house.waiting(await house.add(), "(retry)")
            await until(lambda: not house.delegate.open and house.phorge.terms is None)
            php.broken = None
        await until(lambda: house.delegate.open)
        assert house.delegate.held == {}
        await house.end_of(await house.add())


async def test_a_class_is_slowed_down_in_the_open_and_set_free_by_an_outcome(php: StubPhp) -> None:
    php.work = poisoned(stub.FATAL)
    with capture_logs() as lines:
        async with House(php).running() as house:
            for _ in range(8):
                await house.add("PoisonWorker")
            await until(lambda: house.delegate.held)
            assert "UNRECOVERABLE FATAL ERROR" in house.delegate.held["PoisonWorker"]
            php.work = answers(result="failure", failureReason="an outcome like any other", retry=60)
            await until(lambda: [line for line in lines if line["event"] == "Phorge runs this class again"])
            assert house.delegate.held == {}
    (said,) = [line for line in lines if "slowed down" in line["event"]]
    assert (said["task_class"], said["times"], said["seconds"]) == ("PoisonWorker", 3, 1.0)


# ---- the books


def test_a_class_is_left_in_peace_twice_and_then_waits_twice_as_long_each_time(clock: Clock) -> None:
    brakes = Brakes()
    waits = []
    for _ in range(10):
        brakes.strike("A", "x")
        waits.append(brakes.left("A"))
        if brakes.held:
            brakes.strike("A", "of a call that began before")
        clock.now += brakes.left("A")
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert brakes.left("B") == 0.0


def test_an_outcome_sets_a_class_free_and_time_alone_lets_it_try(clock: Clock) -> None:
    brakes = Brakes()
    brakes.hold("A", 300, "not allowed")
    assert brakes.held == {"A": "not allowed"}
    clock.now += 299
    assert brakes.left("A") == 1.0
    clock.now += 1
    assert brakes.held == {}
    brakes.hold("A", 300, "not allowed")
    brakes.fine("A")
    assert brakes.held == {}


def test_a_slow_class_is_said_once_in_five_minutes(clock: Clock) -> None:
    brakes = Brakes()
    with capture_logs() as lines:
        for _ in range(40):
            brakes.strike("A", "x")
            clock.now += 60
    assert len(lines) == 8


def test_the_books_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brakes_module, "MAX_CLASSES", 3)
    monkeypatch.setattr(brakes_module, "MAX_HELD", 2)
    monkeypatch.setattr(setbacks_module, "MAX_TASKS", 3)
    monkeypatch.setattr(setbacks_module, "MAX_LINES", 3)
    brakes, setbacks = Brakes(), Setbacks()
    for number in range(5):
        brakes.hold(f"Class{number}", 300, "x")
        setbacks.add(number, "lost")
    assert brakes.held.keys() == {"Class2", "Class3"}
    assert [brakes.left(f"Class{number}") for number in range(5)] == [0, 0, 300, 300, 300]
    assert [setbacks.add(number, "lost") for number in (4, 3, 2, 1)] == [2, 2, 2, 1]


def test_setbacks_of_a_task_are_counted_by_kind_until_it_has_an_outcome() -> None:
    setbacks = Setbacks()
    assert [setbacks.add(7, kind) for kind in ("lost", "busy", "busy", "lost")] == [1, 1, 2, 2]
    setbacks.over(7)
    assert setbacks.add(7, "lost") == 1
    assert setbacks.counts == {"lost": 3, "busy": 2}


def test_a_wait_grows_to_its_bound_and_no_further() -> None:
    assert [grown(15, times, 100) for times in (1, 2, 3, 4, 10_000)] == [15, 30, 60, 100, 100]

"""What the lease loop asks of the gate of a fallback: which classes, and whether now."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handlers import catalog
from handlers import phorge as phorge_module
from handlers.feed_publisher import TASK_CLASS as FEED_CLASS
from queue_runtime.lanes import LEARN_SECONDS, lanes_of
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics
from queue_runtime.registry import Context, Registry
from queue_runtime.task import Result
from tests.conduit import stub
from tests.conduit.house import House
from tests.conduit.stub import StubPhp
from tests.runtime.harness import Worker, new, open_reference, until


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        yield stubbed


class Gate:
    """A gate that the test opens and shuts."""

    def __init__(self, *patterns: str, is_open: bool = True) -> None:
        self.patterns = patterns
        self.open = is_open
        self.held: set[str] = set()


def registry_with(gate: Gate) -> Registry:
    """One native class, and a fallback behind the gate."""
    registry = Registry()

    @registry.task("NativeWorker")
    async def native(context: Context, data: str) -> None:
        pass

    async def fallback(context: Context, data: str) -> None:
        pass

    registry.fallback(fallback, gate=gate)
    return registry


def test_everything_but_the_native_classes_is_one_lane_of_its_own() -> None:
    native, others = lanes_of(registry_with(Gate("*")), None, slots=4)
    assert (native.classes, native.shut) == ({"NativeWorker"}, False)
    assert (others.classes, others.without_classes) == (None, {"NativeWorker"})


def test_exact_names_are_asked_for_by_name() -> None:
    _, others = lanes_of(registry_with(Gate("A", "NativeWorker", "B")), None, slots=4)
    assert others.classes == {"A", "B"}
    assert not others.wants_names(1e9)


def test_patterns_become_names_as_classes_are_met_and_are_not_forgotten() -> None:
    _, others = lanes_of(registry_with(Gate("A", "*Worker")), None, slots=4)
    assert others.wants_names(0.0)
    others.learn(["OneWorker", "NativeWorker", "Other"], 0.0)
    assert others.classes == {"A", "OneWorker"}
    assert not others.wants_names(LEARN_SECONDS / 2)
    assert others.wants_names(LEARN_SECONDS)
    others.learn(["TwoWorker"], LEARN_SECONDS)
    assert others.classes == {"A", "OneWorker", "TwoWorker"}


def test_a_class_filter_is_narrowed_by_the_patterns() -> None:
    _, others = lanes_of(registry_with(Gate("*Index")), frozenset({"AIndex", "B", "NativeWorker"}), slots=4)
    assert others.classes == {"AIndex"}


def test_classes_that_wait_are_left_out_whichever_way_the_others_are_asked_for() -> None:
    gates = Gate("*"), Gate("A", "B"), Gate("*Worker")
    all_but, named, met = (lanes_of(registry_with(gate), None, slots=4)[1] for gate in gates)
    met.learn(["AWorker", "BWorker"], 0.0)
    for gate in gates:
        gate.held = {"A", "AWorker"}
    assert (all_but.classes, all_but.without_classes) == (None, {"NativeWorker", "A", "AWorker"})
    assert named.classes == {"B"}
    assert met.classes == {"BWorker"}
    for gate in gates:
        gate.held = set()
    assert (all_but.classes, all_but.without_classes) == (None, {"NativeWorker"})
    assert named.classes == {"A", "B"}
    assert met.classes == {"AWorker", "BWorker"}


async def test_a_class_that_waits_stays_ready_and_the_others_run() -> None:
    gate = Gate("*")
    gate.held = {"HeldWorker"}
    store = open_reference()
    worker = Worker(store, registry_with(gate))
    async with worker.running():
        held, other = (task.id for task in await store.enqueue([new("HeldWorker"), new("PhpWorker")]))
        await until(lambda: other in store.tables.archived)
        assert store.tables.active[held].lease_owner is None
        gate.held = set()
        await until(lambda: held in store.tables.archived)


async def test_a_shut_gate_keeps_its_classes_ready_and_the_native_ones_run() -> None:
    gate = Gate("*", is_open=False)
    store = open_reference()
    worker = Worker(store, registry_with(gate))
    async with worker.running():
        php_id, native_id = (task.id for task in await store.enqueue([new("PhpWorker"), new("NativeWorker")]))
        await until(lambda: native_id in store.tables.archived)
        assert store.tables.active[php_id].lease_owner is None
        gate.open = True
        worker.doorbell.ring()
        await until(lambda: php_id in store.tables.archived)


async def test_a_native_class_that_hands_work_on_waits_while_phorge_is_away(
    php: StubPhp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own lane goes on, so nothing may come back at once."""
    monkeypatch.setattr(phorge_module, "REPAIR_SECONDS", 0.1)
    policy = tmp_path / "policy.json"
    policy.write_text('{"silent": false, "uris": []}')
    async with House(php, registry=catalog.native(feed_policy_file=policy)).running() as house:
        await until(lambda: house.delegate.open)
        php.broken = stub.NO_METHOD
        house.phorge.doubt()
        await until(lambda: house.lifecycle.faults)
        task_id = await house.add(FEED_CLASS, '{"key":"1","uri":"https://example.test/"}')
        row = await house.waiting(task_id, "(yield)")
        assert (row.failure_count, php.phases()) == (0, [])
        php.broken = None
        await until(lambda: house.delegate.open)
        await house.store.awaken([task_id])
        house.worker.doorbell.ring()
        assert (await house.end_of(task_id)).result is Result.SUCCESS


async def test_classes_outside_of_the_patterns_count_as_unserved(php: StubPhp) -> None:
    """R103."""
    house = House(php, patterns=("*IndexWorker",))
    async with house.running():
        await house.add("OtherWorker")
        await house.add("OtherWorker")
        metrics = Metrics(house.store, lifecycle=Lifecycle(), worker=house.worker.lease_loop, conduit=house.delegate)
        await until(lambda: house.delegate.open)
        text = (await metrics.render()).decode()
    assert 'queue_runtime_unserved_waiting_tasks{task_class="OtherWorker"} 2.0' in text
    assert "queue_runtime_conduit_ready 1.0" in text
    assert 'queue_runtime_conduit_calls_total{ending="answered"} 1.0' in text

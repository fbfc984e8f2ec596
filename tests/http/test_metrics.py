"""What a scrape sees, and that it stays small whatever callers enqueue and ask for."""

from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from queue_runtime import metrics as metrics_module
from queue_runtime.stats import Ending
from tests.backends import Opened
from tests.clock import Clock
from tests.faulty_store import FaultyStore
from tests.http.house import FakeWorker, House, open_house

pytestmark = pytest.mark.parametrize("opened", ["reference"], indirect=True)

Samples = dict[tuple[str, ...], float]


async def _scrape(house: House) -> Samples:
    """Values by name and label values; labels in the order of their names."""
    reply = await house.client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    found: Samples = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            found[
                (sample.name.removeprefix("queue_runtime_"), *(value for _, value in sorted(sample.labels.items())))
            ] = sample.value
    return found


def _of(samples: Samples, name: str) -> Iterable[tuple[str, ...]]:
    return [labels for found, *rest in samples if found == name for labels in [tuple(rest)]]


async def test_requests_are_counted_by_route_template_and_status(house: House) -> None:
    for path in ("tasks/1", "tasks/2", "tasks/x", "stats", "nothing/1", "nothing/2"):
        await house.get(path)
    samples = await _scrape(house)
    name = "http_request_seconds_count"
    assert samples[name, "/api/queue/tasks/{id}", "404"] == 2
    assert samples[name, "/api/queue/tasks/{id}", "400"] == 1
    assert samples[name, "/api/queue/stats", "200"] == 1
    assert samples[name, "(none)", "404"] == 2
    assert samples["http_request_seconds_sum", "/api/queue/stats", "200"] > 0


async def test_waiting_work_is_told_by_class_and_priority(house: House, clock: Clock) -> None:
    await house.enqueue("A", priority=1000)
    await house.enqueue("A", priority=2000)
    await house.enqueue("B", priority=2000)
    await house.leased("held")
    samples = await _scrape(house)
    assert samples["tasks", "active"] == 4
    assert samples["tasks", "leased"] == 1
    assert samples["waiting_tasks", "A"] == 2
    assert samples["waiting_tasks_by_priority", "2000"] == 2
    assert ("waiting_tasks", "held") not in samples
    assert samples["oldest_waiting_seconds", "B"] > 0
    assert samples["oldest_waiting_seconds_by_priority", "1000"] > 0
    assert samples["store_up",] == 1


async def test_the_number_of_groups_is_bounded(house: House) -> None:
    tasks = [{"taskClass": f"Class{place:04}", "priority": place} for place in range(500)]
    await house.post("enqueue-batch", {"tasks": tasks})
    samples = await _scrape(house)
    assert len(list(_of(samples, "waiting_tasks"))) == 101
    assert len(list(_of(samples, "waiting_tasks_by_priority"))) == 101
    assert samples["waiting_tasks", "(other)"] == 400


async def test_an_outage_costs_the_stores_figures_and_nothing_else(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    async with open_house(store, worker=FakeWorker("A")) as house:
        store.down = True
        samples = await _scrape(house)
        assert samples["store_up",] == 0
        assert ("tasks", "active") not in samples
        assert samples["slots",] == 0
        assert samples["outcomes_waiting",] == 0


async def test_scrapes_in_a_row_ask_the_store_once(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    async with open_house(store) as house:
        for _ in range(3):
            await _scrape(house)
        assert store.calls["backlog"] == 1


async def test_classes_that_nobody_here_can_run_are_named_and_logged_once(opened: Opened) -> None:
    async with open_house(opened.store, worker=FakeWorker("A")) as house:
        for _ in range(3):
            await house.enqueue("Orphan")
        await house.enqueue("A")
        with capture_logs() as lines:
            samples = await _scrape(house)
            house.metrics._figures = metrics_module.Figures(-metrics_module.FRESH_SECONDS)
            await _scrape(house)
    assert samples["unserved_waiting_tasks", "Orphan"] == 3
    assert ("unserved_waiting_tasks", "A") not in samples
    warned = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["task_class"], line["waiting"]) for line in warned] == [("Orphan", 3)]


async def test_tasks_of_a_queue_that_is_passed_by_are_counted_and_the_queue_is_logged_once(opened: Opened) -> None:
    """R103: a queue was renamed, and nobody takes what is put under the new name."""
    worker = FakeWorker("*")
    worker.queues = ["old"]
    async with open_house(opened.store, worker=worker) as house:
        for queue in ("new", "new", "old"):
            await house.enqueue("A", queue=queue)
        with capture_logs() as lines:
            samples = await _scrape(house)
            house.metrics._figures = metrics_module.Figures(-metrics_module.FRESH_SECONDS)
            await _scrape(house)
    assert samples["unserved_waiting_tasks", "A"] == 2
    assert [(line["queue"], line["waiting"]) for line in lines if "queue" in line] == [("new", 2)]


async def test_a_fallback_serves_every_class(opened: Opened) -> None:
    async with open_house(opened.store, worker=FakeWorker("*")) as house:
        await house.enqueue("Orphan")
        assert list(_of(await _scrape(house), "unserved_waiting_tasks")) == []


async def test_runs_are_told_by_class_and_ending(opened: Opened) -> None:
    worker = FakeWorker("A")
    counts = worker.stats.of("A")
    counts.running = 2
    counts.endings[Ending.SUCCEEDED] = 3
    for seconds in (0.01, 0.2, 7000.0):
        counts.observe(seconds)
    worker.stats.lease_errors = 4
    worker.stats.blocked_seconds = 1.5
    for place in range(300):
        worker.stats.of(f"Other{place}").endings[Ending.FAILED] = 1
    async with open_house(opened.store, worker=worker) as house:
        samples = await _scrape(house)
    assert samples["running_tasks", "A"] == 2
    assert samples["runs_total", "succeeded", "A"] == 3
    assert samples["runs_total", "failed", "(other)"] == 201
    assert samples["run_seconds_bucket", "0.025", "A"] == 1
    assert samples["run_seconds_bucket", "+Inf", "A"] == 3
    assert samples["run_seconds_sum", "A"] == 7000.21
    assert samples["lease_errors_total",] == 4
    assert samples["loop_blocked_seconds_total",] == 1.5


async def test_faults_are_told_by_their_source(house: House) -> None:
    house.lifecycle.fault("settler", "the store is away")
    assert (await _scrape(house))["fault", "settler"] == 1

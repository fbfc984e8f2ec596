"""An account that may not lease any more while work waits: figures and readiness say so (R113)."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from queue_runtime import metrics as metrics_module
from queue_runtime.metrics import Metrics
from queue_runtime.registry import Context, Registry
from queue_runtime.stats import Ending
from queue_runtime.task import NewTask
from stores.mysql import open_store
from tests.phorge_tables import TABLES, PhorgeTables
from tests.runtime.harness import Worker, until

ACCOUNT = "queue"


@pytest.fixture
def account(phorge: PhorgeTables) -> Iterator[str]:
    """One whose rights are those of single tables, so that a change of them is in force at once."""
    rights = [f"ALL ON `{phorge.worker}`.`{name}`" for name in TABLES]
    phorge.create_account(ACCOUNT, "secret", [*rights, f"ALL ON `{phorge.companion}`.*"])
    yield ACCOUNT
    phorge.execute(f"DROP USER {ACCOUNT}@localhost")


async def figures(metrics: Metrics) -> dict[str, float]:
    """The sums of each metric, read anew."""
    metrics._figures = metrics_module.Figures(-metrics_module.FRESH_SECONDS)
    found: dict[str, float] = {}
    for family in text_string_to_metric_families((await metrics.render()).decode()):
        for sample in family.samples:
            name = sample.name.removeprefix("queue_runtime_")
            found[name] = found.get(name, 0.0) + sample.value
    return found


async def test_work_that_cannot_be_leased_is_seen(phorge: PhorgeTables, account: str) -> None:
    registry = Registry()

    @registry.task("A")
    async def run(context: Context, data: str) -> None:
        """Nothing."""

    async with open_store(phorge.settings(user=account, password="secret")) as store:
        worker = Worker(store, registry)
        worker.lease_loop._outage._red_after = 0.2
        metrics = Metrics(store, lifecycle=worker.lifecycle, worker=worker.lease_loop)
        await store.ping()
        phorge.execute(f"REVOKE UPDATE ON `{phorge.worker}`.worker_activetask FROM {account}@localhost")
        await store.enqueue([NewTask(task_class="A")] * 1000)
        async with worker.running():
            await until(lambda: worker.lifecycle.faults)
            (reason,) = worker.lifecycle.faults.values()
            assert "denied" in reason
            before = await figures(metrics)
            await until(lambda: worker.stats.lease_errors > before["lease_errors_total"])
            after = await figures(metrics)
            assert after["waiting_tasks"] == 1000
            assert after["oldest_waiting_seconds"] > before["oldest_waiting_seconds"]
            assert after["lease_errors_total"] > before["lease_errors_total"]
            phorge.execute(f"GRANT UPDATE ON `{phorge.worker}`.worker_activetask TO {account}@localhost")
            await until(lambda: worker.stats.total(Ending.SUCCEEDED) > 0)
            assert worker.lifecycle.faults == {}

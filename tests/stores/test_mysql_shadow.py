"""A shadow on Phorge's tables: it may have no right to write, makes no companion, and changes no byte of any row."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Lease, NewTask, Release, Settlement
from stores.mysql import open_store
from tests.backends import Servers
from tests.faults.process import Served, wait_for
from tests.phorge_php import PhpTask, Taskmaster, YieldTask
from tests.phorge_tables import TABLES, PhorgeTables, Row

ROUNDS = 3


@pytest.fixture
def phorge(servers: Servers) -> Iterator[PhorgeTables]:
    """A namespace of its own, which has no companion."""
    with PhorgeTables(servers.mariadb, "shadowed") as tables:
        yield tables


@pytest.fixture
def reader(phorge: PhorgeTables) -> Iterator[dict[str, object]]:
    """Settings of a process whose account may read the queue, and nothing else."""
    phorge.create_account("reader", "secret", [f"SELECT ON `{phorge.worker}`.*"])
    yield {
        "STORE": "mysql",
        "SQLITE_PATH": "",
        "MYSQL_SOCKET": phorge.server.socket,
        "MYSQL_USER": "reader",
        "MYSQL_PASSWORD": "secret",
        "NAMESPACE": phorge.namespace,
        "SHADOW": 1,
    }
    phorge.execute("DROP USER reader@localhost")


def dump(phorge: PhorgeTables) -> dict[str, list[Row]]:
    """Every byte of Phorge's tables."""
    return {name: phorge.execute(f"SELECT * FROM `{phorge.worker}`.`{name}` ORDER BY 1") for name in TABLES}


def companion_there(phorge: PhorgeTables) -> bool:
    return bool(phorge.execute("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (phorge.companion,)))


def plant_every_state(phorge: PhorgeTables) -> None:
    """Rows in each state that a worker, a lease or a sweep would change."""
    with Taskmaster(phorge) as php:
        ids = [php.schedule("SleepWorker", priority=1000 + number) for number in range(7)]
        states = [
            (None, None),
            (None, 1),
            ("23192:1796040935:web1:2", 1),
            ("(yield)", 1),
            ("qr:0badcafe:1:1@dead", 1),
            ("gorge-completion-pending", 1),
            ("23192:1796040935:web1:3", 4_000_000_000),
        ]
        for task_id, (owner, expires) in zip(ids, states, strict=True):
            php.write(
                "UPDATE worker_activetask SET leaseOwner = %s, leaseExpires = %s WHERE id = %s",
                (owner, expires, task_id),
            )


def test_not_a_byte_is_changed_and_everything_that_reads_answers(
    phorge: PhorgeTables, reader: dict[str, object], tmp_path: Path
) -> None:
    plant_every_state(phorge)
    phorge.execute(f"UPDATE `{phorge.worker}`.lisk_counter SET counterValue = 1")  # a start would mend it
    before = dump(phorge)
    with Served(tmp_path, wrapper=(), **reader) as served, served.client() as client:
        report = served.wait_for_event("shadow report")
        assert report["would_run"] == {"SleepWorker": 5}
        assert report["held_by"] == {"native taskmasters": 1}
        ready = client.get("/readyz?verbose=1")
        assert (ready.status_code, ready.json()["details"]["shadow"]) == (200, True)
        assert client.get("/api/queue/stats").json()["data"]["activeCount"] == 6
        assert 'queue_runtime_waiting_tasks{task_class="SleepWorker"} 5.0' in client.get("/metrics").text
        for path, body in (("enqueue", {"taskClass": "A"}), ("lease", {"limit": 9})):
            answer = client.post(f"/api/queue/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ERR_SHADOW")
        wait_for("some more reports", lambda: len(served.events("shadow report")) >= ROUNDS, 20)
        served.tell_and_wait()
    assert dump(phorge) == before
    assert not companion_there(phorge)


def test_beside_native_taskmasters_every_row_is_theirs(
    phorge: PhorgeTables, reader: dict[str, object], tmp_path: Path
) -> None:
    stop = threading.Event()
    made: list[int] = []
    again: set[int] = set()

    def work(task: PhpTask) -> list[tuple[str, str]]:
        if task.id % 5 == 0 and task.id not in again:
            again.add(task.id)
            raise YieldTask(60)
        return []

    def php() -> None:
        with Taskmaster(phorge) as taskmaster:
            while not stop.wait(0.002):
                made.append(taskmaster.schedule("SleepWorker"))
                taskmaster.step(work)
            while taskmaster.step(work):
                pass

    thread = threading.Thread(target=php)
    with Served(tmp_path, wrapper=(), **reader) as served, served.client() as client:
        served.wait_for_event("shadow report")
        thread.start()
        try:
            wait_for("it sees them at work", lambda: _seen_at_work(served), 20)
            wait_for("some more reports", lambda: len(served.events("shadow report")) >= ROUNDS + 2, 20)
            assert client.post("/api/queue/enqueue", json={"taskClass": "A"}).status_code == 503
        finally:
            stop.set()
            thread.join()
        served.tell_and_wait()
    rows = dump(phorge)
    owners = {row[2] for row in (*rows["worker_activetask"], *rows["worker_archivetask"])}
    assert all(owner == "(yield)" or ":web1:" in owner for owner in owners), owners
    ids = [row[0] for row in (*rows["worker_activetask"], *rows["worker_archivetask"])]
    assert sorted(ids) == sorted(made)
    assert not companion_there(phorge)


def _seen_at_work(served: Served) -> bool:
    return any("native taskmasters" in one["ended_by"] for one in served.events("shadow report"))


async def test_the_server_itself_refuses_what_a_store_for_reading_would_write(phorge: PhorgeTables) -> None:
    plant_every_state(phorge)
    before = dump(phorge)
    async with open_store(phorge.settings(), StoreOptions(read_only=True)) as store:
        assert (await store.stats()).active == 6
        for call in (
            store.enqueue([NewTask(task_class="A")]),
            store.lease("qr:0badcafe:1:1@test", 9, 60),
            store.settle([Settlement.held(Lease(5, "qr:0badcafe:1:1@dead"), Release())]),
            store.cancel([1, 2, 3]),
        ):
            with pytest.raises(StoreUnavailable):
                await call
    assert dump(phorge) == before
    assert not companion_there(phorge)

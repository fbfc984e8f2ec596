"""Probes and the worker's own face."""

import asyncio

import pytest
from structlog.testing import capture_logs

from queue_runtime.api import health
from queue_runtime.errors import StoreUnavailable
from queue_runtime.reload import Reloaded
from queue_runtime.stats import Ending
from tests.backends import Opened
from tests.faulty_store import FaultyStore
from tests.http.house import FakeWorker, House, open_house

pytestmark = pytest.mark.parametrize("opened", ["reference"], indirect=True)


@pytest.mark.parametrize("path", ["/", "/healthz"])
async def test_liveness_never_looks_at_the_store(opened: Opened, path: str) -> None:
    store = FaultyStore(opened.store)
    store.down = True
    async with open_house(store) as house:
        calls = store.calls.copy()
        reply = await house.client.get(path)
        assert (reply.status_code, reply.content) == (200, b'{"status":"ok"}')
        assert store.calls == calls


async def test_readiness_is_exactly_ok_or_names_its_reason(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    async with open_house(store) as house:
        assert (await house.client.get("/readyz")).content == b'{"status":"ok"}'
        store.down = True
        answer = await house.get("/readyz")
        assert answer.status == 503
        assert answer.body["status"] == "unavailable"
        assert answer.body["reason"].startswith("the store does not answer")
        store.down = False
        assert (await house.get("/readyz")).status == 200


async def test_readiness_shows_faults_and_the_stop(house: House) -> None:
    house.lifecycle.fault("lease loop", "no lease for 40 s")
    answer = await house.get("/readyz")
    assert answer.status == 503
    assert answer.body == {"status": "unavailable", "reason": "lease loop: no lease for 40 s"}
    house.lifecycle.fault("lease loop", None)
    assert (await house.get("/readyz")).status == 200
    house.lifecycle.stopping.set()
    assert (await house.get("/readyz")).body["reason"] == "stopping"


async def test_readiness_gives_up_on_a_store_that_hangs(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(FaultyStore):
        async def ping(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(health, "PING_SECONDS", 0.05)
    async with open_house(Stuck(opened.store)) as house:
        answer = await house.get("/readyz")
    assert answer.status == 503
    assert "did not answer within" in answer.body["reason"]


async def test_a_bug_in_a_ping_is_told_to_the_log_alone(opened: Opened) -> None:
    class Broken(FaultyStore):
        async def ping(self) -> None:
            raise RuntimeError("password=hunter2")

    async with open_house(Broken(opened.store)) as house:
        with capture_logs() as lines:
            answer = await house.get("/readyz")
    assert answer.status == 503
    assert "hunter2" not in str(answer.body)
    assert any(line["log_level"] == "error" for line in lines)


async def test_the_store_is_told_apart_from_others_and_its_address_is_not_told(opened: Opened) -> None:
    class Named(FaultyStore):
        async def operations(self) -> dict[str, object]:
            return {"backend": "streams", "record": "mysql", "lastID": 7, "physicalDatabaseIdentity": "d1935t"}

    async with open_house(Named(opened.store)) as house:
        details = (await house.get("/readyz?verbose=1")).body["details"]
    assert details["store"] == {"kind": "mysql", "identity": "d1935t"}


async def test_a_store_that_does_not_say_which_it_is_keeps_no_probe_waiting(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(FaultyStore):
        async def operations(self) -> dict[str, object]:
            await asyncio.Event().wait()
            raise AssertionError

    class Broken(FaultyStore):
        async def operations(self) -> dict[str, object]:
            raise RuntimeError("password=hunter2")

    monkeypatch.setattr(health, "PING_SECONDS", 0.05)
    for store in (Silent(opened.store), Broken(opened.store)):
        async with open_house(store) as house:
            answer = await house.get("/readyz?verbose=1")
        assert (answer.status, "store" in answer.body["details"]) == (200, False)


async def test_details_are_shown_on_demand(opened: Opened) -> None:
    worker = FakeWorker("A", "B")
    worker.stats.slots = 4
    async with open_house(opened.store, worker=worker) as house:
        house.lifecycle.fault("sweep", "tired")
        answer = await house.get("/readyz?verbose=1")
    assert answer.body["details"]["faults"] == {"sweep": "tired"}
    assert answer.body["details"]["worker"]["slots"] == 4
    assert answer.body["details"]["worker"]["supported"] == ["A", "B"]
    assert answer.body["details"]["worker"]["queues"] is None


async def test_the_queues_that_the_worker_leases_from_are_told(opened: Opened) -> None:
    worker = FakeWorker("A")
    worker.queues = ["high", "mail"]
    async with open_house(opened.store, worker=worker) as house:
        answer = await house.get("/readyz?verbose=1")
    assert answer.body["details"]["worker"]["queues"] == ["high", "mail"]


async def test_the_worker_tells_its_counts(opened: Opened) -> None:
    worker = FakeWorker("A", "*")
    counts = worker.stats.of("A")
    counts.endings[Ending.SUCCEEDED] = 7
    counts.endings[Ending.RETRIED] = 2
    counts.endings[Ending.FAILED] = 1
    counts.endings[Ending.YIELDED] = 50
    counts.running = 3
    async with open_house(opened.store, worker=worker) as house:
        stats = (await house.get("/api/worker/stats")).data
        assert stats == {"processed": 7, "failed": 3, "active": 3, "supported": ["A", "*"]}


async def test_a_worker_without_handlers_supports_an_empty_list(opened: Opened) -> None:
    async with open_house(opened.store, worker=FakeWorker()) as house:
        assert (await house.get("/api/worker/stats")).data["supported"] == []


async def test_the_workers_meta_does_not_touch_the_queue(opened: Opened) -> None:
    store = FaultyStore(opened.store)
    store.down = True
    async with open_house(store, worker=FakeWorker()) as house:
        assert (await house.get("/api/worker/meta")).data == {"executionVersion": 1, "leaseOutcomes": True}
        assert (await house.get("/api/worker/notification-stats")).error == (404, "ERR_NOT_FOUND")


async def test_without_the_role_api_the_queue_is_not_served_and_the_probes_are(opened: Opened) -> None:
    async with open_house(opened.store, worker=FakeWorker(), roles=frozenset({"worker"})) as house:
        assert (await house.get("stats")).error == (404, "ERR_NOT_FOUND")
        for path in ("/healthz", "/readyz", "/metrics", "/api/worker/stats"):
            assert (await house.get(path)).status == 200


async def test_a_reason_that_no_encoder_takes_is_told_all_the_same(opened: Opened) -> None:
    class Odd(FaultyStore):
        async def ping(self) -> None:
            raise StoreUnavailable("ping", "/tmp/d\udcff/q.sqlite3: locked")

    async with open_house(Odd(opened.store)) as house:
        answer = await house.get("/readyz")
        assert answer.status == 503
        assert answer.body["reason"].endswith(r"/tmp/d\udcff/q.sqlite3: locked")
        house.lifecycle.fault("settler", "half \udcff of a pair")
        answer = await house.get("/readyz?verbose=1")
        assert answer.status == 503
        assert answer.body["reason"] == r"settler: half \udcff of a pair"
        assert answer.body["details"]["faults"] == {"settler": r"half \udcff of a pair"}


async def test_an_error_that_no_encoder_takes_is_in_the_envelope(opened: Opened) -> None:
    async with open_house(opened.store) as house:
        house.reloaded = Reloaded(problems=("half \udcff of a pair",))
        answer = await house.post("reload")
        assert answer.error == (422, "ERR_CONFIG")
        assert answer.message == r"half \udcff of a pair"

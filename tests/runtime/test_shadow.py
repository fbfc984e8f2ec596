"""A shadow reads and reports; whatever is asked of its store, nothing is written."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from queue_runtime import store_wire
from queue_runtime.config import load_config
from queue_runtime.current import Current
from queue_runtime.errors import ConfigError, StoreUnavailable, WritesRefused
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.registry import Context, Registry
from queue_runtime.shadow import Shadow, ShadowStore, Would
from queue_runtime.store import Store
from queue_runtime.takeover import Who
from queue_runtime.task import Lease, NewTask, Pause, PauseKind, Release, Settlement
from tests.faulty_store import FaultyStore
from tests.http.house import open_house
from tests.reference_store import ReferenceStore
from tests.runtime.harness import open_reference, until

METHODS = sorted(name for name, one in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_"))

READS: dict[str, tuple[Any, ...]] = {
    "paused": (),
    "get": ([1],),
    "get_archived": ([1],),
    "list_active": (10,),
    "list_archived": (10,),
    "history": ([1],),
    "stats": (),
    "backlog": (),
    "operations": (),
    "ping": (),
    "changed": (0.01,),
}
WRITES: dict[str, tuple[Any, ...]] = {
    "enqueue": ([NewTask(task_class="A")],),
    "enqueue_once": ("event", NewTask(task_class="A")),
    "lease": ("qr:1", 1, 60),
    "renew": ([Lease(1, "qr:1")], 60),
    "settle": ([Settlement.held(Lease(1, "qr:1"), Release())],),
    "cancel": ([1],),
    "awaken": ([1],),
    "free": ([1],),
    "priority": ([1], 5),
    "delay": ([1], 5),
    "retry": ([1],),
    "pause": (Pause(PauseKind.ALL),),
    "resume": (Pause(PauseKind.ALL),),
    "sweep": (10,),
}


def test_every_method_of_the_protocol_is_one_or_the_other() -> None:
    assert sorted(READS | WRITES) == METHODS
    assert READS.keys() & WRITES.keys() == set()
    shadow: Store = ShadowStore(open_reference())
    assert isinstance(shadow, Store)


@pytest.mark.parametrize("method", sorted(WRITES))
async def test_a_method_that_writes_never_reaches_the_store(method: str) -> None:
    store = FaultyStore(open_reference())
    with pytest.raises(WritesRefused, match=method):
        await getattr(ShadowStore(store), method)(*WRITES[method])
    assert store.calls.total() == 0


@pytest.mark.parametrize("method", sorted(READS))
async def test_a_method_that_reads_answers_as_the_store_does(method: str) -> None:
    reference = open_reference()
    await reference.enqueue([NewTask(task_class="A")])
    await reference.changed(0)
    expected = await getattr(reference, method)(*READS[method])
    store = FaultyStore(reference)
    assert await getattr(ShadowStore(store), method)(*READS[method]) == expected
    # a store's ping may try to write; a shadow's reads something else
    assert store.calls == {"paused" if method == "ping" else method: 1}


async def test_lists_are_passed_on_with_all_that_they_are_asked_for() -> None:
    reference = open_reference()
    rows = await reference.enqueue([NewTask(task_class="A", priority=number) for number in range(4)])
    shadow = ShadowStore(reference)
    page = await shadow.list_active(2, offset=1, after=(0, rows[0].id))
    assert [row.id for row in page] == [row.id for row in rows[2:4]]
    await reference.cancel([row.id for row in rows])
    assert [row.id for row in await shadow.list_archived(9, before=rows[2].id)] == [rows[1].id, rows[0].id]


Book = Callable[[], Awaitable[tuple[str, ...] | None]]


class Gate:
    """Of a fallback that is never asked."""

    open = False
    patterns = ("Php*",)
    held = ()


async def _nothing(context: Context, data: str) -> None:
    """Never run."""


@pytest.fixture
def registry() -> Registry:
    """One class runs here, some in Phorge."""
    registry = Registry()
    registry.task("Mine")(_nothing)
    registry.fallback(_nothing, gate=Gate())
    return registry


@pytest.fixture
def store() -> ReferenceStore:
    return open_reference()


def _shadow(store: Store, registry: Registry, book: Book | None = None, **settings: Any) -> Shadow:
    current = Current(replace(load_config({}), shadow=True, sweep_seconds=60.0, **settings))
    return Shadow(ShadowStore(store), registry, Lifecycle(), current, book=book)


async def test_the_report_says_what_it_would_take_and_who_works(store: ReferenceStore, registry: Registry) -> None:
    await store.enqueue([NewTask(task_class=name) for name in ("Held", "Mine", "PhpWorker", "PhpWorker", "Odd")])
    (held,) = await store.lease("23192:1796040935:web1:2", 1, 60)
    with capture_logs() as lines:
        report = await _shadow(store, registry).report()
    assert report.would[Would.RUN] == {"Mine": 1}
    assert report.would[Would.DELEGATE] == {"PhpWorker": 2}
    assert report.would[Would.LEAVE] == {"Odd": 1}
    assert report.activity.held == {Who.NATIVE: 1}
    assert report.activity.native_hosts == {"web1"}
    (line,) = [one for one in lines if one["event"] == "shadow report"]
    assert line["would_run"] == {"Mine": 1}
    assert line["would_delegate"] == {"PhpWorker": 2}
    assert line["nobody_here"] == {"Odd": 1}
    assert line["held_by"] == {"native taskmasters": 1}
    assert held.id not in {row.id for row in await store.lease("qr:1", 9, 60)}


@pytest.mark.parametrize(
    ("alive", "said"),
    [(("web2", "web1"), ["web1", "web2"]), ((), []), (None, "unknown")],
    ids=["two", "none", "unread"],
)
async def test_native_taskmasters_that_have_nothing_to_do_are_told_by_phorges_book(
    store: ReferenceStore, registry: Registry, alive: tuple[str, ...] | None, said: object
) -> None:
    async def book() -> tuple[str, ...] | None:
        return alive

    with capture_logs() as lines:
        assert (await _shadow(store, registry, book).report()).native_alive == alive
        await _shadow(store, registry).report()
    told, elsewhere = [one for one in lines if one["event"] == "shadow report"]
    assert (told["native_alive"], told["native_hosts"]) == (said, [])
    assert "native_alive" not in elsewhere  # such a queue has no natives


async def test_the_age_of_the_oldest_is_told(store: ReferenceStore, registry: Registry) -> None:
    (row,) = await store.enqueue([NewTask(task_class="Mine")])
    store.tables.active[row.id] = replace(row, date_created=row.date_created - 90)
    assert 90 <= (await _shadow(store, registry).report()).oldest_seconds <= 92
    await store.cancel([row.id])
    assert (await _shadow(store, registry).report()).oldest_seconds == 0


async def test_filters_of_this_worker_leave_the_rest_to_others(store: ReferenceStore, registry: Registry) -> None:
    await store.enqueue([NewTask(task_class=name, queue=queue) for name in ("Mine", "PhpA") for queue in ("a", "b")])
    shadow = _shadow(store, registry, queues=("a",), task_classes=frozenset({"Mine"}))
    assert shadow.queues == ["a"]
    report = await shadow.report()
    assert (report.would[Would.RUN], report.would[Would.LEAVE]) == ({"Mine": 1}, {"Mine": 1, "PhpA": 2})


async def test_it_reports_again_and_again_and_an_outage_is_waited_for(
    store: ReferenceStore, registry: Registry
) -> None:
    faulty = FaultyStore(store)
    faulty.refuse("backlog")
    shadow = _shadow(faulty, registry)
    shadow._current.config = replace(shadow._current.config, sweep_seconds=0.01)
    stop = anyio.Event()
    with capture_logs() as lines:
        async with anyio.create_task_group() as group:
            group.start_soon(shadow.run, stop)
            await until(lambda: [one["event"] for one in lines].count("shadow report") >= 2)
            stop.set()
    assert lines[0]["classes"] == ["Mine", "Php*"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("enqueue", {"taskClass": "A"}),
        ("enqueue-batch", {"tasks": [{"taskClass": "A"}]}),
        ("lease", {"limit": 1}),
        ("complete", {"taskID": 1}),
        ("cancel", {"taskID": 1}),
        ("pause", {"all": True}),
    ],
)
async def test_a_route_that_writes_says_why_it_does_not(store: ReferenceStore, path: str, body: object) -> None:
    async with open_house(ShadowStore(store), shadow=True) as house:
        with capture_logs() as lines:
            answer = await house.post(path, body, headers={"X-Lease-Owner": "me"})
    assert answer.error == (503, "ERR_SHADOW")
    assert "QUEUE_RUNTIME_SHADOW=1" in answer.message
    assert [one for one in lines if one["log_level"] == "error"] == []


async def test_routes_that_read_answer(store: ReferenceStore) -> None:
    await store.enqueue([NewTask(task_class="A")])
    async with open_house(ShadowStore(store), shadow=True) as house:
        assert (await house.get("stats")).data["activeCount"] == 1
        assert len((await house.get("tasks")).data) == 1
        ready = await house.get("/readyz?verbose=1")
        assert (ready.status, ready.body["details"]["shadow"]) == (200, True)
        assert (await house.get("/metrics")).status == 200


def test_for_a_worker_elsewhere_it_is_an_outage() -> None:
    refused = store_wire.refusal(WritesRefused("lease"))
    assert refused is not None
    error = store_wire.raised(refused)
    assert isinstance(error, StoreUnavailable)
    assert (error.operation, error.reason) == ("lease", "the server is a shadow")


def test_a_selftest_for_readiness_contradicts_it() -> None:
    with pytest.raises(ConfigError, match="READY_SELFTEST=1 writes to the store"):
        load_config({"QUEUE_RUNTIME_SHADOW": "1", "QUEUE_RUNTIME_READY_SELFTEST": "1"})

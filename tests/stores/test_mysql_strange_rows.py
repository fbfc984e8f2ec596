"""Rows that somebody wrote by hand: of id 0 (R093), of classes that nobody can have (R101), and no pauses at all."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from queue_runtime.registry import Context, Registry
from queue_runtime.store import Order, Store, StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Pause, PauseKind, Retry, Settlement, Task, Verdict
from stores import mysql_pauses
from stores.mysql import open_store
from stores.mysql_session import Session
from tests.backends import STORES, Place
from tests.clock import Clock
from tests.conduit.house import House
from tests.conduit.stub import StubPhp, error
from tests.phorge_tables import PhorgeTables
from tests.runtime.harness import Worker, until
from tests.stores.mysql_tables import insert_active
from tests.stores.phorge_state import check_whole

OWNER = "qr:0badcafe:{}:1@test"


@pytest.fixture(params=["mysql", "streams-mysql"])
async def store(request: pytest.FixtureRequest, place: Place, clock: Clock) -> AsyncIterator[Store]:
    async with STORES[request.param](place, StoreOptions(now=clock)) as opened:
        yield opened.store


def insert_zero(phorge: PhorgeTables) -> None:
    insert_active(phorge, 0, "A", data="zero")


def archived(phorge: PhorgeTables) -> list[tuple[int, int]]:
    """Ids and results."""
    return [(task_id, result) for task_id, result in phorge.execute("SELECT id, result FROM worker_archivetask")]


# ---- id 0: a task like any other


async def test_the_worker_runs_id_zero_once_and_archives_it(store: Store, phorge: PhorgeTables) -> None:
    ran: list[str] = []
    registry = Registry()

    @registry.task("A")
    async def run(context: Context, data: str) -> None:
        ran.append(data)

    await store.enqueue([NewTask(task_class="A", data="other")])
    insert_zero(phorge)
    async with Worker(store, registry).running():
        await until(lambda: len(archived(phorge)) == 2)
    assert sorted(ran) == ["other", "zero"]
    assert (0, 0) in archived(phorge)
    check_whole(phorge)


async def test_id_zero_can_be_tried_again_read_cancelled_and_brought_back(
    store: Store, phorge: PhorgeTables, clock: Clock
) -> None:
    insert_zero(phorge)
    owners = [OWNER.format(number) for number in range(3)]
    (task,) = await store.lease(owners[0], 5, 60)
    assert (task.id, task.data) == (0, "zero")
    (renewed,) = await store.renew([Lease(0, owners[0])], 90)
    assert renewed is not None
    (settled,) = await store.settle([Settlement.held(Lease(0, owners[0]), Retry(wait=1))])
    assert settled.verdict is Verdict.SETTLED
    clock.advance(5)
    (task,) = await store.lease(owners[1], 5, 60)
    assert (task.id, task.failure_count) == (0, 1)
    (cancelled,) = await store.cancel([0])
    assert cancelled is not None
    (back,) = await store.retry([0])
    assert back is not None
    (found,) = await store.get([0])
    assert found is not None
    assert found.data == "zero"
    (task,) = await store.lease(owners[2], 5, 60)
    (settled,) = await store.settle([Settlement.held(Lease(0, owners[2]), Complete())])
    assert settled.verdict is Verdict.SETTLED
    assert archived(phorge) == [(0, 0)]
    check_whole(phorge)


@pytest.mark.parametrize("classes", [None, frozenset({"A"})], ids=["everything", "a class"])
@pytest.mark.parametrize("order", ["strict", "dispatch"])
async def test_id_zero_of_the_first_priority_is_leased(
    phorge: PhorgeTables, order: Order, classes: frozenset[str] | None
) -> None:
    insert_active(phorge, 0, "A", data="zero", priority=0)
    async with open_store(phorge.settings()) as store:
        (task,) = await store.lease(OWNER.format(1), 5, 60, order=order, classes=classes)
    assert (task.id, task.data) == (0, "zero")


async def test_a_large_payload_that_goes_while_it_is_leased_counts_as_missing(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(phorge.settings()) as store:
        lost, good = await store.enqueue([NewTask(task_class="A", data=kind * 20_000) for kind in "ab"])
        real = Session.rows

        async def rows(session: Session, statement: str, /, **values: Any) -> Any:
            if statement == "payloads":
                phorge.execute("DELETE FROM worker_taskdata WHERE id = %s", (lost.data_id,))
            return await real(session, statement, **values)

        monkeypatch.setattr(Session, "rows", rows)
        assert [row.id for row in await store.lease(OWNER.format(1), 5, 60)] == [good.id]
        assert archived(phorge) == [(lost.id, 1)]


# ---- pauses that are none


@pytest.mark.parametrize(
    ("kind", "name"), [("Class", b"A"), ("class", b"\xff"), ("queue", b"no queue"), ("all", b"A"), ("class", b"")]
)
async def test_a_row_that_is_no_pause_stops_nobody_and_is_told_once(
    store: Store, phorge: PhorgeTables, kind: str, name: bytes
) -> None:
    mysql_pauses._tell.cache_clear()
    await store.enqueue([NewTask(task_class="A")] * 3)
    await store.pause(Pause(PauseKind.CLASS, "B"))
    phorge.execute(f"INSERT INTO `{phorge.companion}`.pause VALUES (%s, %s)", (kind, name))
    taken: list[Task] = []
    with capture_logs() as lines:
        for number in range(3):
            taken += await store.lease(OWNER.format(number), 1, 60)
        assert await store.paused() == [Pause(PauseKind.CLASS, "B")]
    assert len(taken) == 3
    assert [line["kind"] for line in lines if "is no pause" in line["event"]] == [kind]


# ---- classes that nobody can have


@pytest.mark.parametrize("task_class", ["", " ", "A\0B"])
async def test_a_class_that_cannot_be_is_a_failure_with_a_reason_and_holds_up_nobody(
    store: Store, phorge: PhorgeTables, task_class: str
) -> None:
    """The extension refuses to look for a class without a name."""
    async with StubPhp().listening() as php:
        php.prepare[task_class] = error("ERR-NO-TASK-CLASS", "A task class is required.")
        insert_active(phorge, 5, task_class)
        await store.enqueue([NewTask(task_class="PhpWorker")])
        async with House(php, store=cast(Any, store)).running():
            await until(
                lambda: phorge.execute("SELECT taskClass, result FROM worker_archivetask") == [("PhpWorker", 0)]
            )
            await until(lambda: phorge.execute("SELECT failureCount FROM worker_activetask") == [(1,)])
        ((attempt,),) = await store.history([5])
    assert "A task class is required." in attempt.message
    assert [one.task_class for one in await store.list_active(5)] == [task_class]

"""Rows that somebody wrote by hand: of id 0 (R093), and of classes that nobody can have (R101)."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from queue_runtime.registry import Context, Registry
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Retry, Settlement, Verdict
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

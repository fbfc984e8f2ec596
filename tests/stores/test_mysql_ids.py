"""Ids: a counter that fell behind, ids issued twice, and payloads that keep to their tasks (traps 1 to 3)."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Result, Settlement, Task, Verdict
from stores.mysql import MysqlStore, open_store
from stores.mysql_session import Undecided
from tests.phorge_php import Php
from tests.phorge_tables import PhorgeTables
from tests.proxy import Fault, Proxy
from tests.stores.phorge_state import check_whole, eventually

OWNER = "qr:0badcafe:1:1@test"


@pytest.fixture
async def store(phorge: PhorgeTables) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(), StoreOptions(patience=0)) as opened:
        await opened.ping()
        yield opened


async def fill(store: MysqlStore, *, archive: bool) -> list[Task]:
    """Forty tasks, all active or all archived."""
    rows = await store.enqueue([NewTask(task_class="Old", data=f"old {number}") for number in range(40)])
    if archive:
        await store.cancel([row.id for row in rows])
    return rows


def lose_counter(phorge: PhorgeTables, how: str) -> None:
    """As a backup that was put back, or a hand that slipped, would leave it."""
    if how == "gone":
        phorge.execute("DELETE FROM lisk_counter")
    else:
        phorge.execute("UPDATE lisk_counter SET counterValue = 7")


LOSSES = [("gone", False), ("gone", True), ("behind", False)]


@pytest.mark.parametrize(("how", "archive"), LOSSES)
async def test_a_counter_behind_the_tables_is_lifted_by_an_enqueue(
    store: MysqlStore, phorge: PhorgeTables, how: str, archive: bool
) -> None:
    """Trap 2: ids start again at 1, and every task that ends would meet an old one of the same id."""
    old = await fill(store, archive=archive)
    lose_counter(phorge, how)
    new = await store.enqueue([NewTask(task_class="New", data="new") for _ in range(3)])
    assert min(task.id for task in new) > max(task.id for task in old)
    with Php(phorge) as php:
        assert php.schedule("Native") > max(task.id for task in new)
    check_whole(phorge)


@pytest.mark.parametrize(("how", "archive"), LOSSES)
async def test_a_counter_behind_the_tables_is_lifted_for_followups(
    store: MysqlStore, phorge: PhorgeTables, how: str, archive: bool
) -> None:
    old = await fill(store, archive=archive)
    (parent,) = await store.enqueue([NewTask(task_class="Parent", priority=1)])
    (held,) = await store.lease(OWNER, 1, 60, only={parent.id})
    lose_counter(phorge, how)
    async with asyncio.timeout(3):
        (settled,) = await store.settle(
            [Settlement.held(Lease(held.id, OWNER), Complete(followups=[NewTask(task_class="Child")] * 3))]
        )
    assert settled.verdict is Verdict.SETTLED
    children = [row.id for row in await store.list_active(100) if row.task_class == "Child"]
    assert len(children) == 3
    assert min(children) > max(task.id for task in old)
    check_whole(phorge)


async def test_a_store_that_opens_lifts_a_counter_that_is_behind_the_archive(phorge: PhorgeTables) -> None:
    """A restored backup: the row is there, and too small. Nothing collides at once: only the archive has those ids."""
    async with open_store(phorge.settings(), StoreOptions()) as store:
        old = await fill(store, archive=True)
    lose_counter(phorge, "behind")
    async with open_store(phorge.settings(), StoreOptions()) as store:
        (task,) = await store.enqueue([NewTask(task_class="New")])
    assert task.id > max(row.id for row in old)
    check_whole(phorge)


async def test_of_two_that_enqueue_when_the_counter_is_lost_neither_gets_an_id_that_is_in_use(
    store: MysqlStore, phorge: PhorgeTables
) -> None:
    """The second one draws from the new counter before the first one has lifted it."""
    old = await fill(store, archive=True)
    async with Proxy(phorge.server.socket) as proxy, open_store(phorge.settings(socket=proxy.socket)) as slow:
        await slow.ping()
        lose_counter(phorge, "gone")
        proxy.break_when(b"GREATEST(counterValue", Fault.HOLD)
        first = asyncio.create_task(slow.enqueue([NewTask(task_class="New")]))
        await eventually(lambda: phorge.execute("SELECT counterValue FROM lisk_counter"), "the first one has drawn")
        (second,) = await store.enqueue([NewTask(task_class="New")])
        proxy.deliver()
        new = {second.id, *[task.id for task in await first]}
    assert len(new) == 2
    assert min(new) > max(row.id for row in old)
    check_whole(phorge)


@pytest.mark.parametrize("same", [[], ["class"], ["class", "payload"], ["class", "payload", "second"]], ids=str)
async def test_somebody_elses_task_is_not_taken_for_the_one_whose_commit_was_lost(
    phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch, same: list[str]
) -> None:
    """The server that answers next did not have the transaction, and has given its id to another task meanwhile."""
    new = NewTask(task_class="Mine", data="mine")
    now = [1_700_000_000]
    async with Proxy(phorge.server.socket) as proxy:
        options = StoreOptions(now=lambda: now[0])
        async with (
            open_store(phorge.settings(socket=proxy.socket), options) as store,
            open_store(phorge.settings(), options) as other,
        ):
            await store.enqueue([NewTask(task_class="Warm")])
            real = store._sessions.bury

            async def bury(doubt: Undecided) -> None:
                await real(doubt)
                phorge.execute("UPDATE lisk_counter SET counterValue = counterValue - 1")
                now[0] += "second" not in same
                task_class = "Mine" if "class" in same else "Other"
                await other.enqueue([NewTask(task_class=task_class, data="mine" if "payload" in same else "other")])

            monkeypatch.setattr(store._sessions, "bury", bury)
            proxy.break_when(b"COMMIT", Fault.LOSE_REQUEST)
            (mine,) = await store.enqueue([new])
    found = phorge.execute(
        "SELECT taskClass, data FROM worker_activetask a JOIN worker_taskdata d ON d.id = a.dataID WHERE a.id = %s",
        (mine.id,),
    )
    assert found == [("Mine", "mine")]
    assert phorge.execute("SELECT COUNT(*) FROM worker_activetask") == [(3,)]
    check_whole(phorge)


@pytest.fixture
async def twice(store: MysqlStore, phorge: PhorgeTables) -> list[Task]:
    """Two active tasks whose ids the archive has too, as PHP makes them when it draws from a counter that is behind."""
    old = (await fill(store, archive=True))[:2]
    lose_counter(phorge, "gone")
    with Php(phorge) as php:
        assert [php.schedule("New", "new"), php.schedule("New", "new")] == [row.id for row in old]
    return old


async def test_an_id_that_was_issued_twice_ends_and_holds_up_nobody(store: MysqlStore, twice: list[Task]) -> None:
    await store.enqueue([NewTask(task_class="Other")])
    rows = await store.lease(OWNER, 10, 60)
    async with asyncio.timeout(3):
        settled = await store.settle([Settlement.held(Lease(row.id, OWNER), Complete(7)) for row in rows])
    assert [one.verdict for one in settled] == [Verdict.SETTLED] * 3
    (ended,) = await store.get_archived([twice[0].id])
    assert ended is not None
    assert (ended.result, ended.data) == (Result.SUCCESS, "new")


async def test_an_id_that_was_issued_twice_can_be_cancelled(store: MysqlStore, twice: list[Task]) -> None:
    (other,) = await store.enqueue([NewTask(task_class="Other")])
    async with asyncio.timeout(3):
        cancelled = await store.cancel([twice[0].id, other.id])
    assert None not in cancelled
    assert [row.id for row in await store.lease(OWNER, 10, 60)] == [twice[1].id]


async def test_an_id_that_was_issued_twice_and_cannot_be_read_does_not_stop_leasing(
    store: MysqlStore, phorge: PhorgeTables, twice: list[Task]
) -> None:
    phorge.execute("UPDATE worker_activetask SET objectPHID = X'FF' WHERE id = %s", (twice[0].id,))
    async with asyncio.timeout(3):
        assert [row.id for row in await store.lease(OWNER, 10, 60)] == [twice[1].id]
    (ended,) = await store.get_archived([twice[0].id])
    assert ended is not None
    assert ended.result is Result.FAILURE


async def test_bringing_back_an_id_that_was_issued_twice_leaves_the_active_one(
    store: MysqlStore, phorge: PhorgeTables, twice: list[Task]
) -> None:
    async with asyncio.timeout(3):
        (revived, other) = await store.retry([twice[0].id, twice[1].id + 1])
    assert revived is None, "there is an active task of this id"
    assert other is not None
    assert phorge.execute("SELECT COUNT(*) FROM worker_activetask WHERE taskClass = 'New'") == [(2,)]


@pytest.fixture
def steps_of_three(phorge: PhorgeTables) -> Iterator[None]:
    """As on one of several servers that write side by side."""
    phorge.execute("SET GLOBAL auto_increment_increment = 3, GLOBAL auto_increment_offset = 2")
    yield
    phorge.execute("SET GLOBAL auto_increment_increment = 1, GLOBAL auto_increment_offset = 1")


@pytest.mark.usefixtures("steps_of_three")
async def test_payloads_belong_to_their_tasks_where_ids_come_in_steps(phorge: PhorgeTables) -> None:
    """hot-paths, pitfall 9. Several callers at once, so that the blocks of different calls lie side by side."""
    async with open_store(phorge.settings(), StoreOptions()) as store:

        async def call(number: int) -> None:
            await store.enqueue([NewTask(task_class=f"Class{number}", data=f"{number}.{place}") for place in range(7)])

        await asyncio.gather(*(call(number) for number in range(12)))
        rows = await store.lease(OWNER, 200, 60)
        assert len(rows) == 84
        seen: dict[str, list[str | None]] = {}
        for row in rows:
            seen.setdefault(row.task_class, []).append(row.data)
        assert seen == {f"Class{number}": [f"{number}.{place}" for place in range(7)] for number in range(12)}
    check_whole(phorge)


async def test_a_step_that_changes_under_a_running_store_is_noticed(store: MysqlStore, phorge: PhorgeTables) -> None:
    """The step is asked of the server's sessions: those that are open keep theirs, new ones have the new one."""
    await store.enqueue([NewTask(task_class="A", data="0")] * 2)
    phorge.execute("SET GLOBAL auto_increment_increment = 3")
    try:

        async def call(number: int) -> None:
            await store.enqueue([NewTask(task_class=f"Class{number}", data=f"{number}.{place}") for place in range(5)])

        await asyncio.gather(*(call(number) for number in range(6)))  # opens more connections
    finally:
        phorge.execute("SET GLOBAL auto_increment_increment = 1")
    for row in await store.lease(OWNER, 100, 60):
        assert row.task_class == "A" or str(row.data).split(".")[0] == row.task_class.removeprefix("Class")
    check_whole(phorge)

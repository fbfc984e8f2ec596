"""Rows that somebody else has locked, and real deadlocks: nobody else is stalled, and no deadlock reaches a caller."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Settlement, Task, Verdict
from stores import mysql_settle, mysql_waits
from stores.mysql import MysqlStore, open_store
from stores.mysql_driver import TRIP_SECONDS, Answer, Connection
from stores.mysql_waits import Table
from tests.phorge_php import Php, Taskmaster
from tests.phorge_tables import PhorgeTables
from tests.stores.mysql_tables import lease_before_its_commit
from tests.stores.phorge_state import TRANSACTIONS_EVERY, eventually, open_transactions

OWNER = "qr:0badcafe:1:1@test"
AT_ONCE = 2.0
"""Far less than the server's own wait for a lock, 5 s in our sessions and 50 s in others."""


@pytest.fixture
async def store(phorge: PhorgeTables) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(), StoreOptions(patience=0)) as opened:
        yield opened


@pytest.fixture
def rival(phorge: PhorgeTables) -> Iterator[Php]:
    """Somebody else on the same tables."""
    with Php(phorge) as php:
        yield php


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the store sends, trip by trip."""
    sent: list[str] = []
    run = Connection.run

    async def counted(self: Connection, sql: str, *, seconds: float = TRIP_SECONDS) -> list[Answer]:
        sent.append(sql)
        return await run(self, sql, seconds=seconds)

    monkeypatch.setattr(Connection, "run", counted)
    return sent


async def take(store: MysqlStore, count: int) -> list[Task]:
    await store.enqueue([NewTask(task_class=f"Class{number}") for number in range(count)])
    return await store.lease(OWNER, count, 60)


def settlements(rows: list[Task]) -> list[Settlement]:
    return [Settlement.held(Lease(row.id, OWNER), Complete()) for row in rows]


async def test_a_locked_row_holds_up_nothing_but_itself(store: MysqlStore, rival: Php, phorge: PhorgeTables) -> None:
    """Settles, renewals, leases, enqueues and operators go on; what is locked comes when it is free."""
    rows = await take(store, 10)
    (spare,) = await store.enqueue([NewTask(task_class="Spare")])
    locked = rows[3]
    with rival.transaction():
        rival.query("SELECT * FROM worker_activetask WHERE id IN %s FOR UPDATE", ((locked.id, spare.id),))
        async with asyncio.timeout(AT_ONCE):
            renewed = await store.renew([Lease(row.id, OWNER) for row in rows], 120)
            assert None not in renewed, "nobody can take the row meanwhile"
            verdicts = [one.verdict for one in await store.settle(settlements(rows[:8]))]
            assert verdicts == [Verdict.SETTLED] * 3 + [Verdict.BUSY] + [Verdict.SETTLED] * 4
            (fresh,) = await store.enqueue([NewTask(task_class="Fresh")])
            assert [row.id for row in await store.lease("qr:2", 10, 60)] == [fresh.id]
            assert [row.id for row in await store.cancel([rows[8].id]) if row] == [rows[8].id]
        cancel = asyncio.ensure_future(store.cancel([locked.id, rows[9].id]))
        await eventually(lambda: _waits(phorge), "the wait for the locked row", every=TRANSACTIONS_EVERY)
        assert not cancel.done()
        found = phorge.execute("SELECT 1 FROM worker_archivetask WHERE id = %s", (rows[9].id,))
        assert found == [], "all of a call or nothing"
    cancelled = await cancel
    assert [row.id for row in cancelled if row] == [locked.id, rows[9].id]
    assert [row.id for row in await store.lease("qr:3", 10, 60)] == [spare.id]
    assert [one.verdict for one in await store.settle(settlements([locked]))] == [Verdict.LOST]


async def test_more_callers_than_connections_wait_for_one_locked_row_and_keep_nobody_waiting(
    store: MysqlStore, rival: Php
) -> None:
    """Active rows and archived ones. Who waits has neither a connection nor a lock, but for a few of them."""
    rows = await take(store, 12)
    await store.cancel([rows[0].id])
    with rival.transaction():
        rival.query("SELECT * FROM worker_activetask WHERE id = %s FOR UPDATE", (rows[1].id,))
        rival.query("SELECT * FROM worker_archivetask WHERE id = %s FOR UPDATE", (rows[0].id,))
        waiting = [asyncio.ensure_future(store.priority([rows[1].id, rows[2].id], place)) for place in range(20)]
        waiting += [asyncio.ensure_future(store.retry([rows[0].id])) for _ in range(20)]  # type: ignore[arg-type]
        for number in range(20):
            async with asyncio.timeout(AT_ONCE):
                (fresh,) = await store.enqueue([NewTask(task_class="Fresh")])
                assert [row.id for row in await store.lease(f"qr:{number}", 1, 60)] == [fresh.id]
        async with asyncio.timeout(AT_ONCE):
            settled = await store.settle(settlements(rows[3:]))
        assert {one.verdict for one in settled} == {Verdict.SETTLED}
        assert not any(one.done() for one in waiting)
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*waiting)
    assert answers[:20] == [2] * 20
    revived = [row.id for answer in answers[20:] for row in answer if row]  # type: ignore[attr-defined]
    assert revived == [rows[0].id], "brought back once"


@pytest.mark.parametrize("connections", [1, 8])
async def test_a_row_that_stays_locked_is_named_in_the_end(
    phorge: PhorgeTables, rival: Php, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_waits, "LOCKED_SECONDS", 0.2)
    async with open_store(phorge.settings(connections=connections)) as store:
        free, locked = await take(store, 2)
        with rival.transaction():
            rival.query("SELECT * FROM worker_activetask WHERE id = %s FOR UPDATE", (locked.id,))
            with pytest.raises(StoreUnavailable, match=f"task {locked.id} is locked by somebody else"):
                await store.cancel([free.id, locked.id])
            assert await store.get_archived([free.id]) == [None], "all of a call or nothing"
        assert None not in await store.cancel([free.id, locked.id])


@pytest.mark.parametrize("rows", [1, 200], ids=["one row", "a row each"])
async def test_any_number_of_callers_of_locked_rows_ask_the_server_a_few_times_a_second(
    store: MysqlStore, rival: Php, trips: list[str], rows: int
) -> None:
    """Those of one row stand in line, the first of all lines share a look; who is called off stops at once."""
    tasks = await store.enqueue([NewTask(task_class="A")] * rows)
    with rival.transaction():
        rival.query("SELECT * FROM worker_activetask FOR UPDATE")
        waiting = [asyncio.ensure_future(store.priority([tasks[place % rows].id], place)) for place in range(200)]
        await eventually(lambda: len(store._waits._awaited) == rows, "all of them wait", every=0.1)
        await asyncio.sleep(mysql_waits.LONGEST)
        before = len(trips)
        await asyncio.sleep(2)
        assert len(trips) - before <= 60, "two looks, and two that wait at the server, a second"
        assert not any(one.done() for one in waiting)
        for one in waiting[::2]:
            one.cancel()
        async with asyncio.timeout(AT_ONCE):
            await asyncio.wait(waiting[::2])
    async with asyncio.timeout(10):
        assert await asyncio.gather(*waiting[1::2]) == [1] * 100
    assert not store._waits._awaited


async def test_callers_that_were_called_off_send_nothing_any_more(
    store: MysqlStore, rival: Php, trips: list[str]
) -> None:
    rows = await take(store, 2)
    with rival.transaction():
        rival.query("SELECT * FROM worker_activetask FOR UPDATE")
        waiting = [asyncio.ensure_future(store.cancel([rows[place % 2].id])) for place in range(40)]
        await eventually(lambda: len(store._waits._awaited) == 2, "all of them wait")
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        before = len(trips)
        await asyncio.sleep(3 * mysql_waits.LONGEST)
        assert trips[before:] == []
    assert None not in await store.cancel([row.id for row in rows])


async def test_who_stands_in_the_line_of_a_row_that_is_free_leaves_it_to_those_behind(
    store: MysqlStore, phorge: PhorgeTables, rival: Php
) -> None:
    """One wants two rows, others only the first of them. They get it while the second is still locked."""
    first, second = await take(store, 2)
    with rival.transaction(), Php(phorge) as other:
        rival.query("SELECT * FROM worker_activetask WHERE id = %s FOR UPDATE", (second.id,))
        with other.transaction():
            other.query("SELECT * FROM worker_activetask WHERE id = %s FOR UPDATE", (first.id,))
            both = asyncio.ensure_future(store.priority([first.id, second.id], 1))
            await eventually(lambda: store._waits._awaited, "it waits")
            behind = [asyncio.ensure_future(store.priority([first.id], place)) for place in range(2, 6)]
            line = store._waits._lines[Table.ACTIVE, first.id]
            await eventually(lambda: len(line._waiters or ()) == 4, "they stand behind it")
        async with asyncio.timeout(5):
            assert await asyncio.gather(*behind) == [1] * 4
        assert not both.done()
    assert await both == 2


async def test_renewals_of_a_locked_row_share_their_looks(store: MysqlStore, rival: Php, trips: list[str]) -> None:
    (row,) = await take(store, 1)
    with rival.transaction():
        rival.query("SELECT * FROM worker_activetask FOR UPDATE")
        before = len(trips)
        renewed = await asyncio.gather(*(store.renew([Lease(row.id, OWNER)], 120) for _ in range(20)))
        assert [answer[0] for answer in renewed] == [renewed[0][0]] * 20
        assert len(trips) - before <= 20 * 10, "two tries each"


async def test_outcomes_pass_by_the_counter_that_php_holds(store: MysqlStore, phorge: PhorgeTables) -> None:
    """Round by round: what has follow-ups is told at once that it has to wait, what has none is written."""
    rows = await take(store, 11)
    outcome = Settlement.held(Lease(rows[0].id, OWNER), Complete(followups=[NewTask(task_class="Child")]))
    with Php(phorge) as php:
        with php.transaction():
            php.schedule("Slow")
            async with asyncio.timeout(AT_ONCE):
                for row in rows[1:]:
                    settled = await store.settle([outcome, *settlements([row])])
                    assert [one.verdict for one in settled] == [Verdict.BUSY, Verdict.SETTLED]
        assert [one.verdict for one in await store.settle([outcome])] == [Verdict.SETTLED]


async def test_an_outcome_that_often_found_the_counter_locked_gets_a_place_in_the_line_for_it(
    store: MysqlStore, phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks in passing might never find it free; now and then a round waits for it."""
    monkeypatch.setattr(mysql_settle, "COUNTER_LOCKED_SECONDS", 0)
    (row,) = await take(store, 1)
    outcome = Settlement.held(Lease(row.id, OWNER), Complete(followups=[NewTask(task_class="Child")]))
    with Php(phorge) as php:
        with php.transaction():
            php.schedule("Slow")
            assert [one.verdict for one in await store.settle([outcome])] == [Verdict.BUSY]
            again = asyncio.ensure_future(store.settle([outcome]))
            await eventually(lambda: _waits(phorge) or again.done(), "it waits", every=TRANSACTIONS_EVERY)
            assert not again.done()
        assert [one.verdict for one in await again] == [Verdict.SETTLED]


async def test_more_enqueues_than_connections_wait_for_the_counter_and_keep_nobody_waiting(
    store: MysqlStore, phorge: PhorgeTables
) -> None:
    """Trap 17 with a crowd in front of the counter."""
    rows = await take(store, 4)
    with Php(phorge) as php:
        with php.transaction():
            php.schedule("Slow")
            events = [store.enqueue_once(f"event {place}", NewTask(task_class="B")) for place in range(20)]
            waiting = [asyncio.ensure_future(event) for event in events]
            await eventually(lambda: _waits(phorge), "one waits at the server", every=TRANSACTIONS_EVERY)
            for _ in range(20):
                async with asyncio.timeout(AT_ONCE):
                    assert None not in await store.renew([Lease(row.id, OWNER) for row in rows], 120)
                    assert await store.lease("qr:2", 10, 60) == []
            assert not any(one.done() for one in waiting)
        async with asyncio.timeout(30):
            tasks = await asyncio.gather(*waiting)
    assert len({task.id for task in tasks}) == 20


async def test_a_locked_payload_neither_stalls_nor_empties_its_task(store: MysqlStore, rival: Php) -> None:
    (task,) = await store.enqueue([NewTask(task_class="A", data="whole")])
    with rival.transaction():
        rival.query("SELECT * FROM worker_taskdata WHERE id = %s FOR UPDATE", (task.data_id,))
        async with asyncio.timeout(AT_ONCE):
            assert [row.data for row in await store.lease(OWNER, 1, 60)] == ["whole"]
            assert [one.verdict for one in await store.settle(settlements([task]))] == [Verdict.SETTLED]


async def test_a_counter_that_a_long_php_transaction_holds_stops_enqueues_alone(
    store: MysqlStore, phorge: PhorgeTables
) -> None:
    """Trap 17: PHP drew an id inside a transaction. Ours wait for it, and end well; all else goes on."""
    rows = await take(store, 4)
    with Php(phorge) as php:
        with php.transaction():
            php_id = php.schedule("Slow")
            waiting = [asyncio.ensure_future(store.enqueue([NewTask(task_class="B")])) for _ in range(2)]
            async with asyncio.timeout(AT_ONCE):
                assert await store.lease("qr:2", 10, 60) == []
                assert None not in await store.renew([Lease(row.id, OWNER) for row in rows], 120)
                assert {one.verdict for one in await store.settle(settlements(rows))} == {Verdict.SETTLED}
            assert not any(one.done() for one in waiting)
        async with asyncio.timeout(AT_ONCE):
            ids = [task.id for answer in await asyncio.gather(*waiting) for task in answer]
    assert len({php_id, *ids}) == 3


async def test_our_enqueues_do_not_hold_the_counter(store: MysqlStore, phorge: PhorgeTables, rival: Php) -> None:
    """The other way round: while our transaction is stuck in mid-insert, PHP draws ids."""
    with rival.transaction():
        # as `INSERT` of a gap's end would: ours cannot insert its row
        rival.query("SELECT * FROM worker_activetask WHERE id < 1000000 FOR UPDATE")
        stuck = asyncio.ensure_future(store.enqueue([NewTask(task_class="A")]))
        await eventually(lambda: _waits(phorge), "the insert waits", every=TRANSACTIONS_EVERY)
        with Php(phorge) as php:
            php.write("SET SESSION innodb_lock_wait_timeout = 1")
            php.write(
                "INSERT INTO lisk_counter (counterName, counterValue) VALUES ('worker_activetask', LAST_INSERT_ID(1))"
                " ON DUPLICATE KEY UPDATE counterValue = LAST_INSERT_ID(counterValue + 1)"
            )
    assert len(await stuck) == 1


def _waits(phorge: PhorgeTables) -> bool:
    return any(status == "LOCK WAIT" for _, status, _ in open_transactions(phorge))


@pytest.mark.parametrize("rival_ends", ["commit", "rollback"])
async def test_a_real_deadlock_is_played_again(
    store: MysqlStore, phorge: PhorgeTables, rival: Php, rival_ends: str
) -> None:
    """R055. Ours has the active row and wants the archived one; the other, with more to lose, the other way round."""
    rows = await take(store, 2)
    task = rows[0]
    rival.write("BEGIN")
    rival.write("INSERT INTO worker_taskdata (data) VALUES " + ",".join(["('weight')"] * 500))
    rival.write(
        "INSERT INTO worker_archivetask (id, taskClass, failureCount, dataID, result, duration, priority, dateCreated,"
        " dateModified) VALUES (%s, 'Class0', 0, 1, 2, 0, 2000, 1, 1)",
        (task.id,),
    )
    settling = asyncio.ensure_future(store.settle(settlements(rows)))
    await eventually(lambda: _waits(phorge), "our insert waits for the other's", every=TRANSACTIONS_EVERY)
    # closes the circle; the server rolls ours back, and this one goes on
    await asyncio.to_thread(rival.write, "DELETE FROM worker_activetask WHERE id = %s", (task.id,))
    answered = [one.verdict for one in await settling]
    assert answered == [Verdict.BUSY, Verdict.SETTLED]
    rival.write("COMMIT" if rival_ends == "commit" else "ROLLBACK")
    (again,) = await store.settle(settlements([task]))
    assert again.verdict is (Verdict.LOST if rival_ends == "commit" else Verdict.SETTLED)


async def test_rounds_in_any_order_beside_native_consumers_meet_no_deadlock(
    store: MysqlStore, phorge: PhorgeTables
) -> None:
    """Small tables are where scans lock strangers' rows: forty rows, four of ours and two native consumers."""
    await store.enqueue([NewTask(task_class=f"Class{number}") for number in range(40)])

    async def ours(number: int) -> int:
        done = 0
        for sequence in range(40):
            owner = f"qr:{number}:{sequence}"
            tasks = await store.lease(owner, 7, 60, due_first=sequence % 2 == 0)
            leases = [Lease(task.id, owner) for task in reversed(tasks)]
            await store.renew(leases, 90)
            followups = [NewTask(task_class="Child")] * (sequence < 20)
            settled = await store.settle([Settlement.held(lease, Complete(followups=followups)) for lease in leases])
            done += sum(one.verdict is Verdict.SETTLED for one in settled)
        return done

    def native() -> int:
        with Taskmaster(phorge) as php:
            for _ in range(40):
                php.step(lambda task: [])
            assert php.restarts == 0
            return len(php.archived)

    done = await asyncio.gather(*(ours(number) for number in range(4)), *(asyncio.to_thread(native) for _ in range(2)))
    ((archived,),) = phorge.execute("SELECT COUNT(*) FROM worker_archivetask")
    assert sum(done) == archived >= 40


@pytest.mark.parametrize("classes", [None, frozenset({"Class3"}), frozenset({"Rare"})], ids=["all", "one", "rare"])
async def test_a_lease_locks_about_as_many_rows_as_it_takes(
    phorge: PhorgeTables, classes: frozenset[str] | None
) -> None:
    """R059. Looked at in mid-lease, with the COMMIT held back, while seven others lease beside it."""
    phorge.execute(
        "INSERT INTO worker_taskdata (id, data) SELECT seq, '[]' FROM seq_1_to_10000;"
        " INSERT INTO worker_activetask (id, taskClass, failureCount, dataID, priority, dateCreated, dateModified)"
        " SELECT seq, IF(seq % 1000 = 7, 'Rare', CONCAT('Class', seq % 7)), 0, seq, 2000 + seq % 5, 1, 1"
        " FROM seq_1_to_10000"
    )
    limit = 5 if classes == frozenset({"Rare"}) else 40
    async with (
        lease_before_its_commit(phorge, limit, classes=classes) as held,
        asyncio.timeout(AT_ONCE),
        open_store(phorge.settings()) as store,
    ):
        beside = await asyncio.gather(*(store.lease(f"qr:{number}", 1, 60, classes=classes) for number in range(7)))
    assert len(held.tasks) == limit
    assert held.locked <= 3 * limit + 5, "index entry and row of each, and little more"
    taken = [row.id for answer in (held.tasks, *beside) for row in answer]
    assert len(set(taken)) == len(taken)
    assert sum(map(len, beside)) == (4 if classes == frozenset({"Rare"}) else 7)


@pytest.mark.parametrize("kind", ["ready", "due"])
@pytest.mark.parametrize("filters", [{}, {"classes": {"A"}}, {"queues": {"default"}}, {"without_classes": {"B"}}])
async def test_a_lease_passes_over_any_number_of_rows_that_somebody_has_locked(
    store: MysqlStore, phorge: PhorgeTables, rival: Php, kind: str, filters: dict[str, set[str]]
) -> None:
    """Somebody sits on the whole head of the queue: whoever leases a single task gets the first one behind it."""
    rows = await store.enqueue([NewTask(task_class="A")] * 900)
    if kind == "due":
        phorge.execute("UPDATE worker_activetask SET leaseOwner = '(retry)', leaseExpires = 5")
    ids = [row.id for row in rows]
    rival.write("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with rival.transaction():
        for task_id in ids[:800]:
            rival.query("SELECT id FROM worker_activetask WHERE id = %s FOR UPDATE", (task_id,))
        async with asyncio.timeout(AT_ONCE):
            found = [await store.lease(f"qr:{number}", 1, 60, **filters) for number in range(3)]  # type: ignore[arg-type]
    assert [row.id for taken in found for row in taken] == ids[800:803]

"""The doorbell on Phorge's tables: whoever writes is heard, once, and listening costs next to nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import AWAKEN_BACK, PARKED_OWNERS, Complete, Lease, NewTask, Settlement
from stores import mysql_changes
from stores.mysql import open_store
from stores.mysql_changes import Changes
from stores.mysql_session import Sessions
from tests.clock import Clock
from tests.phorge_tables import PhorgeTables, connect
from tests.servers import MariaDb
from tests.stores.mysql_tables import (
    NATIVE,
    draw_id,
    fill_active,
    insert_active,
    open_sessions,
    php_enqueue,
    plan,
    rows_read,
    scanned,
    watch,
)

SOON = 5.0
"""A bound in real seconds for what should happen at once; nobody waits so long."""

PATIENCE = 10
WORKER = "qr:0badcafe:1:1@x"


class Ear:
    """What the doorbell does: it waits, again and again."""

    def __init__(self, sessions: Sessions, options: StoreOptions) -> None:
        self.sessions = sessions
        self.changes = Changes(options)

    async def hears(self, timeout: float = SOON) -> bool:
        return await self.changes.wait(self.sessions, timeout)

    async def is_silent(self) -> bool:
        return not await self.changes.wait(self.sessions, 0.08)

    async def quiet(self) -> None:
        """Hear out everything that has happened so far."""
        async with asyncio.timeout(SOON):
            while await self.changes.wait(self.sessions, 0.06):
                pass


@pytest.fixture
async def ear(phorge: PhorgeTables, clock: Clock) -> AsyncIterator[Ear]:
    """An ear on the test's clock, which has heard everything."""
    options = StoreOptions(now=clock, patience=PATIENCE)
    async with open_sessions(phorge.settings(), options) as sessions:
        ear = Ear(sessions, options)
        await ear.quiet()
        yield ear


@pytest.fixture
async def real_ear(phorge: PhorgeTables) -> AsyncIterator[Ear]:
    """The same on the server's clock."""
    async with open_sessions(phorge.settings()) as sessions:
        ear = Ear(sessions, StoreOptions())
        await ear.quiet()
        yield ear


def write(phorge: PhorgeTables, task_id: int, owner: str | None, expires: int | None) -> None:
    phorge.execute(
        "UPDATE worker_activetask SET leaseOwner = %s, leaseExpires = %s WHERE id = %s", (owner, expires, task_id)
    )


# ---- tasks that PHP enqueues


async def test_a_task_that_php_enqueues_is_heard_once(phorge: PhorgeTables, ear: Ear) -> None:
    php_enqueue(phorge)
    assert await ear.hears()
    await ear.quiet()
    assert await ear.is_silent()
    php_enqueue(phorge)
    assert await ear.hears()


async def test_who_waits_hears_it_within_moments(phorge: PhorgeTables, real_ear: Ear) -> None:
    """Something has happened lately: the tables are looked at every 25 ms."""
    took = []
    for _ in range(20):
        waiting = asyncio.ensure_future(real_ear.hears())
        await asyncio.sleep(0.03)
        began = time.monotonic()
        php_enqueue(phorge)
        assert await waiting
        took.append(time.monotonic() - began)
        await real_ear.quiet()
    assert sorted(took)[10] < 0.1


async def test_an_id_rings_only_when_its_row_is_there(phorge: PhorgeTables, ear: Ear) -> None:
    """PHP draws the id first."""
    early, late = draw_id(phorge), draw_id(phorge)
    assert await ear.is_silent()
    insert_active(phorge, late)
    assert await ear.hears()
    await ear.quiet()
    insert_active(phorge, early)
    assert await ear.hears()


async def test_a_row_that_came_long_after_its_id_leaves_no_trace(
    phorge: PhorgeTables, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by the next lease, which comes each second."""
    monkeypatch.setattr(mysql_changes, "YOUNG_SECONDS", 0.05)
    task_id = draw_id(phorge)
    await ear.quiet()
    assert await ear.is_silent()
    insert_active(phorge, task_id)
    assert await ear.is_silent()
    assert not ear.changes._draws


async def test_a_task_that_php_delays_is_not_work_yet(phorge: PhorgeTables, ear: Ear, clock: Clock) -> None:
    php_enqueue(phorge, leaseExpires=clock.now + 60)
    assert await ear.is_silent()
    clock.advance(60)
    assert await ear.hears()


async def test_a_counter_that_was_set_back_is_heard_and_followed(phorge: PhorgeTables, ear: Ear) -> None:
    """An older database was restored."""
    for _ in range(3):
        php_enqueue(phorge)
    await ear.quiet()
    phorge.execute("DELETE FROM worker_activetask; UPDATE lisk_counter SET counterValue = 1")
    assert await ear.hears()
    await ear.quiet()
    php_enqueue(phorge)
    assert await ear.hears()


async def test_a_counter_that_is_not_there_yet_is_no_trouble(phorge: PhorgeTables, ear: Ear) -> None:
    assert phorge.execute("SELECT * FROM lisk_counter") == []
    assert await ear.is_silent()
    php_enqueue(phorge)
    assert await ear.hears()


# ---- rows that come due, or are made so by bin/worker and phd


@pytest.mark.parametrize(
    ("owner", "wait"),
    [
        (None, 0),
        ("(delay)", 0),
        ("(yield)", 1),
        ("(retry)", 1),
        ("(unknown)", 1),
        (NATIVE, 1),
        ("web1:7", 1),
        (WORKER, 1 + PATIENCE),
    ],
)
async def test_a_row_is_heard_in_its_second_and_not_before(
    phorge: PhorgeTables, ear: Ear, clock: Clock, owner: str | None, wait: int
) -> None:
    php_enqueue(phorge, leaseOwner=owner, leaseExpires=clock.now + 30)
    await ear.quiet()
    clock.advance(30 + wait - 1)
    assert await ear.is_silent()
    clock.advance(1)
    assert await ear.hears()
    clock.advance(30)
    assert await ear.is_silent()  # nobody took it: it rang once


@pytest.mark.parametrize("owner", sorted(PARKED_OWNERS))
async def test_a_parked_row_never_rings(phorge: PhorgeTables, ear: Ear, clock: Clock, owner: str) -> None:
    task_id = php_enqueue(phorge, leaseOwner=owner, leaseExpires=clock.now + 5)
    await ear.quiet()
    clock.advance(100)
    write(phorge, task_id, owner, 0)
    assert await ear.is_silent()


@pytest.mark.parametrize("how", ["free", "retry", "awaken", "expire all"])
async def test_what_bin_worker_and_phd_make_due_is_heard(
    phorge: PhorgeTables, ear: Ear, clock: Clock, how: str
) -> None:
    """Also in a second that was looked at already, and beside a row that has long been due."""
    php_enqueue(phorge, leaseExpires=1)
    task_id = php_enqueue(phorge, leaseOwner=NATIVE if how == "free" else "(yield)", leaseExpires=clock.now + 600)
    await ear.quiet()
    match how:
        case "free":
            write(phorge, task_id, None, clock.now)
        case "retry":
            phorge.execute("DELETE FROM worker_activetask WHERE id = %s", (task_id,))
            insert_active(phorge, task_id, leaseExpires=0)
        case "awaken":
            write(phorge, task_id, "(yield)", clock.now - AWAKEN_BACK)
        case _:
            phorge.execute("UPDATE worker_activetask SET leaseExpires = %s WHERE leaseExpires > %s", (clock.now,) * 2)
            clock.advance(1)
    assert await ear.hears()
    await ear.quiet()
    assert await ear.is_silent()


async def test_rows_that_are_taken_do_not_ring(phorge: PhorgeTables, ear: Ear, clock: Clock) -> None:
    due = [php_enqueue(phorge, leaseExpires=clock.now) for _ in range(3)]
    await ear.quiet()
    for task_id in due:
        write(phorge, task_id, NATIVE, clock.now + 7200)
        assert await ear.is_silent()


async def test_one_that_comes_due_while_another_is_taken_is_heard(phorge: PhorgeTables, ear: Ear, clock: Clock) -> None:
    first, second = php_enqueue(phorge, leaseExpires=clock.now), php_enqueue(phorge, leaseExpires=clock.now)
    php_enqueue(phorge, leaseExpires=clock.now + 1)
    await ear.quiet()
    for task_id in (first, second):
        write(phorge, task_id, NATIVE, clock.now + 7200)
    clock.advance(1)
    assert await ear.hears()


async def test_rows_wait_again_after_the_clock_was_set_back(phorge: PhorgeTables, ear: Ear, clock: Clock) -> None:
    php_enqueue(phorge, leaseExpires=clock.now)
    await ear.quiet()
    clock.advance(-50)
    assert await ear.is_silent()
    clock.advance(50)
    assert await ear.hears()


async def test_a_row_comes_due_at_the_beginning_of_its_second(phorge: PhorgeTables, real_ear: Ear) -> None:
    """Even in a store where nothing has gone on for long: due times are whole seconds of the server."""
    real_ear.changes._lively_until = 0.0
    moment = int(time.time()) + 2
    phorge.execute("INSERT INTO lisk_counter VALUES ('worker_activetask', 1)")
    await real_ear.quiet()
    insert_active(phorge, 1, leaseOwner="(delay)", leaseExpires=moment)
    real_ear.changes._lively_until = 0.0
    assert await real_ear.hears()
    assert 0 <= time.time() - moment < 0.15


# ---- this process's own writes


async def test_an_own_write_rings_at_once_and_without_the_server(phorge: PhorgeTables, ear: Ear) -> None:
    waiting = asyncio.ensure_future(ear.hears())
    await asyncio.sleep(0)
    ear.changes.ring()
    assert await waiting
    ear.changes.ring()  # between two waits: remembered
    assert await ear.hears(0)
    assert await ear.is_silent()


async def test_the_first_look_rings_because_nobody_knows_what_happened_before(phorge: PhorgeTables) -> None:
    async with open_sessions(phorge.settings()) as sessions:
        ear = Ear(sessions, StoreOptions())
        assert await ear.hears(0)
        assert not await ear.hears(0)


# ---- outages


async def test_an_outage_is_told_and_what_happened_meanwhile_is_heard() -> None:
    with MariaDb(durable=True) as server:
        phorge = PhorgeTables(server)
        phorge.close()
        async with open_sessions(phorge.settings()) as sessions:
            ear = Ear(sessions, StoreOptions())
            await ear.quiet()
            server.kill()
            with pytest.raises(StoreUnavailable):
                await ear.hears()
            ear.changes.ring()
            assert await ear.hears()  # an own ring needs no server
            server.start()
            with closing(connect(server, database=phorge.worker)) as line, line.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO worker_activetask (id, taskClass, leaseExpires, failureCount, dataID, priority,"
                    " dateCreated, dateModified) VALUES (1, 'A', 0, 0, 1, 2000, 1, 1)"
                )
            assert await ear.hears()


# ---- what it costs


async def test_a_look_costs_a_few_rows_however_many_there_are(phorge: PhorgeTables, ear: Ear, clock: Clock) -> None:
    fill_active(phorge, 10_000)
    fill_active(phorge, 10_000, first=10_001, leaseOwner="'(delay)'", leaseExpires=f"{clock.now} + seq % 5000")
    fill_active(phorge, 10_000, first=20_001, leaseOwner=f"'{WORKER}'", leaseExpires=f"{clock.now} + seq % 20")
    phorge.execute("INSERT INTO lisk_counter VALUES ('worker_activetask', 30000)")
    for _ in range(3):
        await ear.quiet()
        clock.advance(100)
        assert await rows_read(ear.sessions, lambda session: mysql_changes._read(session, 30_000)) < 1500
    steps = await plan(ear.sessions, lambda session: mysql_changes._read(session, 30_000))
    assert scanned(steps) == []
    assert {step.key for step in steps if step.table == "worker_activetask"} == {"PRIMARY", "leaseExpires"}
    assert [step.how for step in steps if step.table == "lisk_counter"] == ["const"]


async def test_the_server_clock_bounds_what_is_read_too(phorge: PhorgeTables, real_ear: Ear) -> None:
    fill_active(phorge, 20_000, leaseOwner="'(delay)'", leaseExpires="UNIX_TIMESTAMP() + 1000 + seq % 5000")
    assert await rows_read(real_ear.sessions, lambda session: mysql_changes._read(session, 20_000)) < 50
    assert scanned(await plan(real_ear.sessions, lambda session: mysql_changes._read(session, 20_000))) == []


async def test_a_look_is_one_statement(ear: Ear) -> None:
    assert len(await watch(ear.sessions, lambda session: mysql_changes._read(session, 0))) == 1


async def test_a_quiet_store_is_looked_at_a_few_times_a_second(
    phorge: PhorgeTables, real_ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = mysql_changes._read

    async def counted(*arguments: object) -> object:
        nonlocal looks
        looks += 1
        return await look(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(mysql_changes, "_read", counted)
    real_ear.changes._lively_until = 0.0
    assert not await real_ear.hears(1.0)
    assert 3 <= looks <= 7

    looks = 0
    real_ear.changes._liven()
    await real_ear.hears(0.3)  # a change of pace is seen at the next look
    assert not await real_ear.hears(0.5)
    assert looks >= 10


async def test_work_that_is_leased_and_ended_does_not_quicken_the_looks(phorge: PhorgeTables) -> None:
    """They cost as much as the work itself where that is seldom."""
    async with open_store(phorge.settings()) as store:
        rows = await store.enqueue([NewTask(task_class="A")])
        while await store.changed(0.06):
            pass
        store._changes._lively_until = 0.0
        await store.lease(WORKER, 1, 60)
        await store.settle([Settlement.held(Lease(rows[0].id, WORKER), Complete())])
        assert store._changes._lively_until == 0.0

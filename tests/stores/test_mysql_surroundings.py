"""What other people do to the server and its databases: said clearly, mended where it can be, never passed over."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Pause, PauseKind, Settlement, Verdict
from stores.mysql import MysqlStore, open_store
from tests.phorge_php import Php
from tests.phorge_tables import PhorgeTables
from tests.servers import MariaDb

TEXT = "Ünïcødé 😀"
OWNER = "qr:1:1:1@h"


@pytest.fixture
async def store(phorge: PhorgeTables) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(), StoreOptions()) as store:
        yield store


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
async def test_a_server_that_ignores_the_handshakes_character_set_changes_no_text(driver: str) -> None:
    options = ("--character-set-server=latin1", "--skip-character-set-client-handshake")
    with MariaDb(*options) as server, PhorgeTables(server) as phorge:
        async with open_store(phorge.settings(driver=driver), StoreOptions()) as store:
            await store.enqueue([NewTask(task_class="Ä", data=TEXT)])
            (task,) = await store.lease(OWNER, 1, 60)
            assert (task.task_class, task.data) == ("Ä", TEXT)
        ((stored,),) = phorge.execute("SELECT HEX(data) FROM worker_taskdata")
        assert bytes.fromhex(str(stored)).decode() == TEXT


async def test_a_held_counter_stops_only_what_has_follow_ups(store: MysqlStore, phorge: PhorgeTables) -> None:
    """PHP holds it when it enqueues inside a transaction (spec section 2)."""
    await store.enqueue([NewTask(task_class="A")] * 3)
    held = [Lease(task.id, OWNER) for task in await store.lease(OWNER, 3, 60)]
    child = Complete(followups=[NewTask(task_class="Child")])
    round_ = [Settlement.held(held[0], child), *[Settlement.held(lease, Complete()) for lease in held[1:]]]
    with Php(phorge) as rival, rival.transaction():
        rival.query("SELECT * FROM lisk_counter FOR UPDATE")
        async with asyncio.timeout(8):
            verdicts = [settled.verdict for settled in await store.settle(round_)]
        assert verdicts == [Verdict.BUSY, Verdict.SETTLED, Verdict.SETTLED]
    assert [settled.verdict for settled in await store.settle(round_)] == [
        Verdict.SETTLED,
        Verdict.REPLAYED,
        Verdict.REPLAYED,
    ]


async def test_a_missing_table_of_the_companion_is_made_again_when_it_was_away_for_a_while(
    store: MysqlStore, phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.mysql_pool.AWAY_SECONDS", 0)
    await store.enqueue([NewTask(task_class="A")])
    phorge.execute("DROP TABLE phabricator_queue_runtime.pause")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.lease(OWNER, 1, 60)
    assert len(await store.lease(OWNER, 1, 60)) == 1


async def test_a_table_of_the_companion_is_not_made_while_somebody_puts_a_copy_back(
    store: MysqlStore, phorge: PhorgeTables
) -> None:
    """Who does so drops each table and makes it: one that we had made in between would end that in the middle."""
    await store.pause(Pause(PauseKind.CLASS, "A"))
    phorge.execute("RENAME TABLE phabricator_queue_runtime.pause TO phabricator_queue_runtime.away")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.paused()
    phorge.execute("RENAME TABLE phabricator_queue_runtime.away TO phabricator_queue_runtime.pause")
    assert await store.paused() == [Pause(PauseKind.CLASS, "A")]


async def test_pauses_are_not_lifted_when_the_companion_may_not_be_read_any_more(phorge: PhorgeTables) -> None:
    rights = [f"ALL ON `{phorge.worker}`.*", "ALL ON `phabricator_queue_runtime`.*"]
    phorge.create_account("guest", "secret", rights)
    async with open_store(phorge.settings(user="guest", password="secret"), StoreOptions()) as store:
        await store.enqueue([NewTask(task_class="A")])
        await store.pause(Pause(PauseKind.CLASS, "A"))
        phorge.execute("REVOKE ALL ON `phabricator_queue_runtime`.* FROM guest@localhost")
        phorge.execute("FLUSH PRIVILEGES")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"companion|queue_runtime"):
                await store.lease(OWNER, 1, 60)
        phorge.create_account("guest", "secret", rights)
        assert await store.lease(OWNER, 1, 60) == []


async def test_an_id_at_the_very_end_does_not_take_all_ids_away(store: MysqlStore, phorge: PhorgeTables) -> None:
    phorge.execute("INSERT INTO worker_taskdata (id, data) VALUES (7, '')")
    phorge.execute(
        "INSERT INTO worker_activetask (id, taskClass, failureCount, dataID, priority, dateCreated, dateModified)"
        " VALUES (4294967295, 'Odd', 0, 7, 2000, 1, 1)"
    )
    (task,) = await store.enqueue([NewTask(task_class="A")])
    assert task.id < 4_000_000_000


async def test_ids_that_are_left_are_not_burnt_by_a_call_that_needs_more(
    store: MysqlStore, phorge: PhorgeTables
) -> None:
    await store.enqueue([NewTask(task_class="A")])
    phorge.execute("UPDATE lisk_counter SET counterValue = 4294967290 WHERE counterName = 'worker_activetask'")
    with pytest.raises(StoreFull):
        await store.enqueue([NewTask(task_class="A")] * 10)
    rows = await store.enqueue([NewTask(task_class="A")] * 5)
    assert [row.id for row in rows] == list(range(4294967291, 4294967296))
    with pytest.raises(StoreFull):
        await store.enqueue([NewTask(task_class="A")])

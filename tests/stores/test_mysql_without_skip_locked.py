"""Servers that cannot skip locked rows: leases read first and lock then. R058."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Outcome, Retry, Settlement, Verdict, Yield
from stores.mysql import MysqlStore, open_store
from stores.mysql_server import can_skip_locked
from tests.phorge_php import Taskmaster
from tests.phorge_tables import PhorgeTables
from tests.stores.phorge_state import check_whole

STORES = 3
TASKS = 400


@pytest.fixture
async def stores(phorge: PhorgeTables) -> AsyncIterator[list[MysqlStore]]:
    """As many processes would have."""
    settings, options = phorge.settings(connections=4), StoreOptions(patience=0)
    async with (
        open_store(settings, options, skip_locked=False) as one,
        open_store(settings, options, skip_locked=False) as two,
        open_store(settings, options) as three,
    ):
        yield [one, two, three]


@pytest.mark.parametrize(
    ("version", "can"),
    [
        ("10.5.23-MariaDB", False),
        ("10.6.0-MariaDB-log", True),
        ("10.11.6-MariaDB-0+deb12u1", True),
        ("11.4.2-MariaDB", True),
        ("5.5.5-10.5.8-MariaDB", False),
        ("5.7.44-log", False),
        ("8.0.0-dmr", False),
        ("8.0.1-dmr", True),
        ("8.4.0", True),
        ("9.1.0-commercial", True),
        ("who knows", False),
    ],
)
def test_what_a_server_can_is_read_from_its_version(version: str, can: bool) -> None:
    assert can_skip_locked(version) is can


@pytest.mark.parametrize("skips", [True, False])
async def test_the_way_of_leasing_is_told_where_it_is_the_slower_one(phorge: PhorgeTables, skips: bool) -> None:
    with capture_logs() as lines:
        async with open_store(phorge.settings(), skip_locked=skips) as store:
            await store.ping()
            await store.ping()
    told = [line for line in lines if "cannot skip locked rows" in line["event"]]
    assert len(told) == (0 if skips else 1)


@pytest.mark.parametrize("classes", [None, {"Class1", "Class2", "Class3"}], ids=["all", "filtered"])
async def test_many_lease_at_once_and_each_task_is_run_by_one(
    stores: list[MysqlStore], phorge: PhorgeTables, classes: set[str] | None
) -> None:
    """Two old servers' clients, one of a new one and a native consumer, on a table that gets small in the end."""
    await stores[0].enqueue(
        [NewTask(task_class=f"Class{number % 4}", data=str(number), priority=number % 3) for number in range(TASKS)]
    )
    ended: Counter[int] = Counter()

    async def work(store: MysqlStore, number: int) -> None:
        idle = sequence = 0
        while idle < 3:
            sequence += 1
            owner = f"qr:{number}:{sequence}"
            tasks = await store.lease(owner, 7, 60, classes=classes, due_first=sequence % 4 == 0)
            idle = 0 if tasks else idle + 1
            leases = [Lease(task.id, owner) for task in tasks]
            assert None not in await store.renew(leases, 90)
            outcomes: list[Outcome] = [Complete(), Complete(), Yield(600), Retry(600)]
            settlements = [Settlement.held(lease, outcomes[place % 4]) for place, lease in enumerate(reversed(leases))]
            while settlements:
                settled = await store.settle(settlements)
                assert Verdict.LOST not in {one.verdict for one in settled}
                ended.update(
                    one.task_id for one, answer in zip(settlements, settled, strict=True) if answer.archived is not None
                )
                settlements = [
                    one for one, answer in zip(settlements, settled, strict=True) if answer.verdict is Verdict.BUSY
                ]

    def native() -> list[int]:
        with Taskmaster(phorge) as php:
            for _ in range(30):
                php.step(lambda task: [])
            assert php.restarts == 0
            return php.archived

    async with asyncio.timeout(30):
        *_, by_php = await asyncio.gather(
            *(work(store, 10 * place + number) for place, store in enumerate(stores) for number in range(2)),
            asyncio.to_thread(native),
        )
    ended.update(by_php)
    assert set(ended.values()) == {1}
    assert phorge.execute("SELECT COUNT(*) FROM worker_archivetask") == [(len(ended),)]
    ready = phorge.execute("SELECT taskClass, COUNT(*) FROM worker_activetask WHERE leaseOwner IS NULL GROUP BY 1")
    assert {name for name, _ in ready} <= (set() if classes is None else {"Class0"})
    check_whole(phorge)

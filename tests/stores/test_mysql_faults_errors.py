"""The server refuses the n-th row that a call changes, for every n: what may be played again is, whole and from the
start; everything else ends in an error and leaves nothing behind."""

from collections.abc import AsyncIterator, Iterator

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from stores.mysql import MysqlStore, open_store
from tests.clock import Clock
from tests.phorge_tables import PhorgeTables
from tests.stores.mysql_cases import CASES, Case, Rows
from tests.stores.phorge_state import check_whole, state

WORKER_TABLES = ("worker_activetask", "worker_archivetask", "worker_taskdata")
COMPANION_TABLES = ("task_extra", "attempt", "idempotency", "event", "pause")
AGAIN = {1213: "deadlock", 1205: "lock wait", 1020: "row changed", 1290: "read-only"}
FOR_GOOD = {1317: "interrupted", 1114: "table full"}
EVERYWHERE = {1213, 1317}
"""Refused at every row; the others at the first and the last."""

TRIGGER = """
CREATE TRIGGER {table}_{event} BEFORE {event} ON {table} FOR EACH ROW
BEGIN
    DECLARE number INT;
    IF NEXTVAL(faults.changes) = (SELECT place FROM faults.plan) THEN
        SELECT errno INTO number FROM faults.plan;
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = number, MESSAGE_TEXT = 'injected';
    END IF;
END
"""


class Refusals:
    """Makes the server refuse one row change. The count of changes outlives every rollback."""

    def __init__(self, phorge: PhorgeTables) -> None:
        self._phorge = phorge
        phorge.execute("CREATE OR REPLACE DATABASE faults")
        phorge.execute("CREATE SEQUENCE faults.changes NOCACHE")
        phorge.execute("CREATE TABLE faults.plan (place INT, errno INT)")
        phorge.execute("INSERT INTO faults.plan VALUES (0, 0)")
        for table, event in self._places():
            phorge.execute(TRIGGER.format(table=table, event=event))

    def _places(self) -> Iterator[tuple[str, str]]:
        for database, names in ((self._phorge.worker, WORKER_TABLES), (self._phorge.companion, COMPANION_TABLES)):
            for name in names:
                for event in ("INSERT", "UPDATE", "DELETE"):
                    yield f"{database}.{name}", event

    def refuse(self, place: int, errno: int) -> None:
        """Refuse the change of this number, counted from 1 and from now on. 0: none."""
        self._phorge.execute("UPDATE faults.plan SET place = %s, errno = %s", (place, errno))
        self._phorge.execute("ALTER SEQUENCE faults.changes RESTART 1")

    @property
    def seen(self) -> int:
        """Changes since then."""
        ((following,),) = self._phorge.execute("SELECT next_not_cached_value FROM faults.changes")
        return int(following) - 1

    def remove(self) -> None:
        """Take the triggers away."""
        for table, event in self._places():
            self._phorge.execute(f"DROP TRIGGER {table}_{event}")
        self._phorge.execute("DROP DATABASE faults")


@pytest.fixture
async def store(phorge: PhorgeTables, clock: Clock) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(), StoreOptions(now=clock, patience=0)) as opened:
        await opened.ping()
        yield opened


@pytest.fixture
def refusals(phorge: PhorgeTables, store: MysqlStore) -> Iterator[Refusals]:
    refusals = Refusals(phorge)
    yield refusals
    refusals.remove()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_refused_change_is_all_or_nothing_at_every_row(
    case: Case, store: MysqlStore, refusals: Refusals, phorge: PhorgeTables
) -> None:
    """R055, R056"""

    async def prepared() -> Rows:
        refusals.refuse(0, 0)
        phorge.empty()
        return await case.prepare(store, phorge)

    rows = await prepared()
    before = state(phorge)
    refusals.refuse(0, 0)
    await case.call(store, rows)
    after, changes = state(phorge), refusals.seen
    assert changes > 0
    for errno in AGAIN | FOR_GOOD:
        for place in range(1, changes + 1) if errno in EVERYWHERE else {1, changes}:
            rows = await prepared()
            refusals.refuse(place, errno)
            if errno in AGAIN:
                await case.call(store, rows)
                assert state(phorge) == after
            else:
                with pytest.raises(StoreUnavailable):
                    await case.call(store, rows)
                assert state(phorge) == before
            check_whole(phorge)

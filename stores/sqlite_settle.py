"""Settling and renewing on SQLite. A round of plain successes is one statement; a mixed one goes item by item."""

from collections.abc import Sequence

from queue_runtime.task import Complete, Lease, Result, Settled, Settlement, Task, Verdict
from stores import settling, sqlite_ledger
from stores.ledger import is_held, is_repeat
from stores.settling import LOST
from stores.sqlite_enqueue import insert
from stores.sqlite_rows import EXPIRES, ID, OWNER, RESULT, Row, archived_task, completed_task, id_list
from stores.sqlite_session import Session


def settle(session: Session, settlements: Sequence[Settlement]) -> list[Settled]:
    """Write the outcomes in their order."""
    if all(type(one.outcome) is Complete and not one.outcome.followups for one in settlements):
        return _complete(session, settlements)
    ledger = sqlite_ledger.load(session, {settlement.task_id for settlement in settlements})
    settled, followups = settling.settle(ledger, settlements)
    sqlite_ledger.write(session, ledger)
    insert(session, followups)
    return settled


def _complete(session: Session, settlements: Sequence[Settlement]) -> list[Settled]:
    """The common case: successes without follow-ups."""
    now = session.now()
    rows = {row[ID]: row for row in session.rows("rows", (id_list({one.task_id for one in settlements}),))}
    ended: dict[int, Settled] = {}
    written: list[tuple[int, int, int]] = []
    settled: list[Settled] = []
    for one in settlements:
        task_id, lease, row = one.task_id, one.lease, rows.get(one.task_id)
        if row is None:
            settled.append(LOST)
        elif task_id in ended or row[RESULT] is not None:
            before = ended.get(task_id)
            settled.append(_repeated(row, lease, before))
        elif lease is None or is_held(row[OWNER], row[EXPIRES], lease, now):
            duration_us = one.outcome.duration_us  # type: ignore[union-attr]  # each is a Complete
            written.append((task_id, duration_us, now))
            ended[task_id] = Settled(Verdict.SETTLED, completed_task(row, duration_us, now))
            settled.append(ended[task_id])
        else:
            settled.append(LOST)
    session.many("complete", written)
    if written:
        session.run("count_ended", (len(written),))
    return settled


def _repeated(row: Row, lease: Lease | None, before: Settled | None) -> Settled:
    if lease is None or not is_repeat(row[OWNER], row[EXPIRES], lease):
        return LOST
    if before is not None:
        return Settled(Verdict.REPLAYED, before.archived)
    if row[RESULT] != Result.SUCCESS:
        return LOST
    return Settled(Verdict.REPLAYED, archived_task(row))


def renew(session: Session, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
    """Move the expiry of each valid lease, never back."""
    ledger = sqlite_ledger.load(session, {lease.task_id for lease in leases})
    renewed = settling.renew(ledger, leases, seconds)
    rows = [row for row in ledger.all_active() if row.id in ledger.changed]
    session.many("renew", [(row.id, row.lease_expires, ledger.spent(row.id)) for row in rows])
    return renewed

"""Settling and renewing on SQLite. A round of plain successes is one statement; a mixed one goes item by item."""

from collections.abc import Sequence

from msgspec.structs import replace

from queue_runtime.task import (
    U32,
    YIELD_FLOOR,
    AttemptKind,
    Complete,
    Fail,
    Lease,
    NewTask,
    Release,
    Result,
    Retry,
    Sentinel,
    Settled,
    Settlement,
    Task,
    Unknown,
    Verdict,
    Yield,
)
from stores.sqlite_enqueue import insert
from stores.sqlite_ledger import Ledger, is_held, is_repeat
from stores.sqlite_rows import EXPIRES, ID, OWNER, RESULT, Row, archived_task, completed_task, id_list
from stores.sqlite_session import Session

_LOST = Settled(Verdict.LOST)


def settle(session: Session, settlements: Sequence[Settlement]) -> list[Settled]:
    """Write the outcomes in their order."""
    if all(type(one.outcome) is Complete and not one.outcome.followups for one in settlements):
        return _complete(session, settlements)
    ledger = Ledger(session, {settlement.task_id for settlement in settlements})
    followups: list[tuple[NewTask, int]] = []
    settled = [_settle(ledger, settlement, followups) for settlement in settlements]
    ledger.write()
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
            settled.append(_LOST)
        elif task_id in ended or row[RESULT] is not None:
            before = ended.get(task_id)
            settled.append(_repeated(row, lease, before))
        elif lease is None or is_held(row[OWNER], row[EXPIRES], lease, now):
            duration_us = one.outcome.duration_us  # type: ignore[union-attr]  # each is a Complete
            written.append((task_id, duration_us, now))
            ended[task_id] = Settled(Verdict.SETTLED, completed_task(row, duration_us, now))
            settled.append(ended[task_id])
        else:
            settled.append(_LOST)
    session.many("complete", written)
    if written:
        session.run("count_ended", (len(written),))
    return settled


def _repeated(row: Row, lease: Lease | None, before: Settled | None) -> Settled:
    if lease is None or not is_repeat(row[OWNER], row[EXPIRES], lease):
        return _LOST
    if before is not None:
        return Settled(Verdict.REPLAYED, before.archived)
    if row[RESULT] != Result.SUCCESS:
        return _LOST
    return Settled(Verdict.REPLAYED, archived_task(row))


def _settle(ledger: Ledger, settlement: Settlement, followups: list[tuple[NewTask, int]]) -> Settled:
    lease = settlement.lease
    row = ledger.active(settlement.task_id) if lease is None else ledger.held(lease)
    if row is None:
        return _replay(ledger, settlement)
    if type(settlement.outcome) is not Release:
        row = replace(row, lost_count=0)
    match settlement.outcome:
        case Complete(duration_us, children):
            followups.extend((child, row.priority) for child in children)
            return Settled(Verdict.SETTLED, ledger.archive(row, Result.SUCCESS, duration_us))
        case Fail(failure):
            ledger.remember(row, AttemptKind.FAILURE, failure)
            return Settled(Verdict.SETTLED, ledger.archive(row, Result.FAILURE))
        case Retry() as retry:
            return _retry(ledger, row, retry)
        case Yield(wait):
            _wait(ledger, row, Sentinel.YIELD, max(wait, YIELD_FLOOR))
        case Unknown(wait):
            _wait(ledger, row, Sentinel.UNKNOWN, wait)
        case Release():
            ledger.give_back(row, None, None)
    return Settled(Verdict.SETTLED)


def _retry(ledger: Ledger, row: Task, retry: Retry) -> Settled:
    maximum = row.max_attempts if row.max_attempts is not None else retry.max_attempts
    last = maximum is not None and row.failure_count + 1 >= maximum
    ledger.remember(row, AttemptKind.FAILURE if last else AttemptKind.RETRY, retry.failure)
    row = replace(row, failure_count=row.failure_count + 1)
    if last:
        return Settled(Verdict.SETTLED, ledger.archive(row, Result.FAILURE))
    _wait(ledger, replace(row, failure_time=ledger.now), Sentinel.RETRY, retry.wait)
    return Settled(Verdict.SETTLED)


def _wait(ledger: Ledger, row: Task, sentinel: Sentinel, seconds: int) -> None:
    ledger.give_back(row, sentinel.value, min(ledger.now + seconds, U32))


def _replay(ledger: Ledger, settlement: Settlement) -> Settled:
    lease, archived = settlement.lease, ledger.archived(settlement.task_id)
    wanted = {Complete: Result.SUCCESS, Fail: Result.FAILURE}.get(type(settlement.outcome))
    if (
        lease is None
        or archived is None
        or archived.result != wanted
        or not is_repeat(archived.lease_owner, archived.lease_expires, lease)
    ):
        return _LOST
    return Settled(Verdict.REPLAYED, archived)


def renew(session: Session, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
    """Move the expiry of each valid lease, never back."""
    ledger = Ledger(session, {lease.task_id for lease in leases})
    renewed: list[Task | None] = []
    moved: dict[int, tuple[int, int | None, str | None]] = {}
    for lease in leases:
        held = ledger.held(lease)
        row = None if held is None else ledger.prolong(held, seconds)
        if row is not None and row is not held:
            moved[row.id] = (row.id, row.lease_expires, ledger.spent(row.id))
        renewed.append(row)
    session.many("renew", moved.values())
    return renewed

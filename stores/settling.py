"""How outcomes and renewals change the rows of a ledger: the rules of settle and renew, for every SQL store."""

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
from stores.ledger import Ledger, is_repeat

LOST = Settled(Verdict.LOST)


def settle(ledger: Ledger, settlements: Sequence[Settlement]) -> tuple[list[Settled], list[tuple[NewTask, int]]]:
    """Apply outcomes in their order; what became of each, and the follow-ups with the priority of their parent."""
    followups: list[tuple[NewTask, int]] = []
    return [_settle(ledger, settlement, followups) for settlement in settlements], followups


def _settle(ledger: Ledger, settlement: Settlement, followups: list[tuple[NewTask, int]]) -> Settled:
    lease = settlement.lease
    row = ledger.active(settlement.task_id) if lease is None else ledger.held(lease)
    if row is None:
        return _replay(ledger, settlement)
    if row.lost_count and type(settlement.outcome) is not Release:
        row = replace(row, lost_count=0)
    match settlement.outcome:
        case Complete(duration_us, children):
            if children:  # a generator for each outcome would be dear
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
    row = replace(row, failure_count=min(row.failure_count + 1, U32))  # more does not fit a column of Phorge's
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
        return LOST
    return Settled(Verdict.REPLAYED, archived)


def renew(ledger: Ledger, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
    """Move the expiry of each valid lease, never back."""
    renewed: list[Task | None] = []
    for lease in leases:
        held = ledger.held(lease)
        renewed.append(None if held is None else ledger.prolong(held, seconds))
    return renewed

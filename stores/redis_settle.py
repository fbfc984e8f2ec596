"""Settling and renewing on Redis: outcomes as the script reads them, and its verdicts."""

from collections.abc import Sequence

from queue_runtime.store import Routes
from queue_runtime.task import (
    MAX_MESSAGE,
    MAX_TRACE,
    Complete,
    Fail,
    Failure,
    Lease,
    NewTask,
    Outcome,
    Release,
    Retry,
    Settled,
    Settlement,
    Task,
    Unknown,
    Verdict,
    Yield,
)
from stores.redis_calls import Calls
from stores.redis_rows import active_task, archived_task, id_text, new_task, pack, storable

_NO_ROW = "-"
"""An expiry that no row has."""

_LOST = Settled(Verdict.LOST)
_SETTLED = Settled(Verdict.SETTLED)

Packed = tuple[object, ...]


async def settle(calls: Calls, routes: Routes, settlements: Sequence[Settlement]) -> list[Settled]:
    """Write the outcomes in their order."""
    followups: list[bytes] = []
    outcomes = [_pack_settlement(settlement, followups, routes) for settlement in settlements]
    rings = any(_may_ring(settlement.outcome) for settlement in settlements)
    reply: list[bytes] = await calls.script("settle", calls.highest_id, int(rings), pack(outcomes), *followups)
    settled: list[Settled] = []
    for number, settlement in enumerate(settlements):
        verdict, head, ended = reply[3 * number : 3 * number + 3]
        if verdict == b"L":
            settled.append(_LOST)
        elif not ended:
            settled.append(_SETTLED)
        else:
            archived = archived_task(settlement.task_id, head, ended)
            settled.append(Settled(Verdict.SETTLED if verdict == b"S" else Verdict.REPLAYED, archived))
    return settled


def _may_ring(outcome: Outcome) -> bool:
    """Whether the outcome makes work leasable, now or later."""
    if isinstance(outcome, Complete):
        return bool(outcome.followups)
    return not isinstance(outcome, Fail)


def _pack_settlement(settlement: Settlement, followups: list[bytes], routes: Routes) -> Packed:
    lease = settlement.lease
    fence = (id_text(settlement.task_id), False, "") if lease is None else pack_lease(lease)
    return *fence, *_pack_outcome(settlement.outcome, followups, routes)


def pack_lease(lease: Lease) -> Packed:
    """A lease as scripts compare it with a row: id, owner, expiry ("": any)."""
    owner = storable(lease.owner)
    # an owner that had to be changed to be sent is nobody's
    return id_text(lease.task_id), owner, _expiry(lease) if owner == lease.owner else _NO_ROW


def _expiry(lease: Lease) -> str:
    if lease.expires is None:
        return ""
    return f"{lease.expires:010d}" if 0 <= lease.expires < 10**10 else _NO_ROW


def _pack_outcome(outcome: Outcome, followups: list[bytes], routes: Routes) -> Packed:
    match outcome:
        case Complete(duration_us, children):
            _pack_followups(children, followups, routes)
            return "complete", str(duration_us), len(children)
        case Fail(failure):
            return "fail", *_pack_failure(failure)
        case Retry(wait, failure, max_attempts):
            return "retry", wait, max_attempts or 0, *_pack_failure(failure)
        case Yield(wait):
            return "yield", wait
        case Unknown(wait):
            return "unknown", wait
        case Release():
            return ("release",)


def _pack_followups(children: Sequence[NewTask], followups: list[bytes], routes: Routes) -> None:
    for child in children:
        followups += new_task(child, routes, None)


def _pack_failure(failure: Failure) -> tuple[str, str, str]:
    return (
        str(failure.duration_us),
        storable(failure.message[:MAX_MESSAGE]),
        storable(failure.trace[:MAX_TRACE]),
    )


async def renew(calls: Calls, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
    """Move the expiry of each valid lease, never back."""
    reply: list[bytes] = await calls.script("renew", seconds, pack([pack_lease(lease) for lease in leases]))
    return read_active([lease.task_id for lease in leases], reply)


def read_active(task_ids: Sequence[int], reply: Sequence[bytes]) -> list[Task | None]:
    """Active rows as the scripts show them: head, hold and state of each, or nothing."""
    return [
        active_task(task_id, head, hold, state) if head else None
        for task_id, head, hold, state in zip(task_ids, reply[::3], reply[1::3], reply[2::3], strict=True)
    ]

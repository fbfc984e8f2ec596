"""What callers report, as outcomes; and the log lines that say who ended which task, and why."""

from collections.abc import Sequence

import structlog

from queue_runtime.errors import InvalidRequest
from queue_runtime.task import (
    MAX_LEASE_SECONDS,
    U32,
    YIELD_FLOOR,
    ArchivedTask,
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
    Verdict,
    Yield,
    check_range,
)
from queue_runtime.wire import INT64, SettlementBody, new_tasks, receipt

log = structlog.get_logger()


def completed(duration: int | None, followups: Sequence[NewTask] = (), at: str = "") -> Complete:
    """Success after so many microseconds."""
    duration = duration or 0
    check_range(f"{at}duration", duration, 0, INT64)
    return Complete(duration, followups)


def retried(wait: int | None, default: int, message: str | None, *, longest: int = U32, at: str = "") -> Retry:
    """A temporary failure. A wait of 0 is a wait of 0; only an absent one means the default."""
    wait = default if wait is None else wait
    check_range(f"{at}retryWait", wait, 0, longest)
    return Retry(wait, Failure(message or ""))


def failed(message: str | None) -> Fail:
    """A permanent failure."""
    return Fail(Failure(message or ""))


def yielded(wait: int | None, *, longest: int, at: str = "") -> Yield:
    """Not now."""
    wait = wait or 0
    check_range(f"{at}duration", wait, 0, longest)
    return Yield(max(wait, YIELD_FLOOR))


def settlement(body: SettlementBody, default_wait: int, at: str) -> Settlement:
    """One entry of a settle-batch."""
    return Settlement.held(receipt(body, at), _outcome(body, default_wait, at))


def _outcome(body: SettlementBody, default_wait: int, at: str) -> Outcome:
    match body.outcome:
        case "complete":
            return completed(body.duration, new_tasks(body.followups, f"{at}followups"), at)
        case "failure":
            return failed(body.message)
        case "retry":
            return retried(body.retryWait, default_wait, body.message, longest=MAX_LEASE_SECONDS, at=at)
        case "yield":
            return yielded(body.duration, longest=MAX_LEASE_SECONDS, at=at)
        case "release":
            return Release()
        case _:
            raise InvalidRequest(f"{at}outcome", "must be complete, failure, retry, yield or release")


def report(settlement: Settlement, settled: Settled) -> None:
    """One line for an outcome that somebody has to know about; success is the access log's."""
    outcome, lease, archived = settlement.outcome, settlement.lease, settled.archived
    if settled.verdict is Verdict.LOST:
        log.info("an outcome was refused, the lease is lost", **_facts(settlement.task_id, lease, None))
    elif settled.verdict is Verdict.SETTLED and isinstance(outcome, Fail | Retry):
        reason = outcome.failure.message
        facts = _facts(settlement.task_id, lease, archived)
        if archived is None:
            log.warning("a task failed, it will run again", reason=reason, **facts)
        else:
            log.error("a task failed for good", reason=reason, **facts)


def report_cancelled(archived: ArchivedTask) -> None:
    """One line for a task that somebody cancelled."""
    log.info("a task was cancelled", **_facts(archived.id, None, archived))


def _facts(task_id: int, lease: Lease | None, archived: ArchivedTask | None) -> dict[str, object]:
    facts: dict[str, object] = {"task_id": task_id}
    if lease is not None:
        facts["owner"] = lease.owner
    if archived is not None:
        facts["owner"] = archived.lease_owner
        facts["task_class"] = archived.task_class
        facts["object_phid"] = archived.object_phid
        facts["attempt"] = archived.failure_count
    return facts

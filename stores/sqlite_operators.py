"""What operators do on SQLite beside what changes a ledger: pause and resume; and the sweep."""

from queue_runtime.task import Pause, SweepReport
from stores.sqlite_session import Session


def pause(session: Session, pause: Pause) -> None:
    """Set a pause."""
    session.run("pause", (pause.kind.value, pause.name))


def resume(session: Session, pause: Pause) -> bool:
    """Lift a pause; whether it was set."""
    return session.run("resume", (pause.kind.value, pause.name)) > 0


def sweep(session: Session, limit: int) -> SweepReport:
    """Delete archived tasks whose retention is over, with all that belongs to them."""
    retention = session.options.retention
    if retention is None or limit <= 0:
        return SweepReport()
    over = session.rows("over", (session.now() - retention, limit + 1))
    deleted = over[:limit]
    ids = [(task_id,) for task_id, _ in deleted]
    for statement in ("delete_task", "delete_payload", "delete_attempts"):
        session.many(statement, ids)
    session.many("delete_key", [(key,) for _, key in deleted if key is not None])
    if deleted:
        session.run("count_deleted", (len(deleted),))
    return SweepReport(expired=len(deleted), more=len(over) > limit)

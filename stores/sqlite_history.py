"""The error history of tasks on SQLite."""

from collections.abc import Sequence

from queue_runtime.task import MAX_HISTORY, MAX_MESSAGE, MAX_TRACE, Attempt, AttemptKind, Failure
from stores.sqlite_rows import attempt, id_list, storable
from stores.sqlite_session import Session


def remember(
    session: Session,
    task_id: int,
    kind: AttemptKind,
    failure: Failure,
    *,
    failures: int,
    owner: str | None,
    now: int,
) -> None:
    """Write down how the run of this owner ended, after so many earlier failures."""
    session.run(
        "insert_attempt",
        (
            task_id,
            failures + 1,
            kind.value,
            now,
            None if owner is None else storable(owner),
            failure.duration_us,
            storable(failure.message[:MAX_MESSAGE]),
            storable(failure.trace[:MAX_TRACE]),
        ),
    )
    session.run("trim_attempts", (task_id, MAX_HISTORY))


def read_history(session: Session, task_ids: Sequence[int]) -> list[list[Attempt]]:
    """The entries of each task, oldest first."""
    found: dict[int, list[Attempt]] = {}
    for row in session.rows("history", (id_list(task_ids),)):
        found.setdefault(row[0], []).append(attempt(row))
    return [list(found.get(task_id, ())) for task_id in task_ids]

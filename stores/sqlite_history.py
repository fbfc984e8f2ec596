"""The error history of tasks on SQLite."""

from collections.abc import Sequence

from queue_runtime.task import MAX_HISTORY, Attempt
from stores.sqlite_rows import attempt, id_list
from stores.sqlite_session import Session


def remember(session: Session, task_id: int, entry: Attempt) -> None:
    """Add an entry, and drop the oldest ones beyond MAX_HISTORY."""
    session.run(
        "insert_attempt",
        (
            task_id,
            entry.attempt,
            entry.kind.value,
            entry.when,
            entry.owner,
            entry.duration_us,
            entry.message,
            entry.trace,
        ),
    )
    session.run("trim_attempts", (task_id, MAX_HISTORY))


def read_history(session: Session, task_ids: Sequence[int]) -> list[list[Attempt]]:
    """The entries of each task, oldest first."""
    found: dict[int, list[Attempt]] = {}
    for row in session.rows("history", (id_list(task_ids),)):
        found.setdefault(row[0], []).append(attempt(row))
    return [list(found.get(task_id, ())) for task_id in task_ids]

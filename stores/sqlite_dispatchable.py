"""What a dispatch over the file asks of it: which tasks a lease could take now, and which file it is."""

from collections.abc import Collection

from queue_runtime.task import U32
from stores.dispatchable import Candidate, Due, Named, Page, Ready, Which, Young, next_page, record_name
from stores.sqlite_lease import read_pauses
from stores.sqlite_rows import Row, id_list
from stores.sqlite_session import Session


def dispatchable(session: Session, which: Which, limit: int) -> Page:
    """One page of the tasks. Runs on the reading thread."""
    ((newest_lane, any_pause, newest),) = session.rows("dispatch_gates")
    session.lanes.refresh(session, newest_lane)
    pauses = frozenset(read_pauses(session)) if any_pause else frozenset()
    lanes = session.lanes.choose(None, (), None, pauses)
    rows = [] if lanes == "[]" else _read(session, which, limit, lanes)
    following = next_page(which, rows[-1][3:6]) if len(rows) == limit else None
    tasks = [Candidate(row[0], row[1], row[2], row[3], None if row[6] else row[5]) for row in rows]
    return Page(tasks, following, newest, pauses)


def names(session: Session) -> Collection[str]:
    """The name that the file was given when it was first asked for one. Runs on the writing thread."""
    session.run("make_record")
    session.run("name_record")
    ((name,),) = session.rows("record")
    return [record_name("id", name)]


def _read(session: Session, which: Which, limit: int, lanes: str | None) -> list[Row]:
    """Rows with id, class, queue, priority, id again, expires, and whether the row is one of phase 1."""
    values: dict[str, object] = {
        "lanes": lanes,
        "limit": limit,
        "now": session.now(),
        "patience": session.options.patience,
    }
    match which:
        case Ready((priority, task_id)):
            return session.rows("dispatch_ready", {**values, "after_priority": priority, "after_id": task_id})
        case Young(above):
            return session.rows("dispatch_young", {**values, "above": min(above, U32)})
        case Due((expires, task_id)):
            return session.rows("dispatch_due", {**values, "after_expires": expires, "after_id": task_id})
        case Named(task_ids):
            return session.rows("dispatch_named", {**values, "ids": id_list(task_ids)})

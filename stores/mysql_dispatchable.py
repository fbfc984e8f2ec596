"""What a dispatch over the tables asks of them: which tasks a lease could take now, and whose tables they are."""

from collections.abc import Collection
from secrets import token_hex

from queue_runtime.task import Pause, PauseKind
from stores.dispatchable import Candidate, Due, Named, Page, Ready, Which, Young, next_page, record_name
from stores.mysql_candidates import LeaseFilter
from stores.mysql_counts import physical_identity
from stores.mysql_ledger import valid_ids
from stores.mysql_pauses import pauses_of
from stores.mysql_session import Session


async def dispatchable(session: Session, which: Which, limit: int) -> Page:
    """One page of the tasks, in one trip; nothing is locked.

    Paused ones are left out after the page is read, so that it may be short.
    """
    statements = [session.fill("read_counter"), _statement(session, which, limit)]
    if session.server.companion:
        statements.append(session.fill("pauses"))
    counter, found, *paused = await session.trip(*statements)
    pauses = frozenset(pauses_of(paused[0].rows if paused else ()))
    routes = session.options.routes
    wanted = LeaseFilter.of(None, (), None, pauses, routes)
    tasks = [
        Candidate(row[0], row[2], row[3] or routes.queue_for(row[2]), row[1], None if row[5] else row[4])
        for row in found.rows
        if Pause(PauseKind.ALL) not in pauses and wanted.passes(row)
    ]
    last = found.rows[-1] if len(found.rows) == limit else None
    following = None if last is None else next_page(which, (last[1], last[0], last[4]))
    newest = counter.rows[0][0] if counter.rows else 0
    return Page(tasks, following, newest or 0, pauses)


async def names(session: Session) -> Collection[str]:
    """Where the database is, and the name that the companion got when it was first asked; as far as each is there."""
    place = await physical_identity(session)
    found = [] if place is None else [record_name("at", place)]
    if session.server.companion:
        if not (rows := await session.rows("record")):
            await session.trip(session.fill("name_record", name=token_hex(8)))
            rows = await session.rows("record")
        found.append(record_name("id", rows[0][0]))
    return found


def _statement(session: Session, which: Which, limit: int) -> str:
    match which:
        case Ready((priority, task_id)):
            return session.fill("dispatch_ready", after_priority=priority, after_id=task_id, limit=limit)
        case Young(above):
            return session.fill("dispatch_young", above=above, limit=limit)
        case Due((expires, task_id)):
            return session.fill("dispatch_due", after_expires=expires, after_id=task_id, limit=limit, now=session.now)
        case Named(task_ids):
            return session.fill("dispatch_named", ids=valid_ids(task_ids), limit=limit, now=session.now)

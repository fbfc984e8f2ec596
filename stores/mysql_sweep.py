"""Housekeeping on MySQL: retention, where it is asked for, and what the companion keeps of tasks that are gone.

Phorge has a collector of its own, which knows nothing of the companion: what it leaves there goes by and by.
"""

from collections.abc import Sequence
from typing import Any

from queue_runtime.task import SweepReport
from stores.mysql_driver import Row
from stores.mysql_session import Session
from stores.mysql_text import Sql, Value, row_literal

BATCH = 100
"""Tasks deleted in one transaction."""

WORTH = 10
"""Where one row in so many of a stretch was left behind, the next stretch is looked at soon."""


class Cursor:
    """How far the companion's tables were looked through; at their end it begins anew. Belongs to one store."""

    def __init__(self) -> None:
        self.extras = 0
        self.attempts = 0
        self.keys = b""


async def sweep(session: Session, limit: int, cursor: Cursor) -> SweepReport:
    """Delete what is over, at most `limit` tasks, and look through as many rows of the companion."""
    if limit <= 0:
        return SweepReport()
    expired, more = await _expire(session, limit)
    left_behind = await _clean(session, limit, cursor) if session.server.companion else 0
    return SweepReport(expired=expired, more=more or left_behind * WORTH >= limit)


# ---- retention


async def _expire(session: Session, limit: int) -> tuple[int, bool]:
    """Delete archived tasks whose retention is over; how many, and whether there are more."""
    retention = session.options.retention
    if retention is None:
        return 0, False
    expired = 0
    while expired < limit:
        count = min(BATCH, limit - expired)
        (answer,) = await session.begin(session.fill("lock_over", now=session.now, retention=retention, limit=count))
        if await _delete(session, answer.rows):
            expired += len(answer.rows)
        if len(answer.rows) < count:
            return expired, False
    return expired, bool(await session.rows("more_over", now=session.now, retention=retention))


async def _delete(session: Session, rows: Sequence[Row]) -> bool:
    """Delete locked archived tasks with all that belongs to them. False: one of them was just brought back.

    `bin/worker retry` inserts the active row before it deletes the archived one, which we have locked: so it is
    looked for last, when all that is left to do is to commit.
    """
    if not rows:
        await session.end()
        return False
    ids = [row[0] for row in rows]
    payloads = [row[1] for row in rows]
    statements = [
        session.fill("delete_over", ids=ids, count=len(ids)),
        session.fill("delete_payloads", ids=payloads, count=len(payloads)),
    ]
    if session.server.companion:
        keys = [key for (key,) in await session.rows("keys_of", ids=ids)]
        if keys:
            statements.append(session.fill("delete_keys", keys=keys, ids=ids, count=len(keys)))
        statements += [
            session.fill("delete_attempts", ids=ids),
            session.fill("delete_extras", ids=ids, count=len(ids)),
        ]
    *_, revived = await session.trip(*statements, session.fill("lock_revived", ids=ids))
    if revived.rows:
        await session.end()
        return False
    await session.commit()
    return True


# ---- the companion


async def _clean(session: Session, limit: int, cursor: Cursor) -> int:
    """Delete what is left of tasks that are neither active nor archived, in a stretch of each table; how many rows."""
    deleted = 0
    last, orphans = await _stretch(session, "extras", cursor.extras, limit)
    if orphans:
        ids = [row[0] for row in orphans]
        pairs = Sql(",".join(row_literal(row) for row in orphans))
        deleted += await _run(session, "delete_orphaned_extras", ids=ids, rows=pairs, count=len(ids))
    cursor.extras = last or 0

    last, orphans = await _stretch(session, "attempts", cursor.attempts, limit)
    if orphans:
        ids = [row[0] for row in orphans]
        deleted += await _run(session, "delete_orphaned_attempts", ids=ids, count=len(ids))
    cursor.attempts = last or 0

    last, orphans = await _stretch(session, "keys", cursor.keys, limit)
    if orphans:
        ids = [row[1] for row in orphans]
        keys = [row[0] for row in orphans]
        deleted += await _run(session, "delete_keys", keys=keys, ids=ids, count=len(keys))
    cursor.keys = last or b""
    return deleted


async def _stretch(session: Session, table: str, after: int | bytes, limit: int) -> tuple[Any, Sequence[Row]]:
    """The last key of the next `limit` rows (None: there are none), and those of them whose task is gone."""
    end, orphans = await session.trip(
        session.fill(f"some_{table}", after=after, limit=limit),
        session.fill(f"orphaned_{table}", after=after, limit=limit),
    )
    return end.rows[0][0], orphans.rows


async def _run(session: Session, statement: str, **values: Value) -> int:
    (answer,) = await session.trip(session.fill(statement, **values))
    return answer.affected

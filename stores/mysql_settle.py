"""Settling, renewing and operators' changes on MySQL: lock by id, decide by the rules in memory, write in one trip.

A row that somebody else has locked is not lost: it is BUSY, and the caller sends its settlement again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from queue_runtime.errors import StoreUnavailable
from queue_runtime.task import (
    DEFAULT_PRIORITY,
    Complete,
    Lease,
    NewTask,
    Settled,
    Settlement,
    Task,
    Verdict,
)
from stores import operating, settling
from stores.ledger import Ledger, is_held
from stores.mysql_enqueue import again_if_taken, insert, known_answers, new_rows
from stores.mysql_errors import LOCK_WAIT_OVER, Kind, ServerError
from stores.mysql_ledger import Loaded, changes, load, load_archived, renewals, revivals, valid_ids
from stores.mysql_rows import ID, active_task
from stores.mysql_session import LOCKED_SECONDS, Session, Sessions

T = TypeVar("T")
BUSY = Settled(Verdict.BUSY)

COUNTER_PATIENCE = 1
"""Seconds for which a round waits for the id counter, when PHP holds it, before it goes on without its follow-ups."""

_RENEW_PAUSES = (0.01, 0.03, 0.1, 0.2)
"""Seconds between the tries to renew rows that somebody else has locked."""

_PAUSE = 0.05
"""Seconds until rows that somebody else had locked are asked for again."""

_WAIT = 1
"""Seconds for which a try waits at the server. So long it may hold the other rows of its call."""

_log = structlog.get_logger()


class Settle:
    """One call. A row that an id issued twice has put into the archive already makes it write over that one."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self._settlements = settlements
        self._followups = [
            (task, DEFAULT_PRIORITY)
            for one in settlements
            if isinstance(one.outcome, Complete)
            for task in one.outcome.followups
        ]
        self._replace = False

    async def work(self, session: Session) -> list[Settled]:
        """Write the outcomes in their order."""
        first_id, known = 0, {}
        self._counter_is_locked = False
        if self._followups:
            if self._replace:  # it may as well have been an id of theirs
                await session.trip(session.fill("lift_counter"))
            known = await known_answers(session, self._followups)
            # enough for all; those of settlements that turn out to be LOST stay a gap
            if count := new_rows(self._followups, known):
                try:
                    first_id, _ = await session.draw_ids(count, patience=COUNTER_PATIENCE)
                except ServerError as error:
                    if error.number != LOCK_WAIT_OVER:
                        raise
                    self._counter_is_locked = True  # by an enqueuer of PHP in a transaction: the others go on
        loaded = await load(session, (one.task_id for one in self._settlements))
        settled, followups = self._apply(loaded)
        statements = changes(session, loaded, replace=self._replace)
        try:
            if followups:
                insertion = await insert(session, followups, known, first_id, loaded.ledger.now)
                statements += insertion.statements
            if statements:
                await session.commit(*statements)
        except ServerError as error:
            if error.kind is Kind.DUPLICATE:
                self._replace = True
                _log.error("a task id is in the archive already, or a key was taken meanwhile", reason=str(error))
            raise again_if_taken(error) from error
        return settled

    def _apply(self, loaded: Loaded) -> tuple[list[Settled], list[tuple[NewTask, int]]]:
        busy = set(loaded.locked)
        if self._counter_is_locked:
            busy |= {
                one.task_id for one in self._settlements if isinstance(one.outcome, Complete) and one.outcome.followups
            }
        if not busy:
            return settling.settle(loaded.ledger, self._settlements)
        free = [one for one in self._settlements if one.task_id not in busy]
        answers, followups = settling.settle(loaded.ledger, free)
        rest = iter(answers)
        return [BUSY if one.task_id in busy else next(rest) for one in self._settlements], followups


async def renew(sessions: Sessions, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
    """Move the expiry of each valid lease, never back.

    A row that stays locked by somebody else is answered as it is: nobody can take it from its holder meanwhile.
    """
    answers: list[Task | None] = [None] * len(leases)
    places = list(range(len(leases)))
    for pause in (*_RENEW_PAUSES, 0.0):
        asked = [leases[place] for place in places]
        rows, locked = await sessions.play("renew", lambda session, asked=asked: _renew(session, asked, seconds))  # type: ignore[misc]
        for place, row in zip(places, rows, strict=True):
            answers[place] = row
        places = [place for place, lease in zip(places, asked, strict=True) if lease.task_id in locked]
        if not places:
            break
        await asyncio.sleep(pause)
    return answers


async def _renew(session: Session, leases: Sequence[Lease], seconds: int) -> tuple[list[Task | None], frozenset[int]]:
    loaded = await load(session, (lease.task_id for lease in leases))
    ledger = loaded.ledger
    renewed = settling.renew(ledger, leases, seconds)
    if ledger.changed:
        await session.commit(*renewals(session, loaded))
    if not loaded.locked:
        return renewed, loaded.locked
    await session.end()
    seen = await session.rows("see_rows", ids=sorted(loaded.locked))
    rows = {row[ID]: active_task(row, session.options.routes) for row in seen}
    for place, lease in enumerate(leases):
        row = rows.get(lease.task_id)
        if row is not None and is_held(row.lease_owner, row.lease_expires, lease, ledger.now):
            renewed[place] = row
    return renewed, loaded.locked


Rule = Callable[[Ledger, Sequence[int]], T]
Try = Callable[[Session, bool], Awaitable[tuple[T, frozenset[int]]]]
"""A transaction: its answer, and the rows that somebody else has locked: where there are any, it has changed nothing.

With True it waits for them.
"""


async def change(sessions: Sessions, operation: str, task_ids: Iterable[int], rule: Rule[T]) -> T:
    """Apply an operator's rule to the rows of these ids, all together, in one transaction; see `_patiently`."""
    ids = valid_ids(task_ids)

    async def attempt(session: Session, wait: bool) -> tuple[T, frozenset[int]]:
        loaded = await load(session, ids, wait=wait, fresh=True)
        answer = rule(loaded.ledger, ids)
        if not loaded.locked and (statements := changes(session, loaded, replace=True)):
            await session.commit(*statements)
        return answer, loaded.locked

    return await _patiently(sessions, operation, attempt)


async def retry(sessions: Sessions, task_ids: Sequence[int], *, repeat: bool) -> list[Task | None]:
    """Bring archived tasks back; see `_patiently`."""

    async def attempt(session: Session, wait: bool) -> tuple[list[Task | None], frozenset[int]]:
        loaded = await load_archived(session, task_ids, wait=wait)
        if loaded.locked:
            return [], loaded.locked
        ids = valid_ids(loaded.stored)
        # of an id that was issued twice the active one stays
        active = {row[ID] for row in await session.rows("see_rows", ids=ids)} if ids else set()
        free = iter(operating.retry(loaded.ledger, [one for one in task_ids if one not in active], repeat=repeat))
        revived = [None if one in active else next(free) for one in task_ids]
        tasks = [task for task in revived if task is not None]
        try:
            if tasks:
                await session.commit(*revivals(session, loaded.ledger, tasks, loaded.stored))
        except ServerError as error:
            raise again_if_taken(error) from error
        return revived, loaded.locked

    return await _patiently(sessions, "retry", attempt)


async def _patiently(sessions: Sessions, operation: str, attempt: Try[T]) -> T:
    """Try until none of the rows is locked by somebody else; then all is done in one go.

    Between two tries it has neither a connection nor a lock, so one locked row holds up only who asks for that row. A
    few at a time wait at the server, where rows that are never free all at once can be had one after the other. Raises
    StoreUnavailable, with nothing changed, where a row stays locked for LOCKED_SECONDS.
    """
    until = time.monotonic() + LOCKED_SECONDS
    while True:
        answer, locked = await sessions.play(operation, lambda session: attempt(session, False))
        if not locked:
            return answer
        if time.monotonic() > until:
            raise StoreUnavailable(operation, f"task {min(locked)} is locked by somebody else")
        if not sessions.waits.locked():
            async with sessions.waits:
                waited = await sessions.play(operation, lambda session: _wait(session, attempt))
            if waited is not None and not waited[1]:
                return waited[0]
        await asyncio.sleep(_PAUSE)


async def _wait(session: Session, attempt: Try[T]) -> tuple[T, frozenset[int]] | None:
    """The answer of a try that waits for locked rows; None where that took too long."""
    async with session.waiting(_WAIT):
        try:
            return await attempt(session, True)
        except ServerError as error:
            if error.number != LOCK_WAIT_OVER:
                raise
            await session.end()
            return None

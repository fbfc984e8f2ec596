"""Settling, renewing and operators' changes on MySQL: lock by id, decide by the rules in memory, write in one trip.

A row that somebody else has locked is not lost: it is BUSY, and the caller sends its settlement again.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import structlog

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
from stores.mysql_errors import LOCKED, Kind, ServerError
from stores.mysql_ledger import Loaded, changes, load, load_archived, renewals, revivals, valid_ids
from stores.mysql_rows import ID, active_task
from stores.mysql_session import Session, Sessions
from stores.mysql_waits import Table, Waits

T = TypeVar("T")
Rule = Callable[[Ledger, Sequence[int]], T]
BUSY = Settled(Verdict.BUSY)

COUNTER_PATIENCE = 1
"""Seconds for which a round waits for the id counter where it has been found locked for long.

Looks in passing may never find it free where others stand in line for it; who waits at the server is in that line.
"""

COUNTER_LOCKED_SECONDS = 10.0
"""So long after it was found locked, and after each such wait, rounds only look at the counter in passing."""

RENEW_SECONDS = 0.3
"""How long a renewal waits for rows that somebody else has locked."""

_log = structlog.get_logger()


class Patience:
    """How long the rounds of a store wait for the id counter: they do not, but for one of them now and then.

    It is the one row that outcomes without follow-ups do not need, and they must not wait for it with the others.
    """

    def __init__(self) -> None:
        self._waits_from: float | None = None

    @property
    def seconds(self) -> int:
        """For the next round."""
        return COUNTER_PATIENCE if self._waits_from is not None and time.monotonic() >= self._waits_from else 0

    def free(self) -> None:
        """The counter could be had."""
        self._waits_from = None

    def locked(self, waited: int) -> None:
        """It could not, in so many seconds."""
        if waited or self._waits_from is None:
            self._waits_from = time.monotonic() + COUNTER_LOCKED_SECONDS


class Settle:
    """One call. A row that an id issued twice has put into the archive already makes it write over that one."""

    def __init__(self, settlements: Sequence[Settlement], patience: Patience) -> None:
        self._settlements = settlements
        self._patience = patience
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
                first_id = await self._draw_ids(session, count)
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

    async def _draw_ids(self, session: Session, count: int) -> int:
        """The first of so many ids; where an enqueuer of PHP has the counter in a transaction, the others go on."""
        seconds = self._patience.seconds
        try:
            first_id, _ = await session.draw_ids(count, patience=seconds)
        except ServerError as error:
            if error.number not in LOCKED:
                raise
            await session.end()
            self._patience.locked(seconds)
            self._counter_is_locked = True
            return 0
        self._patience.free()
        return first_id

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


async def renew(sessions: Sessions, waits: Waits, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
    """Move the expiry of each valid lease, never back.

    A row that stays locked by somebody else is answered as it is: nobody can take it from its holder meanwhile.
    """
    answers, locked = await sessions.play("renew", lambda session: _renew(session, leases, seconds))
    if locked:
        await waits.pass_by("renew", Table.ACTIVE, locked, RENEW_SECONDS)
        places = [place for place, lease in enumerate(leases) if lease.task_id in locked]
        asked = [leases[place] for place in places]
        rows, _ = await sessions.play("renew", lambda session: _renew(session, asked, seconds))
        for place, row in zip(places, rows, strict=True):
            answers[place] = row
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


async def change(waits: Waits, operation: str, task_ids: Iterable[int], rule: Rule[T]) -> T:
    """Apply an operator's rule to the rows of these ids, all together, in one transaction; see `Waits.play`."""
    ids = valid_ids(task_ids)

    async def attempt(session: Session, wait: bool) -> tuple[T, frozenset[int]]:
        loaded = await load(session, ids, wait=wait, fresh=True)
        answer = rule(loaded.ledger, ids)
        if not loaded.locked and (statements := changes(session, loaded, replace=True)):
            await session.commit(*statements)
        return answer, loaded.locked

    return await waits.play(operation, Table.ACTIVE, attempt)


async def retry(waits: Waits, task_ids: Sequence[int], *, repeat: bool) -> list[Task | None]:
    """Bring archived tasks back; see `Waits.play`."""

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

    return await waits.play("retry", Table.ARCHIVED, attempt)

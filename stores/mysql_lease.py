"""Leasing on MySQL: picks and locks rows, counts losses, sets unreadable rows aside, and takes the rest.

Everything a caller gets is read and decoded before the COMMIT that takes it.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import takewhile

from queue_runtime.task import (
    LOST_MESSAGE,
    MAX_LEASE_BYTES,
    Attempt,
    AttemptKind,
    Failure,
    Pause,
    PauseKind,
    Result,
    Task,
    is_worker,
)
from stores.lease_request import LeaseRequest
from stores.ledger import attempt_entry, ended_task
from stores.mysql_candidates import NO_ID, WINDOW, Candidates, LeaseFilter, of_ids
from stores.mysql_driver import Answer, Row
from stores.mysql_head import START, Glance, RowPlace
from stores.mysql_ledger import archived_literal, attempts, valid_ids, with_fresh_extras
from stores.mysql_left import Place
from stores.mysql_pauses import pauses_of
from stores.mysql_rows import (
    ACTIVE_WIDTH,
    CREATED,
    DATA_ID,
    EXPIRES,
    FAILURES,
    ID,
    LOST,
    OWNER,
    PRIORITY,
    SPENT,
    active_task,
    is_utf8,
    leased_task,
    phids,
)
from stores.mysql_session import Session
from stores.mysql_text import Sql, Value, row_literal
from stores.spent_receipts import first_unspent

_DATA, _SIZE = ACTIVE_WIDTH, ACTIVE_WIDTH + 1
_PICKS = 20
"""How often one phase is asked in vain: rows of its answer had to be set aside, or others had taken or locked them."""

UNREADABLE = "an object PHID of the row is not UTF-8 text, or its payload is missing"


Phase = Callable[[], Awaitable[None]]


def _depth(room: int) -> int:
    """How many rows of the head are glanced at: some do not pass, and others are being taken by somebody else."""
    return 4 * room + 64


async def lease(
    session: Session, request: LeaseRequest, candidates: Candidates, *, dispatch: bool = False
) -> list[Task]:
    """Take rows for the owner, phase by phase. `dispatch`: in the order of our lease loop (mysql_head.py)."""
    return await _Leasing(session, request, candidates, dispatch=dispatch).run()


class _Leasing:
    """One lease call: what it has locked so far, and the bounds on it."""

    def __init__(self, session: Session, request: LeaseRequest, candidates: Candidates, *, dispatch: bool) -> None:
        self._session = session
        self._request = request
        self._candidates = candidates
        self._head = candidates.head
        self._dispatch = dispatch
        self._front = START
        """after which place phase 1 begins"""
        self._last: RowPlace | None = None
        """up to which place it may pick without a glance"""
        self._depth = 0
        """how many rows the last glance was asked to look at"""
        self._without = frozenset(valid_ids(request.without))
        self._now = 0
        self._bytes = 0
        self._full = False
        self._locks_named = False
        """whether the first trip locks all the rows that are named"""
        self._tries = 0
        """how often this phase may yet be asked in vain"""
        self._stride = 0
        """how many candidates it tries to lock at once"""
        self._seen: set[int] = set()
        self._kept: list[tuple[Row, str]] = []
        self._lost: list[Row] = []
        self._failed: list[Row] = []
        self._attempts: list[tuple[int, Attempt]] = []

    async def run(self) -> list[Task]:
        """Lease, in one transaction.

        Its first trip reads the time and the pauses, and begins to pick as if the pauses were still those of the last
        lease. Where they are not, it begins again.
        """
        session, candidates = self._session, self._candidates
        candidates.hurry = False
        wanted = self._filter(candidates.pauses)
        first = await self._first_pick(wanted)
        gates = [session.fill("time", now=session.now)]
        if session.server.companion:
            gates.append(session.fill("pauses"))
        answers = await session.begin(*gates, *first)
        self._now = int(answers[0].rows[0][0])
        pauses = pauses_of(answers[1].rows) if session.server.companion else []
        if pauses != candidates.pauses:
            candidates.pauses = pauses
            await session.end()
            return await self.run()
        if self._request.limit <= 0 or wanted.passes_nothing or Pause(PauseKind.ALL) in pauses:
            return []
        await self._pick(wanted, answers[len(gates) :])
        return await self._take(wanted)

    def _filter(self, pauses: Collection[Pause]) -> LeaseFilter:
        asked = self._request
        return LeaseFilter.of(asked.classes, asked.without_classes, asked.queues, pauses, self._session.options.routes)

    async def _first_pick(self, wanted: LeaseFilter) -> list[str]:
        """What the lease begins with: the first look at what is due and the first statement of phase 1, or the look at
        named rows, where these are asked for."""
        request = self._request
        session = self._session
        if request.limit <= 0 or wanted.passes_nothing or Pause(PauseKind.ALL) in self._candidates.pauses:
            return []
        if request.only is not None:
            ids = [task_id for task_id in valid_ids(request.only) if task_id not in self._without]
            if not ids:
                return []
            self._locks_named = session.server.skips_locked and not wanted.by_queue and len(ids) <= request.limit
            if self._locks_named:  # all of them are wanted: there is nothing to choose
                return [session.fill("lock_named", ids=ids, limit=len(ids), now=session.now, **wanted.values)]
            return [session.fill("candidates_of", ids=ids, now=session.now)]
        if self._dispatch:
            self._front = self._head.front(wanted)
        if not request.due_first:
            return [await self._first_ready(wanted)]
        due = self._candidates.first_due(session, wanted, self._without, request.limit)
        if not self._candidates.nothing_due:  # rows that are ready would be locked in vain
            return due
        return [*due, await self._first_ready(wanted)]

    async def _first_ready(self, wanted: LeaseFilter) -> str:
        limit = self._request.limit
        if await self._picks_at_once(wanted):
            return self._take_ready(limit)
        if self._glances(wanted):
            self._last = self._head.last(wanted, limit)
            if self._last is not None:
                return self._take_head(wanted, limit, self._last)
            if not self._head.deep:
                self._front = START
            return self._glance(wanted, limit)
        return self._candidates.first_step(self._session, limit)

    async def _picks_at_once(self, wanted: LeaseFilter) -> bool:
        """Whether phase 1 is one statement that picks and locks."""
        if not (wanted.passes_all and self._session.server.skips_locked):
            return False
        return await self._candidates.head_is_plain(self._session)

    def _take_ready(self, limit: int) -> str:
        return self._fill("take_ready", limit=limit)

    def _take_head(self, wanted: LeaseFilter, limit: int, last: RowPlace) -> str:
        return self._fill("take_head", limit=limit, last_priority=last[0], last_id=last[1], **wanted.values)

    def _fill(self, statement: str, **values: Value) -> str:
        priority, task_id = self._front
        seen = self._without | self._seen or NO_ID
        return self._session.fill(statement, front_priority=priority, front_id=task_id, without=seen, **values)

    async def _pick(self, wanted: LeaseFilter, first: Sequence[Answer]) -> None:
        phases: list[Phase]
        if self._locks_named:
            rows = first[0].rows if first else ()
            ready_first = [row for row in rows if row[EXPIRES] is None]
            due_then = [row for row in rows if row[EXPIRES] is not None]
            phases = [partial(self._sift, ready_first), partial(self._sift, due_then)]
        elif self._request.only is not None:
            ready, due = of_ids(wanted, first[0].rows if first else (), self._without)
            phases = [partial(self._lock, "lock_ready", ready), partial(self._lock, "lock_due", due)]
        else:
            looks = 2 if self._request.due_first else 0  # the statements of first_due
            ready_rows = first[looks].rows if len(first) > looks else None
            phases = [partial(self._ready, wanted, ready_rows), partial(self._due, wanted, first[:looks])]
        for phase in reversed(phases) if self._request.due_first else phases:
            if self._room > 0:
                self._tries, self._stride = _PICKS, self._room
                await phase()

    @property
    def _room(self) -> int:
        return 0 if self._full else self._request.limit - len(self._kept)

    async def _ready(self, wanted: LeaseFilter, first: Sequence[Row] | None) -> None:
        if await self._picks_at_once(wanted):
            await self._from_the_front(wanted, first)
        elif not self._glances(wanted):
            await self._from_candidates(wanted, first)
        elif not await self._from_the_head(wanted, first):
            await self._from_candidates(wanted, None)

    async def _from_the_front(self, wanted: LeaseFilter, rows: Sequence[Row] | None) -> None:
        """Everything passes: pick and lock in one statement."""
        for _ in range(_PICKS):
            room = self._room
            if room <= 0:
                return
            if rows is None:
                (answer,) = await self._session.trip(self._take_ready(room))
                rows = answer.rows
            rows = rows[:room]
            await self._sift(rows)
            if self._front == START:
                if len(rows) < room:
                    return
                self._head.looked(wanted)
            self._move_on(wanted, rows)
            rows, self._front = None, START

    def _move_on(self, wanted: LeaseFilter, rows: Sequence[Row]) -> None:
        if self._dispatch and rows:
            self._head.took(wanted, max((row[PRIORITY], row[ID]) for row in rows))

    def _glances(self, wanted: LeaseFilter) -> bool:
        """Whether phase 1 begins with a look at the head of the queue."""
        return self._session.server.skips_locked and not wanted.by_queue

    def _glance(self, wanted: LeaseFilter, room: int) -> str:
        self._depth = _depth(room)
        priority, task_id = self._front
        return self._session.fill(
            "glance", depth=self._depth, front_priority=priority, front_id=task_id, **wanted.values
        )

    async def _from_the_head(self, wanted: LeaseFilter, first: Sequence[Row] | None) -> bool:
        """Where the head of the queue has enough for the filter, pick and lock there; whether phase 1 is done with it.

        `first`: what the first trip has picked where an earlier glance still holds, else a glance.

        Never beyond the rows that were glanced at: a locking pick that has to search locks what it steps over. Unlike
        candidates, its rows are not those that the other processes pick at the same moment. It goes on where the last
        lease stopped, and begins at the head where there is too little behind that.
        """
        if first is None and self._front != START:
            self._last = self._head.last(wanted, self._room)
            if self._last is not None:
                (answer,) = await self._session.trip(self._take_head(wanted, self._room, self._last))
                first = answer.rows
        if self._last is not None and first is not None:
            await self._keep(wanted, first[: self._room])
            if self._room <= 0:
                return True
            first, self._front = None, START
        if self._front != START and (first is not None or self._head.deep):
            if await self._glanced(wanted, first) and self._room <= 0:
                return True
            first = None
        self._front = START
        return await self._glanced(wanted, first)

    async def _glanced(self, wanted: LeaseFilter, first: Sequence[Row] | None) -> bool:
        """Glance (or use the answer `first`), and pick what was seen. False: that was too little, and not all."""
        room = self._room
        if first is None:
            (answer,) = await self._session.trip(self._glance(wanted, room))
            first = answer.rows
        seen = Glance.of(first[0], depth=self._depth)
        if seen.passing < room and not seen.at_end:
            return False
        self._head.glanced(wanted, seen, taken=room, from_start=self._front == START)
        if seen.passing:
            self._front = seen.before  # nothing that passes is before it
            (answer,) = await self._session.trip(self._take_head(wanted, room, seen.last))
            await self._keep(wanted, answer.rows)
        return seen.at_end or self._room <= 0

    async def _keep(self, wanted: LeaseFilter, rows: Sequence[Row]) -> None:
        await self._sift(rows)
        self._move_on(wanted, rows)

    async def _from_candidates(self, wanted: LeaseFilter, first: Sequence[Row] | None) -> None:
        """Search without locks, then lock what was found."""
        count = self._room
        while self._wants_more:
            seen = self._without | self._seen
            places = await self._candidates.ready(self._session, wanted, seen, count, first=first)
            await self._lock("lock_ready", places)
            if len(places) < count:
                return
            count, first = self._more(count), None

    async def _due(self, wanted: LeaseFilter, first: Sequence[Answer] = ()) -> None:
        """`first`: the answers of `first_due`, where they were had in an earlier trip."""
        count = self._room
        while self._wants_more:
            seen = self._without | self._seen
            places = await self._candidates.due(self._session, wanted, seen, self._now, count, first=first)
            await self._lock("lock_due", places)
            if len(places) < count:
                return
            count, first = self._more(count), ()

    @property
    def _wants_more(self) -> bool:
        """Whether this phase goes on."""
        return self._room > 0 and self._tries > 0

    def _more(self, count: int) -> int:
        """How many candidates to ask for next: somebody had locked the last ones, and may have locked many."""
        return max(self._room, min(4 * count, WINDOW))

    async def _lock(self, statement: str, places: Sequence[Place]) -> None:
        """Lock those of the candidates that are still free, in their order, as many as there is room for.

        Where somebody else has them all it tries more and more at once, but only such of one priority: the server looks
        for the first free ones among them by id.
        """
        start = 0
        while start < len(places) and self._wants_more:
            room = self._room
            chosen = places[start : start + self._stride]
            if self._stride > room:
                chosen = list(takewhile(lambda place, first=chosen[0]: place[0] == first[0], chosen))  # type: ignore[misc]
            ids = sorted(task_id for _, task_id in chosen)
            rows = await self._session.rows(statement, ids=ids, now=self._now, limit=room)
            tried = ids if len(rows) < room else ids[: ids.index(max(row[ID] for row in rows)) + 1]
            start += len(tried)
            self._seen.update(tried)
            kept = len(self._kept)
            await self._sift(rows)
            self._stride = self._room if rows else 2 * self._stride
            self._tries -= len(self._kept) == kept

    async def _sift(self, rows: Sequence[Row]) -> None:
        """Keep rows, in order and with their payloads, up to the bound of bytes."""
        if rows and not is_worker(self._request.owner) and self._session.server.companion:
            fresh = await with_fresh_extras(self._session, {row[ID]: row for row in rows})
            rows = [fresh[row[ID]] for row in rows]
        kept = self._fitting(rows)
        large = [row[DATA_ID] for row in kept if row[_DATA] is None]
        payloads: dict[int, str] = dict(await self._session.rows("payloads", ids=large)) if large else {}
        for row in kept:
            data = row[_DATA] if row[_DATA] is not None else payloads.get(row[DATA_ID])
            if data is not None:
                self._kept.append((row, data))
            else:  # deleted since its size was read
                self._fail(row, AttemptKind.FAILURE, UNREADABLE)

    def _fitting(self, rows: Sequence[Row]) -> list[Row]:
        """The rows to take, as many as fit.

        Those lost too often and unreadable ones before that bound are archived as failed. A loss is counted for
        each row that one of our workers held.
        """
        kept: list[Row] = []
        companion = self._session.server.companion
        for row in rows:
            self._seen.add(row[ID])
            was_held = is_worker(row[OWNER]) and companion
            if was_held and (row[LOST] or 0) + 1 >= self._session.options.max_lost:
                self._lost.append(row)
                self._fail(row, AttemptKind.LOST, LOST_MESSAGE)
                continue
            if row[_SIZE] is None or not is_utf8(row):
                self._fail(row, AttemptKind.FAILURE, UNREADABLE)
                continue
            if self._bytes + row[_SIZE] > MAX_LEASE_BYTES and (self._kept or kept):
                self._full = True
                break
            self._bytes += row[_SIZE]
            if was_held:
                self._lost.append(row)
                self._remember(row, AttemptKind.LOST, LOST_MESSAGE)
                row = (*row[:LOST], (row[LOST] or 0) + 1, *row[LOST + 1 :])  # noqa: PLW2901
            kept.append(row)
        return kept

    def _fail(self, row: Row, kind: AttemptKind, message: str) -> None:
        self._failed.append(row)
        self._remember(row, kind, message)

    def _remember(self, row: Row, kind: AttemptKind, message: str) -> None:
        entry = attempt_entry(kind, Failure(message), failures=row[FAILURES], owner=row[OWNER], now=self._now)
        self._attempts.append((row[ID], entry))

    async def _take(self, wanted: LeaseFilter) -> list[Task]:
        """Write everything, and commit. Where the next lease would have to glance first, that goes along."""
        statements, tasks = self._takings()
        statements += self._endings()
        if self._lost:
            lost = [row_literal((row[ID], row[CREATED], (row[LOST] or 0) + 1, row[SPENT])) for row in self._lost]
            statements.append(self._session.fill("write_extras", rows=Sql(",".join(lost))))
        created = {row[ID]: row[CREATED] for row in (*self._lost, *self._failed)}
        statements += attempts(self._session, self._attempts, created)
        if statements:
            glances = self._next_glance(wanted)
            answers = await self._session.commit(*glances, *statements)
            if glances:
                seen = Glance.of(answers[0].rows[0], depth=self._depth)
                self._head.glanced(wanted, seen, taken=0, from_start=False)
        return tasks

    def _next_glance(self, wanted: LeaseFilter) -> list[str]:
        """The glance from behind what is leased now, where the lease loop is going to need it."""
        if not self._dispatch or self._room > 0 or not self._glances(wanted) or wanted.passes_all:
            return []
        self._front = self._head.front(wanted)
        if self._front == START or self._head.has(self._request.limit):
            return []
        return [self._glance(wanted, self._request.limit)]

    def _takings(self) -> tuple[list[str], list[Task]]:
        owner, asked = self._request.owner, self._now + self._request.seconds
        keeps_receipts = not is_worker(owner)
        routes = self._session.options.routes
        tasks: list[Task] = []
        groups: dict[int, list[int]] = {}
        for row, data in self._kept:
            expires = first_unspent(row[SPENT], asked) if keeps_receipts else asked
            groups.setdefault(expires, []).append(row[ID])
            tasks.append(leased_task(row, routes, owner, expires, data))
        take = [
            self._session.fill("take", owner=owner, expires=expires, ids=sorted(ids)) for expires, ids in groups.items()
        ]
        return take, tasks

    def _endings(self) -> list[str]:
        if not self._failed:
            return []
        routes, ids = self._session.options.routes, sorted(row[ID] for row in self._failed)
        ended = [
            archived_literal(ended_task(active_task(row, routes), Result.FAILURE, 0, self._now), phids(row))
            for row in self._failed
        ]
        return [
            # an id that was issued twice is in the archive already, and must not stop every lease
            self._session.fill("replace_archived", rows=Sql(",".join(ended))),
            self._session.fill("delete_active", ids=ids, count=len(ids)),
        ]

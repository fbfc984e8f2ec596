"""Leasing on SQLite: picks by lane, takes what was picked, counts losses and sets unreadable rows aside."""

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from queue_runtime.task import (
    LOST_MESSAGE,
    MAX_LEASE_BYTES,
    AttemptKind,
    Failure,
    Pause,
    PauseKind,
    Task,
    due_at,
    is_worker,
)
from stores.sqlite_history import remember
from stores.sqlite_rows import (
    DATA,
    EXPIRES,
    FAILURES,
    ID,
    LOST,
    OWNER,
    PRIORITY,
    RECEIPT_UNTIL,
    Row,
    id_list,
    is_utf8,
    leased_task,
)
from stores.sqlite_session import Session

WINDOW = 1000
"""Phase 2 picks by priority among this many rows, those due longest."""

_PICKS = 20
"""How often one phase is asked again because rows of its answer had to be set aside."""

UNREADABLE = "the row or its payload is not UTF-8 text, or the payload is missing: it was not written by this store"


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """The arguments of Store.lease."""

    owner: str
    limit: int
    seconds: int
    classes: Collection[str] | None
    without_classes: Collection[str]
    queues: Collection[str] | None
    only: Collection[int] | None
    without: Collection[int]
    due_first: bool


Pick = Callable[[int], list[Row]]
"""Asked for so many rows, answers those that one phase would lease next, in its order."""


def lease(session: Session, request: LeaseRequest) -> list[Task]:
    """Take rows for the owner, phase by phase."""
    now = session.now()
    pauses = _open_gates(session)
    lanes = session.lanes.choose(request.classes, request.without_classes, request.queues, pauses)
    if lanes == "[]":
        return []
    asked = {"lanes": lanes, "without": id_list(request.without), "now": now, "patience": session.options.patience}
    phases = _phases(session, asked) if request.only is None else _phases_of(session, asked, id_list(request.only))
    basket = _Basket(session, request, now)
    for pick in reversed(phases) if request.due_first else phases:
        basket.fill(pick)
    return basket.tasks


def _open_gates(session: Session) -> frozenset[Pause]:
    ((newest, any_pause),) = session.rows("lease_gates")
    session.lanes.refresh(session, newest)
    return frozenset(read_pauses(session)) if any_pause else frozenset()


def read_pauses(session: Session) -> list[Pause]:
    """The pauses in force, sorted by kind and name."""
    return [Pause(PauseKind(kind), name) for kind, name in session.rows("pauses")]


def _phases(session: Session, asked: Mapping[str, object]) -> Sequence[Pick]:
    def ready(limit: int) -> list[Row]:
        return session.rows("pick_ready", {**asked, "limit": limit}, undecodable="surrogateescape")

    def due(limit: int) -> list[Row]:
        return session.rows("pick_due", {**asked, "limit": limit, "window": WINDOW}, undecodable="surrogateescape")

    return ready, due


def _phases_of(session: Session, asked: Mapping[str, object], ids: str) -> Sequence[Pick]:
    """The same for named ids: they are few enough to be read whole and chosen here."""
    now, patience = session.now(), session.options.patience

    def named() -> list[Row]:
        return session.rows("pick_only", {**asked, "ids": ids}, undecodable="surrogateescape")

    def ready(limit: int) -> list[Row]:
        fresh = [row for row in named() if row[OWNER] is None and row[EXPIRES] is None]
        return sorted(fresh, key=_by_priority)[:limit]

    def due(limit: int) -> list[Row]:
        past = [row for row in named() if _is_due(row, now, patience)]
        past.sort(key=lambda row: (row[EXPIRES], row[ID]))
        return sorted(past[:WINDOW], key=_by_priority)[:limit]

    return ready, due


def _by_priority(row: Row) -> tuple[int, int]:
    return row[PRIORITY], row[ID]


def _is_due(row: Row, now: int, patience: int) -> bool:
    if row[EXPIRES] is None:
        return False
    due = due_at(row[OWNER], row[EXPIRES], patience)
    return due is not None and due <= now


class _Basket:
    """What one lease call has taken so far, and the bounds on it."""

    def __init__(self, session: Session, request: LeaseRequest, now: int) -> None:
        self._session = session
        self._request = request
        self._now = now
        self._bytes = 0
        self._full = False
        self.tasks: list[Task] = []

    def fill(self, pick: Pick) -> None:
        """Take from one phase until it has no more or a bound is met."""
        for _ in range(_PICKS):
            room = self._request.limit - len(self.tasks)
            if self._full or room <= 0:
                return
            rows = pick(room)
            readable = self._readable(rows)
            kept = self._still_worth_it(readable)
            self._take(kept)
            if len(kept) == len(rows):
                return

    def _readable(self, rows: list[Row]) -> list[Row]:
        """The rows with their payloads, up to the bound of bytes; unreadable ones are archived as failed."""
        if not self._session.undecodable and not any(row[DATA] is None for row in rows):
            return rows
        readable: list[Row] = []
        unreadable: list[Row] = []
        for picked in rows:
            row = self._with_payload(picked)
            if row[DATA] is None or not is_utf8(row):
                unreadable.append(row)
                continue
            self._bytes += len(row[DATA].encode())
            if self._bytes > MAX_LEASE_BYTES and (self.tasks or readable):
                self._full = True
                break
            readable.append(row)
        self._remember(unreadable, AttemptKind.FAILURE, UNREADABLE)
        self._archive(unreadable)
        return readable

    def _with_payload(self, row: Row) -> Row:
        if row[DATA] is not None:
            return row
        found = self._session.rows("get_payload", (row[ID],), undecodable="surrogateescape")
        return (*row[:DATA], found[0][0] if found else None)

    def _still_worth_it(self, rows: list[Row]) -> list[Row]:
        """Count a loss where the row was held by one of our workers; those lost too often are archived as failed."""
        lost = [row for row in rows if is_worker(row[OWNER])]
        if not lost:
            return rows
        self._remember(lost, AttemptKind.LOST, LOST_MESSAGE)
        self._session.run("count_losses", {"ids": _ids(lost)})
        given_up = {row[ID] for row in lost if row[LOST] + 1 >= self._session.options.max_lost}
        self._archive([row for row in lost if row[ID] in given_up])
        counted = [(*row[:LOST], row[LOST] + is_worker(row[OWNER]), *row[LOST + 1 :]) for row in rows]
        return [row for row in counted if row[ID] not in given_up]

    def _remember(self, rows: list[Row], kind: AttemptKind, message: str) -> None:
        for row in rows:
            remember(
                self._session,
                row[ID],
                kind,
                Failure(message),
                failures=row[FAILURES],
                owner=row[OWNER],
                now=self._now,
            )

    def _archive(self, rows: list[Row]) -> None:
        if rows:
            self._session.run("archive_failed", {"now": self._now, "ids": _ids(rows)})
            self._session.run("count_ended", (len(rows),))

    def _take(self, rows: list[Row]) -> None:
        if not rows:
            return
        owner, expires = self._request.owner, self._now + self._request.seconds
        beyond_receipts = not is_worker(owner)
        self._session.run(
            "take",
            {"owner": owner, "expires": expires, "beyond_receipts": beyond_receipts, "ids": _ids(rows)},
        )
        for row in rows:
            until = max(expires, row[RECEIPT_UNTIL] + 1) if beyond_receipts else expires
            self.tasks.append(leased_task(row, owner, until, row[DATA]))


def _ids(rows: list[Row]) -> str:
    return str([row[ID] for row in rows])

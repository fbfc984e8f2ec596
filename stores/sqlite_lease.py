"""Leasing on SQLite: picks by lane, takes what was picked, counts losses and sets unreadable rows aside."""

from collections.abc import Callable, Mapping, Sequence

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
from stores.lease_request import LeaseRequest
from stores.ledger import attempt_entry
from stores.spent_receipts import first_unspent
from stores.sqlite_history import remember
from stores.sqlite_rows import (
    DATA,
    EXPIRES,
    FAILURES,
    ID,
    LOST,
    OWNER,
    PRIORITY,
    SPENT,
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
            kept = self._sift(rows)
            self._take(kept)
            if len(kept) == len(rows):
                return

    def _sift(self, rows: list[Row]) -> list[Row]:
        """The rows to take, in order and with their payloads, up to the bound of bytes.

        Those lost too often and unreadable ones before that bound are archived as failed. A loss is counted for
        each row that one of our workers held.
        """
        kept: list[Row] = []
        lost: list[Row] = []
        given_up: list[Row] = []
        unreadable: list[Row] = []
        any_undecodable = self._session.undecodable  # before reading payloads says it anew
        for row in rows:
            was_held = is_worker(row[OWNER])
            if was_held and row[LOST] + 1 >= self._session.options.max_lost:
                given_up.append(row)
                continue
            whole = self._with_payload(row)
            if whole[DATA] is None or ((any_undecodable or whole is not row) and not is_utf8(whole)):
                unreadable.append(row)
                continue
            if not self._fits(whole[DATA], is_first=not (self.tasks or kept)):
                break
            if was_held:
                lost.append(row)
                whole = (*whole[:LOST], whole[LOST] + 1, *whole[LOST + 1 :])
            kept.append(whole)
        if lost or given_up:
            self._count_losses([*lost, *given_up])
        self._archive(given_up)
        self._remember(unreadable, AttemptKind.FAILURE, UNREADABLE)
        self._archive(unreadable)
        return kept

    def _fits(self, data: str, *, is_first: bool) -> bool:
        """Count the bytes of one more; False: they are too many, and nothing more is taken."""
        size = len(data) if data.isascii() else len(data.encode())
        self._full = self._bytes + size > MAX_LEASE_BYTES and not is_first
        if not self._full:
            self._bytes += size
        return not self._full

    def _with_payload(self, row: Row) -> Row:
        if row[DATA] is not None:
            return row
        found = self._session.rows("get_payload", (row[ID],), undecodable="surrogateescape")
        return (*row[:DATA], found[0][0] if found else None)

    def _count_losses(self, lost: list[Row]) -> None:
        self._remember(lost, AttemptKind.LOST, LOST_MESSAGE)
        self._session.run("count_losses", {"ids": _ids(lost)})

    def _remember(self, rows: list[Row], kind: AttemptKind, message: str) -> None:
        for row in rows:
            entry = attempt_entry(kind, Failure(message), failures=row[FAILURES], owner=row[OWNER], now=self._now)
            remember(self._session, row[ID], entry)

    def _archive(self, rows: list[Row]) -> None:
        if rows:
            self._session.run("archive_failed", {"now": self._now, "ids": _ids(rows)})
            self._session.run("count_ended", (len(rows),))

    def _take(self, rows: list[Row]) -> None:
        if not rows:
            return
        owner, asked = self._request.owner, self._now + self._request.seconds
        together, apart = rows, []
        if not is_worker(owner):
            apart = [row for row in rows if row[SPENT] is not None]
            together = [row for row in rows if row[SPENT] is None] if apart else rows
        if together:
            self._session.run("take", {"owner": owner, "expires": asked, "ids": _ids(together)})
        expiries = {row[ID]: first_unspent(row[SPENT], asked) for row in apart}
        for task_id, expires in expiries.items():
            self._session.run("take", {"owner": owner, "expires": expires, "ids": f"[{task_id}]"})
        for row in rows:
            self.tasks.append(leased_task(row, owner, expiries.get(row[ID], asked), row[DATA]))


def _ids(rows: list[Row]) -> str:
    return str([row[ID] for row in rows])

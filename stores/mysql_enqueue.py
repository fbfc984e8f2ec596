"""Enqueueing on MySQL: ids as one block beforehand, then payloads and rows in one transaction of two trips.

Payloads that one statement cannot hold (max_allowed_packet) go in several, and the transaction has more trips then.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from msgspec import Struct

from queue_runtime.errors import EventConflict, InvalidRequest, StoreUnavailable
from queue_runtime.task import DEFAULT_PRIORITY, NewTask, Sentinel, Task
from stores.answers import answer_text, answered_task
from stores.mysql_errors import Kind, ServerError
from stores.mysql_inbox import inbox_task, inbox_text
from stores.mysql_rows import Phids
from stores.mysql_session import LOCKED_SECONDS, Session, Sessions, Undecided
from stores.mysql_text import Sql, Value, literal, row_literal

_EXTRAS = {"queue": "a queue", "idempotency_key": "an idempotency key", "max_attempts": "a maximum of attempts"}
_TRIES = 3

TRIP_ROOM = 1024
"""Bytes of a trip for what stands beside the rows of an INSERT."""

Prioritised = Sequence[tuple[NewTask, int]]
"""Tasks, each with the priority it gets when it names none."""


class Insertion(Struct, frozen=True):
    """What a transaction has to send, and what its tasks will be."""

    answers: list[Task]
    fresh: list[Task]
    statements: list[str]
    last_payload: str = ""
    """the payload of the last of the fresh ones"""


class Enqueue:
    """One call, and what was tried of it: the ids of a try are its identity."""

    def __init__(self, sessions: Sessions, tasks: Sequence[NewTask]) -> None:
        self._sessions = sessions
        self._tasks: Prioritised = [(task, DEFAULT_PRIORITY) for task in tasks]
        self._tried: Insertion | None = None
        self._collided = False

    async def run(self) -> list[Task]:
        """The rows. Where the answer of the COMMIT is lost it looks for them, so that nothing is inserted twice."""
        async with self._sessions.enqueueing():
            tries = 0
            while True:
                try:
                    return await self._sessions.play("enqueue", self._work, seconds=LOCKED_SECONDS)
                except Undecided as doubt:
                    tries += 1
                    if tries == _TRIES:
                        raise
                    await self._sessions.bury(doubt)

    async def _work(self, session: Session) -> list[Task]:
        if self._tried is not None:
            if await _is_there(session, self._tried):
                return self._tried.answers
            self._tried = None  # only now: looking may fail, and is done again then
        if self._collided:
            await session.trip(session.fill("lift_counter"))
        known = await known_answers(session, self._tasks)
        count = new_rows(self._tasks, known)
        first_id, now = await session.draw_ids(count) if count else (0, 0)
        insertion = await insert(session, self._tasks, known, first_id, now)
        try:
            await session.commit(*insertion.statements, *self._last(session, insertion))
        except ServerError as error:
            if session.committing and error.kind is Kind.LOST:
                self._tried = insertion
            self._collided = self._collided or error.kind is Kind.DUPLICATE
            raise again_if_taken(error) from error
        return insertion.answers

    def _last(self, session: Session, insertion: Insertion) -> list[str]:
        """Statements that complete the transaction."""
        return []


class EnqueueOnce(Enqueue):
    """The task of an event, inserted together with the receipt of the event."""

    def __init__(self, sessions: Sessions, event_id: str, digest: str, task: NewTask) -> None:
        super().__init__(sessions, [task])
        self._event_id = event_id
        self._digest = digest

    async def _work(self, session: Session) -> list[Task]:
        server = session.server
        if not (server.inbox or server.companion):
            raise StoreUnavailable("enqueue_once", "receipts of events need the companion database")
        event_id = self._event_id.encode()
        # in both: the Go service's table may have come, or gone, since the event was seen
        places = [(inbox_task, "find_inbox")] if server.inbox else []
        places += [(answered_task, "find_event")] if server.companion else []
        answers = await session.trip(*(session.fill(statement, event_id=event_id) for _, statement in places))
        for (task_of, _), found in zip(places, answers, strict=True):
            if found.rows:
                digest, answer = found.rows[0]
                if digest != self._digest:
                    raise EventConflict(self._event_id)
                return [task_of(answer)]
        return await super()._work(session)

    def _last(self, session: Session, insertion: Insertion) -> list[str]:
        server, (answer,) = session.server, insertion.answers
        event: dict[str, Value] = {"event_id": self._event_id.encode(), "digest": self._digest}
        receipts = []
        if server.inbox:
            receipts.append(session.fill("insert_inbox", answer=inbox_text(answer), **event))
        if server.companion:
            receipts.append(session.fill("insert_event", answer=answer_text(answer), **event))
        return receipts


async def _is_there(session: Session, insertion: Insertion) -> bool:
    """Whether it was committed: a round is whole or not at all, so one fresh row tells.

    It must be that very row: a server that has not got the transaction may have given its id to somebody else's.
    """
    if not insertion.fresh:
        return True
    last = insertion.fresh[-1]
    found = await session.rows(
        "exists_task",
        id=last.id,
        created=last.date_created,
        data_id=last.data_id,
        task_class=last.task_class.encode(),
        digest=sha256(insertion.last_payload.encode()).hexdigest(),
    )
    return bool(found)


def again_if_taken(error: ServerError) -> ServerError:
    """A key, an event or an id that somebody else has inserted meanwhile: played again, the transaction sees it."""
    return ServerError(Kind.REPLAY, error.number, str(error)) if error.kind is Kind.DUPLICATE else error


async def known_answers(session: Session, tasks: Prioritised) -> dict[str, Task]:
    """What the keys among these were answered before. Raises InvalidRequest for an extra that has no place."""
    if not session.server.companion:
        _refuse_extras(tasks)
        return {}
    keys = {new.idempotency_key.encode() for new, _ in tasks if new.idempotency_key is not None}
    if not keys:
        return {}
    found = await session.rows("find_keys", keys=Sql(",".join(literal(key) for key in keys)))
    return {key.decode(): answered_task(answer) for key, answer in found}


def _refuse_extras(tasks: Prioritised) -> None:
    for task, _ in tasks:
        for field, words in _EXTRAS.items():
            if getattr(task, field) is not None:
                raise InvalidRequest(field, f"{words} needs the companion database, which this account has not")


def new_rows(tasks: Prioritised, known: dict[str, Task]) -> int:
    """How many ids these need."""
    keyless = sum(new.idempotency_key is None for new, _ in tasks)
    return keyless + len({new.idempotency_key for new, _ in tasks} - known.keys() - {None})


async def insert(session: Session, tasks: Prioritised, known: dict[str, Task], first_id: int, now: int) -> Insertion:
    """Insert the payloads, in a new transaction where none is open; what is left to send. Ids begin at `first_id`."""
    fresh: list[NewTask] = []
    keys: set[str] = set()
    for new, _ in tasks:
        if new.idempotency_key is None:
            fresh.append(new)
        elif new.idempotency_key not in known and new.idempotency_key not in keys:
            keys.add(new.idempotency_key)
            fresh.append(new)
    if not fresh:
        return Insertion([known[new.idempotency_key or ""] for new, _ in tasks], [], [])
    data_ids: list[int] = []
    for rows in _fitting([f"({literal(new.data)})" for new in fresh], session.server.packet - TRIP_ROOM):
        send = session.trip if session.in_transaction else session.begin
        # how far apart their ids are: asked in the same trip, because the server's setting may change at any time
        step = ["SELECT @@auto_increment_increment"] if len(rows) > 1 else []
        answer, *steps = await send(session.fill("insert_payloads", rows=Sql(",".join(rows))), *step)
        apart = int(steps[0].rows[0][0]) if steps else 1
        data_ids += range(answer.insert_id, answer.insert_id + len(rows) * apart, apart)
    return _build(session, tasks, known, first_id, data_ids, now)


def _fitting(rows: Sequence[str], room: int) -> Iterator[Sequence[str]]:
    """The rows in their order, in runs that fit into so many bytes; one that does not fit by itself stands alone."""
    if sum(map(len, rows)) * 4 + len(rows) <= room:
        yield rows
        return
    begin = size = 0
    for place, row in enumerate(rows):
        more = len(row) + 1 if row.isascii() else len(row.encode(errors="surrogatepass")) + 1
        if place > begin and size + more > room:
            yield rows[begin:place]
            begin, size = place, 0
        size += more
    yield rows[begin:]


def _build(  # noqa: PLR0917  one caller, just above
    session: Session, tasks: Prioritised, known: dict[str, Task], next_id: int, data_ids: Sequence[int], now: int
) -> Insertion:
    queue_for = session.options.routes.queue_for
    answers: list[Task] = []
    fresh: list[Task] = []
    extras: list[str] = []
    keys: list[str] = []
    last_payload = ""
    answered = dict(known)
    payloads = iter(data_ids)
    for new, default_priority in tasks:
        key = new.idempotency_key
        if key is not None and (answer := answered.get(key)) is not None:
            answers.append(answer)
            continue
        answer = Task(
            id=next_id,
            task_class=new.task_class,
            data_id=next(payloads),
            priority=default_priority if new.priority is None else new.priority,
            date_created=now,
            date_modified=now,
            lease_owner=None if new.delay_until is None else Sentinel.DELAY.value,
            lease_expires=new.delay_until,
            object_phid=new.object_phid,
            container_phid=new.container_phid,
            queue=queue_for(new.task_class) if new.queue is None else new.queue,
            idempotency_key=key,
            max_attempts=new.max_attempts,
        )
        answers.append(answer)
        fresh.append(answer)
        last_payload = new.data
        raw_key = None if key is None else key.encode()
        if raw_key is not None or new.queue is not None or new.max_attempts is not None:
            extras.append(row_literal((next_id, now, new.queue, raw_key, new.max_attempts)))
        if key is not None:
            answered[key] = answer
            keys.append(row_literal((raw_key, next_id, now, answer_text(answer))))
        next_id += 1
    statements = [session.fill("insert_tasks", rows=Sql(",".join([active_literal(task) for task in fresh])))]
    if extras:
        statements.append(session.fill("insert_extras", rows=Sql(",".join(extras))))
    if keys:
        statements.append(session.fill("insert_keys", rows=Sql(",".join(keys))))
    return Insertion(answers, fresh, statements, last_payload)


def active_literal(task: Task, phids: Phids | None = None) -> str:
    """An active row as SQL, in the order of insert_tasks. `phids` are the stored bytes, where they are known."""
    object_phid, container_phid = phids or (task.object_phid, task.container_phid)
    return (
        f"({task.id},{literal(task.task_class)},{literal(task.lease_owner)},{literal(task.lease_expires)},"
        f"{task.failure_count},{task.data_id},{literal(task.failure_time)},{task.priority},"
        f"{literal(object_phid)},{task.date_created},{task.date_modified},{literal(container_phid)})"
    )

"""The Store protocol: one queue behind one set of atomic rounds.

Rules that every store holds, and the contract suite checks (docs/architecture.md has the whole list):

1. A call is one atomic round, all or nothing. `StoreUnavailable` means that nobody knows which.
   Results keep the order of the input.
2. Ids and time are the store's. Callers pass durations; `delay_until` is the one absolute time that enters.
3. A held task is changed only by its fence: (id, owner) for our workers, whose owners are never reused, and
   (id, owner, expires) where an HTTP caller sent a receipt. A sentinel `(…)` never fences.
4. A settled fence never settles again: giving back changes the owner, and a receipt's expiry is never granted
   twice for one task.
"""

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from queue_runtime.errors import StoreUnavailable
from queue_runtime.task import (
    DEFAULT_QUEUE,
    ArchivedTask,
    Attempt,
    Backlog,
    Lease,
    NewTask,
    Pause,
    QueueStats,
    Settled,
    Settlement,
    SweepReport,
    Task,
    TaskFilter,
)

Order = Literal["strict", "dispatch"]

MAX_LOST = 5
"""Default number of lost runs after which a task is archived as failed instead of being handed out."""


class Routes(Struct, frozen=True):
    """Which queue a task class belongs to when the task names none: the first pattern that fits, else `default`.

    Patterns are shell-like (`*IndexWorker`) and case counts.
    """

    patterns: tuple[tuple[str, str], ...] = ()

    def queue_for(self, task_class: str) -> str:
        """The queue of this class."""
        for pattern, queue in self.patterns:
            if fnmatchcase(task_class, pattern):
                return queue
        return DEFAULT_QUEUE


class StoreOptions(Struct, frozen=True, kw_only=True):
    """Settings every store takes at opening.

    `patience`: seconds for which the expired lease of one of our workers (`qr:`) is left alone, so that its
    live holder can renew first. `max_lost`: see MAX_LOST. `retention`: seconds an archived task is kept; None
    keeps it for ever. `now` replaces the store's clock (whole Unix seconds) in tests. `read_only`: nothing is made at
    opening, and where the database can be told so, it refuses every write of this store.
    """

    patience: int = 10
    max_lost: int = MAX_LOST
    retention: int | None = 14 * 86400
    routes: Routes = Routes()
    now: Callable[[], int] | None = None
    read_only: bool = False


class DispatchState(Struct, frozen=True, kw_only=True):
    """How tasks get to the workers of a store that has a dispatch beside its record.

    `mode` is "streams" while the dispatch works and "record" while the record's own lease stands in; `since` is when
    that began (Unix seconds), `reason` why the record stands in, `falls` how often it has had to.
    """

    mode: Literal["streams", "record"]
    since: int
    reason: str | None = None
    falls: int = 0


@runtime_checkable
class Dispatching(Protocol):
    """What a store with a dispatch tells beside the Store protocol."""

    @property
    def dispatch(self) -> DispatchState: ...


@runtime_checkable
class Handing(Protocol):
    """What a store adds that gives a new task to a worker that waits, at the moment it is enqueued."""

    @property
    def hands(self) -> bool:
        """Whether it does now."""
        ...

    def on_handed(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the owner of each order that a task has come for; one listener. It must not raise."""
        ...

    async def lease(
        self,
        owner: str,
        limit: int,
        seconds: int,
        *,
        classes: Collection[str] | None = None,
        without_classes: Collection[str] = (),
        queues: Collection[str] | None = None,
        only: Collection[int] | None = None,
        without: Collection[int] = (),
        due_first: bool = False,
        order: Order = "strict",
        stands: bool = False,
        recall: Sequence[str] = (),
    ) -> list[Task]:
        """As Store.lease. With `stands` a short reply leaves an order, for seconds: it may be given one new task.

        That task is held by this call's owner from then on, for `seconds`. The listener hears that it came, and a
        message that is lost costs no more than the time until the next call. Only new tasks are handed, and only
        while nothing waits that a lease could take: no task passes another, and no fence comes back.
        `recall` names the owners of former such calls: their orders end with this call, and what they were handed and
        still hold is in the reply, under their names, beside the `limit` and whatever is asked for. A reply may hold
        nothing else. A caller recalls each order, at the latest with the next call.
        """
        ...


class Place(Struct, frozen=True):
    """Which store it is, for comparing what two processes work on."""

    kind: str
    """that of the record, where a dispatch is in front of it; of the server's own, where it is a remote one"""

    identity: object = None
    """a digest that the same database has for everybody; None: it has no name of its own"""

    def may_be(self, other: "Place") -> bool:
        """Whether both can be the same one, as far as anybody knows."""
        unknown = self.identity is None or other.identity is None
        return self.kind == other.kind and (unknown or self.identity == other.identity)


async def place_of(store: "Store") -> Place | None:
    """Which store this is; None where it does not say just now."""
    try:
        facts = await store.operations()
    except StoreUnavailable:
        return None
    return Place(str(facts.get("record", facts["backend"])), facts.get("physicalDatabaseIdentity"))


@runtime_checkable
class Store(Protocol):
    """One queue. Every method may raise StoreUnavailable; InvalidRequest where a value breaks a rule."""

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        """Add tasks, all or none, and return their rows without data.

        A known `idempotency_key` creates nothing and answers the first task's row as it was then, also within
        one call; the key is forgotten when that task's retention ends.
        """
        ...

    async def enqueue_once(self, event_id: str, task: NewTask, *, digest: str | None = None) -> Task:
        """Add the task of an event. Same id and same task: the first answer, for ever. Raises EventConflict.

        `digest` says what "same" is where the request had more to it than the task (wire.event_digest).
        """
        ...

    async def lease(
        self,
        owner: str,
        limit: int,
        seconds: int,
        *,
        classes: Collection[str] | None = None,
        without_classes: Collection[str] = (),
        queues: Collection[str] | None = None,
        only: Collection[int] | None = None,
        without: Collection[int] = (),
        due_first: bool = False,
        order: Order = "strict",
    ) -> list[Task]:
        """Take up to `limit` tasks for `seconds` and return exactly the rows this call took, with data.

        Phase 1: owner NULL and expires NULL, by priority then id. Phase 2, only for what is left: rows whose
        time has come (`due_at`), by priority then id among the 1,000 due longest. `due_first` swaps the phases.
        The reply lists phase by phase. At most 1,000 rows and about 8 MiB of data (at least one row).
        An empty `classes`, `queues` or `only` matches nothing; None matches all. Ids in `without` are passed
        over. Paused classes and queues are passed over. Taking over a `qr:` row counts a loss; at `max_lost`
        it is archived as failed and not returned.
        Failure count, failure time and dates of a taken row are untouched.
        For an owner that is not `qr:` the expiry is the first second from now + seconds on that no receipt of
        this task ended in, so that no receipt is valid twice; a renewal of such a lease keeps to this too.
        """
        ...

    async def renew(self, leases: Sequence[Lease], seconds: int) -> list[Task | None]:
        """Move each expiry to max(current, now + seconds) and return the row without data; None: the lease is lost.

        A lease without `expires` is valid iff the row has its owner, even when its time is over: nobody took it.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes in input order, a later one sees the earlier ones; LOST does not abort the round.

        REPLAYED only for Complete and Fail: an archived row with the same id, owner and result (and, for a
        receipt, the same expiry). Any settled outcome but Release, which says nothing about the task, clears
        the count of losses. Follow-ups without a priority take the parent's. Archived rows are returned without data.
        """
        ...

    async def cancel(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        """Archive active rows with result 2, whoever holds them; None where no row is active."""
        ...

    async def awaken(self, task_ids: Sequence[int]) -> int:
        """Make yields that never failed due now, as Phorge does; the number of rows changed."""
        ...

    async def free(self, task_ids: Sequence[int]) -> int:
        """Take active rows from their owner (sentinels and parked ones too): owner NULL, expires now; rows changed."""
        ...

    async def priority(self, task_ids: Sequence[int], priority: int) -> int:
        """Set the priority of active rows, leased ones too; the number of rows found."""
        ...

    async def delay(self, task_ids: Sequence[int], until: int) -> int:
        """Delay rows that nobody holds and that wait for nothing but a delay (owner NULL or `(delay)`); rows found."""
        ...

    async def retry(self, task_ids: Sequence[int], *, repeat: bool = False) -> list[Task | None]:
        """Bring archived tasks back under the same id: owner NULL, expires 0, no failures, dateCreated kept.

        Failed and cancelled ones; with `repeat` successful ones too. None where there is nothing to bring back.
        """
        ...

    async def pause(self, pause: Pause) -> None:
        """Stop leasing of a class, a queue or everything, for all processes, until resumed. Repeatable."""
        ...

    async def resume(self, pause: Pause) -> bool:
        """Lift exactly this pause; False if it was not set."""
        ...

    async def paused(self) -> list[Pause]:
        """The pauses in force, sorted by kind and name."""
        ...

    async def sweep(self, limit: int) -> SweepReport:
        """Do up to `limit` rows of the store's housekeeping, in short transactions."""
        ...

    async def get(self, task_ids: Sequence[int]) -> list[Task | None]:
        """Active rows with data."""
        ...

    async def get_archived(self, task_ids: Sequence[int]) -> list[ArchivedTask | None]:
        """Archived rows with data."""
        ...

    async def list_active(
        self,
        limit: int,
        *,
        offset: int = 0,
        after: tuple[int, int] | None = None,
        where: TaskFilter = TaskFilter(),
    ) -> list[Task]:
        """Active rows without data by priority then id; `after` is the (priority, id) of the last row seen."""
        ...

    async def list_archived(
        self, limit: int, *, before: int | None = None, where: TaskFilter = TaskFilter()
    ) -> list[ArchivedTask]:
        """Archived rows without data, newest id first; `before` is the id of the last row seen."""
        ...

    async def history(self, task_ids: Sequence[int]) -> list[list[Attempt]]:
        """Error history of each task, oldest first, the newest MAX_HISTORY entries; empty for unknown ids."""
        ...

    async def stats(self) -> QueueStats:
        """Counts of the whole queue."""
        ...

    async def backlog(self) -> list[Backlog]:
        """Leasable rows (pauses ignored) by class, queue and priority, sorted by these. May be up to 15 s old."""
        ...

    async def operations(self) -> dict[str, object]:
        """Facts for the operations inventory (docs/protocol.md): no payloads, no secrets, `backend` first."""
        ...

    async def ping(self) -> None:
        """Return when the store answers; raise StoreUnavailable with the reason when it does not."""
        ...

    async def changed(self, timeout: float) -> bool:
        """Wait until work may have become leasable, at most `timeout` seconds; False: nothing heard.

        A change between two calls is remembered; a row coming due is a change. One caller for each opened
        store: the doorbell, which passes it on.
        """
        ...

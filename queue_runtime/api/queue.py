"""The queue as the first generation of clients knows it: enqueue, lease-free reports by id, lists, counts."""

from queue_runtime.api import outcomes, query
from queue_runtime.api.errors import bad_request, not_found
from queue_runtime.api.reply import Reply, data
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route, get, post
from queue_runtime.current import Current
from queue_runtime.intake import Intake
from queue_runtime.settler import Settler
from queue_runtime.store import Store
from queue_runtime.task import MAX_IDS, U32, ArchivedTask, Outcome, Settlement, Verdict
from queue_runtime.wire import (
    CompleteBody,
    EnqueueBody,
    FailBody,
    TaskBody,
    TasksBody,
    YieldBody,
    archived_json,
    attempts_json,
    new_task,
    stats_json,
    task_id,
    task_json,
)

STATS_HEADER = b"x-queue-runtime-stats"


class QueueFace:
    """Routes of the contract's first stratum. Reports are not fenced: their callers send no owner."""

    def __init__(self, *, store: Store, intake: Intake, settler: Settler, current: Current) -> None:
        self._store = store
        self._intake = intake
        self._settler = settler
        self._current = current

    def routes(self) -> list[Route]:
        return [
            post("/api/queue/enqueue", EnqueueBody, self.enqueue),
            post("/api/queue/complete", CompleteBody, self.complete),
            post("/api/queue/fail", FailBody, self.fail),
            post("/api/queue/yield", YieldBody, self.yield_task),
            post("/api/queue/cancel", TaskBody, self.cancel, leaves=True),
            post("/api/queue/awaken", TasksBody, self.awaken, leaves=True),
            get("/api/queue/stats", self.stats),
            get("/api/queue/tasks", self.tasks, leaves=True),
            get("/api/queue/tasks/{id}", self.task),
        ]

    async def enqueue(self, request: Request, body: EnqueueBody) -> Reply:
        (task,) = await self._intake.enqueue([new_task(body)])
        return data(task_json(task))

    async def complete(self, request: Request, body: CompleteBody) -> Reply:
        archived = await self._settle(task_id(body), outcomes.completed(body.duration))
        if archived is None:
            raise not_found("no such task")
        return data(archived_json(archived))

    async def fail(self, request: Request, body: FailBody) -> Reply:
        outcome = (
            outcomes.failed(body.message)
            if body.permanent
            else outcomes.retried(body.retryWait, self._current.config.retry_seconds, body.message)
        )
        await self._settle(task_id(body), outcome)
        return data({"status": "ok"})

    async def yield_task(self, request: Request, body: YieldBody) -> Reply:
        # Phorge raises every shorter wait to its floor, negative ones too.
        await self._settle(task_id(body), outcomes.yielded(max(0, body.duration or 0), longest=U32))
        return data({"status": "ok"})

    async def cancel(self, request: Request, body: TaskBody) -> Reply:
        (archived,) = await self._store.cancel([task_id(body)])
        if archived is None:
            raise not_found("no such task")
        outcomes.report_cancelled(archived)
        return data(archived_json(archived))

    async def awaken(self, request: Request, body: TasksBody) -> Reply:
        return data({"awakened": sum([await self._store.awaken(part) for part in portions(body)])})

    async def stats(self, request: Request) -> Reply:
        stats = await self._store.stats()
        return data(stats_json(stats), [(STATS_HEADER, b"estimated")] if stats.estimated else None)

    async def tasks(self, request: Request) -> Reply:
        rows = await self._store.list_active(
            query.limit(request),
            offset=query.offset(request),
            after=query.after(request),
            where=query.task_filter(request),
        )
        return data([task_json(row) for row in rows])

    async def task(self, request: Request) -> Reply:
        wanted = query.task_id(request)
        (row,) = await self._store.get([wanted])
        if row is None:
            raise not_found("no such task")
        found = task_json(row, data=True)
        (attempts,) = await self._store.history([wanted])
        if attempts:
            found["errors"] = attempts_json(attempts)
        return data(found)

    async def _settle(self, wanted: int, outcome: Outcome) -> ArchivedTask | None:
        settlement = Settlement.unfenced(wanted, outcome)
        (settled,) = await self._settler.settle([settlement])
        if settled.verdict is not Verdict.SETTLED:
            raise not_found("no such task")
        outcomes.report(settlement, settled)
        return settled.archived


def portions(body: TasksBody) -> list[list[int]]:
    """The ids a request names, each once, in portions that a store takes in one round."""
    if not body.taskIDs:
        raise bad_request("taskIDs: is required")
    ids = list(dict.fromkeys(body.taskIDs))
    return [ids[at : at + MAX_IDS] for at in range(0, len(ids), MAX_IDS)]

"""Our own routes: batches, what `bin/worker` offers, the archive, pauses."""

from queue_runtime.api import outcomes, query
from queue_runtime.api.errors import bad_request, not_found
from queue_runtime.api.queue import portions
from queue_runtime.api.reply import Reply, data
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route, get, post
from queue_runtime.current import Current
from queue_runtime.errors import InvalidRequest
from queue_runtime.intake import Intake
from queue_runtime.settler import BUSY_SECONDS, Settler, StillLocked
from queue_runtime.store import Store
from queue_runtime.task import U32, check_range
from queue_runtime.wire import (
    INT64,
    MAX_TASKS,
    DelayBody,
    EnqueueBatchBody,
    PauseBody,
    PriorityBody,
    RetryBody,
    SettleBatchBody,
    TasksBody,
    archived_json,
    attempts_json,
    new_tasks,
    pause,
    pause_json,
    task_json,
)

IN_TIME = 5.0
"""Seconds before the end of its time at which a settle-batch stops waiting for rows that somebody else has locked."""


class OperatorFace:
    """Routes beside the contract, in the same envelope."""

    def __init__(self, *, store: Store, intake: Intake, settler: Settler, current: Current) -> None:
        self._store = store
        self._intake = intake
        self._settler = settler
        self._current = current

    def routes(self) -> list[Route]:
        return [
            post("/api/queue/enqueue-batch", EnqueueBatchBody, self.enqueue_batch),
            post("/api/queue/settle-batch", SettleBatchBody, self.settle_batch, leaves=True),
            post("/api/queue/free", TasksBody, self.free, leaves=True),
            post("/api/queue/retry", RetryBody, self.retry, leaves=True),
            post("/api/queue/priority", PriorityBody, self.priority, leaves=True),
            post("/api/queue/delay", DelayBody, self.delay, leaves=True),
            get("/api/queue/archive", self.archive, leaves=True),
            get("/api/queue/archive/{id}", self.archived),
            post("/api/queue/pause", PauseBody, self.pause),
            post("/api/queue/resume", PauseBody, self.resume),
            get("/api/queue/paused", self.paused),
        ]

    async def enqueue_batch(self, request: Request, body: EnqueueBatchBody) -> Reply:
        if not body.tasks:
            raise bad_request("tasks: is required")
        tasks = await self._intake.enqueue(new_tasks(body.tasks, "tasks"))
        return data([task_json(task) for task in tasks])

    async def settle_batch(self, request: Request, body: SettleBatchBody) -> Reply:
        bodies = body.settlements
        if not bodies:
            raise bad_request("settlements: is required")
        if len(bodies) > MAX_TASKS:
            raise InvalidRequest("settlements", f"must be at most {MAX_TASKS}, not {len(bodies)}")
        settlements = [
            outcomes.settlement(one, self._current.config.retry_seconds, f"settlements[{place}].")
            for place, one in enumerate(bodies)
        ]
        verdicts = []
        try:
            results = await self._settler.settle(settlements, patience=min(BUSY_SECONDS, request.seconds - IN_TIME))
        except StillLocked as error:
            results = error.results  # the others are written, and the caller has to hear of it
        for settlement, settled in zip(settlements, results, strict=True):
            outcomes.report(settlement, settled)
            verdict: dict[str, object] = {"taskID": settlement.task_id, "verdict": settled.verdict.value}
            if settled.archived is not None:
                verdict["result"] = int(settled.archived.result)
            verdicts.append(verdict)
        return data(verdicts)

    async def free(self, request: Request, body: TasksBody) -> Reply:
        return data({"freed": sum([await self._store.free(part) for part in portions(body)])})

    async def retry(self, request: Request, body: RetryBody) -> Reply:
        rows = [row for part in portions(body) for row in await self._store.retry(part, repeat=bool(body.repeat))]
        return data([task_json(row) for row in rows if row is not None])

    async def priority(self, request: Request, body: PriorityBody) -> Reply:
        if body.priority is None:
            raise bad_request("priority: is required")
        check_range("priority", body.priority, 0, U32)
        found = [await self._store.priority(part, body.priority) for part in portions(body)]
        return data({"changed": sum(found)})

    async def delay(self, request: Request, body: DelayBody) -> Reply:
        if body.delayUntil is None:
            raise bad_request("delayUntil: is required")
        check_range("delayUntil", body.delayUntil, 1, U32)
        found = [await self._store.delay(part, body.delayUntil) for part in portions(body)]
        return data({"changed": sum(found)})

    async def archive(self, request: Request) -> Reply:
        rows = await self._store.list_archived(
            query.limit(request), before=query.number(request, "before", INT64), where=query.task_filter(request)
        )
        return data([archived_json(row) for row in rows])

    async def archived(self, request: Request) -> Reply:
        wanted = query.task_id(request)
        (row,) = await self._store.get_archived([wanted])
        if row is None:
            raise not_found("no such archived task")
        found = archived_json(row, data=True)
        (attempts,) = await self._store.history([wanted])
        if attempts:
            found["errors"] = attempts_json(attempts)
        return data(found)

    async def pause(self, request: Request, body: PauseBody) -> Reply:
        await self._store.pause(pause(body))
        return data({"status": "paused"})

    async def resume(self, request: Request, body: PauseBody) -> Reply:
        return data({"resumed": await self._store.resume(pause(body))})

    async def paused(self, request: Request) -> Reply:
        return data([pause_json(one) for one in await self._store.paused()])

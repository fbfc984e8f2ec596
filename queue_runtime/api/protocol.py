"""Execution protocol 1: receipts that fence every report, events that are enqueued once, the inventory."""

import asyncio

import structlog

from queue_runtime.api import outcomes
from queue_runtime.api.errors import ApiError, bad_request, lease_conflict
from queue_runtime.api.reply import Reply, data
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route, get, post
from queue_runtime.current import Current
from queue_runtime.errors import InvalidRequest
from queue_runtime.settler import Settler
from queue_runtime.store import Store
from queue_runtime.task import (
    MAX_EVENT_ID_BYTES,
    MAX_LEASE_SECONDS,
    Outcome,
    Settlement,
    Verdict,
    check_bytes,
    check_range,
)
from queue_runtime.wire import (
    EnqueueEventBody,
    FinalizeBody,
    RenewBody,
    ResolveBody,
    event_digest,
    new_task,
    new_tasks,
    receipt,
    task_json,
)

log = structlog.get_logger()

META = {"executionVersion": 1, "leaseOutcomes": True}
OPERATIONS_SECONDS = 5.0


class ProtocolFace:
    """Routes of execution protocol 1. A body is checked whole (400) before the receipt is (409)."""

    def __init__(self, *, store: Store, settler: Settler, current: Current) -> None:
        self._store = store
        self._settler = settler
        self._current = current

    def routes(self) -> list[Route]:
        return [
            post("/api/queue/finalize", FinalizeBody, self.finalize),
            post("/api/queue/resolve", ResolveBody, self.resolve),
            post("/api/queue/renew", RenewBody, self.renew),
            get("/api/queue/meta", self.meta),
            post("/api/queue/enqueue-event", EnqueueEventBody, self.enqueue_event),
            get("/api/queue/operations", self.operations, leaves=True),
        ]

    async def meta(self, request: Request) -> Reply:
        return data(META)

    async def renew(self, request: Request, body: RenewBody) -> Reply:
        lease = receipt(body)
        if body.duration is None:
            raise bad_request("duration: is required")
        check_range("duration", body.duration, 1, MAX_LEASE_SECONDS)
        (task,) = await self._store.renew([lease], body.duration)
        if task is None:
            raise lease_conflict()
        return data(task_json(task))

    async def finalize(self, request: Request, body: FinalizeBody) -> Reply:
        settlement = Settlement.held(
            receipt(body), outcomes.completed(body.duration, new_tasks(body.followups, "followups"))
        )
        (settled,) = await self._settler.settle([settlement])
        if settled.verdict is Verdict.LOST:
            outcomes.report(settlement, settled)
            raise lease_conflict()
        return data({"status": "finalized"})

    async def resolve(self, request: Request, body: ResolveBody) -> Reply:
        settlement = Settlement.held(receipt(body), self._resolution(body))
        (settled,) = await self._settler.settle([settlement])
        outcomes.report(settlement, settled)
        if settled.verdict is not Verdict.SETTLED:
            raise lease_conflict()
        return data({"status": "resolved"})

    def _resolution(self, body: ResolveBody) -> Outcome:
        # Both times are checked, whichever the outcome uses.
        retry = outcomes.retried(
            body.retryWait, self._current.config.retry_seconds, body.message, longest=MAX_LEASE_SECONDS
        )
        pause = outcomes.yielded(body.duration, longest=MAX_LEASE_SECONDS)
        match body.outcome:
            case "retry":
                return retry
            case "yield":
                return pause
            case "failure":
                return outcomes.failed(body.message)
            case _:
                raise InvalidRequest("outcome", "must be retry, failure or yield")

    async def enqueue_event(self, request: Request, body: EnqueueEventBody) -> Reply:
        if not body.eventID:
            raise bad_request("eventID: is required")
        check_bytes("eventID", body.eventID, MAX_EVENT_ID_BYTES)
        if body.task is None:
            raise bad_request("task: is required")
        task = new_task(body.task, "task.")
        digest = event_digest(task, sent_delay=body.task.delayUntil)
        return data(task_json(await self._store.enqueue_once(body.eventID, task, digest=digest)))

    async def operations(self, request: Request) -> Reply:
        try:
            async with asyncio.timeout(OPERATIONS_SECONDS):
                return data(await self._store.operations())
        except Exception as error:
            log.warning("the inventory could not be taken", exc_info=error)
            raise ApiError(503, "ERR_OPERATIONS", "the inventory could not be taken") from error

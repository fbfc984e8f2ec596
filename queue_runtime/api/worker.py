"""What the worker tells of itself; it touches neither the queue nor PHP."""

from queue_runtime.api.protocol import META
from queue_runtime.api.reply import Reply, data
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route, get
from queue_runtime.metrics import WorkerView
from queue_runtime.stats import Ending


class WorkerFace:
    """Routes under /api/worker; they exist only where a worker runs."""

    def __init__(self, worker: WorkerView) -> None:
        self._worker = worker

    def routes(self) -> list[Route]:
        return [get("/api/worker/stats", self.stats), get("/api/worker/meta", self.meta)]

    async def stats(self, request: Request) -> Reply:
        stats = self._worker.stats
        return data(
            {
                "processed": stats.total(Ending.SUCCEEDED),
                "failed": stats.total(Ending.RETRIED, Ending.FAILED),
                "active": stats.active,
                "supported": self._worker.supported,
            }
        )

    async def meta(self, request: Request) -> Reply:
        return data(META)

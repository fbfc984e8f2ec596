"""Probes and metrics. They need no token: what they tell is fit for everybody who can reach the port."""

import asyncio
from typing import Any

import orjson
import structlog
from msgspec.structs import asdict
from prometheus_client import CONTENT_TYPE_LATEST

from queue_runtime.api.reply import Reply
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route, get
from queue_runtime.errors import StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics, WorkerView
from queue_runtime.plain_text import fit
from queue_runtime.selftest import SelftestLoop
from queue_runtime.settler import Settler
from queue_runtime.store import Dispatching, Place, Store, place_of

log = structlog.get_logger()

PING_SECONDS = 5.0


class HealthFace:
    """`/` and `/healthz` never look at the store; `/readyz` says why the process should get no work."""

    def __init__(
        self,
        *,
        store: Store,
        settler: Settler,
        lifecycle: Lifecycle,
        metrics: Metrics,
        worker: WorkerView | None,
        shadow: bool = False,
        selftest: SelftestLoop | None = None,
    ) -> None:
        self._store = store
        self._settler = settler
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._worker = worker
        self._shadow = shadow
        self._selftest = selftest

    def routes(self) -> list[Route]:
        return [
            get("/", self.alive),
            get("/healthz", self.alive),
            get("/readyz", self.ready),
            get("/metrics", self.metrics),
        ]

    async def alive(self, request: Request) -> Reply:
        return Reply(b'{"status":"ok"}')

    async def ready(self, request: Request) -> Reply:
        reason = await self._reason()
        answer: dict[str, Any] = {"status": "ok"} if reason is None else {"status": "unavailable", "reason": reason}
        if request.query.get("verbose", [""])[0] == "1":
            answer["details"] = self._details()
            if (place := await self._place()) is not None:
                answer["details"]["store"] = asdict(place)
        return Reply(orjson.dumps(answer), 200 if reason is None else 503)

    async def metrics(self, request: Request) -> Reply:
        return Reply(await self._metrics.render(), media=CONTENT_TYPE_LATEST.encode())

    async def _reason(self) -> str | None:
        if self._lifecycle.stopping.is_set():
            return "stopping"
        if faults := self._lifecycle.faults:
            return fit("; ".join(f"{source}: {reason}" for source, reason in sorted(faults.items())))
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._store.ping()
        except StoreUnavailable as error:
            return fit(f"the store does not answer: {error.reason or error.operation}")
        except TimeoutError:
            return f"the store did not answer within {PING_SECONDS:.0f} s"
        except Exception as error:
            log.exception("the store could not be asked", exc_info=error)
            return "the store could not be asked; the log says why"
        return None

    async def _place(self) -> Place | None:
        """Which store this works on; its address is told to nobody."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                return await place_of(self._store)
        except TimeoutError:
            return None
        except Exception as error:
            log.exception("the store could not be asked which one it is", exc_info=error)
            return None

    def _details(self) -> dict[str, object]:
        details: dict[str, object] = {
            "stopping": self._lifecycle.stopping.is_set(),
            "faults": {source: fit(reason) for source, reason in self._lifecycle.faults.items()},
            "outcomesWaiting": self._settler.waiting,
        }
        if self._shadow:
            details["shadow"] = True
        if self._selftest is not None and (last := self._selftest.last) is not None:
            details["selftest"] = {
                "ok": last.ok,
                "endedEpoch": int(last.at),
                "milliseconds": {one.name: round(one.milliseconds, 1) for one in last.steps},
                "reason": None if last.ok else fit(last.sentence),
            }
        if (conduit := self._metrics.conduit) is not None:
            details["conduit"] = {"open": conduit.open, "held": dict(conduit.held), "setbacks": dict(conduit.setbacks)}
        if isinstance(self._store, Dispatching):
            details["dispatch"] = asdict(self._store.dispatch)
        if self._worker is not None:
            stats = self._worker.stats
            details["worker"] = {
                "slots": stats.slots,
                "active": stats.active,
                "abandoned": stats.abandoned_now,
                "leaseErrors": stats.lease_errors,
                "supported": self._worker.supported,
                "queues": self._worker.queues,
            }
        return details

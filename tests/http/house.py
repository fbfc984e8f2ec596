"""The HTTP side of the runtime over one store, without a worker's loops: what these tests talk to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import httpx2
from msgspec.structs import replace
from starlette.types import ASGIApp

from queue_runtime.api.app import create_app
from queue_runtime.api.auth import Guard
from queue_runtime.config import Config, load_config
from queue_runtime.current import Current
from queue_runtime.doorbell import Doorbell
from queue_runtime.intake import Intake
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics
from queue_runtime.reload import Reloaded
from queue_runtime.server import Kind, Server
from queue_runtime.settler import Settler
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Store

OWNER = {"X-Lease-Owner": "host:1:2:test"}


class FakeWorker:
    """What the faces see of a worker."""

    def __init__(self, *supported: str) -> None:
        self.stats = WorkerStats()
        self.supported = list(supported)
        self.queues: list[str] | None = None


class Answer(NamedTuple):
    """A reply of the service. `body` is the decoded JSON."""

    status: int
    body: Any
    headers: httpx2.Headers

    @property
    def data(self) -> Any:
        """What a success says; fails the test when it is none."""
        assert self.status == 200, self
        assert list(self.body) == ["data"]
        return self.body["data"]

    @property
    def error(self) -> tuple[int, str]:
        """Status and code of a failure; fails the test when it is none."""
        assert list(self.body) == ["error"], self
        assert set(self.body["error"]) == {"code", "message"}
        return self.status, self.body["error"]["code"]

    @property
    def message(self) -> str:
        """What a failure says."""
        return str(self.body["error"]["message"])


class House:
    """The app, what it stands on, and a client of it."""

    def __init__(self, store: Store, config: Config, worker: FakeWorker | None) -> None:
        self.store = store
        self.config = config
        self.current = Current(config)
        self.guard = Guard(config.token)
        self.worker = worker
        self.reloaded = Reloaded()
        """what a reload answers here"""
        self.lifecycle = Lifecycle()
        self.doorbell = Doorbell()
        self.intake = Intake(store)
        self.settler = Settler(store)
        self.metrics = Metrics(store, lifecycle=self.lifecycle, settler=self.settler, worker=worker)
        self.app: ASGIApp = create_app(
            store=store,
            intake=self.intake,
            settler=self.settler,
            doorbell=self.doorbell,
            lifecycle=self.lifecycle,
            current=self.current,
            guard=self.guard,
            reload=self._reload,
            worker=worker,
            metrics=self.metrics,
        )
        self.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://test")

    async def _reload(self) -> Reloaded:
        return self.reloaded

    async def post(self, path: str, body: object = None, **more: Any) -> Answer:
        """POST a JSON body to a queue route; a path with a leading slash is taken as it is."""
        if body is not None:
            more["json"] = body
        return _answer(await self.client.post(_full(path), **more))

    async def get(self, path: str, **more: Any) -> Answer:
        """GET a queue route; a path with a leading slash is taken as it is."""
        return _answer(await self.client.get(_full(path), **more))

    async def enqueue(self, task_class: str = "Work", **more: Any) -> int:
        """Enqueue one task and return its id."""
        return int((await self.post("enqueue", {"taskClass": task_class, **more})).data["id"])

    async def lease(self, limit: int = 1, **more: Any) -> list[dict[str, Any]]:
        """Lease under the name OWNER."""
        found: list[dict[str, Any]] = (await self.post("lease", {"limit": limit, **more}, headers=OWNER)).data
        return found

    async def leased(self, task_class: str = "Work", **more: Any) -> dict[str, Any]:
        """Enqueue and lease one task."""
        await self.enqueue(task_class, **more)
        (task,) = await self.lease(taskClasses=[task_class])
        return task


def receipt_of(task: dict[str, Any]) -> dict[str, Any]:
    """What proves that a leased task is held."""
    return {"taskID": task["id"], "leaseOwner": task["leaseOwner"], "leaseExpires": task["leaseExpires"]}


@asynccontextmanager
async def open_house(store: Store, *, worker: FakeWorker | None = None, **settings: Any) -> AsyncIterator[House]:
    """A house whose intake, settler and doorbell run. `settings` replace those of the configuration."""
    house = House(store, replace(load_config({}), **settings), worker)
    stop = anyio.Event()
    loops = [
        asyncio.create_task(house.intake.run(stop)),
        asyncio.create_task(house.settler.run(stop)),
        asyncio.create_task(house.doorbell.listen(store, stop)),
    ]
    try:
        yield house
    finally:
        stop.set()
        await asyncio.gather(*loops)
        await house.client.aclose()


class Running(NamedTuple):
    """A house behind a real server."""

    house: House
    host: str
    port: int
    serving: asyncio.Task[None]

    async def close(self) -> None:
        """Close the server as the supervisor does, and wait for its end."""
        self.house.lifecycle.stopping.set()
        self.house.lifecycle.closing.set()
        await self.serving


@asynccontextmanager
async def serve(house: House, kind: Kind) -> AsyncIterator[Running]:
    """Run the app of a house on a port of the loopback."""
    started: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
    server = Server(house.app, listen=["127.0.0.1:0"], kind=kind, lifecycle=house.lifecycle)
    serving = asyncio.create_task(server.run(started.set_result))
    (name,) = await started
    host, _, port = name.rpartition(":")
    running = Running(house, host, int(port), serving)
    try:
        yield running
    finally:
        await running.close()


@asynccontextmanager
async def serve_with(store: Store, kind: Kind, **settings: Any) -> AsyncIterator[Running]:
    """A house with these settings behind a server."""
    async with open_house(store, **settings) as house, serve(house, kind) as running:
        yield running


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something holds; fail when it does not within the bound."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is waited for rings no event
            await asyncio.sleep(0.005)


def _full(path: str) -> str:
    return path if path.startswith("/") else f"/api/queue/{path}"


def _answer(reply: httpx2.Response) -> Answer:
    body = reply.json() if reply.headers.get("content-type") == "application/json" and reply.content else None
    return Answer(reply.status_code, body, reply.headers)

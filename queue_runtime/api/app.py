"""Assembles the faces into one ASGI application."""

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from queue_runtime.api.auth import Guard
from queue_runtime.api.edge import Edge
from queue_runtime.api.errors import not_found
from queue_runtime.api.health import HealthFace
from queue_runtime.api.lease import LeaseFace
from queue_runtime.api.operators import OperatorFace
from queue_runtime.api.protocol import ProtocolFace
from queue_runtime.api.queue import QueueFace
from queue_runtime.api.request import Limits
from queue_runtime.api.worker import WorkerFace
from queue_runtime.config import Config
from queue_runtime.doorbell import Doorbell
from queue_runtime.intake import Intake
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics, WorkerView
from queue_runtime.settler import Settler
from queue_runtime.store import Store


def create_app(
    *,
    store: Store,
    intake: Intake,
    settler: Settler,
    doorbell: Doorbell,
    lifecycle: Lifecycle,
    config: Config,
    worker: WorkerView | None,
    metrics: Metrics,
) -> ASGIApp:
    """The application: faces over what the process shares. `worker` None: no worker runs here.

    Without the role `api` there are only the probes, the metrics and the worker's own face.
    """
    routes = HealthFace(store=store, settler=settler, lifecycle=lifecycle, metrics=metrics, worker=worker).routes()
    if "api" in config.roles:
        lease = LeaseFace(store=store, settler=settler, doorbell=doorbell, lifecycle=lifecycle, config=config)
        queue = QueueFace(store=store, intake=intake, settler=settler, config=config)
        protocol = ProtocolFace(store=store, settler=settler, config=config)
        operators = OperatorFace(store=store, intake=intake, settler=settler, config=config)
        # The busiest first: routes are tried in order.
        routes = [*queue.routes(), *lease.routes(), *protocol.routes(), *operators.routes(), *routes]
    if worker is not None:
        routes += WorkerFace(worker).routes()
    return Edge(
        Router(routes, redirect_slashes=False, default=_unknown_path),
        guard=Guard(config.token),
        limits=Limits(config.max_body, config.request_seconds),
        lifecycle=lifecycle,
        metrics=metrics,
    )


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found("no such path")

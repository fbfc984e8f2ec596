"""Assembles the faces into one ASGI application."""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp

from queue_runtime.api.auth import Guard
from queue_runtime.api.edge import Edge
from queue_runtime.api.health import HealthFace
from queue_runtime.api.lease import LeaseFace
from queue_runtime.api.operators import OperatorFace
from queue_runtime.api.protocol import ProtocolFace
from queue_runtime.api.queue import QueueFace
from queue_runtime.api.reload import ReloadFace
from queue_runtime.api.request import Limits
from queue_runtime.api.routing import Routes
from queue_runtime.api.store import StoreFace
from queue_runtime.api.worker import WorkerFace
from queue_runtime.current import Current
from queue_runtime.doorbell import Doorbell
from queue_runtime.intake import Intake
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics, WorkerView
from queue_runtime.reload import Reloaded
from queue_runtime.selftest import SelftestLoop
from queue_runtime.settler import Settler
from queue_runtime.store import Store


def create_app(
    *,
    store: Store,
    intake: Intake,
    settler: Settler,
    doorbell: Doorbell,
    lifecycle: Lifecycle,
    current: Current,
    guard: Guard,
    reload: Callable[[], Awaitable[Reloaded]],
    worker: WorkerView | None,
    metrics: Metrics,
    selftest: SelftestLoop | None = None,
) -> ASGIApp:
    """The application: faces over what the process shares. `worker` None: no worker runs here.

    Without the role `api` there are only the probes, the metrics, the reload and the worker's own face.
    """
    config = current.config
    routes = ReloadFace(reload).routes()
    routes += HealthFace(
        store=store,
        settler=settler,
        lifecycle=lifecycle,
        metrics=metrics,
        worker=worker,
        shadow=config.shadow,
        selftest=selftest,
    ).routes()
    if "api" in config.roles:
        lease = LeaseFace(store=store, settler=settler, doorbell=doorbell, lifecycle=lifecycle, current=current)
        queue = QueueFace(store=store, intake=intake, settler=settler, current=current)
        protocol = ProtocolFace(store=store, settler=settler, current=current)
        operators = OperatorFace(store=store, intake=intake, settler=settler, current=current)
        remote = StoreFace(
            store=store,
            intake=intake,
            settler=settler,
            doorbell=doorbell,
            lifecycle=lifecycle,
            patience=config.patience,
        )
        routes += [*queue.routes(), *lease.routes(), *protocol.routes(), *operators.routes(), *remote.routes()]
    if worker is not None:
        routes += WorkerFace(worker).routes()
    return Edge(
        Routes(routes),
        guard=guard,
        limits=Limits(config.max_body, config.request_seconds),
        lifecycle=lifecycle,
        metrics=metrics,
    )

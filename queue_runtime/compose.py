"""The composition root: builds everything from the configuration and runs it. Only it imports stores and handlers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec

import anyio
import structlog

from handlers import catalog
from queue_runtime.api.app import create_app
from queue_runtime.backoff import Outage, pause
from queue_runtime.config import PREFIX, Config
from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import ConfigError, StoreUnavailable
from queue_runtime.handler_modules import load_registries
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.intake import Intake
from queue_runtime.lease_loop import LeaseLoop
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics
from queue_runtime.registry import Registry
from queue_runtime.server import Server
from queue_runtime.settler import Settler
from queue_runtime.signals import end_process
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Store, StoreOptions
from queue_runtime.supervisor import Runtime, supervise
from queue_runtime.sweep_loop import SweepLoop
from queue_runtime.watchdog import Watchdog
from stores import sqlite

log = structlog.get_logger()

DAY = 86400


def run(config: Config) -> int:
    """Run until told to stop; the exit code. Raises ConfigError or StoreUnusable where it cannot start."""
    check_extras(config)
    # before the store, so that a fault in the handlers leaves no new file behind
    registry = load_handlers(config) if "worker" in config.roles else None
    options = {"use_uvloop": config.event_loop == "uvloop"}
    return anyio.run(serve, config, registry, backend="asyncio", backend_options=options)


def check_extras(config: Config) -> None:
    """Raise ConfigError where a chosen part is not installed."""
    chosen = {"QUEUE_RUNTIME_SERVER": config.server, "QUEUE_RUNTIME_EVENT_LOOP": config.event_loop}
    missing = [
        f"{variable}={name} needs the extra: pip install 'queue-runtime[fast]'"
        for variable, name in chosen.items()
        if name in {"uvicorn", "uvloop"} and find_spec(name) is None
    ]
    if missing:
        raise ConfigError(missing)


def load_handlers(config: Config) -> Registry:
    """The native handlers and those of the deployment, in one registry. Raises ConfigError where none would run."""
    registry = catalog.native(feed_policy_file=config.feed_policy_file)
    for other in load_registries(config.handlers):
        registry.merge(other)
    wanted = config.task_classes
    if wanted is not None and registry.fallback_spec is None and not wanted & registry.classes:
        raise ConfigError(
            [
                f"{PREFIX}TASK_CLASSES names no class that has a handler here, so this worker would do nothing; "
                f"handlers there are for: {', '.join(sorted(registry.classes))}"
            ]
        )
    return registry


async def serve(config: Config, registry: Registry | None) -> int:
    """Open the store and run everything on it. `registry` None: no worker."""
    options = StoreOptions(
        patience=config.patience,
        max_lost=config.max_lost,
        retention=None if config.retention_days is None else config.retention_days * DAY,
        routes=config.routes,
    )
    async with opened(config, options) as store:
        runtime = build(config, store, registry)
        code = await supervise(runtime)
    if runtime.lease_loop is not None and runtime.lease_loop.abandoned_ids:
        end_process(code)  # a handler that does not end would hold up the end of the event loop for ever
    return code


@asynccontextmanager
async def opened(config: Config, options: StoreOptions) -> AsyncIterator[Store]:
    """The store, as soon as it can be opened: a file that somebody else holds is waited for.

    Nothing owns the signals yet, so one of them ends the wait and the process; see `leave_when_told`.
    """
    outage = Outage("start")
    async with AsyncExitStack() as stack:
        while True:
            opening = sqlite.open_store(config.sqlite_path, options, synchronous=config.sqlite_synchronous)
            try:
                store = await stack.enter_async_context(opening)
            except StoreUnavailable as error:
                await anyio.sleep(outage.failed(error))
            else:
                outage.over()
                break
        yield store


def build(config: Config, store: Store, registry: Registry | None) -> Runtime:
    """All parts of one process, as its roles want them."""
    lifecycle = Lifecycle()
    doorbell = Doorbell()
    settler = Settler(store, lifecycle=lifecycle)
    intake = Intake(store, enqueued=doorbell.ring)
    heartbeat = lease_loop = watchdog = None
    if registry is not None:
        stats = WorkerStats()
        watchdog = Watchdog(stats)
        heartbeat = Heartbeat(store, lifecycle, lease_seconds=config.lease_seconds, patience=config.patience)
        lease_loop = LeaseLoop(
            store,
            registry,
            settler,
            heartbeat,
            doorbell,
            lifecycle,
            stats,
            slots=config.slots,
            lease_seconds=config.lease_seconds,
            patience=config.patience,
            retry_seconds=config.retry_seconds,
            max_lost=config.max_lost,
            classes=config.task_classes,
            queues=config.queues,
        )
    metrics = Metrics(store, lifecycle=lifecycle, settler=settler, worker=lease_loop)
    app = create_app(
        store=store,
        intake=intake,
        settler=settler,
        doorbell=doorbell,
        lifecycle=lifecycle,
        config=config,
        worker=lease_loop,
        metrics=metrics,
    )
    return Runtime(
        lifecycle=lifecycle,
        store=store,
        intake=intake,
        settler=settler,
        doorbell=doorbell,
        lease_loop=lease_loop,
        heartbeat=heartbeat,
        watchdog=watchdog,
        sweep_loop=SweepLoop(store, lifecycle, sweep_seconds=config.sweep_seconds) if "sweep" in config.roles else None,
        figures=None if registry is None else partial(look_at_figures, metrics, config.sweep_seconds),
        server=Server(app, listen=config.listen, kind=config.server, lifecycle=lifecycle),
        on_started=say_where,
        grace_seconds=config.grace_seconds,
    )


async def look_at_figures(metrics: Metrics, seconds: float, stop: anyio.Event) -> None:
    """Have classes that wait and that nobody here runs named in the log, even where nobody scrapes."""
    while await pause(stop, seconds):
        await metrics.refresh()


def say_where(addresses: Sequence[str]) -> None:
    """Tell people and scripts where the faces are."""
    log.info("listening", addresses=list(addresses))

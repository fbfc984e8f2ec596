"""The composition root: builds everything from the configuration and runs it. Only it imports stores and handlers."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import structlog
from starlette.types import ASGIApp, Scope

from conduit.client import ConduitClient
from conduit.gateway import Gateway
from conduit.phorge.checkout import Checkout
from handlers import catalog
from handlers.delegate import Delegate
from handlers.feed_policy import PolicyUnusable, read_policy
from handlers.phorge import Phorge
from queue_runtime.api import access
from queue_runtime.api.app import create_app
from queue_runtime.api.auth import Guard
from queue_runtime.backoff import Outage, rest
from queue_runtime.config import Config, Reading
from queue_runtime.cron_file import CronEntry
from queue_runtime.cron_loop import CronLoop, look_back
from queue_runtime.current import Current
from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import ConfigError, StoreUnavailable, StoreUnusable
from queue_runtime.findings import Finding, note, ok
from queue_runtime.handler_modules import load_registries
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.intake import Intake
from queue_runtime.lease_loop import LeaseLoop
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.live import Live, cap_problems, cron_entries
from queue_runtime.metrics import Metrics, WorkerView
from queue_runtime.registry import Registry
from queue_runtime.reload import Reloader
from queue_runtime.selftest import SelftestLoop
from queue_runtime.server import Server
from queue_runtime.settings import PREFIX
from queue_runtime.settler import Settler
from queue_runtime.shadow import Shadow, ShadowStore
from queue_runtime.signals import end_process
from queue_runtime.stats import WorkerStats
from queue_runtime.store import Store, StoreOptions
from queue_runtime.supervisor import Runtime, supervise
from queue_runtime.sweep_loop import SweepLoop
from queue_runtime.takeover import Phd
from queue_runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from handlers.phorge_doctor import Asked
    from stores.dispatchable import Record
    from stores.mysql import MysqlStore
    from stores.mysql_settings import MysqlSettings
    from stores.redis import RedisStore
    from stores.sqlite import SqliteStore

log = structlog.get_logger()

DAY = 86400


def run(config: Config, read: Callable[[], Reading]) -> int:
    """Run until told to stop; the exit code. Raises ConfigError or StoreUnusable where it cannot start.

    `read` is how the configuration was read, and is read again at a reload.
    """
    check_extras(config)
    # before the store, so that a fault in the handlers leaves no new file behind
    registry = load_handlers(config) if "worker" in config.roles else None
    entries = cron_entries(config)
    options = {"use_uvloop": config.event_loop == "uvloop"}
    return anyio.run(serve, config, read, registry, entries, backend="asyncio", backend_options=options)


_PACKAGES = {"uvicorn": ("uvicorn", "httptools"), "uvloop": ("uvloop",), "asyncmy": ("asyncmy",)}
"""What a choice needs beyond the dependencies of every install."""


def check_extras(config: Config) -> None:
    """Raise ConfigError where a chosen part is not installed."""
    chosen = {"SERVER": config.server, "EVENT_LOOP": config.event_loop, "MYSQL_DRIVER": config.mysql_driver}
    missing = [
        f"{PREFIX}{name}={choice} needs the extra: pip install 'queue-runtime[fast]'"
        for name, choice in chosen.items()
        if any(find_spec(package) is None for package in _PACKAGES.get(choice, ()))
    ]
    if missing:
        raise ConfigError(missing)


def load_handlers(config: Config) -> Registry:
    """The native handlers and those of the deployment, in one registry. Raises ConfigError where none would run."""
    if config.feed_policy_file is not None:
        try:
            read_policy(config.feed_policy_file)  # a fault in it is seen now, and not by the first story
        except PolicyUnusable as error:
            raise ConfigError([f"{PREFIX}FEED_POLICY_FILE: {error}"]) from error
    registry = catalog.native(feed_policy_file=config.feed_policy_file)
    for other in load_registries(config.handlers):
        registry.merge(other)
    if problems := cap_problems(config, registry):
        raise ConfigError(problems)
    registry.cap(config.class_caps)
    if config.conduit_url is not None:
        if (own := registry.fallback_spec) is not None:
            raise ConfigError([f"{PREFIX}CONDUIT_URL is set, and {own.origin} is a fallback too: keep one"])
        check_some_class_runs(config, registry)
        return registry
    wanted = config.task_classes
    if wanted is not None and registry.fallback_spec is None and not wanted & registry.classes:
        raise ConfigError(
            [
                f"{PREFIX}TASK_CLASSES names no class that has a handler here, so this worker would do nothing; "
                f"handlers there are for: {', '.join(sorted(registry.classes))}"
            ]
        )
    return registry


def check_some_class_runs(config: Config, registry: Registry) -> None:
    """Raise ConfigError where neither a handler here nor Phorge may run one of the TASK_CLASSES."""
    wanted, patterns = config.task_classes, config.conduit_classes
    if wanted is None or wanted & registry.classes or any(fnmatchcase(one, fit) for one in wanted for fit in patterns):
        return
    raise ConfigError(
        [
            f"{PREFIX}TASK_CLASSES names no class that has a handler here, and none that {PREFIX}CONDUIT_CLASSES "
            f"({', '.join(patterns)}) lets Phorge run, so this worker would do nothing"
        ]
    )


class Delegation(NamedTuple):
    """What has Phorge run tasks."""

    delegate: Delegate
    phorge: Phorge


class Backend(NamedTuple):
    """What one kind of store is asked for. Its modules are loaded when it is used, because a driver takes its time."""

    opening: Callable[[Current, StoreOptions], AbstractAsyncContextManager[Store]]
    """takes the settings as they are now, where they may change while it is open"""

    create: Callable[[Config], Awaitable[list[Finding]]]
    """makes what must be there before the first start"""

    examine: Callable[[Config, bool], Awaitable[list[Finding]]]
    """looks at everything; with True it also repairs what can be repaired"""


@asynccontextmanager
async def _open_sqlite(current: Current, options: StoreOptions) -> AsyncIterator["SqliteStore"]:
    from stores import sqlite

    config = current.config
    async with AsyncExitStack() as stack:
        opening = sqlite.open_store(config.sqlite_path, options, synchronous=config.sqlite_synchronous)
        try:
            store = await stack.enter_async_context(opening)
        except StoreUnusable as error:
            raise StoreUnusable(f"{PREFIX}SQLITE_PATH: {error}") from error
        yield store


async def _create_sqlite(config: Config) -> list[Finding]:
    path = config.sqlite_path.absolute()
    there = path.exists()
    async with _open_sqlite(Current(config), options_of(config)) as store:
        await store.ping()
    return [ok("file", f"{path} {'was there' if there else 'is made'}")]


async def _examine_sqlite(config: Config, repair: bool) -> list[Finding]:
    from stores import sqlite_doctor

    found = await sqlite_doctor.examine(config.sqlite_path)
    return [*found, *([_NOTHING_TO_REPAIR] if repair else [])]


def _mysql_settings(config: Config) -> "MysqlSettings":
    from stores.mysql_settings import MysqlSettings

    return MysqlSettings(
        host=config.mysql_host,
        port=config.mysql_port,
        socket=None if config.mysql_socket is None else str(config.mysql_socket),
        user=config.mysql_user,
        password=config.mysql_password,
        namespace=config.namespace,
        tls_ca=config.mysql_tls_ca,
        connections=config.mysql_connections,
        driver=config.mysql_driver,
    )


def _open_mysql(current: Current, options: StoreOptions) -> AbstractAsyncContextManager["MysqlStore"]:
    from stores import mysql

    settings = _mysql_settings(current.config)
    return mysql.open_store(settings, options, password_now=lambda: current.config.mysql_password)


async def _create_mysql(config: Config) -> list[Finding]:
    from stores import mysql_companion

    settings = _mysql_settings(config)
    missing = await mysql_companion.create(settings)
    return [ok("companion", f"the database {settings.companion_database} {'is made' if missing else 'was there'}")]


async def _examine_mysql(config: Config, repair: bool) -> list[Finding]:
    from stores import mysql_doctor

    found = await mysql_doctor.examine(_mysql_settings(config), options_of(config))
    return [*found, *([_NOTHING_TO_REPAIR] if repair else [])]


def _open_redis(current: Current, options: StoreOptions) -> AbstractAsyncContextManager["RedisStore"]:
    from stores import redis

    config = current.config
    return redis.open_store(
        config.redis_url,
        options,
        url_now=lambda: current.config.redis_url,
        prefix=config.redis_prefix,
        allow_eviction=config.redis_allow_eviction,
        event_days=config.event_days,
    )


async def _create_redis(config: Config) -> list[Finding]:
    return await _examine_redis(config, repair=False)


async def _examine_redis(config: Config, repair: bool) -> list[Finding]:
    from stores import redis_doctor

    async with _open_redis(Current(config), options_of(config)) as store:
        return await redis_doctor.examine(store, mend=repair)


def _open_remote(current: Current, options: StoreOptions) -> AbstractAsyncContextManager[Store]:
    from stores import remote

    def login() -> tuple[str, str]:
        return current.config.remote_url, current.config.remote_token

    return remote.open_store(*login(), options, login_now=login)


async def _create_remote(config: Config) -> list[Finding]:
    return await _examine_remote(config, repair=False)


async def _examine_remote(config: Config, repair: bool) -> list[Finding]:
    from stores import remote_doctor

    found = await remote_doctor.examine(config.remote_url, config.remote_token, options_of(config))
    return [*found, *([note("repair", "the store is the server's: repair it there")] if repair else [])]


@asynccontextmanager
async def _open_streams(current: Current, options: StoreOptions) -> AsyncIterator[Store]:
    from stores import streams

    config = current.config
    opening: Callable[[Current, StoreOptions], AbstractAsyncContextManager[Record]]
    opening = _open_mysql if config.record == "mysql" else _open_sqlite
    async with (
        opening(current, options) as record,
        streams.open_store(
            record,
            config.redis_url,
            options,
            url_now=lambda: current.config.redis_url,
            prefix=config.streams_prefix,
            group=config.streams_group,
            queues=config.queues or (),
            policy=config.queue_policy,
            block_seconds=lambda: current.config.block_seconds,
        ) as store,
    ):
        yield store


async def _create_streams(config: Config) -> list[Finding]:
    return await BACKENDS[config.record].create(config)


async def _examine_streams(config: Config, repair: bool) -> list[Finding]:
    from stores import streams_doctor

    found = await BACKENDS[config.record].examine(config, repair)
    return [*found, *await streams_doctor.examine(config.redis_url, config.streams_prefix, config.streams_group)]


_NOTHING_TO_REPAIR = note("repair", "this store's database keeps its indexes by itself, so there is nothing to repair")

BACKENDS: Mapping[str, Backend] = {
    "sqlite": Backend(_open_sqlite, _create_sqlite, _examine_sqlite),
    "mysql": Backend(_open_mysql, _create_mysql, _examine_mysql),
    "redis": Backend(_open_redis, _create_redis, _examine_redis),
    "remote": Backend(_open_remote, _create_remote, _examine_remote),
    "streams": Backend(_open_streams, _create_streams, _examine_streams),
}


def create(config: Config) -> list[Finding]:
    """Make what the chosen store needs. Raises StoreUnavailable or StoreUnusable."""
    check_extras(config)
    return anyio.run(BACKENDS[config.store].create, config)


def examine(config: Config, *, repair: bool) -> list[Finding]:
    """What the chosen store has to say of itself."""
    return anyio.run(BACKENDS[config.store].examine, config, repair)


def examine_phorge(config: Config, *, children_known: bool) -> list[Finding]:
    """What Phorge answers to calls that run nothing. `children_known`: php-fpm's pools are looked at elsewhere."""
    from handlers import phorge_doctor

    async def ask() -> list[Finding]:
        found: list[Finding] = []
        if config.conduit_url is not None:
            asked = _asked(config, config.conduit_url)
            found += await phorge_doctor.examine(asked, children_known=children_known)
        if config.gateway and config.gateway_url not in {None, config.conduit_url}:
            assert config.gateway_url is not None
            found.append(await phorge_doctor.examine_gateway(_asked(config, config.gateway_url)))
        return found or [note("conduit", f"{PREFIX}CONDUIT_URL is not set: Phorge runs nothing for this process")]

    return anyio.run(ask)


def look_at_phd(config: Config) -> Phd:
    """What Phorge itself says of its taskmasters. The queue is in MySQL."""
    from stores import mysql_doctor

    async def ask() -> Phd:
        alive = await mysql_doctor.taskmasters(_mysql_settings(config), options_of(config))
        url = config.conduit_url
        return Phd(alive, None if url is None else await _wanted_taskmasters(_asked(config, url)))

    return anyio.run(ask)


async def _wanted_taskmasters(asked: "Asked") -> int | None:
    from conduit.errors import ConduitError
    from handlers.execution import Unreadable, read_taskmasters
    from handlers.phorge import ask

    try:
        _, answer = await ask(asked.client(asked.token))
    except (OSError, ConduitError, Unreadable):
        return None
    return read_taskmasters(answer)


def examine_files(config: Config, checkout: Checkout | None, pools: Sequence[Path]) -> Iterator[Finding]:
    """What the configuration of a Phorge on this machine says, and that of php-fpm."""
    from handlers import phorge_files

    if config.conduit_url is None:
        yield note("conduit", f"{PREFIX}CONDUIT_URL is not set, so there is nothing to compare Phorge's settings with")
        return
    asked = _asked(config, config.conduit_url)
    if checkout is not None:
        yield from phorge_files.examine_checkout(checkout, asked)
    for path in pools:
        yield from phorge_files.examine_pool(path, asked)


def _asked(config: Config, url: str) -> "Asked":
    from handlers.phorge_doctor import Asked

    return Asked(
        url=url,
        token=config.conduit_token,
        host=config.conduit_host,
        tls_ca=config.conduit_tls_ca,
        concurrency=config.conduit_concurrency,
        patterns=config.conduit_classes,
        namespace=config.namespace if _in_phorges_tables(config) else None,
    )


def _in_phorges_tables(config: Config) -> bool:
    return "mysql" in {config.store, config.record if config.store == "streams" else ""}


def book_of(current: Current) -> Callable[[], Awaitable[tuple[str, ...] | None]] | None:
    """Tells the hosts whose taskmasters Phorge's book of daemons has as alive, or None where it cannot be read.

    Itself None where the queue is in no table that they know.
    """

    async def look() -> tuple[str, ...] | None:
        from stores import mysql_doctor

        return await mysql_doctor.taskmasters(_mysql_settings(current.config), options_of(current.config))

    return look if _in_phorges_tables(current.config) else None


def natives_of(current: Current) -> Callable[[], Awaitable[bool]] | None:
    """Says whether taskmasters of Phorge's own may be alive; None: the queue is in no table that they know."""
    book = book_of(current)

    async def by_the_book() -> bool:
        assert book is not None
        alive = await book()
        return alive is None or bool(alive)

    async def unseen() -> bool:
        return False  # where the queue is, is the server's affair: what Phorge itself says must do

    if book is not None:
        return by_the_book
    return unseen if current.config.store == "remote" else None


def options_of(config: Config) -> StoreOptions:
    """What every store takes."""
    return StoreOptions(
        patience=config.patience,
        max_lost=config.max_lost,
        retention=None if config.retention_days is None else config.retention_days * DAY,
        routes=config.routes,
        read_only=config.shadow,
    )


@asynccontextmanager
async def opening(current: Current) -> AsyncIterator[Store]:
    """The store. A shadow of streams opens the record alone, so that Redis is left as it is too."""
    config = current.config
    chosen = config.record if config.shadow and config.store == "streams" else config.store
    async with BACKENDS[chosen].opening(current, options_of(config)) as store:
        yield store


async def serve(
    config: Config, read: Callable[[], Reading], registry: Registry | None, entries: Sequence[CronEntry]
) -> int:
    """Open the store and run everything on it. `registry` None: no worker."""
    current = Current(config)
    async with opened(current) as store:
        runtime = build(current, read, store, registry, entries)
        gc.freeze()  # all this stays: a full collection would walk it each time, and nothing is answered for 20 ms
        code = await supervise(runtime)
    if runtime.lease_loop is not None and runtime.lease_loop.abandoned_ids:
        end_process(code)  # a handler that does not end would hold up the end of the event loop for ever
    return code


@asynccontextmanager
async def opened(current: Current) -> AsyncIterator[Store]:
    """The store, as soon as it can be opened: a file that somebody else holds is waited for.

    Nothing owns the signals yet, so one of them ends the wait and the process; see `leave_when_told`.
    """
    outage = Outage("start")
    async with AsyncExitStack() as stack:
        while True:
            try:
                store = await stack.enter_async_context(opening(current))
            except StoreUnavailable as error:
                await anyio.sleep(outage.failed(error))
            else:
                outage.over()
                break
        yield store


def build(
    current: Current,
    read: Callable[[], Reading],
    store: Store,
    registry: Registry | None,
    entries: Sequence[CronEntry] = (),
) -> Runtime:
    """All parts of one process, as its roles want them."""
    config = current.config
    if config.shadow:
        store = ShadowStore(store)  # before anybody gets it: no part of a shadow can write, whatever it tries
    guard = Guard(config.token)
    lifecycle = Lifecycle()
    doorbell = Doorbell()
    settler = Settler(store, lifecycle=lifecycle)
    intake = Intake(store, enqueued=doorbell.ring)
    heartbeat = lease_loop = watchdog = delegation = shadow = selftest = None
    if config.shadow:
        registry = Registry() if registry is None else registry
        if config.conduit_url is not None:  # for its classes: Phorge is not asked
            delegate_to_phorge(current, config.conduit_url, registry, lifecycle, doorbell.ring)
        shadow = Shadow(store, registry, lifecycle, current, book=book_of(current))
    elif registry is not None:
        if config.conduit_url is not None:
            delegation = delegate_to_phorge(current, config.conduit_url, registry, lifecycle, doorbell.ring)
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
            queues=None if config.queues is None else frozenset(config.queues),
        )
    sweep_loop = cron_loop = None
    if config.ready_selftest:
        selftest = SelftestLoop(store, lifecycle)
    if "sweep" in config.roles and shadow is None:
        sweep_loop = SweepLoop(store, lifecycle, sweep_seconds=config.sweep_seconds)
        remembered = look_back(options_of(config).retention)
        cron_loop = CronLoop(store, lifecycle, entries, look_back=remembered, enqueued=doorbell.ring)
    worker: WorkerView | None = lease_loop if shadow is None else shadow
    metrics = Metrics(
        store,
        lifecycle=lifecycle,
        settler=settler,
        worker=worker,
        conduit=None if delegation is None else delegation.delegate,
        cron=cron_loop,
    )
    runtime = Runtime(
        lifecycle=lifecycle,
        store=store,
        intake=intake,
        settler=settler,
        doorbell=doorbell,
        lease_loop=lease_loop,
        heartbeat=heartbeat,
        watchdog=watchdog,
        sweep_loop=sweep_loop,
        cron_loop=cron_loop,
        figures=None if registry is None else partial(look_at_figures, metrics, current),
        phorge=None if delegation is None else delegation.phorge.run,
        selftest=None if selftest is None else selftest.run,
        shadow=None if shadow is None else shadow.run,
        on_started=say_where,
        grace_seconds=config.grace_seconds,
    )
    ask_again = None if delegation is None else delegation.phorge.ask_again
    live = Live(runtime, guard, registry, ask_again)
    runtime.reload = Reloader(current, read=read, prepare=live.prepare).reload
    app = create_app(
        store=store,
        intake=intake,
        settler=settler,
        doorbell=doorbell,
        lifecycle=lifecycle,
        current=current,
        guard=guard,
        reload=runtime.reload,
        worker=worker,
        metrics=metrics,
        selftest=selftest,
    )
    if config.gateway:
        app = with_gateway(app, config, guard, lifecycle, metrics)
    runtime.server = Server(app, listen=config.listen, kind=config.server, lifecycle=lifecycle)
    return runtime


def delegate_to_phorge(
    current: Current, url: str, registry: Registry, lifecycle: Lifecycle, ring: Callable[[], None]
) -> Delegation:
    """Give the registry a fallback: the Phorge at this address."""
    config = current.config
    try:
        client = ConduitClient(
            url,
            token_now=lambda: current.config.conduit_token,
            host=config.conduit_host,
            concurrency=config.conduit_concurrency,
            max_reply=config.conduit_max_reply,
            tls_ca=config.conduit_tls_ca,
        )
    except OSError as error:
        raise _bad_authorities(error) from error
    phorge = Phorge(client, lifecycle, opened=ring, natives=natives_of(current))
    delegate = Delegate(client, phorge, patterns=config.conduit_classes, lease_seconds=config.lease_seconds)
    # PHP goes on whatever we do, so a run is waited for even when our lease is no longer sure
    registry.fallback(delegate, concurrency=config.conduit_concurrency, finish_unsure=True, gate=delegate)
    return Delegation(delegate, phorge)


def _bad_authorities(error: OSError) -> ConfigError:
    """What stops the start where a file of authorities cannot be used; SSLError is an OSError too."""
    return ConfigError([f"{PREFIX}CONDUIT_TLS_CA must be a file of certificates: {error}"])


class Trial(NamedTuple):
    """What a worker of this configuration would run tasks by, for one that is run outside of any loop."""

    registry: Registry
    phorge: Phorge | None


def trial(config: Config) -> Trial:
    """The handlers, and the Phorge behind the fallback. Raises ConfigError."""
    registry = load_handlers(config)
    if config.conduit_url is None:
        return Trial(registry, None)
    found = delegate_to_phorge(Current(config), config.conduit_url, registry, Lifecycle(), lambda: None)
    return Trial(registry, found.phorge)


def with_gateway(app: ASGIApp, config: Config, guard: Guard, lifecycle: Lifecycle, metrics: Metrics) -> ASGIApp:
    """The app with the gateway in front."""
    url = config.gateway_url or config.conduit_url
    assert url is not None  # config.py sees to it

    def observe(scope: Scope, status: int | None, seconds: float) -> None:
        client = str(scope["client"][0]) if scope.get("client") else "local"
        if status is None:
            log.info("the client went away", uri=access.uri(scope), client=client)
            return
        metrics.request("/api/{method}", status, seconds)
        access.line(scope, status, seconds, "-", client)

    try:
        return Gateway(
            app,
            url,
            guard.allows,
            observe,
            lifecycle.stopping.is_set,
            host=config.conduit_host,
            tls_ca=config.conduit_tls_ca,
            seconds=config.gateway_seconds,
            max_body=config.gateway_max_body,
            rate=config.gateway_rate,
            burst=config.gateway_burst,
            exempt=config.gateway_exempt,
        )
    except OSError as error:
        raise _bad_authorities(error) from error


async def look_at_figures(metrics: Metrics, current: Current, stop: anyio.Event) -> None:
    """Have classes that wait and that nobody here runs named in the log, even where nobody scrapes."""
    while await rest(stop, lambda: current.config.sweep_seconds):
        await metrics.refresh()


def say_where(addresses: Sequence[str]) -> None:
    """Tell people and scripts where the faces are."""
    log.info("listening", addresses=list(addresses))

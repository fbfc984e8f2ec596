"""Starts the loops, and stops them in the order that loses nothing."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup

from queue_runtime.cron_loop import CronLoop
from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import QueueRuntimeError
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.intake import Intake
from queue_runtime.lease_loop import LeaseLoop
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import Settler
from queue_runtime.signals import owned_signals
from queue_runtime.store import Store
from queue_runtime.sweep_loop import SweepLoop
from queue_runtime.task import Settlement, Unknown, Verdict
from queue_runtime.watchdog import Watchdog

EXIT_CRASHED = 1
EXIT_UNFINISHED = 3
"""Some tasks were neither settled nor released; the last log line has their ids."""

SERVER_SECONDS = 15.0
"""Bound for the closing of the HTTP server, which has a shorter one of its own."""

CRASH_SECONDS = 10.0
"""Bound for putting things in order after a crash."""

CRASH_DRAIN_SECONDS = 2.0

LAST_ROUND_SECONDS = 5.0

_WRITTEN = (Verdict.SETTLED, Verdict.REPLAYED)

LEFT_BEHIND_WAIT = 5
"""Seconds after which a task may run again whose handler did not end: by then this process is gone, and it with it."""

ECHO_SECONDS = 0.05
"""A signal this soon after the first is the same order, sent to the process and to its group (as `timeout` does)."""

SETTLER = "settler"
INTAKE = "intake"
SERVER = "HTTP server"
RELOAD = "reload"

Loop = Callable[[], Awaitable[object]]


class HttpServer(Protocol):
    """What the supervisor needs of server.py."""

    async def run(self, on_started: Callable[[Sequence[str]], None] | None = None) -> None: ...


@dataclass(kw_only=True)
class Runtime:
    """The parts of one process, put together by compose.py. What its roles do not need is None."""

    lifecycle: Lifecycle
    store: Store
    intake: Intake
    settler: Settler
    doorbell: Doorbell
    lease_loop: LeaseLoop | None = None
    heartbeat: Heartbeat | None = None
    sweep_loop: SweepLoop | None = None
    cron_loop: CronLoop | None = None
    watchdog: Watchdog | None = None
    server: HttpServer | None = None
    on_started: Callable[[Sequence[str]], None] | None = None
    figures: Callable[[anyio.Event], Awaitable[None]] | None = None
    """looks at the store's figures now and then, until told to stop"""

    reload: Callable[[], Awaitable[object]] | None = None
    """reads the settings again; it raises on nothing that is in them"""

    phorge: Callable[[anyio.Event], Awaitable[None]] | None = None
    """looks after the Phorge that runs delegated tasks, until told to stop"""

    selftest: Callable[[anyio.Event], Awaitable[None]] | None = None
    """tries the store now and then, until told to stop"""

    shadow: Callable[[anyio.Event], Awaitable[None]] | None = None
    """reports what a worker would do, until told to stop; there is no worker then"""

    grace_seconds: float = 30.0


async def supervise(runtime: Runtime) -> int:
    """Run until told to stop, or until a loop crashes; the exit code.

    The caller closes the stores afterwards. If `runtime.lease_loop.abandoned_ids` is not empty then, it has to
    leave by `signals.end_process`: a handler that does not stop would hold up every ordinary way out.
    """
    return await _Supervision(runtime).run()


class _Supervision:
    """One supervised life of the process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._log = structlog.get_logger().bind()
        self._hurry = anyio.Event()
        """the grace is over now: a second signal, or a crash"""
        self._last_stop = anyio.Event()
        """the loops that serve to the very end shall end"""
        self._ended: dict[str, anyio.Event] = {}
        self._server_tried = anyio.Event()
        """the server has its addresses, or cannot have them"""
        self._crashed = False
        self._group: TaskGroup | None = None
        self._told_at = -math.inf

    async def run(self) -> int:
        with owned_signals(self._on_stop, self._on_hangup):
            async with anyio.create_task_group() as group:
                self._group = group
                self._start(group, self._serving_loops())
                # A process whose address is taken must not take tasks in the moment that it lives.
                if self._runtime.server is not None:
                    await self._server_tried.wait()
                if not self._runtime.lifecycle.stopping.is_set():
                    self._start(group, self._working_loops())
                await self._runtime.lifecycle.stopping.wait()
                await self._stop_in_order()
                group.cancel_scope.cancel()
        await self._give_back_abandoned()
        unfinished = self._unfinished()
        if unfinished:
            self._log.error("stopped with tasks neither settled nor released", task_ids=unfinished)
        else:
            self._log.info("stopped")
        if self._crashed:
            return EXIT_CRASHED
        return EXIT_UNFINISHED if unfinished else 0

    def _start(self, group: TaskGroup, loops: Mapping[str, Loop]) -> None:
        for name, loop in loops.items():
            self._ended[name] = anyio.Event()
            group.start_soon(self._guard, name, loop)

    def _serving_loops(self) -> dict[str, Loop]:
        """What answers callers. None of it begins anything by itself."""
        runtime, stopping = self._runtime, self._runtime.lifecycle.stopping
        loops: dict[str, Loop] = {
            SETTLER: lambda: runtime.settler.run(self._last_stop),
            INTAKE: lambda: runtime.intake.run(self._last_stop),
            "doorbell": lambda: runtime.doorbell.listen(runtime.store, stopping),
        }
        if (server := runtime.server) is not None:
            loops[SERVER] = lambda: self._serve(server)
        return loops

    def _working_loops(self) -> dict[str, Loop]:
        """What takes tasks and cleans up."""
        runtime, stopping = self._runtime, self._runtime.lifecycle.stopping
        loops: dict[str, Loop] = {}
        if (watchdog := runtime.watchdog) is not None:
            loops["watchdog"] = lambda: watchdog.run(self._last_stop)
        if (heartbeat := runtime.heartbeat) is not None:
            loops["heartbeat"] = lambda: heartbeat.run(self._last_stop)
        if (lease_loop := runtime.lease_loop) is not None:
            loops["lease loop"] = lambda: lease_loop.run(stopping)
        if (sweep_loop := runtime.sweep_loop) is not None:
            loops["sweep loop"] = lambda: sweep_loop.run(stopping)
        if (cron_loop := runtime.cron_loop) is not None:
            loops["periodic work"] = lambda: cron_loop.run(stopping)
        if (figures := runtime.figures) is not None:
            loops["figures"] = lambda: figures(stopping)
        if (phorge := runtime.phorge) is not None:
            loops["conduit"] = lambda: phorge(stopping)
        if (selftest := runtime.selftest) is not None:
            loops["selftest"] = lambda: selftest(stopping)
        if (shadow := runtime.shadow) is not None:
            loops["shadow"] = lambda: shadow(stopping)
        return loops

    async def _serve(self, server: HttpServer) -> None:
        try:
            await server.run(self._on_listening)
        finally:
            self._server_tried.set()
        if not self._runtime.lifecycle.closing.is_set():
            raise RuntimeError("the HTTP server ended by itself")

    def _on_listening(self, addresses: Sequence[str]) -> None:
        if self._runtime.on_started is not None:
            self._runtime.on_started(addresses)
        self._server_tried.set()

    async def _guard(self, name: str, loop: Loop) -> None:
        """Let a crash end the process loudly, and the other loops in order."""
        try:
            await loop()
        except Exception as error:  # noqa: BLE001  it is what ends the process; nothing is hidden
            cause = _first(error)
            if isinstance(cause, QueueRuntimeError):
                self._log.error(f"{name} failed", reason=str(cause))
            else:
                self._log.error(f"{name} crashed", exc_info=error)
            self._crashed = True
            self._hurry.set()
            self._runtime.lifecycle.stopping.set()
        finally:
            self._ended[name].set()

    def _on_stop(self, signal_name: str) -> None:
        stopping = self._runtime.lifecycle.stopping
        now = time.monotonic()
        if stopping.is_set():
            if now - self._told_at < ECHO_SECONDS:
                return
            self._log.warning("second signal: the grace is over", signal=signal_name)
            self._hurry.set()
            return
        self._log.info("stopping", signal=signal_name, grace_seconds=self._runtime.grace_seconds)
        self._told_at = now
        stopping.set()

    def _on_hangup(self) -> None:
        reload, group = self._runtime.reload, self._group
        if reload is None or group is None or self._runtime.lifecycle.stopping.is_set():
            self._log.info("SIGHUP ignored: the process is on its way out")
            return
        self._log.info("SIGHUP: reading the settings again")
        self._start(group, {RELOAD: reload})

    async def _stop_in_order(self) -> None:
        """The stop order of docs/architecture.md. Leasing and sweep have heard of it by `lifecycle.stopping`."""
        runtime = self._runtime
        with anyio.move_on_after(CRASH_SECONDS if self._crashed else None):
            if runtime.lease_loop is not None:
                await runtime.lease_loop.finish(runtime.grace_seconds, self._hurry)
            if self._crashed:
                await runtime.settler.drain(seconds=CRASH_DRAIN_SECONDS)
            else:
                await runtime.settler.drain()
        runtime.lifecycle.closing.set()
        await self._wait_for(SERVER, SERVER_SECONDS)
        # Not before the server has closed: its last callers get their answers.
        self._last_stop.set()
        await self._wait_for(INTAKE, LAST_ROUND_SECONDS)
        await self._wait_for(SETTLER, LAST_ROUND_SECONDS)

    async def _give_back_abandoned(self) -> None:
        """Say of runs that do not end that nobody knows how they went, or their rows would count a lost worker.

        The very last thing, because the process ends at once now, and these runs with it. It may fail: then
        their leases run out.
        """
        lease_loop = self._runtime.lease_loop
        if lease_loop is None or not (leases := lease_loop.abandoned_leases):
            return
        settlements = [Settlement.held(lease, Unknown(LEFT_BEHIND_WAIT)) for lease in leases]
        try:
            with anyio.fail_after(LAST_ROUND_SECONDS):
                results = await self._runtime.store.settle(settlements)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not hold up the way out
            self._log.warning("runs that did not end are left to their leases", reason=repr(error))
            return
        ids = [one.task_id for one, done in zip(leases, results, strict=True) if done.verdict in _WRITTEN]
        if ids:
            self._log.warning("runs that did not end are given back", task_ids=ids, wait=LEFT_BEHIND_WAIT)

    async def _wait_for(self, name: str, seconds: float) -> None:
        if name in self._ended:
            with anyio.move_on_after(seconds):
                await self._ended[name].wait()

    def _unfinished(self) -> list[int]:
        runtime = self._runtime
        unfinished = set(runtime.settler.unwritten_ids)
        if runtime.heartbeat is not None:
            unfinished.update(runtime.heartbeat.task_ids)
        if runtime.lease_loop is not None:
            unfinished.update(runtime.lease_loop.abandoned_ids)
        return sorted(unfinished)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error

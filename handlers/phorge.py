"""What is known of the Phorge that runs delegated tasks: whether it can, and how it wants to be called."""

import random
import time
from collections.abc import Callable

import anyio
import structlog
from msgspec import Raw

from conduit.client import ConduitClient
from conduit.errors import CallFailed, ConduitError, Misconfigured, UnknownParameters
from handlers.brakes import Brakes
from handlers.execution import METHOD, NO_CLASS, PROBE, Terms, Unreadable, read_terms
from queue_runtime.backoff import RED_AFTER, Backoff, pause
from queue_runtime.lifecycle import Lifecycle

PROBE_SECONDS = 30.0
FIRST_WAIT = 0.1
LONGEST_WAIT = 15.0
REPAIR_SECONDS = 30.0
"""How often a Phorge is asked again that only an administrator can put right."""

LOOK_AGAIN_SECONDS = 60.0
"""How often it is asked while all goes well: PHP's side may have been replaced, by another version for example."""

REPEAT_AFTER = 30.0
"""Seconds between two log lines about the same outage."""

SOURCE = "conduit"

_NOTHING = Raw(b"null")


async def ask(client: ConduitClient) -> tuple[Terms, Raw]:
    """How PHP wants to be called, and its own words for it. Runs nothing; raises ConduitError or Unreadable."""
    try:
        answer = await client.call(METHOD, PROBE, seconds=PROBE_SECONDS)
    except UnknownParameters:
        return Terms(0), _NOTHING
    except CallFailed as error:
        if error.code == NO_CLASS:  # a version 0 in front of which nobody checks parameters
            return Terms(0), _NOTHING
        raise
    return read_terms(answer), answer


class Phorge:
    """Says whether delegated tasks may be leased, and asks PHP again after everything that makes that doubtful.

    `open` only after PHP has answered for itself. A fault that an administrator must remove is one loud line and
    a red readiness, and is asked for every half a minute; an outage is asked for with growing waits, which only an
    answer about a task makes short again, so that a Phorge that comes back is not run over. A Phorge that says it can
    run tasks is believed at once: what went wrong is then the affair of the class it went wrong for, and slows that
    alone.
    """

    def __init__(self, client: ConduitClient, lifecycle: Lifecycle, *, opened: Callable[[], None]) -> None:
        self._client = client
        self._lifecycle = lifecycle
        self._opened = opened
        self._backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        self._log = structlog.get_logger().bind(source=SOURCE)
        self.brakes = Brakes()
        self._terms: Terms | None = None
        self._doubt = anyio.Event()
        self._suspects: list[tuple[str, str]] = []
        """classes for which a call went wrong, and how, until it is known whether it was Phorge's own fault"""
        self._trouble = ""
        self._trouble_began = self._said_at = 0.0

    @property
    def open(self) -> bool:
        """Whether tasks may be leased for it."""
        return self._terms is not None and not self._doubt.is_set()

    @property
    def terms(self) -> Terms | None:
        """How it wants to be called, as far as is known."""
        return self._terms

    @property
    def trouble(self) -> str:
        """Why it is not open, as far as is known; empty while it is."""
        return self._lifecycle.faults.get(SOURCE, self._trouble)

    def doubt(self, task_class: str = "", reason: str = "") -> None:
        """A call (for this class) went wrong in a way that others may too: no more of them before PHP was asked."""
        if task_class:
            self._suspects.append((task_class, reason))
        self._doubt.set()

    def fine(self) -> None:
        """A call was answered in a way that only a Phorge which runs tasks can."""
        self._backoff.reset()

    async def run(self, stop: anyio.Event) -> None:
        """Look after it until told to stop."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._wake_at, stop)
            wait = 0.0
            while await pause(stop, wait):
                wait = await self.look()
                if self.open:
                    wait = 0.0
                    with anyio.move_on_after(LOOK_AGAIN_SECONDS):
                        await self._doubt.wait()
                        wait = FIRST_WAIT * random.uniform(0.5, 1.0)
            group.cancel_scope.cancel()

    async def _wake_at(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._doubt.set()

    async def look(self) -> float:
        """Ask once; the seconds until the next question, should the answer not be the right one."""
        try:
            terms, _ = await ask(self._client)
        except Misconfigured as error:
            self._closed(error.reason, error.fix)
            return REPAIR_SECONDS * random.uniform(0.75, 1.0)
        except (ConduitError, Unreadable) as error:
            self._closed(str(error), "")
            return self._backoff.next()
        self._open_with(terms)
        return 0.0

    def _open_with(self, terms: Terms) -> None:
        if terms != self._terms or self._trouble:
            self._log.info("Phorge runs tasks", version=terms.version, locks=terms.locks)
        self._trouble = ""
        self._lifecycle.fault(SOURCE, None)
        self._terms = terms
        self._doubt = anyio.Event()
        for task_class, why in self._suspects:
            self.brakes.strike(task_class, why)
        self._suspects.clear()
        self._opened()

    def _closed(self, reason: str, fix: str) -> None:
        self._terms = None
        self._suspects.clear()
        now = time.monotonic()
        if not self._trouble:
            self._trouble_began = now
        if fix:
            if reason != self._trouble:
                self._log.error("Phorge cannot run tasks, none is leased for it", reason=reason, fix=fix)
            self._lifecycle.fault(SOURCE, f"{reason}: {fix}")
        else:
            if not self._trouble or now - self._said_at >= REPEAT_AFTER:
                self._said_at = now
                self._log.warning("Phorge does not answer, no task is leased for it", reason=reason)
            if now - self._trouble_began >= RED_AFTER:
                self._lifecycle.fault(SOURCE, reason)
        self._trouble = reason

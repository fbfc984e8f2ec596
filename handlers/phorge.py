"""What is known of the Phorge that runs delegated tasks: whether it can, and how it wants to be called."""

import math
import random
import time
from collections.abc import Awaitable, Callable

import anyio
import structlog
from msgspec import Raw

from conduit.client import ConduitClient
from conduit.errors import CallFailed, ConduitError, Misconfigured, UnknownParameters
from handlers.brakes import Brakes
from handlers.execution import METHOD, NO_CLASS, PROBE, Terms, Unreadable, read_taskmasters, read_terms
from queue_runtime.backoff import RED_AFTER, Backoff
from queue_runtime.lifecycle import Lifecycle

PROBE_SECONDS = 30.0
FIRST_WAIT = 0.1
LONGEST_WAIT = 15.0
REPAIR_SECONDS = 30.0
"""How often a Phorge is asked again that only an administrator can put right."""

LOOK_AGAIN_SECONDS = 60.0
"""How often it is asked while all goes well: PHP's side may have been replaced, by another version for example."""

NATIVES_SECONDS = 5.0
NATIVES_AGAIN_SECONDS = 30.0
"""How long it may take to look for taskmasters of Phorge's own, and for how long what was seen is believed."""

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

    `natives`: whether taskmasters of Phorge's own may be alive, which lease from the same tables and know nothing of
    PHP's lock. None: the queue is in no table that they know.
    """

    def __init__(
        self,
        client: ConduitClient,
        lifecycle: Lifecycle,
        *,
        opened: Callable[[], None],
        natives: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._client = client
        self._natives = natives
        self._natives_run = True
        self._natives_until = 0.0
        self.alone = natives is None
        """nobody else leases these rows, as far as was known when Phorge was asked last"""
        self._lifecycle = lifecycle
        self._opened = opened
        self._backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        self._log = structlog.get_logger().bind(source=SOURCE)
        self.brakes = Brakes()
        self._terms: Terms | None = None
        self._doubt = anyio.Event()
        self._again = anyio.Event()
        self._shut = False
        self._fine_at = 0.0
        self._suspects: list[tuple[str, str]] = []
        """classes for which a call went wrong, and how, until it is known whether it was Phorge's own fault"""
        self._trouble = ""
        self._trouble_began = self._said_at = 0.0

    @property
    def open(self) -> bool:
        """Whether tasks may be leased for it."""
        return self._terms is not None and not self._shut

    @property
    def terms(self) -> Terms | None:
        """How it wants to be called, as far as is known."""
        return self._terms

    @property
    def trouble(self) -> str:
        """Why it is not open, as far as is known; empty while it is."""
        return self._lifecycle.faults.get(SOURCE, self._trouble)

    def doubt(self, task_class: str = "", reason: str = "", *, began: float = math.inf) -> None:
        """A call (for this class) went wrong in a way that others may too: no more of them before PHP was asked.

        Where another call was fine after this one `began`, it is most likely the class, and the others go on meanwhile.
        """
        if self._fine_at > began:
            self.brakes.strike(task_class, reason)
        else:
            self._shut = True
            if task_class:
                self._suspects.append((task_class, reason))
        self._doubt.set()

    def fine(self) -> None:
        """A call was answered in a way that only a Phorge which runs tasks can."""
        self._fine_at = time.monotonic()
        self._backoff.reset()

    def ask_again(self) -> None:
        """Ask at once, whatever the answer was: an administrator has changed something here."""
        self._backoff.reset()
        self._again.set()
        self._doubt.set()

    async def run(self, stop: anyio.Event) -> None:
        """Look after it until told to stop."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._wake_at, stop)
            wait = 0.0
            while await self._rest(stop, wait):
                wait = await self.look()
                if self.open:
                    wait = 0.0
                    with anyio.move_on_after(LOOK_AGAIN_SECONDS):
                        await self._doubt.wait()
                        wait = FIRST_WAIT * random.uniform(0.5, 1.0)
            group.cancel_scope.cancel()

    async def _wake_at(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._again.set()
        self._doubt.set()

    async def _rest(self, stop: anyio.Event, seconds: float) -> bool:
        """False when it is time to stop."""
        with anyio.move_on_after(seconds):
            await self._again.wait()
        if not stop.is_set():
            self._again = anyio.Event()
        return not stop.is_set()

    async def look(self) -> float:
        """Ask once; the seconds until the next question, should the answer not be the right one."""
        try:
            terms, answer = await ask(self._client)
            self.alone = await self._is_alone(read_taskmasters(answer))
            terms = terms._replace(alone=self.alone)
        except Misconfigured as error:
            self._closed(error.reason, error.fix)
            return REPAIR_SECONDS * random.uniform(0.75, 1.0)
        except (ConduitError, Unreadable) as error:
            self._closed(str(error), "")
            return self._backoff.next()
        except Exception as error:  # noqa: BLE001  whatever a peer says, it must not end this process
            self._log.exception("the answer of Phorge was not expected", exc_info=error)
            self._closed(f"its answer was not expected ({type(error).__name__})", "")
            return self._backoff.next()
        self._open_with(terms)
        return 0.0

    async def _is_alone(self, taskmasters: int | None) -> bool:
        """Whether it is known that no taskmaster of Phorge's own leases the same rows."""
        if self._natives is None:
            return True
        if taskmasters != 0:
            return False
        now = time.monotonic()
        if now >= self._natives_until:
            self._natives_run = True
            with anyio.move_on_after(NATIVES_SECONDS):
                self._natives_run = await self._natives()
            self._natives_until = now + NATIVES_AGAIN_SECONDS
        return not self._natives_run

    def _open_with(self, terms: Terms) -> None:
        if terms != self._terms or self._trouble:
            self._log.info("Phorge runs tasks", version=terms.version, locks=terms.locks, alone=terms.alone)
        self._trouble = ""
        self._lifecycle.fault(SOURCE, None)
        self._terms = terms
        self._shut = False
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

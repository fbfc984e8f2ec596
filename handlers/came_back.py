"""What becomes of a delegated task that came back without an outcome: its wait, what is said of it, and who pays."""

import math
from collections.abc import Mapping
from typing import NoReturn

import structlog

from conduit.errors import CallFailed, ConduitError, NotReached, OutcomeUnknown, RequestTooLarge, UnknownParameters
from handlers.execution import Answer, Terms, Unreadable
from handlers.phorge import Phorge
from handlers.setbacks import Setbacks, grown
from queue_runtime.registry import Retry, Unknown, Yield
from queue_runtime.task import YIELD_FLOOR, Task

NOT_RUN_WAIT = 15
LONGEST_NOT_RUN_WAIT = 3600
"""Waits of a task that Phorge did not get to see, or turned away unread: twice as long with each time in a row."""

NOT_FOR_PHP_WAIT = 300
"""Wait of a task that this Phorge will not run, or cannot take. Another process may, or an administrator sees to it."""

LONGEST_BUSY_WAIT = 7200


class CameBack:
    """Judges whether a call that went wrong tells of Phorge, of a class, or of one task, and makes that one wait.

    Phorge is *doubted*, and asked at once, after whatever it may share with other calls; a class is slowed when it goes
    wrong time after time; a task waits longer each time it was not run.
    """

    def __init__(self, phorge: Phorge, *, lease_seconds: int) -> None:
        self._phorge = phorge
        self._lease_seconds = lease_seconds
        self._setbacks = Setbacks()
        self._log = structlog.get_logger().bind()

    @property
    def counts(self) -> Mapping[str, int]:
        """All of them since the start, by why."""
        return self._setbacks.counts

    def lost_owners(self, task: Task) -> tuple[str, ...]:
        """The leases of this task whose answers were lost since its last outcome."""
        return self._setbacks.lost(task.id)

    def lost(
        self, task: Task, error: OutcomeUnknown, wait: int | None, *, longest: int, began: float = math.inf
    ) -> NoReturn:
        """Nobody knows how the run ended. `wait` None: PHP holds a lock which everybody who may lease the task asks
        for, so it may be leased again soon. `began`: when the call did, by the clock of this process.

        A task that ends so each time is then asked for ever more seldom, up to `longest`.
        """
        self._phorge.doubt(task.task_class, str(error), began=began)
        times = self._setbacks.add(task.id, "answer lost")
        self._setbacks.lose(task.id, task.lease_owner or "")
        short = self._lease_seconds
        seconds = grown(short, times, max(short, longest)) if wait is None else wait
        self._log.warning(
            "nobody knows how a run in PHP ended, and it may still go on",
            reason=str(error),
            task_id=task.id,
            task_class=task.task_class,
            object_phid=task.object_phid,
            owner=task.lease_owner,
            wait=seconds,
            times=times,
        )
        raise Unknown(seconds) from None

    def failed(
        self, task: Task, terms: Terms, error: ConduitError | Unreadable, *, began: float = math.inf
    ) -> NoReturn:
        """Phorge answered, but not about the work; or it was not reached."""
        if isinstance(error, RequestTooLarge):
            self.refused(task, "size", str(error))
        if not isinstance(error, CallFailed | Unreadable):  # turned away unread, by no fault of the task
            self.not_run(task, "not reached" if isinstance(error, NotReached) else "turned away", error, began=began)
        code = error.code if isinstance(error, CallFailed) else ""
        if code == "ERR-WORKER-CLASS":
            self._phorge.fine()
            reason = f"Phorge does not allow this class here ({error})"
            self._phorge.brakes.hold(task.task_class, NOT_FOR_PHP_WAIT, reason)
            self.refused(task, "class", reason)
        if code == "ERR-WORKER-CONTEXT" and terms.version:
            # the fork's own method compares the lease with PHP's clock
            self._phorge.fine()
            self._phorge.brakes.strike(task.task_class, str(error))
            self.refused(task, "call", f"Phorge refuses this call unread ({error}): do the clocks differ?")
        changed = terms.version == 1 if isinstance(error, UnknownParameters) else code == "ERR-WORKER-CONTEXT"
        if changed:  # the method is asked anew what version it is
            self.not_run(task, "another version", error)
        if code and not code.startswith("ERR-CONDUIT-"):
            self.odd(task, str(error))  # the method itself has said so, of this task
        self._phorge.doubt(task.task_class, str(error), began=began)
        self._setbacks.over(task.id)
        raise Retry(reason=str(error))

    def busy(self, task: Task, retry: int | None, answer: Answer, *, hold: int | None = None) -> NoReturn:
        """PHP did not begin this run, because of another one of the same task.

        `hold`: seconds for which others must not get the row, who would not ask PHP whether it is busy.
        """
        self._phorge.fine()
        usual = "an earlier run of this task goes on in PHP, which holds its lock"
        lockless = "PHP could not ask for the task's lock; its own log says why"  # the extension names a wait only then
        reason = answer.reason[:300] if answer.failure_reason else (usual if retry is None else lockless)
        usual_wait = self._lease_seconds if hold is None else hold
        wait = usual_wait if retry is None else min(max(retry, 1), LONGEST_BUSY_WAIT)
        times = self._setbacks.add(task.id, "busy")
        if times & (times - 1) == 0:  # the first, second, fourth … time
            self._log.warning(
                "PHP is busy with this task; looked at again",
                reason=reason,
                task_id=task.id,
                task_class=task.task_class,
                wait=wait,
                times=times,
            )
        raise Unknown(wait)

    def fine(self, task: Task) -> None:
        """Phorge gave an outcome."""
        self._phorge.fine()
        self._phorge.brakes.fine(task.task_class)
        self._setbacks.over(task.id)

    def odd(self, task: Task, reason: str) -> NoReturn:
        """A Phorge that is there answered, and it is a failure: of this task, or of its class."""
        self._phorge.fine()
        self._phorge.brakes.strike(task.task_class, reason)
        self._setbacks.over(task.id)
        raise Retry(reason=reason)

    def not_run(self, task: Task, kind: str, error: ConduitError | Unreadable, *, began: float = math.inf) -> NoReturn:
        """Nothing ran, and it is no failure. Should Phorge be well all the same, it is about this task or its class."""
        self._phorge.doubt(task.task_class, str(error), began=began)
        times = self._setbacks.add(task.id, kind)
        wait = grown(NOT_RUN_WAIT, times, LONGEST_NOT_RUN_WAIT)
        self._setbacks.say(
            "Phorge did not run this task; put off, no failure is counted", task, str(error), wait=wait, times=times
        )
        raise Yield(wait)

    def refused(self, task: Task, kind: str, reason: str) -> NoReturn:
        """Phorge will not run it, until somebody sees to that."""
        self._setbacks.add(task.id, kind)
        self._setbacks.say("Phorge will not run this; put off, no failure is counted", task, reason, loud=True)
        raise Yield(NOT_FOR_PHP_WAIT)

    def too_early(self, task: Task, wait: int) -> NoReturn:
        """Phorge was not asked, because it or its class was in trouble when the turn came to this task."""
        self._setbacks.add(task.id, "not asked")
        raise Yield(max(wait, YIELD_FLOOR))

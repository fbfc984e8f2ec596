"""What a handler is given, and what it may raise to say how its run ends."""

import time
from typing import Protocol

from queue_runtime.errors import InvalidRequest
from queue_runtime.task import MAX_ATTEMPTS, MAX_FOLLOWUPS, NewTask, Task, check_range

MAX_DURATION_US = 2**63 - 1


class Ending(Exception):
    """Raised by a handler to say how its run ends, instead of returning."""


class Retry(Ending):
    """A temporary failure: run it again in `wait` seconds (None: as the retry policy of the class says).

    `max_attempts` replaces the class's own for this time: the run that reaches it ends the task as failed.
    """

    def __init__(self, wait: float | None = None, reason: str = "", max_attempts: int | None = None) -> None:
        super().__init__(reason)
        if max_attempts is not None:
            check_range("max_attempts", max_attempts, 1, MAX_ATTEMPTS)
        self.wait = wait
        self.reason = reason
        self.max_attempts = max_attempts


class Yield(Ending):
    """Not now, and not a failure: run it again in `wait` seconds (at least five), or when it is awakened."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"yield for {wait} s")
        self.wait = wait


class PermanentFailure(Ending):
    """It can never succeed: the task is archived as failed."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Unknown(Ending):
    """Nobody knows how it ended, and it is not a failure: look at it again in `wait` seconds."""

    def __init__(self, wait: float | None = None) -> None:
        super().__init__("outcome not known")
        self.wait = wait


class Running(Protocol):
    """What a context needs of the run behind it."""

    followups: list[NewTask] | None
    worked_us: int | None

    @property
    def deadline(self) -> float: ...

    @property
    def stopped(self) -> bool: ...

    async def renew(self, seconds: int) -> bool: ...


class Context:
    """One run of one task, as its handler sees it. Only `renew` must be called in the event loop."""

    __slots__ = ("_run", "task")

    def __init__(self, task: Task, run: Running) -> None:
        self.task = task
        self._run = run

    @property
    def attempt(self) -> int:
        """The number of this run: failures so far + 1."""
        return self.task.failure_count + 1

    @property
    def deadline(self) -> float:
        """When the run will be stopped, by `time.monotonic()`: the end of the lease, which moves with each renewal,
        or the time-out of the class, whichever comes first."""
        return self._run.deadline

    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def cancelled(self) -> bool:
        """Whether the run was told to stop. A thread has to look for itself."""
        return self._run.stopped

    def enqueue(self, task: NewTask) -> None:
        """Add a follow-up. It is committed in one step with the success of this run, and with nothing else.

        Without a priority it takes that of this task.
        """
        if not isinstance(task, NewTask):
            raise TypeError(f"a follow-up must be a NewTask, not {type(task).__name__}")
        followups = self._run.followups
        if followups is None:
            raise RuntimeError("the run has ended: a follow-up would never be stored")
        if len(followups) >= MAX_FOLLOWUPS:
            raise InvalidRequest("followups", f"must be at most {MAX_FOLLOWUPS}")
        followups.append(task)

    def worked(self, duration_us: float) -> None:
        """Say how long the work took, where somebody else has done and measured it (microseconds; parts are rounded).

        Raises InvalidRequest where it is no number.
        """
        try:
            whole = int(round(duration_us))  # noqa: RUF046  not every number rounds to an int
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest("duration_us", f"must be a number of microseconds, not {duration_us!r}") from None
        self._run.worked_us = min(max(whole, 0), MAX_DURATION_US)

    async def renew(self, seconds: int) -> bool:
        """Hold the lease for at least `seconds` from now, beyond what is renewed anyway.

        Useful before work that keeps the event loop busy. False: the lease is lost, and the run is being
        stopped. Raises StoreUnavailable. From a thread: `anyio.from_thread.run(context.renew, seconds)`.
        """
        return await self._run.renew(seconds)

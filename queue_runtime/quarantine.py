"""Runs tasks that have lost their workers before one at a time, so that the one that kills takes no other along."""

import math

from queue_runtime.run import Run
from queue_runtime.store import MAX_LOST
from queue_runtime.task import Task

SUSPECT_LOSSES = 2
"""One loss is an ordinary kill. After two a task may be the reason, and so may each task that ran beside it."""

QUARANTINE_SECONDS = 15.0
"""A suspect that has lived so long is not what kills processes at once; the next one may run beside it."""


class Quarantine:
    """Which of the tasks just leased may start, and which stay away until the suspect under watch has shown itself.

    All that ran in a process that died have lost it alike, the culprit and its neighbours. From the second loss
    on they run one at a time among themselves, and everything else runs on beside them: what joins a culprit
    now has fewer losses than it, so the culprit is the first to be given up (decision 0005). A suspect whose
    next loss would be its last is watched to its end.
    """

    def __init__(self, *, max_lost: int = MAX_LOST, seconds: float = QUARANTINE_SECONDS) -> None:
        self._max_lost = max_lost
        self._suspect_losses = max(1, min(SUSPECT_LOSSES, max_lost - 1))
        self._seconds = seconds
        self._run: Run | None = None
        self._until = -math.inf
        self._held_back: set[int] = set()

    @property
    def held_back(self) -> frozenset[int]:
        """Suspects that were given back; no lease shall bring them until `over`."""
        return frozenset(self._held_back)

    def suspects(self, task: Task) -> bool:
        """Whether it may be what kills processes."""
        return task.lost_count >= self._suspect_losses

    def split(self, tasks: list[Task], now: float) -> tuple[list[Task], list[Task]]:
        """What to start, and what to give back: all suspects but the worst one, and this too while one is watched."""
        suspects = [task for task in tasks if self.suspects(task)]
        if not suspects:
            return tasks, []
        worst = None if self.watching(now) else max(suspects, key=lambda task: task.lost_count)
        others = [task for task in suspects if task is not worst]
        return [task for task in tasks if task is worst or not self.suspects(task)], others

    def hold_back(self, tasks: list[Task]) -> None:
        """These were given back."""
        self._held_back.update(task.id for task in tasks)

    def watch(self, run: Run, now: float) -> None:
        """A run was started: a suspect's keeps the other suspects waiting."""
        if self.suspects(run.task):
            last_chance = run.task.lost_count + 1 >= self._max_lost
            self._run = run
            self._until = math.inf if last_chance else now + self._seconds

    def watching(self, now: float) -> bool:
        """Whether a suspect runs that may still turn out to be the reason."""
        return self._run is not None and not self._run.ended and not self._run.abandoned and now < self._until

    def wait(self, now: float) -> float:
        """Seconds until those that were held back are worth a look, unless the suspect's run ends before."""
        if not self._held_back:
            return math.inf
        return self._until - now if self.watching(now) else 0.0

    def over(self, now: float) -> bool:
        """Whether those that were held back may come now; they are forgotten then."""
        if not self._held_back or self.watching(now):
            return False
        self._held_back.clear()
        return True

"""Runs a task that has lost its worker before on its own, so that it takes no neighbours with it."""

import math

from queue_runtime.run import Run
from queue_runtime.task import Task

SUSPECT_LOSSES = 2
"""One loss is an ordinary kill. After two a task may be the reason, and so may each task that ran beside it."""

QUARANTINE_SECONDS = 60.0
"""A suspect that has lived so long is not what kills processes at once; others may run beside it again."""


class Quarantine:
    """Which of the tasks just leased may start, and how long nothing else is leased.

    All that ran in a process that died have lost it alike, the culprit and its neighbours. From the second loss
    on each runs alone: a good one succeeds, which clears its count, and the culprit dies without company until
    the store gives it up.
    """

    def __init__(self, *, seconds: float = QUARANTINE_SECONDS) -> None:
        self._seconds = seconds
        self._run: Run | None = None
        self._until = -math.inf

    def split(self, tasks: list[Task]) -> tuple[list[Task], list[Task]]:
        """What to start, and what to give back: with suspects among them only the worst one starts."""
        if all(task.lost_count < SUSPECT_LOSSES for task in tasks):
            return tasks, []
        worst = max(tasks, key=lambda task: task.lost_count)
        return [worst], [task for task in tasks if task is not worst]

    def watch(self, run: Run, now: float) -> None:
        """A run was started: a suspect's keeps everything else waiting."""
        if run.task.lost_count >= SUSPECT_LOSSES:
            self._run = run
            self._until = now + self._seconds

    def wait(self, now: float) -> float:
        """Seconds for which nothing else may be leased, unless the suspect's run ends before."""
        if self._run is None or self._run.ended or now >= self._until:
            return 0.0
        return self._until - now

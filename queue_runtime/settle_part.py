"""The settlements of one caller, and the answers to them."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from queue_runtime.task import MAX_MESSAGE, MAX_TRACE, Complete, Fail, Outcome, Retry, Settled, Settlement

Done = Callable[[Settled], None]

NO_TASKS: frozenset[int] = frozenset()

ROW_BYTES = 400
"""What a new row counts beside its payload, so that a round has not too many of them either."""


class Part:
    """The settlements of one caller: of a request, or the one outcome of one of our own runs."""

    __slots__ = (
        "answer",
        "busy_until",
        "done",
        "due",
        "home",
        "in_line_for",
        "left",
        "results",
        "set_aside",
        "settlements",
        "short_of_room",
        "size",
        "unsure",
    )

    def __init__(
        self,
        settlements: Sequence[Settlement],
        *,
        done: Done | None = None,
        answer: asyncio.Future[list[Settled]] | None = None,
    ) -> None:
        self.settlements = settlements
        self.done = done
        self.answer = answer
        self.results: list[Settled | None] = [None] * len(settlements)
        self.left = len(settlements)
        """settlements without an answer"""
        self.unsure = False
        """an earlier round with it may have happened: its reply was lost"""
        self.home: Home | None = None
        """the one place where it is; `Unsettled` alone changes it"""
        self.due = 0.0
        self.busy_until: float | None = None
        """when to give up a row that somebody else has locked"""
        self.set_aside = False
        """it has been set aside before"""
        self.short_of_room = False
        """it has been refused for want of room"""
        self.in_line_for: frozenset[int] = NO_TASKS
        self.size = 0
        for settlement in settlements:
            outcome = settlement.outcome
            if type(outcome) is Complete:
                if outcome.followups:
                    self.size += sum([ROW_BYTES + len(task.data) for task in outcome.followups])
            elif isinstance(outcome, Fail | Retry):
                self.size += len(outcome.failure.message[:MAX_MESSAGE]) + len(outcome.failure.trace[:MAX_TRACE])

    @property
    def own(self) -> bool:
        """Whether it is the outcome of one of our own runs, which stays until it is written."""
        return self.answer is None

    @property
    def gone(self) -> bool:
        """Whether its caller has gone away."""
        return self.answer is not None and self.answer.done()

    @property
    def task_id(self) -> int:
        return self.settlements[0].task_id

    @property
    def open_places(self) -> list[int]:
        """Which of its settlements have no answer yet: all, or the rest whose rows somebody else had locked."""
        return [place for place, result in enumerate(self.results) if result is None]

    @property
    def needs_room(self) -> bool:
        """Whether it brings new tasks, for which a full store has no room."""
        return any(brings_tasks(self.settlements[place]) for place in self.open_places)

    def take(self, place: int, settled: Settled) -> None:
        """Take the answer to one settlement, the first and only one."""
        assert self.results[place] is None, f"task {self.settlements[place].task_id} was answered twice"
        self.results[place] = settled
        self.left -= 1

    def end_otherwise(self, outcome: Outcome) -> None:
        """Put another outcome in the place of the one of our own run."""
        self.settlements = (replace(self.settlements[0], outcome=outcome),)
        self.size = 0


Home = OrderedDict[Part, None]
"""A place for parts, in order of arrival. They are found in it by identity."""


def brings_tasks(settlement: Settlement) -> bool:
    """Whether new tasks come with this settlement."""
    return isinstance(settlement.outcome, Complete) and bool(settlement.outcome.followups)

"""What random histories are made of: few names and short times, so that things meet often."""

from msgspec import Struct

from queue_runtime.task import (
    Complete,
    Fail,
    Failure,
    NewTask,
    Outcome,
    Pause,
    PauseKind,
    Release,
    Retry,
    Unknown,
    Yield,
)
from tests.property.dice import Dice

HTTP_OWNERS = ("web1:1", "web2:2")
WAITS = (0, 1, 5, 10, 30)
SECONDS = (9, 1, 20)


class Variety(Struct, frozen=True):
    """The names of a history, how many tasks it enqueues at once, and how many lost runs end a task."""

    classes: tuple[str, ...]
    queues: tuple[str, ...]
    pauses: tuple[Pause, ...]
    most_new: int
    max_lost: int


NARROW = Variety(
    classes=("A", "B", "C"),
    queues=("default", "q"),
    pauses=(
        Pause(PauseKind.CLASS, "A"),
        Pause(PauseKind.QUEUE, "q"),
        Pause(PauseKind.CLASS, "C"),
        Pause(PauseKind.ALL),
    ),
    most_new=3,
    max_lost=2,
)
"""Everything meets in a few places."""

WIDE = Variety(
    classes=("A", "B", "C", "A/B", "/", "a:b", "~~~~~~~~~~", "0000000001", "\u00fc", "%s", "R:default/A", "x" * 64),
    queues=("default", "q", "R", "0000000001"),
    pauses=(
        Pause(PauseKind.CLASS, "A"),
        Pause(PauseKind.QUEUE, "q"),
        Pause(PauseKind.CLASS, "A/B"),
        Pause(PauseKind.QUEUE, "R"),
        Pause(PauseKind.ALL),
    ),
    most_new=12,
    max_lost=1000,  # a store that ends one at the head of a lease may look at its window anew
)
"""Dozens of lanes, some with names like parts of keys. With small windows (windows.py) it goes beyond them."""


def new_task(dice: Dice, now: int, variety: Variety = NARROW) -> NewTask:
    """A task with any of its options."""
    task_class, queue, key = dice.choose(variety.classes), dice.choose((None, *variety.queues)), dice.below(16)
    return NewTask(
        task_class=task_class,
        data=dice.choose(("[]", "\0\U0001f642", "")),
        priority=dice.choose((None, 1, 2000, 0)),
        object_phid=dice.choose((None, None, "PHID-1")),
        delay_until=now + dice.choose(WAITS) if dice.chance(5) else None,
        queue=queue,
        idempotency_key=f"k{key}" if key in (14, 15) else None,
        max_attempts=dice.choose((None, None, 1, 2)),
    )


def outcome(dice: Dice, now: int, variety: Variety = NARROW) -> Outcome:
    """Any way to end a run, success first."""
    match dice.below(10):
        case 0 | 1:
            return Complete(duration_us=5)
        case 2 | 3:
            return Complete(followups=[new_task(dice, now, variety) for _ in range(1 + dice.below(2))])
        case 4:
            return Fail(Failure("no"))
        case 5 | 6:
            failure = Failure("no \udcff", "trace", 7)
            return Retry(dice.choose(WAITS), failure, max_attempts=dice.choose((None, None, 1, 3)))
        case 7:
            return Yield(dice.choose(WAITS))
        case 8:
            return Unknown(dice.choose(WAITS))
        case _:
            return Release()

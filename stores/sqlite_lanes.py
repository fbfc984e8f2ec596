"""Lanes, the pairs of task class and queue, remembered for one connection."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from queue_runtime.task import Pause, PauseKind

if TYPE_CHECKING:
    from stores.sqlite_session import Session

SPARE = 1000
"""So many lanes, and as many as there were once more, are learnt until all are read anew: others may have gone."""


class Lanes:
    """What this connection knows of the table `lane`.

    A number always stands for the same pair, and what is new has a larger one, so that only these are read. A pair
    whose lane was taken away (sqlite_lane_sweep.py) comes back under a new number: what rows are written with is looked
    up in each transaction, and an old number that is still known here finds no rows. What was learnt in a transaction
    is forgotten when that is rolled back, because the number may then be given to another pair.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], int] = {}
        """those that this transaction has looked up"""
        self._known: dict[str, dict[str, int]] = {}
        """by class and queue"""
        self._newest = 0
        self._count = self._limit = 0
        """how many are known, and how many at most until all are read anew"""
        self._learnt: list[tuple[str, str]] = []
        """in this transaction, in the order of their numbers"""
        self._sure = 0
        """the newest before this transaction"""
        self._asked: _Asked | None = None
        self._chosen: list[int] = []
        self._text: str | None = None

    def begin(self) -> None:
        """A transaction begins: what is known by now is there to stay."""
        self._made.clear()
        self._learnt.clear()
        self._sure = self._newest

    def forget(self) -> None:
        """After a rollback, of the whole transaction or a part of it."""
        self._made.clear()
        for name, queue in self._learnt:
            self._known[name].pop(queue, None)
        if self._learnt:
            self._count -= len(self._learnt)
            self._newest = self._sure
            self._learnt.clear()
            self._asked = None

    def _read_again(self) -> None:
        self._known.clear()
        self._learnt.clear()
        self._newest = self._sure = self._count = 0
        self._asked = None

    def gone(self) -> None:
        """Lanes were taken away: read all of them again."""
        self._made.clear()
        self._read_again()

    def id_of(self, session: "Session", task_class: str, queue: str) -> int:
        """The number of a lane, which is made when it is new."""
        known = self._made.get((task_class, queue))
        if known is not None:
            return known
        found = session.rows("find_lane", (task_class, queue)) or session.rows("add_lane", (task_class, queue))
        lane: int = found[0][0]
        self._made[task_class, queue] = lane
        return lane

    def refresh(self, session: "Session", newest: int | None) -> None:
        """Learn what was added; `newest` is the largest number in the table."""
        newest = newest or 0
        if newest == self._newest:
            return
        if newest < self._newest or self._count > self._limit:
            self._read_again()
        before = self._count
        for lane, name, queue in session.rows("lanes", (self._newest,)):
            self._known.setdefault(name, {})[queue] = lane
            self._learnt.append((name, queue))
            self._count += 1
            if self._asked is not None and self._asked.lets_pass(name, queue):
                self._chosen.append(lane)
                self._text = None
        self._newest = newest
        if self._count >= 2 * before:  # most of them are as new as if all had been read
            self._limit = 2 * self._count + SPARE

    def choose(
        self,
        classes: Collection[str] | None,
        without_classes: Collection[str],
        queues: Collection[str] | None,
        pauses: frozenset[Pause] = frozenset(),
    ) -> str | None:
        """The lanes that pass, as JSON; None: all of them."""
        if classes is None and not without_classes and queues is None and not pauses:
            return None
        key = (_frozen(classes), frozenset(without_classes), _frozen(queues), pauses)
        if self._asked is None or key != self._asked.key:
            self._asked, self._text = _Asked(key), None
            self._chosen = list(self._asked.passing(self._known))
        if self._text is None:
            self._text = str(self._chosen)
        return self._text


Key = tuple[frozenset[str] | None, frozenset[str], frozenset[str] | None, frozenset[Pause]]


class _Asked:
    """Which lanes one kind of lease may take from."""

    __slots__ = ("_classes", "_nothing", "_queues", "_stopped_classes", "_stopped_queues", "key")

    def __init__(self, key: Key) -> None:
        self.key = key
        self._classes, without, self._queues, pauses = key
        self._nothing = Pause(PauseKind.ALL) in pauses
        self._stopped_classes = without | {pause.name for pause in pauses if pause.kind is PauseKind.CLASS}
        self._stopped_queues = {pause.name for pause in pauses if pause.kind is PauseKind.QUEUE}

    def lets_pass(self, task_class: str, queue: str) -> bool:
        """Whether this lane passes."""
        return (
            not self._nothing
            and (self._classes is None or task_class in self._classes)
            and task_class not in self._stopped_classes
            and (self._queues is None or queue in self._queues)
            and queue not in self._stopped_queues
        )

    def passing(self, known: dict[str, dict[str, int]]) -> Iterable[int]:
        """Those of all that pass. Where classes are named no others are looked at."""
        for task_class in known if self._classes is None else self._classes:
            for queue, lane in known.get(task_class, {}).items():
                if self.lets_pass(task_class, queue):
                    yield lane


def _frozen(names: Collection[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)

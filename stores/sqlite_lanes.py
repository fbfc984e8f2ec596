"""Lanes, the pairs of task class and queue, remembered for one connection."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from queue_runtime.task import Pause, PauseKind

if TYPE_CHECKING:
    from stores.sqlite_session import Session


class Lanes:
    """What this connection knows of the table `lane`. Committed lanes never change, so nothing here grows stale;
    after a rollback it is forgotten, because a lane's number may then be given to another pair."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._newest: int | None = None
        self._asked: tuple[object, ...] | None = None
        self._chosen: str | None = None

    def forget(self) -> None:
        """After a rollback."""
        self._ids.clear()
        self._newest, self._asked = None, None

    def id_of(self, session: "Session", task_class: str, queue: str) -> int:
        """The number of a lane, which is made when it is new."""
        known = self._ids.get((task_class, queue))
        if known is not None:
            return known
        found = session.rows("find_lane", (task_class, queue)) or session.rows("add_lane", (task_class, queue))
        lane: int = found[0][0]
        self._ids[task_class, queue] = lane
        return lane

    def refresh(self, session: "Session", newest: int | None) -> None:
        """Learn what others added; `newest` is the largest number in the table."""
        if newest != self._newest:
            self._ids = {(name, queue): lane for lane, name, queue in session.rows("lanes")}
            self._newest, self._asked = newest, None

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
        asked = (_frozen(classes), frozenset(without_classes), _frozen(queues), pauses)
        if asked != self._asked:
            self._asked, self._chosen = asked, str(list(self._passing(*asked)))
        return self._chosen

    def _passing(
        self,
        classes: frozenset[str] | None,
        without_classes: frozenset[str],
        queues: frozenset[str] | None,
        pauses: frozenset[Pause],
    ) -> Iterable[int]:
        if Pause(PauseKind.ALL) in pauses:
            return
        stopped_classes = without_classes | {pause.name for pause in pauses if pause.kind is PauseKind.CLASS}
        stopped_queues = {pause.name for pause in pauses if pause.kind is PauseKind.QUEUE}
        for (task_class, queue), lane in self._ids.items():
            if (
                (classes is None or task_class in classes)
                and task_class not in stopped_classes
                and (queues is None or queue in queues)
                and queue not in stopped_queues
            ):
                yield lane


def _frozen(names: Collection[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)

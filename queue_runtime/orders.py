"""Which lanes of a worker wait for a task to be handed to them, and under which owners (store.Handing)."""

from collections.abc import Collection, Iterable

from msgspec import Struct

from queue_runtime.lanes import Lane

Wanted = tuple[Collection[str] | None, Collection[str]]
"""Classes, and classes left out."""


class _Standing(Struct):
    """What one lane has asked for: a lane has one order, or two after a call of which nobody knows how it went."""

    asked_at: dict[str, float]
    """owner -> monotonic time before the call; a task that is handed later has a lease that is longer"""

    wanted: Wanted
    doubtful: bool = False


class Orders:
    """The book of the lease loop. An order that may stand takes a slot, so that what is handed can start."""

    def __init__(self) -> None:
        self._of: dict[Lane, _Standing] = {}
        self._came: set[str] = set()

    def came(self, owner: str) -> None:
        """A task has come for the order of this owner. Its call may still be under way."""
        self._came.add(owner)

    def has_come(self, lane: Lane) -> bool:
        """Whether a task has come for an order of this lane, so that asking for it needs no round trip."""
        standing = self._of.get(lane) if self._came else None
        return standing is not None and not self._came.isdisjoint(standing.asked_at)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes with an order."""
        return list(self._of)

    def asked_at(self, lane: Lane) -> dict[str, float]:
        """The owners of a lane's orders, and when each was placed."""
        standing = self._of.get(lane)
        return {} if standing is None else standing.asked_at

    def beside(self, lane: Lane) -> int:
        """Orders of all other lanes."""
        return sum(len(standing.asked_at) for other, standing in self._of.items() if other is not lane)

    def is_doubtful(self, lane: Lane) -> bool:
        """Whether a call of the lane failed, so that another order would be one too many."""
        standing = self._of.get(lane)
        return standing is not None and standing.doubtful

    def is_outdated(self, lane: Lane) -> bool:
        """Whether the lane has asked for something else than it may run now."""
        standing = self._of.get(lane)
        return standing is not None and standing.wanted != wanted_by(lane)

    def stands(self, lane: Lane, wanted: Wanted, asked_at: dict[str, float]) -> None:
        """The order of this call, and no other."""
        self.end([lane])
        self._of[lane] = _Standing(asked_at, wanted)

    def may_stand(self, lane: Lane, wanted: Wanted, asked_at: dict[str, float]) -> None:
        """A call failed: its order may stand, and those before it too."""
        if asked := {**self.asked_at(lane), **asked_at}:
            self._of[lane] = _Standing(asked, wanted, doubtful=True)

    def end(self, lanes: Iterable[Lane]) -> None:
        """These have none."""
        for lane in lanes:
            self._came.difference_update(self.asked_at(lane))
            self._of.pop(lane, None)


def wanted_by(lane: Lane) -> Wanted:
    """What the lane may be handed now."""
    return lane.classes, lane.without_classes

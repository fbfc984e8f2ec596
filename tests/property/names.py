"""Which id of a real store stands for which of the reference: the two draw their own, and theirs may have gaps."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from queue_runtime.task import ArchivedTask, Lease, Settled, Settlement, SweepReport, Task


class Names:
    """A history speaks of tasks by the reference's ids; calls of the real store are put into its own, and back.

    What was never paired is shown with a minus, which no reply of the reference can equal.
    """

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._here: dict[int, int] = {}
        self._data: dict[int, int] = {}
        """real id -> the reference's data id"""
        self._owners: dict[int, int] = {}
        """real data id -> real id of the task it belongs to"""

    def __str__(self) -> str:
        return ", ".join(f"{here} is {there}" for here, there in self._there.items())

    @property
    def real(self) -> Collection[int]:
        """The ids of the real store that are known."""
        return self._here.keys()

    def pair(self, wanted: Task, found: Task) -> None:
        """The two stores made this row, each under its own ids, or answer one that they made before."""
        if wanted.id in self._there or found.id in self._here:
            return
        assert found.data_id not in self._owners, f"two tasks share the data of {found.data_id}"
        self._there[wanted.id] = found.id
        self._here[found.id] = wanted.id
        self._data[found.id] = wanted.data_id
        self._owners[found.data_id] = found.id

    # ---- what goes to the real store

    def call(self, args: Iterable[Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of a method of the store. Only lists hold ids, and the options named here."""
        return [self._sent(value) if isinstance(value, list) else value for value in args], {
            name: self._option(name, value) for name, value in options.items()
        }

    def id(self, task_id: int) -> int:
        """The real store's id of this task. One that was never paired is unknown there too, and goes as it is."""
        return self._there.get(task_id, task_id)

    def _option(self, name: str, value: Any) -> Any:
        match name:
            case "only" | "without":
                return frozenset(map(self.id, value))
            case "before" if value is not None:
                return self.id(value)
            case "after" if value is not None:
                return value[0], self.id(value[1])
            case _:
                return value

    def _sent(self, value: Any) -> Any:
        match value:
            case list():
                return [self._sent(one) for one in value]
            case int():
                return self.id(value)
            case Lease():
                return Lease(self.id(value.task_id), value.owner, value.expires)
            case Settlement():
                return Settlement(self.id(value.task_id), value.outcome, self._sent(value.lease))
            case _:
                return value

    # ---- what comes from it

    def reply(self, value: Any) -> Any:
        """An answer of the real store, in the ids of the reference."""
        match value:
            case list():
                return [self.reply(one) for one in value]
            case Task() | ArchivedTask():
                return replace(value, id=self._here.get(value.id, -value.id), data_id=self._data_of(value))
            case Settled():
                return replace(value, archived=self.reply(value.archived))
            case SweepReport():  # what a dispatch is told again is no state of the queue
                return replace(value, redelivered=0)
            case _:
                return value

    def _data_of(self, row: Task | ArchivedTask) -> int:
        """A task keeps its data's id for ever, active and archived, and shares it with no other."""
        return self._data[row.id] if self._owners.get(row.data_id) == row.id else -row.data_id

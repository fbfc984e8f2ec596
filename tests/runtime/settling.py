"""What tests of the settler share: a clock that they move, and a store with locked rows and no room."""

import asyncio
from collections.abc import Sequence

from queue_runtime.errors import InvalidRequest, StoreFull
from queue_runtime.settle_part import brings_tasks
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, NewTask, Settled, Settlement, Verdict, Yield
from tests.reference_store import ReferenceStore

WITH_CHILD = Complete(followups=[NewTask(task_class="Child")])

REFUSED = Yield(666)
"""An outcome that no TroubledStore will have."""


class Seconds:
    """A monotonic clock that moves only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class TroubledStore(ReferenceStore):
    """Rows may be locked by somebody else, there may be no room for new tasks, and REFUSED is refused.

    Each call takes some turns of the event loop. `sent` has the tasks of each call, `busy` counts answers BUSY and
    `no_room` the calls refused for want of room.
    """

    def __init__(self) -> None:
        super().__init__(StoreOptions())
        self.locked: set[int] = set()
        self.full = False
        self.busy = 0
        self.no_room = 0
        self.sent: list[list[int]] = []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        self.sent.append([one.task_id for one in settlements])
        for _ in range(3):
            await asyncio.sleep(0)
        if any(one.outcome == REFUSED for one in settlements):
            raise InvalidRequest("wait", "not here")
        if self.full and any(brings_tasks(one) for one in settlements):
            self.no_room += 1
            raise StoreFull("settle", "no room")
        free = iter(await super().settle([one for one in settlements if one.task_id not in self.locked]))
        self.busy += sum(one.task_id in self.locked for one in settlements)
        return [Settled(Verdict.BUSY) if one.task_id in self.locked else next(free) for one in settlements]

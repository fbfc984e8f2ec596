"""A store refuses with an error that says nothing about the outcome: it may not take a success for a failure."""

from collections.abc import Sequence

import anyio
import pytest

from queue_runtime.settler import Settler
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Result, Settled, Settlement
from tests.reference_store import ReferenceStore

OWNER = "qr:0badcafe:1:1@test"


class WordOfAProxyError(Exception):
    """As a driver raises what no table of a store knows."""


class Moody(ReferenceStore):
    """Refuses that many calls."""

    def __init__(self, refusals: float) -> None:
        super().__init__(StoreOptions())
        self.refusals = refusals

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if self.refusals > 0:
            self.refusals -= 1
            raise WordOfAProxyError("upstream failure")
        return await super().settle(settlements)


async def submitted(store: Moody, count: int) -> tuple[Settler, list[Settled]]:
    await store.enqueue([NewTask(task_class="A")] * count)
    settler, told = Settler(store), list[Settled]()
    for row in await store.lease(OWNER, count, 60):
        settler.submit(Settlement.held(Lease(row.id, OWNER), Complete(5)), told.append)
    return settler, told


@pytest.mark.parametrize(("count", "refusals"), [(1, 1), (2, 1), (2, 2)])
async def test_an_error_that_passes_leaves_every_success_as_it_is(count: int, refusals: int) -> None:
    settler, told = await submitted(Moody(refusals), count)
    await settler.round()
    assert [one.archived.result for one in told if one.archived is not None] == [Result.SUCCESS] * count


@pytest.mark.parametrize("count", [1, 2])
async def test_an_error_that_stays_ends_the_loop_and_keeps_the_success(count: int) -> None:
    store = Moody(float("inf"))
    settler, told = await submitted(store, count)
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await settler.run(anyio.Event())
    assert len(settler.unwritten_ids) == count
    store.refusals = 0
    assert await settler.drain() == []
    assert [one.archived.result for one in told if one.archived is not None] == [Result.SUCCESS] * count

"""A full store takes no new tasks: outcomes with follow-ups wait for room, and no other outcome waits with them."""

from collections.abc import Sequence

import pytest

from queue_runtime.errors import StoreFull
from queue_runtime.settler import Settler
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, NewTask, Settled, Settlement, Verdict
from tests.reference_store import ReferenceStore
from tests.runtime.harness import ended, until
from tests.runtime.test_settler import Answers, leased, serving

WITH_CHILD = Complete(followups=[NewTask(task_class="Child")])


class FullStore(ReferenceStore):
    """A store without room: whatever brings new tasks is refused as a whole."""

    def __init__(self) -> None:
        super().__init__(StoreOptions())
        self.full = True
        self.refusals = 0

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        outcomes = [one.outcome for one in settlements]
        if self.full and any(isinstance(outcome, Complete) and outcome.followups for outcome in outcomes):
            self.refusals += 1
            raise StoreFull("settle", "no room")
        return await super().settle(settlements)


async def test_outcomes_with_followups_wait_for_room_and_the_others_are_written() -> None:
    store = FullStore()
    first, second, third = await leased(store, 3)
    async with serving(Settler(store)) as settler:
        answers = Answers(settler)
        answers.submit(first, WITH_CHILD)
        answers.submit(second)  # in one round with it
        await until(lambda: second.task_id in answers.verdicts)
        answers.submit(third)  # and after it
        await until(lambda: third.task_id in answers.verdicts)
        await until(lambda: store.refusals > 2)
        assert settler.unwritten_ids == [first.task_id]
        store.full = False
        await until(lambda: first.task_id in answers.verdicts)
        assert settler.waiting == 0
    assert set(answers.verdicts.values()) == {Verdict.SETTLED}
    assert [row.task_class for row in await store.list_active(9)] == ["Child"]


async def test_a_caller_hears_at_once_that_there_is_no_room_and_others_of_the_round_do_not() -> None:
    store = FullStore()
    first, second = await leased(store, 2)
    settler = Settler(store)
    answers = Answers(settler)
    answers.submit(second)  # waits for the first round, with the call
    async with serving(settler):
        with pytest.raises(StoreFull, match="no room"):
            await settler.settle([Settlement.held(first, WITH_CHILD)])
        await until(lambda: second.task_id in answers.verdicts)
    assert ended(store, first.task_id) is None


async def test_a_stop_does_not_wait_for_room_for_ever_and_names_what_waits() -> None:
    store = FullStore()
    (lease,) = await leased(store, 1)
    async with serving(Settler(store)) as settler:
        Answers(settler).submit(lease, WITH_CHILD)
        await until(lambda: store.refusals > 0)
        assert await settler.drain(seconds=0.1, bound=0.3) == [lease.task_id]

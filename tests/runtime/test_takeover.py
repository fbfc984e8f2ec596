"""Who works on the queue is told by all the rows that matter, and by no others; and what is not seen is not done."""

import pytest

from queue_runtime import takeover
from queue_runtime.takeover import Phd, Waiting, Who, Worker, look, look_at_waiting, verdict
from queue_runtime.task import Complete, Lease, NewTask, Settlement
from tests.reference_store import ReferenceStore
from tests.runtime.harness import open_reference

NATIVE = "23192:1796040935:web1:2"
OURS = "qr:0badcafe:1:1@test"
WORKER = Worker("here", ours=True, supported=("*",))


async def run_some(store: ReferenceStore, owner: str, count: int) -> None:
    """Have so many tasks ended by this owner."""
    ids = [row.id for row in await store.enqueue([NewTask(task_class="A")] * count)]
    await store.lease(owner, count, 60, only=ids)
    await store.settle([Settlement.held(Lease(task_id, owner), Complete()) for task_id in ids])


async def test_pages_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "MAX_LIST", 2)
    store = open_reference()
    await run_some(store, OURS, 5)
    await store.enqueue([NewTask(task_class="B")] * 5)
    await store.lease(NATIVE, 5, 60)
    activity = await look(store, 60)
    assert activity.covered
    assert (activity.ended, activity.held) == ({Who.OURS: 5}, {Who.NATIVE: 5})
    assert activity.native_classes == {"B"}


@pytest.mark.parametrize("ended", [True, False])
async def test_it_is_not_done_when_there_are_more_rows_than_are_looked_at(*, ended: bool) -> None:
    store = open_reference()
    await run_some(store, OURS, 5 if ended else 1)
    await store.enqueue([NewTask(task_class="A")] * 4)
    await store.lease(OURS, 1 if ended else 4, 60)
    activity = await look(store, 60, rows=3)
    assert not activity.covered
    (finding, *_) = verdict(activity, Waiting((), ()), [WORKER], Phd())
    assert "not all were looked at" in finding.sentence
    everything = await look(store, 60)
    (finding,) = verdict(everything, await look_at_waiting(store), [WORKER], Phd())
    assert finding.sentence.startswith("done: ")

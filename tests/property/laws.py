"""Laws that hold for every history, judged by replies and rows alone and not by the reference's rules."""

from collections.abc import Collection, Mapping, Sequence

from queue_runtime.task import ArchivedTask, Lease, Settled, Settlement, Task, Verdict

Fence = tuple[int, str, int | None]


class Laws:
    """Watches one history. Each method raises AssertionError where a law is broken."""

    def __init__(self) -> None:
        self._last_id = 0
        self._settled: set[Fence] = set()
        self._granted: set[Fence] = set()
        self._gone: set[int] = set()

    def created(self, rows: Sequence[Task], known: Collection[int]) -> None:
        """An id is never given twice: a row is a known one (by its key or event) or has a larger id than all."""
        for task_id in dict.fromkeys(row.id for row in rows if row.id not in known):
            assert task_id > self._last_id, f"id {task_id} was given before"
            self._last_id = task_id

    def leased(self, taken: Sequence[Task], before: Mapping[int, Task], limit: int, now: int) -> None:
        """A lease hands out only active rows that nobody holds, each once, and no more than asked for."""
        assert len(taken) <= max(limit, 0)
        assert len({row.id for row in taken}) == len(taken)
        for row in taken:
            old = before[row.id]
            waits = old.lease_expires is not None and old.lease_expires > now
            assert not waits, f"task {row.id} was leased while {old.lease_owner} had it until {old.lease_expires}"

    def granted(self, rows: Sequence[Task | None], before: Collection[Task] = ()) -> None:
        """No receipt is granted twice. What was there `before` a renewal may be answered again."""
        kept = {_receipt(row) for row in before}
        for row in rows:
            if row is not None and not (row.lease_owner or "").startswith("qr:"):
                receipt = _receipt(row)
                assert receipt not in self._granted or receipt in kept, f"{receipt} was granted twice"
                self._granted.add(receipt)
                kept.add(receipt)

    def overwritten(self, row: Task) -> None:
        """Somebody writes over this row past the store, which then cannot know what was granted last."""
        self._granted.discard(_receipt(row))

    def settled(self, settlements: Sequence[Settlement], replies: Sequence[Settled]) -> None:
        """A fence that settled once never settles again."""
        for settlement, reply in zip(settlements, replies, strict=True):
            if settlement.lease is None or reply.verdict is not Verdict.SETTLED:
                continue
            fence = _fence(settlement.lease)
            if fence is not None:
                assert fence not in self._settled, f"{fence} settled twice"
                self._settled.add(fence)

    def placed(self, task_id: int, active: Task | None, archived: ArchivedTask | None) -> None:
        """A task is in exactly one of active and archive, until its retention is over; then it is gone for good."""
        assert active is None or archived is None, f"task {task_id} is active and archived"
        if active is None and archived is None:
            self._gone.add(task_id)
        else:
            assert task_id not in self._gone, f"task {task_id} came back from nowhere"


def _receipt(row: Task) -> Fence:
    return row.id, row.lease_owner or "", row.lease_expires


def _fence(lease: Lease) -> Fence | None:
    """What makes this lease unique: a worker's owner, or an HTTP caller's whole receipt. None: nothing does."""
    if lease.owner.startswith("qr:"):
        return lease.task_id, lease.owner, None
    return None if lease.expires is None else (lease.task_id, lease.owner, lease.expires)

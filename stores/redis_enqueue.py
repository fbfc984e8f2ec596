"""Enqueueing on Redis: a call is sent again under its number until it is answered, and is run once."""

import os
from collections.abc import Sequence

from queue_runtime.errors import EventConflict
from queue_runtime.store import Routes
from queue_runtime.task import DEFAULT_PRIORITY, NewTask, Sentinel, Task
from stores.redis_calls import Calls
from stores.redis_errors import MEND, Damaged
from stores.redis_rows import enqueued_task, new_task

_HEAD = 10 + 17
"""Bytes of an id and of the shortest head of a body."""

_DELAY = Sentinel.DELAY.value


class Enqueuer:
    """The enqueueing side of one process.

    A call takes a slot that no other call uses, and the next number of that slot. The server keeps the last answer of
    each slot, so a lost reply is asked for again, and nothing is enqueued twice.
    """

    def __init__(self, calls: Calls, routes: Routes) -> None:
        self._calls = calls
        self._routes = routes
        self._caller = os.urandom(8).hex()
        self._free_slots: list[int] = []
        self._slots = 0
        self._sequence = 0

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        """Add tasks, all or none."""
        packed = [part for task in tasks for part in new_task(task, self._routes, DEFAULT_PRIORITY)]
        slot = self._take_slot()
        self._sequence += 1
        try:
            now, first, answers = await self._calls.script(
                "enqueue",
                self._calls.highest_id,
                self._caller,
                slot,
                self._sequence,
                len(tasks),
                *packed,
                repeatable=True,
            )
        finally:
            self._free_slots.append(slot)
        return self._rows(tasks, now, int(first), answers)

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._slots += 1
        return self._slots

    def _rows(self, tasks: Sequence[NewTask], now: int, next_id: int, answers: Sequence[bytes]) -> list[Task]:
        """The rows of a call. `answers`: number, id and head of those that are not the next new one."""
        known = {
            int(number): enqueued_task(int(task_id), head)
            for number, task_id, head in zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        }
        rows: list[Task] = []
        for number, new in enumerate(tasks):
            if number in known:
                rows.append(known[number])
                continue
            rows.append(
                Task(
                    id=next_id,
                    task_class=new.task_class,
                    data_id=next_id,
                    priority=DEFAULT_PRIORITY if new.priority is None else new.priority,
                    date_created=now,
                    date_modified=now,
                    lease_owner=None if new.delay_until is None else _DELAY,
                    lease_expires=new.delay_until,
                    object_phid=new.object_phid,
                    container_phid=new.container_phid,
                    queue=self._routes.queue_for(new.task_class) if new.queue is None else new.queue,
                    idempotency_key=new.idempotency_key,
                    max_attempts=new.max_attempts,
                )
            )
            next_id += 1
        self._calls.saw(next_id - 1)
        return rows

    async def enqueue_once(self, event_id: str, digest: str, task: NewTask) -> Task:
        """Add the task of an event, or answer what the event was answered before."""
        packed = new_task(task, self._routes, DEFAULT_PRIORITY)
        answer: bytes = await self._calls.script(
            "enqueue_once", self._calls.highest_id, event_id, digest, *packed, repeatable=True
        )
        if (end := 2 + int.from_bytes(answer[:2])) + _HEAD > len(answer):
            raise Damaged("enqueue_once", f"the answer kept for event {event_id!r} is damaged, {MEND}")
        if answer[2:end] != digest.encode():
            raise EventConflict(event_id)
        row = enqueued_task(int(answer[end : end + 10]), answer[end + 10 :])
        self._calls.saw(row.id)
        return row

"""Leasing through the streams: reads entries in the order of queues, claims them in the record, takes them away."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import structlog
from msgspec import Struct

from queue_runtime.errors import StoreUnavailable
from queue_runtime.task import MAX_LEASE_BYTES, MAX_LEASE_LIMIT, Task
from stores.dispatchable import Candidate, Record
from stores.streams_bell import Bell
from stores.streams_chores import Chores
from stores.streams_feeder import CAP, Feeder
from stores.streams_line import Argument, Line, LineDownError
from stores.streams_order import Preference
from stores.streams_replies import Entry, Reading, read_entries, read_reading

LEASE_SECONDS = 0.5
"""A call that met nothing but entries of tasks that are no work any more goes on for so long."""

FORGOTTEN = 1
"""The reading's health when the server has nothing of what it was told."""

_REST_SECONDS = 0.25
"""For so long entries of which none could be claimed, because somebody has their rows locked, are kept from everybody:
the next reader would only give them back too, and wake another one by that."""

_NONSENSE_SECONDS = 60.0
"""Between two lines about entries that name no task."""

_log = structlog.get_logger().bind(source="dispatch")


class Asked(Struct, frozen=True, kw_only=True):
    """The arguments of Store.lease that the dispatch looks at."""

    owner: str
    limit: int
    seconds: int
    classes: Collection[str] | None
    without_classes: Collection[str]
    queues: Collection[str] | None
    without: Collection[int]
    due_first: bool


class Dispatcher:
    """Leases in the order "dispatch"."""

    def __init__(  # noqa: PLR0917
        self,
        record: Record,
        line: Line,
        feeder: Feeder,
        bell: Bell,
        chores: Chores,
        preference: Preference,
        *,
        cap: int = CAP,
    ) -> None:
        self._record = record
        self._line = line
        self._feeder = feeder
        self._bell = bell
        self._chores = chores
        self._preference = preference
        self._cap = cap
        self._nonsense = 0
        """entries without a task that were dropped since the last line about them"""
        self._nonsense_at = 0.0

    async def lease(self, asked: Asked) -> list[Task]:
        """Up to `limit` tasks. Raises LineDownError where the streams cannot be read and nothing was taken."""
        tasks: list[Task] = []
        try:
            await self._bring_back(asked.without)
            await self._fill(tasks, asked)
        except (LineDownError, StoreUnavailable):
            if not tasks:
                raise
        return tasks

    async def _bring_back(self, without: Collection[int]) -> None:
        """Give the streams again what this process could not have at an earlier call, and can now."""
        if back := self._feeder.kept_back.difference(without):
            await self._feeder.named(back)
            self._feeder.kept_back -= back

    async def _fill(self, tasks: list[Task], asked: Asked) -> None:
        """Queue by queue, until there is enough or nothing more."""
        queues, others_too = self._preference.of(asked.queues)
        limit = min(asked.limit, MAX_LEASE_LIMIT)
        passed: list[str] = []
        spent: list[str] = []
        until = time.monotonic() + LEASE_SECONDS
        while (room := limit - len(tasks)) > 0 and _size(tasks) < MAX_LEASE_BYTES // 2:
            reading = await self._read(asked, room, queues, (passed, spent), others_too=others_too)
            if reading.health == FORGOTTEN:  # nothing waits until the server has been told everything again
                tasks += await self._from_record(asked, room, asked.queues)
                return
            claimed, gave_back = await self._claim(asked, reading.entries)
            tasks += claimed
            if reading.stopped:
                came_short = reading.stopped in spent  # the record has been asked
                (spent if reading.behind else passed).append(reading.stopped)
                if limit > len(tasks) and not came_short:
                    # A filter by queue costs the record a fifth; where there is nothing else to find it needs none.
                    all_queues = reading.alone and asked.queues is None
                    tasks += await self._from_record(
                        asked,
                        limit - len(tasks),
                        None if all_queues else {reading.stopped},
                        no_entries=reading.behind and not reading.known,
                    )
            elif gave_back or len(reading.entries) + reading.malformed < room or time.monotonic() > until:
                return

    async def _read(
        self, asked: Asked, room: int, queues: Sequence[str], done: Sequence[Sequence[str]], *, others_too: bool
    ) -> Reading:
        """`done`: queues to pass over, and those of which the record has no more."""
        passed, spent = done
        classes = () if asked.classes is None else asked.classes
        listed = (queues, passed, spent, classes, asked.without_classes)
        counts = [len(names) for names in listed]
        if asked.classes is None:
            counts[3] = -1
        reading = await self._line.script(
            "streams_read",
            self._line.consumer,
            room,
            self._cap,
            int(others_too),
            *counts,
            *chain(*listed),
            read=read_reading,
        )
        self._see_to(reading)
        return reading

    def _see_to(self, reading: Reading) -> None:
        """Have done what the reading asks for."""
        if reading.malformed:
            self._tell_nonsense(reading.malformed)
        if reading.health:
            self._chores.start_once("deliver", self._feeder.deliver_all())
        for queue, priority, task_id in reading.low:
            self._chores.start(self._feeder.refill(queue, priority, task_id))

    def _tell_nonsense(self, entries: int) -> None:
        """One line now and then: who writes such entries may write many."""
        self._nonsense += entries
        if time.monotonic() >= self._nonsense_at:
            _log.warning("entries that name no task were dropped", entries=self._nonsense)
            self._nonsense, self._nonsense_at = 0, time.monotonic() + _NONSENSE_SECONDS

    async def _from_record(
        self, asked: Asked, limit: int, queues: Collection[str] | None, *, no_entries: bool = False
    ) -> list[Task]:
        tasks = await self._record.lease(
            asked.owner,
            limit,
            asked.seconds,
            classes=asked.classes,
            without_classes=asked.without_classes,
            queues=queues,
            without=asked.without,
            due_first=asked.due_first,
            order="dispatch",
        )
        if not no_entries:
            await self.forget(tasks)
        return tasks

    async def forget(self, tasks: Sequence[Task]) -> None:
        """These were leased past the streams: their entries stand for no work any more.

        Before anybody can give them back, or the new entry would be taken for the old one.
        """
        if tasks and self._line.open:
            await self._chores.hurry(self._feeder.drop([("", b"", task.id) for task in tasks]))

    async def _claim(self, asked: Asked, entries: Sequence[Entry]) -> tuple[list[Task], bool]:
        """Take what the record gives of these, in their order; whether some had to be given back."""
        if not entries:
            return [], False
        place = {entry.task_id: number for number, entry in enumerate(entries)}
        left = list(entries)
        try:
            tasks = await self._record.lease(
                asked.owner,
                len(place),
                asked.seconds,
                classes=asked.classes,
                without_classes=asked.without_classes,
                queues=asked.queues,
                only=place.keys(),
                without=asked.without,
                due_first=asked.due_first,
            )
            # Somebody had the row locked, or the reply was full. The feeder has to know of every pause that is met.
            still = await self._feeder.leasable(place.keys() - {task.id for task in tasks})
        except BaseException:
            # Nobody knows what was taken; an entry too many harms nobody.
            self._give_back(left, {})
            raise
        for task_id in still.keys() & set(asked.without):
            del still[task_id]
            self._feeder.kept_back.add(task_id)
        kept = [entry for entry in entries if entry.task_id in still]
        self._take_away([entry for entry in entries if entry.task_id not in still])
        self._give_back(kept, still, rest=0.0 if tasks else _REST_SECONDS)
        return sorted(tasks, key=lambda task: place[task.id]), bool(kept)

    def _take_away(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._chores.start(self._feeder.drop([entry[:3] for entry in entries]))

    def _give_back(self, entries: Sequence[Entry], tasks: Mapping[int, Candidate], *, rest: float = 0.0) -> None:
        if entries:
            self._chores.start(self._put_back(entries, tasks, rest))

    async def _put_back(self, entries: Sequence[Entry], tasks: Mapping[int, Candidate], rest: float) -> None:
        await asyncio.sleep(rest)
        words: list[Argument] = []
        for entry in entries:
            task = tasks.get(entry.task_id)
            words += (entry.queue, entry.number, entry.task_id)
            words += (entry.queue, entry.task_class) if task is None else (task.queue, task.task_class)
        self._bell.added(await self._line.script("streams_back", *words, read=read_entries), rings=False)


def _size(tasks: Sequence[Task]) -> int:
    return sum(len(task.data or "") for task in tasks)

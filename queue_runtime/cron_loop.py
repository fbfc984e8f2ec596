"""Enqueues periodic work: each slot once, over any number of processes."""

import math
import time
from collections.abc import Callable, Iterable, Sequence

import anyio
import structlog
from msgspec.structs import replace

from queue_runtime.backoff import Outage, pause
from queue_runtime.cron_file import CronEntry, Missed
from queue_runtime.cron_schedule import stamp
from queue_runtime.errors import InvalidRequest, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.store import Store
from queue_runtime.task import NewTask

LATE_SECONDS = 60
"""A slot at most this late is on time: a restart, a busy machine or a small step of the clock costs none."""

LOOK_SECONDS = 1.0
"""The clock is looked at this often, because it may be set and the machine may have slept."""

LOOK_BACK = 7 * 86400
"""Seconds within which `missed = "once"` makes up for a slot, unless the retention is short (`look_back`)."""

ENQUEUE_SECONDS = 20.0
REFUSED_SECONDS = 30.0
"""A store that refuses an entry is asked again after this time: somebody may have given it what it lacks."""

RED_AFTER = 600.0
BATCH = 500


def look_back(retention: int | None) -> int:
    """How far back a missed slot is made up for: well within the time for which the store remembers keys."""
    return LOOK_BACK if retention is None else min(LOOK_BACK, retention // 2)


class Post:
    """Where one entry stands: what it has seen, what comes next, and what waits for the store."""

    def __init__(self, entry: CronEntry, seen: int) -> None:
        self.entry = entry
        self.seen = seen
        """all slots up to this second are dealt with, or wait"""
        self.waiting: list[int] = []
        self.next = entry.schedule.after(seen)
        self._looked = False
        self.refused: str | None = None
        """why the store did not take its last slot"""
        self.last: int | None = None
        """the latest slot that is in the queue"""
        self.enqueued = 0

    def look(self, now: int) -> bool:
        """Note what has come due. Whether slots passed unseen, which nobody can know of the time before the start."""
        if now < self.seen:  # the clock was set back: what was enqueued already is known to the store by its key
            self.seen, self.next = now, self.entry.schedule.after(now)
            self.waiting = [slot for slot in self.waiting if slot <= now]
            self.refused = self.refused if self.waiting else None
        looked, self._looked = self._looked, True
        first = self.next
        if first is None or now < first:
            return False
        on_time = now - LATE_SECONDS
        fresh = self.entry.schedule.between(max(self.seen, on_time - 1), now)
        if not fresh and self.entry.missed is Missed.ONCE:
            latest = self.entry.schedule.latest(self.seen, now)
            fresh = [] if latest is None else [latest]
        self.seen, self.next = now, self.entry.schedule.after(now)
        # What the store did not take in time gives way to a newer slot.
        slots = self.waiting + fresh
        self.waiting = [slot for slot in slots if slot >= on_time or slot == slots[-1]]
        return looked and first < on_time

    def wrote(self, slot: int) -> None:
        """This slot is in the queue, by us or by somebody else."""
        self.refused = None
        if slot in self.waiting:
            self.waiting.remove(slot)
        if self.last is None or slot > self.last:
            self.last = slot
            self.enqueued += 1


class CronLoop:
    """Looks at the clock of this host, and enqueues each slot whose second has begun, never one before it.

    The key of name and slot makes it once: however many processes do so, whoever is first, and however often a
    call is repeated whose reply was lost.
    """

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        entries: Iterable[CronEntry],
        *,
        look_back: int = LOOK_BACK,
        enqueued: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._enqueued = enqueued
        self._now = now
        self._outage = Outage("periodic work", lifecycle, red_after=RED_AFTER)
        self._refused: str | None = None
        self._refused_until = -math.inf
        self._log = structlog.get_logger().bind()
        moment = int(now())
        back = {Missed.SKIP: LATE_SECONDS + 1, Missed.ONCE: max(look_back, LATE_SECONDS + 1)}
        self.posts = [Post(entry, moment - back[entry.missed]) for entry in entries]

    @property
    def entries(self) -> tuple[CronEntry, ...]:
        """What it enqueues."""
        return tuple(post.entry for post in self.posts)

    def replace(self, entries: Sequence[CronEntry]) -> None:
        """Go on with these entries. One that is new or has another schedule begins now: nothing of it was missed."""
        now = int(self._now())
        known = {post.entry.name: post for post in self.posts}
        posts = []
        for entry in entries:
            post = known.get(entry.name)
            if post is None or post.entry.schedule != entry.schedule:
                post = Post(entry, now)
            if post.entry != entry:
                post.refused = None
            post.entry = entry
            posts.append(post)
        self.posts = posts

    async def run(self, stop: anyio.Event) -> None:
        """Enqueue what comes due, until told to stop."""
        if self.posts:
            self._log.info("periodic work", entries=[post.entry.name for post in self.posts])
        wait = 0.0
        while await pause(stop, wait):
            try:
                written = await self.look_once()
            except StoreUnavailable as error:
                wait = self._outage.failed(error)
            except InvalidRequest as error:
                self._outage.over()
                self._refuse(error)
                wait = self._wait()
            else:
                self._outage.over()
                if written:
                    self._accept()
                wait = self._wait()

    async def look_once(self) -> int:
        """Enqueue what is due now; the number of slots.

        Raises StoreUnavailable, and nothing is forgotten then; InvalidRequest where the store refuses an entry, when
        all the others are in the queue.
        """
        now = int(self._now())
        for post in self.posts:
            first = post.next
            if post.look(now):
                made_up = [stamp(slot) for slot in post.waiting]
                self._log.warning("slots were missed", entry=post.entry.name, first=stamp(first or 0), made_up=made_up)
        rests = time.monotonic() < self._refused_until
        posts = self.posts  # a reload may replace them meanwhile
        due = sorted(
            (slot, place) for place, post in enumerate(posts) if not (rests and post.refused) for slot in post.waiting
        )
        refused: InvalidRequest | None = None
        for start in range(0, len(due), BATCH):
            refused = await self._write([(posts[place], slot) for slot, place in due[start : start + BATCH]]) or refused
        if refused is not None:
            raise refused
        return len(due)

    async def _write(self, part: Sequence[tuple[Post, int]]) -> InvalidRequest | None:
        """Enqueue these. What the store refuses keeps nothing else waiting; why it did."""
        try:
            await self._enqueue([_task(post.entry, slot) for post, slot in part])
        except InvalidRequest as error:
            if len(part) == 1:
                part[0][0].refused = str(error)
                return error
            refused = [await self._write([one]) for one in part]
            return next((error for error in refused if error is not None), None)
        self._enqueued()
        for post, slot in part:
            post.wrote(slot)
            self._log.debug("slot enqueued", entry=post.entry.name, slot=stamp(slot))
        return None

    async def _enqueue(self, tasks: list[NewTask]) -> None:
        try:
            with anyio.fail_after(ENQUEUE_SECONDS):
                await self._store.enqueue(tasks)
        except TimeoutError:
            raise StoreUnavailable("enqueue", "no answer") from None

    def _refuse(self, error: InvalidRequest) -> None:
        self._refused_until = time.monotonic() + REFUSED_SECONDS
        names = [post.entry.name for post in self.posts if post.refused]
        said = f"{names}: {error}"
        if self._refused != said:
            self._refused = said
            self._log.error(
                "periodic work is not enqueued: the store refuses it", reason=str(error), entries=names[:20]
            )

    def _accept(self) -> None:
        if self._refused is not None and not any(post.refused for post in self.posts):
            self._refused = None
            self._log.info("periodic work is enqueued again")

    def _wait(self) -> float:
        """Seconds until the next look: at the next slot, or soon."""
        waits = [LOOK_SECONDS, *(post.next - self._now() for post in self.posts if post.next is not None)]
        if any(post.refused for post in self.posts):
            waits.append(self._refused_until - time.monotonic())
        return max(min(waits), 0.001)


def _task(entry: CronEntry, slot: int) -> NewTask:
    return replace(entry.task, idempotency_key=entry.key(slot))

"""Leases what free slots can start now, and keeps the slots full."""

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import anyio
import structlog

from queue_runtime.backoff import Outage, pause
from queue_runtime.context import Context, Retry
from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import StoreUnavailable
from queue_runtime.handler_spec import ANY_CLASS, HandlerSpec
from queue_runtime.heartbeat import Heartbeat
from queue_runtime.lanes import SAFETY_SECONDS, Lane, lanes_of, supported
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.orders import Orders, wanted_by
from queue_runtime.owner import Owners
from queue_runtime.quarantine import Quarantine
from queue_runtime.registry import Registry
from queue_runtime.runner import STOP_SECONDS, Runner
from queue_runtime.settler import Settler
from queue_runtime.stats import WorkerStats
from queue_runtime.store import MAX_LOST, Handing, Store
from queue_runtime.task import MAX_LEASE_BYTES, MAX_LEASE_LIMIT, Lease, Release, Settled, Settlement, Task

GATHER_ROUNDS = 2
GATHER_SECONDS = 0.1
"""A lease waits for half of the slots to be free while this many settle rounds end, and never longer than this."""

LAST_CALL_SECONDS = 5.0
"""How long a shutdown waits for a lease call that is under way."""


async def _no_handler(context: Context, data: str) -> None:
    """Stands in where a store hands out a class that was not asked for (its names may not tell case apart)."""
    raise Retry(reason=f"no handler for task class {context.task.task_class}")


NO_HANDLER = HandlerSpec(ANY_CLASS, _no_handler)


class LeaseLoop:
    """The worker: one lease call at a time under a new owner each, one run for each task that it brings.

    A call takes no more than free slots can start. After a reply that was short the next call waits for the
    doorbell or for a second. While outcomes are being written it waits for half of the slots (of a lane, where it
    has fewer) to be free, but for two rounds at most: that makes batches of short tasks, and never keeps a slot
    from a long one's neighbours.

    Where the store can hand over (store.Handing), a lane whose reply was short has an order there, and the next task
    that comes alone is brought by a message. Each order has a slot; one that has none any more is withdrawn.
    """

    def __init__(  # noqa: PLR0917  collaborators come first, by position; settings after the star
        self,
        store: Store,
        registry: Registry,
        settler: Settler,
        heartbeat: Heartbeat,
        doorbell: Doorbell,
        lifecycle: Lifecycle,
        stats: WorkerStats,
        *,
        slots: int,
        lease_seconds: int,
        patience: int,
        retry_seconds: float,
        max_lost: int = MAX_LOST,
        classes: frozenset[str] | None = None,
        queues: frozenset[str] | None = None,
        owners: Owners | None = None,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._store = store
        self._handing = store if isinstance(store, Handing) else None
        self._orders = Orders()
        if self._handing is not None:
            self._handing.on_handed(self._came)
        self._registry = registry
        self._settler = settler
        self._heartbeat = heartbeat
        self._doorbell = doorbell
        self._lifecycle = lifecycle
        self.stats = stats
        self._slots = slots
        self._lease_seconds = lease_seconds
        # A reply older than this comes too late for the next renewal: others may have the tasks before it.
        self._too_late = lease_seconds * 2 / 3 + patience
        self._classes = classes
        self._queues = queues
        self._owners = Owners() if owners is None else owners
        self._outage = Outage("worker", lifecycle)
        self._log = structlog.get_logger().bind()
        self._runner = Runner(
            settler,
            heartbeat,
            stats,
            slots=slots,
            retry_seconds=retry_seconds,
            changed=self._wake,
            enqueued=doorbell.ring,
            stop_seconds=stop_seconds,
        )
        self._quarantine = Quarantine(max_lost=max_lost)
        self._lanes = lanes_of(registry, classes, slots=slots)
        self._call = asyncio.Lock()
        self._gathering: tuple[int, float] | None = None
        """settle rounds and time when the wait for more free slots began"""
        self._sleeper: asyncio.Future[None] | None = None
        stats.slots = slots
        doorbell.subscribe(self._wake)

    @property
    def supported(self) -> list[str]:
        """The classes this worker leases; `*` stands for all others, and patterns for those of a fallback."""
        return supported(self._registry, self._classes)

    @property
    def queues(self) -> list[str] | None:
        """The queues this worker leases from; None: all."""
        return None if self._queues is None else sorted(self._queues)

    @property
    def abandoned_ids(self) -> list[int]:
        """Tasks whose handlers did not stop when told to, and still run."""
        return self._runner.abandoned_ids

    @property
    def abandoned_leases(self) -> list[Lease]:
        """Their leases."""
        return self._runner.abandoned_leases

    def configure(self, *, slots: int, retry_seconds: float) -> None:
        """Work with these from now on, and with the caps that the handlers have now."""
        self._slots = self.stats.slots = slots
        self._runner.configure(slots=slots, retry_seconds=retry_seconds)
        self._lanes = lanes_of(self._registry, self._classes, slots=slots)
        self._wake()

    async def run(self, stop: anyio.Event) -> None:
        """Lease until told to stop. What runs then goes on; see `finish`."""
        self._say_what_is_leased()
        async with anyio.create_task_group() as group:
            group.start_soon(self._wake_at, stop)
            while not stop.is_set():
                try:
                    await self._withdraw(self._unfit())
                    wait = self._wait()
                    if wait > 0:
                        await self._sleep(wait)
                        continue
                    await self.lease_once(due_only=True)
                except StoreUnavailable as error:
                    await pause(stop, self._outage.failed(error))
                else:
                    self._outage.over()
            group.cancel_scope.cancel()

    async def finish(self, grace: float, hurry: anyio.Event) -> None:
        """Let the runs end within the grace, or until `hurry`; stop the rest and wait until they have ended.

        A lease call that is still under way gets a bound of its own: what it brings is given back.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._withdraw_all)
            await self._runner.finish(grace, hurry)
            group.cancel_scope.deadline = anyio.current_time() + LAST_CALL_SECONDS

    async def lease_once(self, *, due_only: bool = False) -> int:
        """One call for each lane that has room (and, with `due_only`, is worth one); the number of tasks started."""
        started = 0
        for lane in sorted(self._lanes, key=self._orders.has_come, reverse=True):
            limit = self._room(lane)
            if limit > 0 and not (due_only and self._own_wait(lane, time.monotonic()) > 0):
                limit = await self._keep_slots(lane, limit)
                started += await self._lease(lane, min(limit, MAX_LEASE_LIMIT))
        # The next time another lane has the first choice of the free slots.
        self._lanes = [*self._lanes[1:], *self._lanes[:1]]
        return started

    def _room(self, lane: Lane) -> int:
        free = 0 if lane.shut else self._runner.free
        return free if lane.capped is None else min(free, self._runner.room(lane.capped))

    def _most(self, lane: Lane) -> int:
        """The tasks of the lane that may run at once."""
        return self._slots if lane.capped is None else min(self._slots, lane.capped.concurrency or self._slots)

    def _own_wait(self, lane: Lane, now: float) -> float:
        return 0.0 if self._orders.has_come(lane) else lane.wait(self._doorbell.count, now)

    async def _keep_slots(self, lane: Lane, limit: int) -> int:
        """What the lane may ask for beside the slots of others' orders, which end where none is left."""
        if (left := self._runner.free - self._orders.beside(lane)) > 0:
            return min(limit, left)
        await self._withdraw([other for other in self._orders.lanes if other is not lane])
        return limit

    def _unfit(self) -> list[Lane]:
        """Lanes whose orders bring what could not run now."""
        if self._settler.full or self._heartbeat.failing:
            return self._orders.lanes
        return [
            lane
            for lane in self._orders.lanes
            if lane not in self._lanes or self._room(lane) <= 0 or self._orders.is_outdated(lane)
        ]

    async def _withdraw(self, lanes: list[Lane]) -> None:
        """End the orders of these; what they have been handed is given back untouched."""
        if self._handing is None or not lanes:
            return
        async with self._call:
            owners = [owner for lane in lanes for owner in self._orders.asked_at(lane)]
            tasks = await self._handing.lease(self._owners.next(), 1, self._lease_seconds, only=(), recall=owners)
            self._orders.end(lanes)
            self._give_back(tasks)

    async def _withdraw_all(self) -> None:
        """At the end. Where this fails the orders end by themselves, and what was just handed with its lease."""
        async with self._call:
            pass  # the call under way may place another
        with suppress(StoreUnavailable):
            await self._withdraw(self._orders.lanes)

    async def _lease(self, lane: Lane, limit: int) -> int:
        owner = self._owners.next()
        rings = self._doorbell.count
        if lane.wants_names(time.monotonic()):
            lane.learn([one.task_class for one in await self._store.backlog()], time.monotonic())
        if lane.classes is not None and not lane.classes:
            lane.answered(0, short=True, rings=rings, now=time.monotonic())
            return 0
        asked_at = time.monotonic()  # from BEFORE the call: a slow reply makes us stop early, never late
        async with self._call:
            if self._lifecycle.stopping.is_set():
                return 0  # the end of the worker waits for the call before this one, and for no other
            asked = {**self._orders.asked_at(lane), owner: asked_at}
            tasks = await self._ask(lane, limit, owner, asked_at)
            chosen = await self._part(tasks)
            # What did not fit is there for the next call; what was given back is not, and the quarantine tells when.
            # After a task that was handed there is no order any more: the next call places one.
            handed = any(task.lease_owner != owner for task in tasks)
            short = len(tasks) < limit and _size(tasks) < MAX_LEASE_BYTES // 2 and not handed
            lane.answered(len(tasks), short=short, rings=rings, now=time.monotonic())
            self._give_back(chosen[limit:])
            started = self._start(chosen[:limit], asked)
        if handed:
            await asyncio.sleep(0)  # the run begins first: the next call takes a while to be written
        return started

    async def _ask(self, lane: Lane, limit: int, owner: str, asked_at: float) -> list[Task]:
        call, wanted, stands = self._store.lease, wanted_by(lane), False
        if self._handing is not None:
            doubtful = self._orders.is_doubtful(lane)
            stands = self._handing.hands and not doubtful and not self._lifecycle.stopping.is_set()
            call = partial(self._handing.lease, stands=stands, recall=list(self._orders.asked_at(lane)))
        placed = {owner: asked_at} if stands else {}
        try:
            tasks = await call(
                owner,
                limit,
                self._lease_seconds,
                classes=wanted[0],
                without_classes=wanted[1],
                queues=self._queues,
                without=(*self._heartbeat.task_ids, *self._runner.abandoned_ids, *self._quarantine.held_back),
                due_first=not self._orders.has_come(lane) and lane.next_is_due_first(),
                order="dispatch",
            )
        except StoreUnavailable:
            self.stats.lease_errors += 1
            self._orders.may_stand(lane, wanted, placed)
            raise
        if placed and len(tasks) < limit:
            self._orders.stands(lane, wanted, placed)
        else:
            self._orders.end([lane])
        self.stats.leases += 1
        self.stats.last_lease_at = time.monotonic()
        self._gathering = None
        return tasks

    async def _part(self, tasks: list[Task]) -> list[Task]:
        """The tasks that may start. A suspect starts only when the other suspects are known to be given back.

        Its death would otherwise be counted as a loss of theirs too.
        """
        now = time.monotonic()
        chosen, others = self._quarantine.split(tasks, now)
        if not others:
            return chosen
        self._log.info("tasks that have lost their workers run one at a time", held_back=len(others))
        if self._quarantine.watching(now):
            self._give_back(others)
        else:
            try:
                await self._settler.settle([Settlement.held(_lease_of(task), Release()) for task in others])
            except StoreUnavailable:
                self._give_back([task for task in tasks if self._quarantine.suspects(task)])
                return [task for task in chosen if not self._quarantine.suspects(task)]
        self._quarantine.hold_back(others)
        return chosen

    def _start(self, tasks: list[Task], asked_at: Mapping[str, float]) -> int:
        """Run them. `asked_at`: when each owner was asked for."""
        now, late = time.monotonic(), []
        for task in tasks:
            owner = task.lease_owner or ""
            asked = asked_at[owner]
            if self._lifecycle.stopping.is_set() or now - asked > self._too_late:
                late.append(task)
                continue
            spec = self._registry.find(task.task_class) or NO_HANDLER
            run = self._runner.start(task, spec, owner, asked + self._lease_seconds)
            self._quarantine.watch(run, now)
        if late:
            self._log.info("lease came too late; given back", tasks=len(late))
            self._give_back(late)
        return len(tasks) - len(late)

    def _give_back(self, tasks: list[Task]) -> None:
        for task in tasks:
            self._settler.submit(Settlement.held(_lease_of(task), Release()), _forget)

    def _wait(self) -> float:
        """Seconds until the next lease call is worth making."""
        if self._settler.full or self._heartbeat.failing:
            return SAFETY_SECONDS
        now = time.monotonic()
        if self._quarantine.over(now):
            for lane in self._lanes:
                lane.look_again()
        wait, emptiest = math.inf, 0.0
        for lane in self._lanes:
            room = self._room(lane)
            if room > 0:
                if self._orders.has_come(lane):
                    return 0.0
                own = self._own_wait(lane, now)
                wait = min(wait, own)
                if own <= 0:
                    emptiest = max(emptiest, room / self._most(lane))
        return min(max(wait, self._gathering_wait(emptiest, now)), self._quarantine.wait(now))

    def _gathering_wait(self, emptiest: float, now: float) -> float:
        """Seconds for which more slots are likely to come free. `emptiest`: the free share of a lane worth a call."""
        if emptiest >= 0.5 or not self._settler.busy:
            return 0.0
        if self._gathering is None:
            self._gathering = (self._settler.rounds, now + GATHER_SECONDS)
        round_then, until = self._gathering
        return 0.0 if self._settler.rounds - round_then >= GATHER_ROUNDS else max(until - now, 0.0)

    def _came(self, owner: str) -> None:
        self._orders.came(owner)
        self._wake()

    def _wake(self) -> None:
        """Something changed: a slot, an outcome, a ring, the order to stop."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _wake_at(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._wake()

    async def _sleep(self, seconds: float) -> None:
        """Sleep until woken. Nothing is awaited between the look at the state and this, so no wake-up is lost."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer: asyncio.TimerHandle | None = None
        if seconds != math.inf:
            timer = loop.call_later(seconds, self._wake)
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()

    def _say_what_is_leased(self) -> None:
        supported = self.supported
        if not self._lanes:
            self._log.warning("this worker leases nothing: it has a handler for no class that it may take")
        else:
            self._log.info("worker started", classes=supported, slots=self._slots)
        if self._classes is not None and (missing := sorted(self._classes - set(supported))):
            self._log.warning("classes without a handler are left to others", classes=missing)


def _lease_of(task: Task) -> Lease:
    return Lease(task.id, task.lease_owner or "")


def _size(tasks: list[Task]) -> int:
    return sum(len(task.data or "") for task in tasks)


def _forget(settled: Settled) -> None:
    """Nothing waits for the end of a task that was never started."""

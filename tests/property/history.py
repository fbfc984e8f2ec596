"""Plays a random history to the reference store and to a real one, and compares everything after every step."""

from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any

from queue_runtime.errors import QueueRuntimeError
from queue_runtime.store import Store
from queue_runtime.task import (
    ArchivedTask,
    Lease,
    NewTask,
    Outcome,
    Result,
    Sentinel,
    Settlement,
    State,
    Task,
    TaskFilter,
)
from tests.backends import Opened
from tests.clock import Clock
from tests.property.choices import HTTP_OWNERS, NARROW, SECONDS, WAITS, Variety, new_task, outcome
from tests.property.dice import Dice
from tests.property.laws import Laws
from tests.property.names import Names

_calls = count(1)


class History:
    """One history: the two stores, what the callers of it know, and the log that a failure shows.

    All ids in it are the reference's.
    """

    def __init__(self, reference: Opened, real: Opened, clock: Clock, variety: Variety = NARROW) -> None:
        self._variety = variety
        self._reference = reference
        self._real = real
        self._clock = clock
        self._laws = Laws()
        self._names = Names()
        self._ids: list[int] = []
        self._leases: list[Task] = []
        self._settlements: list[Settlement] = []
        self._rows: dict[int, Task] = {}
        self.log: list[str] = []

    async def play(self, steps: Sequence[bytes]) -> None:
        """Take every step, and look at the whole state after each."""
        try:
            for step in steps:
                dice = Dice(step)
                await dice.choose(STEPS)(self, dice)
                await self._compare()
            await self._look_everywhere()
        except Exception as error:
            error.add_note("history:\n  " + "\n  ".join(self.log))
            error.add_note(f"ids of the real store: {self._names}")
            raise

    # ---- both stores

    async def _both(self, method: str, *args: Any, **options: Any) -> Any:
        """Call both stores; the replies, or the errors, must be equal."""
        self.log.append(f"{method}{args}{options or ''}")
        wanted = await _reply(self._reference.store, method, args, options)
        raw = await _reply(self._real.store, method, *self._names.call(args, options))
        if method in ("enqueue", "enqueue_once"):
            self._learn(_rows(wanted), _rows(raw))
        found = self._names.reply(raw)
        self.log.append(f"    -> {found}")
        assert found == wanted, f"{method} answered {found}, not {wanted}"
        return found

    async def _compare(self) -> None:
        """The whole state, row by row."""
        wanted = await self._state(self._reference.store, self._ids)
        found = self._names.reply(await self._state(self._real.store, [self._names.id(one) for one in self._ids]))
        for name, one, other in zip(("active", "archived", "history", "stats", "paused"), wanted, found, strict=True):
            assert other == one, f"{name} is {other}, not {one}"
        active, archived = found[0], found[1]
        for task_id, row, ended in zip(self._ids, active, archived, strict=True):
            self._laws.placed(task_id, row, ended)
        self._rows = {row.id: row for row in active if row is not None}

    async def _state(self, store: Store, ids: list[int]) -> list[Any]:
        active, archived = await store.get(ids), await store.get_archived(ids)
        return [active, archived, await store.history(ids), await store.stats(), await store.paused()]

    def _learn(self, wanted: Sequence[Task], found: Sequence[Task]) -> None:
        """Rows that both stores answered may be new ones."""
        self._laws.created(found, self._names.real)
        for one, other in zip(wanted, found, strict=False):  # what differs in number fails where it is compared
            self._names.pair(one, other)
        known = set(self._ids)
        self._ids += dict.fromkeys(row.id for row in wanted if row.id not in known)

    async def _look_everywhere(self) -> None:
        """The lists, by every state and result; and the backlog."""
        shown: list[Task] = await self._both("list_active", 5000)
        assert [row.id for row in shown] == sorted(self._rows, key=lambda one: (self._rows[one].priority, one))
        for state in State:
            await self._both("list_active", 5000, where=TaskFilter(states=frozenset({state})))
        ended: list[ArchivedTask] = await self._both("list_archived", 5000)
        assert not self._rows.keys() & {row.id for row in ended}
        for result in Result:
            await self._both("list_archived", 5000, where=TaskFilter(results=frozenset({result})))
        await self._both("backlog")

    # ---- steps

    async def nothing(self, dice: Dice) -> None:
        """What every step shrinks to."""

    async def enqueue(self, dice: Dice) -> None:
        new = [self._new(dice) for _ in range(1 + dice.below(self._variety.most_new))]
        await self._both("enqueue", new)

    async def enqueue_once(self, dice: Dice) -> None:
        await self._both("enqueue_once", dice.choose(("e1", "e2")), self._new(dice))

    async def lease(self, dice: Dice) -> None:
        await self._lease(dice, {})

    async def lease_part(self, dice: Dice) -> None:
        filters: dict[str, Any] = {"due_first": dice.chance(2)}
        kind = dice.below(5)
        if kind == 0:
            filters["classes"] = frozenset(dice.some(self._variety.classes, 2))
        elif kind == 1:
            filters["without_classes"] = frozenset(dice.some(self._variety.classes, 2))
        elif kind == 2:
            filters["queues"] = frozenset(dice.some(self._variety.queues, 2))
        elif kind == 3:
            filters["only"] = frozenset(dice.some(self._ids, 3))
        filters["without"] = frozenset(dice.some(self._ids, 2))
        await self._lease(dice, filters)

    async def _lease(self, dice: Dice, filters: dict[str, Any]) -> None:
        owner = f"qr:0:{next(_calls)}:1@h" if dice.chance(2) else dice.choose(HTTP_OWNERS)
        limit = dice.choose((1, 2, 5))
        taken = await self._both("lease", owner, limit, dice.choose(SECONDS), **filters)
        self._laws.leased(taken, self._rows, limit, self._clock.now)
        self._laws.granted(taken)
        self._leases += taken

    async def renew(self, dice: Dice) -> None:
        leases = [self._fence(dice) for _ in range(1 + dice.below(2))]
        renewed = await self._both("renew", leases, dice.choose(SECONDS))
        self._laws.granted(renewed, self._rows.values())
        self._leases += [row for row in renewed if row is not None]

    async def settle(self, dice: Dice) -> None:
        round_ = [Settlement.held(self._fence(dice), self._outcome(dice)) for _ in range(1 + dice.below(2))]
        await self._settle(round_)

    async def settle_again(self, dice: Dice) -> None:
        """What was sent before is sent again, perhaps with something new."""
        round_ = [dice.choose(self._settlements[-8:])] if self._settlements else []
        if dice.chance(2):
            round_.append(Settlement.held(self._fence(dice), self._outcome(dice)))
        await self._settle(round_)

    async def settle_unfenced(self, dice: Dice) -> None:
        await self._settle([Settlement.unfenced(self._id(dice), self._outcome(dice))])

    async def _settle(self, round_: list[Settlement]) -> None:
        replies = await self._both("settle", round_)
        self._laws.settled(round_, replies)
        self._settlements += round_
        wanted = await _new_rows(self._reference.store, self._ids)
        found = await _new_rows(self._real.store, self._names.real)
        assert len(found) == len(wanted), f"{len(found)} follow-ups, not {len(wanted)}"
        self._learn(wanted, found)

    async def cancel(self, dice: Dice) -> None:
        await self._both("cancel", self._some_ids(dice))

    async def free(self, dice: Dice) -> None:
        await self._both("free", self._some_ids(dice))

    async def awaken(self, dice: Dice) -> None:
        await self._both("awaken", self._ids if dice.chance(2) else self._some_ids(dice))

    async def priority(self, dice: Dice) -> None:
        await self._both("priority", self._some_ids(dice), dice.choose((1, 0, 2**32 - 1)))

    async def delay(self, dice: Dice) -> None:
        await self._both("delay", self._some_ids(dice), self._clock.now + dice.choose(WAITS))

    async def retry(self, dice: Dice) -> None:
        ids = (
            self._some_ids(dice)
            if dice.chance(4)
            else dice.some([one for one in self._ids if one not in self._rows], 2)
        )
        await self._both("retry", ids, repeat=dice.chance(2))

    async def pause(self, dice: Dice) -> None:
        await self._both("pause", dice.choose(self._variety.pauses))

    async def resume(self, dice: Dice) -> None:
        """One that is set, or any."""
        pauses = await self._reference.store.paused()
        await self._both("resume", dice.choose(self._variety.pauses if dice.chance(4) or not pauses else pauses))

    async def sweep(self, dice: Dice) -> None:
        await self._both("sweep", dice.choose((100, 1)))

    async def look(self, dice: Dice) -> None:
        """One page of a filtered list."""
        where = TaskFilter(
            classes=frozenset(dice.some(self._variety.classes, 2)) if dice.chance(2) else None,
            queues=frozenset(dice.some(self._variety.queues, 1)) if dice.chance(4) else None,
            states=frozenset(dice.some(list(State), 2)) if dice.chance(3) else None,
            min_failures=dice.choose((None, 1)),
            max_priority=dice.choose((None, 1)),
        )
        after = dice.choose((None, (1, self._id(dice)), (2000, self._id(dice))))
        await self._both("list_active", 3, offset=dice.below(2), after=after, where=where)
        await self._both("list_archived", 3, before=dice.choose((None, self._id(dice))), where=where)

    async def advance(self, dice: Dice) -> None:
        self._clock.advance(dice.choose((1, 2, 6, 12, 25, 60)))
        self.log.append(f"the clock says {self._clock.now}")

    async def write_past_the_rules(self, dice: Dice) -> None:
        """Another program writes owner and expiry, as native Phorge and its forks do."""
        owner = dice.choose((None, "23:5:web1:2", "gorge-failure-pending", "(yield)", "(other)"))
        expires = self._clock.now + dice.choose(WAITS) - 5
        if self._rows:
            task_id = dice.choose(sorted(self._rows))
            self._laws.overwritten(self._rows[task_id])
            self.log.append(f"somebody writes {owner}, {expires} into task {task_id}")
            await self._reference.plant(task_id, owner, expires)
            await self._real.plant(self._names.id(task_id), owner, expires)

    # ---- choices

    def _new(self, dice: Dice) -> NewTask:
        return new_task(dice, self._clock.now, self._variety)

    def _outcome(self, dice: Dice) -> Outcome:
        return outcome(dice, self._clock.now, self._variety)

    def _id(self, dice: Dice) -> int:
        return dice.choose(self._ids) if self._ids else 1

    def _some_ids(self, dice: Dice) -> list[int]:
        return [self._id(dice) for _ in range(1 + dice.below(2))] if not dice.chance(16) else self._ids

    def _fence(self, dice: Dice) -> Lease:
        """The fence of an earlier lease, as its holder would send it; at times a stale or a forged one."""
        if not self._leases:
            return Lease(self._id(dice), dice.choose((*HTTP_OWNERS, *Sentinel)))
        kind = dice.below(20)
        live = [task for task in self._leases if self._holds(task)]
        task = dice.choose(live or self._leases) if kind < 14 else dice.choose(self._leases)
        assert task.lease_owner is not None
        assert task.lease_expires is not None
        current = self._rows.get(task.id, task)
        match kind:
            case 15:
                return Lease(task.id, task.lease_owner, (current.lease_expires or 0) + 1)
            case 16:
                return Lease(task.id, current.lease_owner or "nobody", current.lease_expires)
            case 17:
                return Lease(task.id, dice.choose((*HTTP_OWNERS, *Sentinel)), current.lease_expires)
            case 18:
                return Lease(self._id(dice), task.lease_owner, task.lease_expires)
            case 19:
                return Lease(task.id, task.lease_owner)
            case _ if task.lease_owner.startswith("qr:"):
                return Lease(task.id, task.lease_owner)
            case _:
                return Lease(task.id, task.lease_owner, task.lease_expires)

    def _holds(self, task: Task) -> bool:
        """Whether the row is still as this lease made it."""
        row = self._rows.get(task.id)
        return row is not None and (row.lease_owner, row.lease_expires) == (task.lease_owner, task.lease_expires)


async def _reply(store: Store, method: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """What the store answers; an error is an answer too."""
    try:
        return await getattr(store, method)(*args, **options)
    except QueueRuntimeError as error:
        return type(error), str(error)


def _rows(reply: Any) -> list[Task]:
    """The rows of an answer; an error has none."""
    if isinstance(reply, Task):
        return [reply]
    return reply if isinstance(reply, list) else []


async def _new_rows(store: Store, known: Collection[int]) -> list[Task]:
    """Active rows that the history has not heard of, in the order of their ids."""
    rows = await store.list_active(5000)
    return sorted((row for row in rows if row.id not in known), key=lambda row: row.id)


Step = Callable[[History, Dice], Any]

WEIGHTS: dict[Step, int] = {
    History.nothing: 1,
    History.enqueue: 10,
    History.enqueue_once: 2,
    History.lease: 15,
    History.lease_part: 6,
    History.renew: 4,
    History.settle: 10,
    History.settle_again: 3,
    History.settle_unfenced: 2,
    History.cancel: 1,
    History.free: 1,
    History.awaken: 2,
    History.priority: 1,
    History.delay: 1,
    History.retry: 3,
    History.pause: 1,
    History.resume: 2,
    History.sweep: 3,
    History.look: 3,
    History.advance: 10,
    History.write_past_the_rules: 1,
}
STEPS: tuple[Step, ...] = tuple(step for step, weight in WEIGHTS.items() for _ in range(weight))

"""Each slot once: over processes, restarts, outages, and whatever is done to the clock."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from random import Random

import anyio
import pytest

from queue_runtime import cron_loop
from queue_runtime.cron_file import CronEntry, Missed
from queue_runtime.cron_loop import LATE_SECONDS, CronLoop, look_back
from queue_runtime.cron_schedule import Schedule, stamp
from queue_runtime.errors import InvalidRequest, StoreUnavailable
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.metrics import Metrics
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import MAX_LIST, NewTask, Task
from stores import mysql
from tests.backends import STORES, Place
from tests.clock import START, Clock
from tests.faulty_store import Fault, FaultyStore
from tests.phorge_tables import PhorgeTables
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import Stopwatch, until

MINUTE, HOUR, DAY = 60, 3600, 86400
HOURLY = "0 * * * *"
EACH_SECOND = "* * * * * *"
HOUR_SHARP = START - START % HOUR


def entry(cron: str, missed: Missed = Missed.SKIP, *, name: str = "job", task_class: str = "Job") -> CronEntry:
    return CronEntry(name, Schedule(cron), NewTask(task_class=task_class), missed)


def loop_of(store: Store, clock: Clock, *entries: CronEntry, back: int = 7 * DAY) -> CronLoop:
    return CronLoop(store, Lifecycle(), entries, look_back=back, now=clock)


async def slots_in(store: Store) -> list[str]:
    """The slots that are in the queue, oldest first; the name of the entry is cut off."""
    keys = [task.idempotency_key or "" for task in await store.list_active(MAX_LIST)]
    return sorted(key.split(":", 2)[2] for key in keys)


def sharp(*hours: int) -> list[str]:
    """Full hours, counted from the one in which the tests begin."""
    return [stamp(HOUR_SHARP + hour * HOUR) for hour in hours]


@pytest.fixture
def clock() -> Clock:
    """Half past an hour."""
    return Clock(HOUR_SHARP + 30 * MINUTE)


@pytest.fixture
def store(clock: Clock) -> ReferenceStore:
    return ReferenceStore(StoreOptions(now=clock))


@pytest.mark.parametrize("backend", STORES)
async def test_500_slots_over_3_instances_with_restarts_are_enqueued_once_each(backend: str, place: Place) -> None:
    """Instances come and go, all of them at once too, calls fail, and replies get lost."""
    dice, turns, clock = Random(14), count(), Clock()

    def plan(method: str) -> Fault | None:
        return {3: Fault.REFUSE, 5: Fault.LOSE_REPLY}.get(next(turns) % 7)

    job = entry(EACH_SECOND)
    first, last = START - LATE_SECONDS, START - LATE_SECONDS + 499
    async with STORES[backend](place, StoreOptions(now=clock)) as (opened, _):
        faulty = FaultyStore(opened, plan)

        async def look(instance: CronLoop) -> None:
            try:
                await instance.look_once()
            except StoreUnavailable:
                restarts["outage"] += 1

        restarts: Counter[str] = Counter()
        instances = [loop_of(faulty, clock, job) for _ in range(3)]
        while clock.now < last:
            clock.advance(min(dice.choice([0, 1, 1, 2, 3, 9]), last - clock.now))
            if dice.random() < 0.05:
                instances = [loop_of(faulty, clock, job) for _ in range(3)]
                restarts["all"] += 1
            elif dice.random() < 0.2:
                instances[dice.randrange(3)] = loop_of(faulty, clock, job)
                restarts["one"] += 1
            async with anyio.create_task_group() as group:
                for instance in instances:
                    group.start_soon(look, instance)
        while any(instance.posts[0].waiting for instance in instances):
            for instance in instances:
                await look(instance)
        assert await slots_in(opened) == [stamp(slot) for slot in range(first, last + 1)]
    assert min(restarts[kind] for kind in ("outage", "all", "one")) >= 3
    assert faulty.faults["enqueue"] >= 10


async def test_no_slot_is_enqueued_before_its_second(store: ReferenceStore) -> None:
    now = HOUR_SHARP - 0.001
    loop = CronLoop(store, Lifecycle(), [entry(HOURLY)], now=lambda: now)
    assert await loop.look_once() == 0
    now = HOUR_SHARP + 0.0
    assert await loop.look_once() == 1
    assert await slots_in(store) == sharp(0)


@pytest.mark.parametrize(("missed", "made_up"), [(Missed.SKIP, []), (Missed.ONCE, sharp(3))])
async def test_after_a_time_without_a_process_the_entry_says_what_is_made_up_for(
    store: ReferenceStore, clock: Clock, missed: Missed, made_up: list[str]
) -> None:
    """R071 for periodic work: three slots passed, and they never come all at once."""
    await loop_of(store, clock, entry(HOURLY)).look_once()
    clock.advance(3 * HOUR)
    await loop_of(store, clock, entry(HOURLY, missed)).look_once()
    assert await slots_in(store) == made_up
    await loop_of(store, clock, entry(HOURLY, missed)).look_once()
    assert await slots_in(store) == made_up


@pytest.mark.parametrize("missed", Missed)
async def test_a_slot_of_the_last_minute_was_not_missed(store: ReferenceStore, clock: Clock, missed: Missed) -> None:
    clock.now = HOUR_SHARP + LATE_SECONDS
    await loop_of(store, clock, entry(HOURLY, missed)).look_once()
    assert await slots_in(store) == sharp(0)


async def test_what_is_made_up_for_lies_within_the_time_for_which_keys_are_remembered(
    store: ReferenceStore, clock: Clock
) -> None:
    weekly = entry("0 0 * * SUN", Missed.ONCE)
    await loop_of(store, clock, weekly, back=look_back(DAY)).look_once()
    assert await slots_in(store) == []
    await loop_of(store, clock, weekly, back=look_back(None)).look_once()
    assert len(await slots_in(store)) == 1
    assert [look_back(days * DAY) // DAY for days in (2, 14, 365)] == [1, 7, 7]


@pytest.mark.parametrize("missed", Missed)
async def test_a_machine_that_slept_is_like_a_time_without_a_process(
    store: ReferenceStore, clock: Clock, logs: list[Log], missed: Missed
) -> None:
    loop = loop_of(store, clock, entry(HOURLY, missed, name="hourly"))
    await loop.look_once()
    await store.cancel([task.id for task in await store.list_active(10)])  # what `once` found at the start
    clock.advance(5 * HOUR)
    await loop.look_once()
    assert await slots_in(store) == (sharp(5) if missed is Missed.ONCE else [])
    (line,) = [line for line in logs if line["event"] == "slots were missed"]
    assert (line["entry"], line["first"]) == ("hourly", sharp(1)[0])
    clock.advance(HOUR)
    await loop.look_once()
    assert (await slots_in(store))[-1:] == (sharp(6) if missed is Missed.ONCE else [])


async def test_a_clock_that_is_set_back_repeats_no_slot_and_skips_none(store: ReferenceStore, clock: Clock) -> None:
    loop = loop_of(store, clock, entry("*/10 * * * *"))
    for _ in range(60):
        clock.advance(MINUTE)
        await loop.look_once()
    before = await slots_in(store)
    clock.advance(-HOUR - 7)
    for _ in range(130):
        clock.advance(MINUTE)
        await loop.look_once()
    after = await slots_in(store)
    assert after == sorted(set(after))
    assert after[: len(before)] == before
    assert len(after) == len(before) + 6


async def test_a_clock_that_was_far_ahead_does_not_stop_the_work(store: ReferenceStore, clock: Clock) -> None:
    """A machine that starts with a wrong clock and is put right."""
    right = clock.now
    clock.advance(1000 * DAY)
    loop = loop_of(store, clock, entry(HOURLY))
    await loop.look_once()
    clock.now = right
    await loop.look_once()
    clock.now = HOUR_SHARP + HOUR
    await loop.look_once()
    assert await slots_in(store) == sharp(1)


async def test_an_outage_is_waited_out_and_only_the_newest_slot_of_it_is_enqueued(
    store: ReferenceStore, clock: Clock
) -> None:
    faulty = FaultyStore(store)
    loop = loop_of(faulty, clock, entry(HOURLY), entry("59 * * * *", name="other"))
    await loop.look_once()
    faulty.down = True
    for _ in range(3 * 60):
        clock.advance(MINUTE)
        if clock.now >= HOUR_SHARP + 59 * MINUTE:
            with pytest.raises(StoreUnavailable):
                await loop.look_once()
    faulty.down = False
    await loop.look_once()
    assert await slots_in(store) == [stamp(HOUR_SHARP + 3 * HOUR - MINUTE), *sharp(3)]


async def test_a_short_outage_costs_no_slot(store: ReferenceStore, clock: Clock) -> None:
    faulty = FaultyStore(store)
    loop = loop_of(faulty, clock, entry(EACH_SECOND))
    await loop.look_once()
    before = len(await slots_in(store))
    faulty.refuse("enqueue", times=5)
    for _ in range(5):
        clock.advance(5)
        with pytest.raises(StoreUnavailable):
            await loop.look_once()
    clock.advance(5)
    assert await loop.look_once() == 30
    assert len(await slots_in(store)) == before + 30


async def test_a_call_that_hangs_is_given_up_and_repeated(
    store: ReferenceStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(FaultyStore):
        async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
            await store.enqueue(tasks)
            await anyio.sleep_forever()
            raise AssertionError

    monkeypatch.setattr(cron_loop, "ENQUEUE_SECONDS", 0.05)
    clock.now = HOUR_SHARP
    loop = loop_of(Hanging(store), clock, entry(HOURLY))
    with pytest.raises(StoreUnavailable, match="no answer"):
        await loop.look_once()
    loop._store = store
    assert await loop.look_once() == 1
    assert await slots_in(store) == sharp(0)


async def test_a_store_that_cannot_hold_keys_is_named_in_one_line_and_never_gets_a_slot_twice(
    clock: Clock, phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch, logs: list[Log]
) -> None:
    """MySQL without the companion; an administrator makes it while we run."""
    monkeypatch.setattr(cron_loop, "REFUSED_SECONDS", 0.02)
    phorge.execute(f"DROP DATABASE IF EXISTS `{phorge.companion}`")
    phorge.create_account("narrow", "secret", [f"SELECT, INSERT, UPDATE, DELETE ON `{phorge.worker}`.*"])
    clock.now = HOUR_SHARP
    stop = anyio.Event()
    settings = phorge.settings(user="narrow", password="secret")
    try:
        async with mysql.open_store(settings, StoreOptions(now=clock)) as store, anyio.create_task_group() as group:
            faulty = FaultyStore(store)
            loop = loop_of(faulty, clock, entry(HOURLY))
            group.start_soon(loop.run, stop)
            await until(lambda: faulty.calls["enqueue"] >= 3)
            assert (await store.stats()).active == 0
            refused = [line for line in logs if line["event"].startswith("periodic work is not enqueued")]
            assert [line["log_level"] for line in refused] == ["error"]
            assert "companion" in refused[0]["reason"]
            loop._store = ReferenceStore(StoreOptions(now=clock))  # as if it had the companion now
            await until(lambda: any(line["event"] == "periodic work is enqueued again" for line in logs))
            stop.set()
            assert await slots_in(loop._store) == sharp(0)
    finally:
        phorge.execute("DROP USER narrow@localhost")


async def test_a_refused_entry_is_no_crash(store: ReferenceStore, clock: Clock) -> None:
    class Refusing(FaultyStore):
        async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
            raise InvalidRequest("idempotency_key", "not here")

    clock.now = HOUR_SHARP
    loop = loop_of(Refusing(store), clock, entry(HOURLY))
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            await loop.look_once()
    assert loop.posts[0].waiting == [HOUR_SHARP]


async def test_entries_are_replaced_while_it_runs(store: ReferenceStore, clock: Clock) -> None:
    """One stays and is renamed in nothing but its class, one changes its time, one is new, one goes."""
    loop = loop_of(store, clock, entry(HOURLY, name="stays"), entry(HOURLY, name="moves"), entry(HOURLY, name="goes"))
    await loop.look_once()
    clock.now = HOUR_SHARP + HOUR + 10  # the slot of the one that stays is due, and nobody has looked yet
    loop.replace(
        [
            entry(HOURLY, name="stays", task_class="Other"),
            entry("0,30 * * * *", Missed.ONCE, name="moves"),
            entry(HOURLY, Missed.ONCE, name="new"),
        ]
    )
    await loop.look_once()
    rows = await store.list_active(10)
    assert [(row.idempotency_key, row.task_class) for row in rows] == [(f"cron:stays:{sharp(1)[0]}", "Other")]
    clock.advance(HOUR // 2)
    await loop.look_once()
    assert {row.idempotency_key for row in await store.list_active(10)} == {
        f"cron:stays:{sharp(1)[0]}",
        f"cron:moves:{stamp(HOUR_SHARP + HOUR + 30 * MINUTE)}",
    }


async def test_the_loop_follows_the_clock_by_itself_and_ends_when_told(store: ReferenceStore) -> None:
    """Time runs twenty times as fast."""
    began = time.monotonic()
    faulty, rung = FaultyStore(store), Counter[str]()
    faulty.lose_reply("enqueue", times=2)
    loop = CronLoop(
        faulty,
        Lifecycle(),
        [entry(EACH_SECOND)],
        enqueued=lambda: rung.update(["ring"]),
        now=lambda: START + (time.monotonic() - began) * 20,
    )
    first, stop = loop.posts[0].next, anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(loop.run, stop)
        await until(lambda: (loop.posts[0].last or 0) > START + 20)
        stop.set()
        watch = Stopwatch()
    assert watch.seconds < 0.5
    last = loop.posts[0].last
    assert first is not None
    assert last is not None
    assert await slots_in(store) == [stamp(slot) for slot in range(first, last + 1)]
    assert rung["ring"] >= 2


async def test_metrics_tell_what_is_in_the_queue_what_comes_and_what_waits(store: ReferenceStore, clock: Clock) -> None:
    faulty = FaultyStore(store)
    loop = loop_of(faulty, clock, entry(HOURLY, name="hourly"), entry("0 0 1 1 *", name="yearly"))
    clock.now = HOUR_SHARP + HOUR
    await loop.look_once()
    faulty.down = True
    clock.advance(HOUR)
    with pytest.raises(StoreUnavailable):
        await loop.look_once()
    text = (await Metrics(store, lifecycle=Lifecycle(), cron=loop).render()).decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("queue_runtime_cron_"))
    assert values['queue_runtime_cron_slots_total{entry="hourly"}'] == "1.0"
    assert values['queue_runtime_cron_slots_total{entry="yearly"}'] == "0.0"
    assert float(values['queue_runtime_cron_last_slot_seconds{entry="hourly"}']) == HOUR_SHARP + HOUR
    assert float(values['queue_runtime_cron_next_slot_seconds{entry="hourly"}']) == HOUR_SHARP + 3 * HOUR
    assert values['queue_runtime_cron_waiting_slots{entry="hourly"}'] == "1.0"
    assert 'queue_runtime_cron_last_slot_seconds{entry="yearly"}' not in values


async def test_no_entries_are_no_work(store: ReferenceStore, clock: Clock) -> None:
    faulty = FaultyStore(store)
    assert await loop_of(faulty, clock).look_once() == 0
    assert not faulty.calls

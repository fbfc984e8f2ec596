"""The check finds whatever does not fit together, mends it, and finds nothing where nothing is wrong."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis import Redis

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Fail, NewTask, Outcome, Release, Retry, Unknown, Verdict, Yield
from stores.redis import RedisStore
from stores.redis_check import check, repair
from stores.redis_doctor import examine
from tests.clock import Clock
from tests.servers import RedisServer
from tests.stores.redis_backdoor import plant_row
from tests.stores.redis_house import (
    BOUND,
    add,
    assert_whole,
    client_of,
    emptied,
    key,
    lane_member,
    settle,
    worker,
)


@pytest.fixture
async def store(redis_server: RedisServer, clock: Clock) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server, StoreOptions(now=clock)) as store:
        yield store


async def fill(store: RedisStore, clock: Clock) -> None:
    """Tasks in every state, with the ids 1 to 9."""
    await store.enqueue(
        [
            NewTask(task_class="A"),  # 1: leased by a worker
            NewTask(task_class="A"),  # 2: failed once, and waits
            NewTask(task_class="A", data="x" * 5000, idempotency_key="k"),  # 3: ready, payload apart
            NewTask(task_class="A", delay_until=clock.now + 60),  # 4: delayed
            NewTask(task_class="A", object_phid="PHID-1"),  # 5: leased over HTTP
            NewTask(task_class="A"),  # 6: succeeded
            NewTask(task_class="A", idempotency_key="gone"),  # 7: failed for good
            NewTask(task_class="A"),  # 8: cancelled
        ]
    )
    await store.enqueue_once("event", NewTask(task_class="A", priority=7))  # 9
    await store.lease(worker(), 1, 60, only=[1])
    await settle(store, await store.lease(worker(), 1, 60, only=[2]), Retry())
    await store.lease("web1:1", 1, 60, only=[5])
    await settle(store, await store.lease(worker(), 1, 60, only=[6]), Complete())
    await settle(store, await store.lease(worker(), 1, 60, only=[7]), Fail())
    await store.cancel([8])


def test_the_ids_of_the_examples_are_as_keys_have_them() -> None:
    assert one(3) == "0000000003"


def one(task_id: int) -> str:
    return f"{task_id:010d}"


DAMAGE: dict[str, tuple[Callable[[Redis], object], dict[str, int]]] = {
    "a ready task is in no place": (
        lambda client: client.zrem(key("R:default/A"), one(3)),
        {"is missing in R:default/A": 1},
    ),
    "a held task is in no place": (
        lambda client: client.zrem(key("W:default/A"), one(1)),
        {"is missing in W:default/A": 1},
    ),
    "a held task is ready too": (
        lambda client: client.zadd(key("R:default/A"), {one(1): 2000}),
        {"stands in R:default/A": 1},
    ),
    "a task stands in a strange lane": (
        lambda client: client.zadd(key("R:default/B"), {one(3): 2000}),
        {"stands in R:default/B": 1, "is missing in heads:R:default": 1, "is missing in lanes": 1},
    ),
    "a wrong priority": (
        lambda client: client.zadd(key("R:default/A"), {one(3): 1}),
        {
            "has another score in R:default/A": 1,
            "is missing in heads:R:default": 1,
            "stands in heads:R:default": 1,
        },
    ),
    "a wrong time": (
        lambda client: client.zadd(key("B:default/A"), {one(2): 1}),
        {"has another score in B:default/A": 1, "has another score in heads:B:default": 1},
    ),
    "not listed as active": (lambda client: client.zrem(key("active"), one(3)), {"is missing in active": 1}),
    "not listed as archived": (lambda client: client.zrem(key("archive"), one(6)), {"is missing in archive": 1}),
    "never swept": (lambda client: client.zrem(key("over"), one(6)), {"is missing in over": 1}),
    "active and archived": (lambda client: client.zadd(key("active"), {one(6): 1}), {"stands in active": 1}),
    "an entry of no task": (lambda client: client.zadd(key("active"), {one(77): 1}), {"stands in active": 1}),
    "a hold of no task": (lambda client: client.hset(key("hold"), one(77), "x"), {"is left over in hold": 1}),
    "a payload of no task": (lambda client: client.hset(key("data"), one(77), "x"), {"is left over in data": 1}),
    "a hold of an ended task": (lambda client: client.hset(key("hold"), one(6), "x"), {"is left over in hold": 1}),
    "a failure that is not counted": (lambda client: client.srem(key("failing"), one(2)), {"is missing in failing": 1}),
    "a failure that is none": (lambda client: client.sadd(key("failing"), one(3)), {"stands in failing": 1}),
    "an odd task that is none": (lambda client: client.sadd(key("odd"), one(3)), {"stands in odd": 1}),
    "a lane that nobody finds": (
        lambda client: client.zrem(key("heads:D:default"), f"{one(4)}A"),
        {"is missing in heads:D:default": 1, "stands in heads:D": 1},
    ),
    "a queue that nobody finds": (
        lambda client: client.zrem(key("heads:D"), f"{one(4)}default"),
        {"is missing in heads:D": 1},
    ),
    "a bound that is too late": (
        lambda client: client.zadd(key("heads:W:default"), {f"{BOUND}A": 2**31}),
        {"has another score in heads:W:default": 1},
    ),
    "a bound that names a row": (
        lambda client: client.zadd(key("heads:W:default"), {f"{one(1)}A": 2**31}),
        {"stands in heads:W:default": 1},
    ),
    "a held task that nobody finds": (
        lambda client: client.delete(key("heads:W"), key("heads:W:default")),
        {"is missing in heads:W:default": 1},
    ),
    "a head of an empty lane": (
        lambda client: client.zadd(key("heads:R:default"), {f"{one(77)}B": 5000}),
        {"stands in heads:R:default": 1},
    ),
    "a head that is not the first": (
        lambda client: client.zadd(key("heads:R:default"), {f"{one(3)}A": 2000}),
        {"stands in heads:R:default": 1},
    ),
    "a head of another queue": (
        lambda client: client.zadd(key("heads:R"), {f"{one(3)}other": 2000}),
        {"stands in heads:R": 1},
    ),
    "a lane that is not among the lanes": (
        lambda client: client.zrem(key("lanes"), lane_member("default", "A")),
        {"is missing in lanes": 5},
    ),
    "a lane of nothing": (
        lambda client: client.zadd(key("lanes"), {lane_member("default", "Nothing"): 0}),
        {"stands in lanes": 1},
    ),
    "a lane of another score": (
        lambda client: client.zadd(key("lanes"), {lane_member("default", "A"): 7}),
        {"has another score in lanes": 1},
    ),
    "a key that is forgotten": (lambda client: client.hdel(key("keys"), "k"), {"is missing in keys": 1}),
    "a key of no task": (lambda client: client.hset(key("keys"), "other", one(77)), {"key of no task": 1}),
    "an event without a time": (lambda client: client.delete(key("event_times")), {"event without a time": 1}),
    "a history of no task": (lambda client: client.rpush(key(f"history:{one(77)}"), "x"), {"history of no task": 1}),
    "ids that would be used again": (lambda client: client.set(key("last_id"), 8), {"is above the last id": 1}),
    "all indexes": (
        lambda client: client.delete(
            *[key(name) for name in ("active", "archive", "over", "failing", "R:default/A", "W:default/A")]
        ),
        {
            "is missing in active": 6,
            "is missing in archive": 3,
            "is missing in over": 3,
            "is missing in failing": 1,
            "is missing in R:default/A": 2,
            "is missing in W:default/A": 1,
            "stands in heads:R:default": 1,
        },
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_found_and_mended(
    redis_server: RedisServer, store: RedisStore, clock: Clock, what: str
) -> None:
    """R013"""
    await fill(store, clock)
    await assert_whole(store)
    before = [await store.list_active(99), await store.list_archived(99), await store.stats()]
    damage, wanted = DAMAGE[what]
    with client_of(redis_server) as client:
        damage(client)
    report = await check(store)
    assert report.differences == wanted
    assert report.tasks == 9
    assert (await repair(store)).differences.keys() == wanted.keys()
    await assert_whole(store)
    assert [await store.list_active(99), await store.list_archived(99), await store.stats()] == before


async def test_tasks_that_fell_out_of_their_index_run_again_after_a_repair(
    redis_server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    """R013: five failed, five held, and no index knows them."""
    ids = await add(store, 10)
    tasks = await store.lease(worker(), 10, 60)
    await settle(store, tasks[:5], Retry(wait=2))
    with client_of(redis_server) as client:
        client.delete(key("B:default/A"), key("W:default/A"))
    clock.advance(600)
    assert await store.lease(worker(), 10, 60) == []
    report = await repair(store)
    assert report.differences == {"is missing in B:default/A": 5, "is missing in W:default/A": 5}
    assert [task.id for task in await store.lease(worker(), 10, 60)] == ids


async def test_a_lost_payload_is_reported_and_cannot_be_mended(
    redis_server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    await fill(store, clock)
    with client_of(redis_server) as client:
        client.hdel(key("data"), one(3))
    for _ in range(2):
        assert (await repair(store)).differences == {"has lost its payload": 1}


OUTCOMES: tuple[Outcome, ...] = (
    Complete(followups=[NewTask(task_class="Child")]),
    Complete(),
    Fail(),
    Retry(wait=1),
    Retry(wait=0, max_attempts=2),
    Yield(),
    Unknown(1),
    Release(),
)


CLASSES = ("A", "B", "A/B", "0000000001")
QUEUES = ("default", "q", "R")


class Crowd:
    """Callers of every kind on the same tasks, and what they were told."""

    def __init__(self, store: RedisStore, client: Redis, clock: Clock) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._dice = random.Random(11)
        self._recent: list[int] = []
        self.ends: Counter[int] = Counter()
        self.comebacks: Counter[int] = Counter()
        self.deleted = 0

    async def call(self) -> None:
        """One call of any kind."""
        dice = self._dice
        ids = dice.sample(self._recent, min(3, len(self._recent)))
        match dice.randrange(12):
            case 0 | 1 | 2:
                await self._enqueue()
            case 3 | 4 | 5:
                await self._run()
            case 6:
                self.deleted += (await self._store.sweep(dice.choice([1, 100]))).expired
            case 7:
                await self._store.free(ids)
            case 8 if dice.random() < 0.3:
                self.ends.update(row.id for row in await self._store.cancel(ids) if row)
            case 8:
                self.comebacks.update(row.id for row in await self._store.retry(ids, repeat=True) if row)
            case 9:
                await self._store.priority(ids, dice.randrange(3))
            case 10:
                await (self._store.delay(ids, self._clock.now + 1) if dice.random() < 0.5 else self._store.awaken(ids))
            case _:
                await self._plant(ids)

    async def _enqueue(self) -> None:
        dice = self._dice
        new = NewTask(
            task_class=dice.choice(CLASSES),
            queue=dice.choice(QUEUES),
            data="x" * dice.choice([0, 10, 2000]),
            priority=dice.randrange(3),
            idempotency_key=dice.choice([None, None, f"k{dice.randrange(50)}"]),
            delay_until=dice.choice([None, None, self._clock.now + 2]),
        )
        self._recent.extend(row.id for row in await self._store.enqueue([new]))
        del self._recent[:-60]

    async def _run(self) -> None:
        dice = self._dice
        asked: dict[str, Any] = dice.choice(
            [
                {},
                {},
                {"classes": dice.sample(CLASSES, 2)},
                {"queues": [dice.choice(QUEUES)]},
                {"without_classes": ["A"]},
            ]
        )
        owner = dice.choice([worker(), "web1:1"])
        tasks = await self._store.lease(owner, 2, 3, due_first=dice.random() < 0.5, **asked)
        if dice.random() < 0.8:
            settled = await settle(self._store, tasks, dice.choice(OUTCOMES))
            self.ends.update(one.archived.id for one in settled if one.archived and one.verdict is Verdict.SETTLED)

    async def _plant(self, ids: list[int]) -> None:
        owner, expires = self._dice.choice([("gorge-failure-pending", 5), (None, 5), ("odd", None)])
        if ids and (await self._store.get(ids))[0] is not None:
            plant_row(self._client, ids[0], owner, expires)


async def test_ten_thousand_interleaved_calls_leave_everything_whole_and_end_each_task_once(
    redis_server: RedisServer, clock: Clock
) -> None:
    """Settle, lease, sweep and the operators at the same time, on the same tasks of a dozen lanes."""
    dice = random.Random(12)
    with client_of(redis_server) as client:
        async with emptied(redis_server, StoreOptions(now=clock, retention=10, max_lost=10_000)) as store:
            crowd = Crowd(store, client, clock)
            for round_ in range(500):
                await asyncio.gather(*[crowd.call() for _ in range(20)])
                if round_ % 3 == 0:
                    clock.advance(dice.choice([0, 1, 5]))
                if round_ % 50 == 0:
                    await assert_whole(store)
            await assert_whole(store)
            every = list(range(1, int(client.get(key("last_id")) or 0) + 1))
            active = {
                row.id for start in every[::500] for row in await store.get(every[start - 1 : start + 499]) if row
            }
    assert crowd.deleted > 100
    assert sum(crowd.ends.values()) > 1000
    # each life of a task, the first and those it was brought back to, has one end, or is not over
    lives = {task_id: 1 + crowd.comebacks[task_id] for task_id in every}
    assert {task_id: crowd.ends[task_id] + (task_id in active) for task_id in every} == lives


# ---- the doctor


async def test_the_doctor_says_what_the_server_is_and_that_the_queue_is_whole(store: RedisStore, clock: Clock) -> None:
    await fill(store, clock)
    found = {one_.subject: (one_.level.value, one_.sentence) for one_ in await examine(store)}
    assert found["server"][0] == "ok"
    assert found["server"][1].startswith(("Redis ", "Valkey "))
    assert found["channel"][0] == "ok"
    assert found["eviction"][0] == "ok"
    assert found["persistence"] == (
        "warning",
        "there is none: a restart of the server loses every task; set appendonly yes",
    )
    assert found["indexes"] == ("ok", "9 tasks, and each stands where it must")


async def test_the_doctor_shows_damage_and_mends_it_on_demand(
    redis_server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    await fill(store, clock)
    with client_of(redis_server) as client:
        client.zrem(key("R:default/A"), one(3))
    sick = [one_ for one_ in await examine(store) if one_.subject == "indexes"]
    assert [one_.level for one_ in sick] == ["fault", "note", "note"]
    assert "is missing in R:default/A" in sick[0].sentence
    assert "--repair" in sick[-1].sentence
    mended = [one_ for one_ in await examine(store, mend=True) if one_.subject == "indexes"]
    assert {one_.level for one_ in mended} == {"note"}
    assert (await examine(store))[-1].level == "ok"


@pytest.mark.parametrize(
    ("settings", "subject", "level", "words"),
    [
        ({"appendonly": "yes"}, "persistence", "ok", "loses the last second at most"),
        ({"save": "3600 1"}, "persistence", "warning", "snapshots only"),
        ({"maxmemory": "1gb"}, "memory", "ok", "of 1024.0 MiB"),
        ({"maxmemory": "0"}, "memory", "note", "no maxmemory"),
    ],
)
async def test_the_doctor_reads_the_settings_that_matter(
    settings: dict[str, str], subject: str, level: str, words: str
) -> None:
    with RedisServer() as server, client_of(server) as client:
        for name, value in settings.items():
            client.config_set(name, value)
        async with emptied(server) as store:
            (found,) = [one_ for one_ in await examine(store) if one_.subject == subject]
    assert found.level == level
    assert words in found.sentence

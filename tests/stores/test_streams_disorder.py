"""Somebody else writes to the keys of the dispatch: no task hangs, no process ends, and what is wrong is made anew."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, ResponseError
from structlog.testing import capture_logs

from queue_runtime.store import Routes, Store, StoreOptions
from queue_runtime.task import Task
from stores import streams_replies
from stores.streams import StreamsStore
from stores.streams_feeder import Tending
from stores.streams_lease import Dispatcher
from tests.servers import RedisServer
from tests.stores.streams_house import KEYS, NOWHERE, House, add, finish, open_house, take, until

BRISK = Tending(every=0.05, reclaim=0.2, old=0.2)
GROUP = "queue-runtime"
QUEUES = ("high", "default", "low")

Attack = Callable[[Redis], object]


@pytest.fixture
async def house(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[House]:
    async with open_house(tmp_path, redis_server) as house:
        yield house


async def work(store: Store, ids: Sequence[int], runs: Counter[int], *, seconds: float = 10) -> None:
    """Run tasks as a worker does, until each of these has run."""
    async with asyncio.timeout(seconds):
        while not all(runs[task_id] for task_id in ids):
            tasks: list[Task] = await take(store, 5)
            runs.update(task.id for task in tasks)
            await finish(store, tasks)
            if not tasks:
                await store.changed(0.2)


# ---- entries that the group has passed


def set_the_group_to_the_end(redis: Redis) -> None:
    redis.xgroup_setid(KEYS + "default", GROUP, "$")


def set_the_group_beyond_the_end(redis: Redis) -> None:
    redis.xgroup_setid(KEYS + "default", GROUP, "18446744073709551615-3")


def make_the_group_anew_at_the_end(redis: Redis) -> None:
    redis.xgroup_destroy(KEYS + "default", GROUP)
    redis.xgroup_create(KEYS + "default", GROUP, "$")


def read_as_a_consumer_that_is_deleted(redis: Redis) -> None:
    redis.xreadgroup(GROUP, "stranger", {KEYS + "default": ">"})
    redis.xgroup_delconsumer(KEYS + "default", GROUP, "stranger")


def read_without_keeping(redis: Redis) -> None:
    redis.xreadgroup(GROUP, "stranger", {KEYS + "default": ">"}, noack=True)


PASSING: list[Callable[[Redis], None]] = [
    set_the_group_to_the_end,
    set_the_group_beyond_the_end,
    make_the_group_anew_at_the_end,
    read_as_a_consumer_that_is_deleted,
    read_without_keeping,
]


@pytest.mark.parametrize("attack", PASSING)
async def test_entries_that_the_group_has_passed_are_given_to_workers_all_the_same(
    house: House, attack: Callable[[Redis], None]
) -> None:
    """Nobody would ever read them again, and nothing else would say so: the line is up all the time."""
    store = await house.store(tending=BRISK)
    ids = await add(store, number=30)
    runs: Counter[int] = Counter()
    await work(store, ids[:1], runs)
    attack(house.redis)
    ids += await add(store, number=3)
    await work(store, ids, runs, seconds=5)
    assert set(runs.values()) == {1}
    assert store.dispatch.falls == 0
    await until(house.is_empty)


async def test_that_takes_five_seconds_with_the_times_of_a_real_process(house: House) -> None:
    store = await house.store()
    ids = await add(store, number=30)
    runs: Counter[int] = Counter()
    await work(store, ids[:1], runs)
    make_the_group_anew_at_the_end(house.redis)
    await work(store, ids, runs, seconds=7)
    assert set(runs.values()) == {1}


async def test_what_another_reader_holds_is_not_taken_for_passed(house: House) -> None:
    store = await house.store(tending=Tending(every=0.05, reclaim=600))
    ids = await add(store, number=5)
    await take(store)
    house.redis.xreadgroup(GROUP, "another", {KEYS + "default": ">"})
    for _ in range(3):
        await store.sweep(100)
    assert house.waiting() == ids[1:]
    assert house.pending() == 4


# ---- values and keys that are not ours


def texts(queue: str) -> dict[str, Attack]:
    """What somebody may write into the keys, with the right type of key."""
    behind, sent, classes = f"{KEYS}/behind", f"{KEYS}/sent", f"{KEYS}/classes/{queue}"
    return {
        "a mark without an id": lambda redis: redis.hset(behind, queue, "12"),
        "a mark that is no number": lambda redis: redis.hset(behind, queue, "\xff x"),
        "a mark too large": lambda redis: redis.hset(behind, queue, "99999999999999999999 99999999999999999999"),
        "a mark of an unknown queue": lambda redis: redis.hset(behind, "zzz", "x"),
        "a queue that is no text": lambda redis: redis.sadd(f"{KEYS}/queues", b"\xff\xfe"),
        "a queue that is another key": lambda redis: redis.sadd(f"{KEYS}/queues", "/sent", "/behind", ""),
        "an entry that is none": lambda redis: [redis.hset(sent, str(number), "x") for number in range(1, 50)],
        "an entry of another key": lambda redis: [redis.hset(sent, str(n), "1-1 /sent A") for n in range(1, 50)],
        "an entry whose number is none": lambda redis: [redis.hset(sent, str(n), "9x-1 high A") for n in range(1, 50)],
        "an entry that is too large": lambda redis: redis.hset(sent, "3", f"{'9' * 30}-1 high A"),
        "tasks that are none": lambda redis: [redis.hset(sent, "abc", "x"), redis.hset(sent, b"\xff", "1-1 high A")],
        "what was wanted is none": lambda redis: redis.sadd(f"{KEYS}/again", "abc", b"\xff"),
        "a count that is none": lambda redis: redis.hset(classes, "A", "x"),
        "a count that is far off": lambda redis: [redis.hset(classes, "A", -7), redis.hset(classes, "Z", 5)],
        "nonsense among the entries": lambda redis: redis.xadd(KEYS + queue, {b"\xff": b"\xff"}),
        "a class that is no text": lambda redis: redis.xadd(KEYS + queue, {"job_id": "1", "job_type": b"\xff"}),
        "a task beyond all": lambda redis: redis.xadd(KEYS + queue, {"job_id": "9" * 20, "job_type": "A"}),
        "a stream that is worn out": lambda redis: redis.xadd(KEYS + queue, {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}"),
        "a sign without an end": lambda redis: redis.set(f"{KEYS}/filling/{queue}", "1"),
    }


NAMES = ("/sent", "/queues", "/behind", "/again", "/epoch", "/record", "/claim", "/classes/default", "/filling/default",
         "default")  # fmt: skip


def other_type(name: str, kind: str) -> Attack:
    key = KEYS + name

    def write(redis: Redis) -> None:
        redis.delete(key)
        match kind:
            case "string":
                redis.set(key, "x")
            case "list":
                redis.rpush(key, "x")
            case "hash":
                redis.hset(key, "a", "b")
            case "set":
                redis.sadd(key, "a")
            case "zset":
                redis.zadd(key, {"a": 1})
            case "stream":
                redis.xadd(key, {"a": "b"})

    return write


async def suffer(house: House, attacks: Sequence[Attack]) -> None:
    """Two workers meet this while tasks come in: each runs once, the stores live, and Redis is in order at the end."""
    stores = [await house.store(tending=BRISK, cap=20) for _ in range(2)]
    runs: Counter[int] = Counter()
    ids = [task_id for queue in QUEUES for task_id in await add(stores[0], number=40, queue=queue)]
    await work(stores[0], ids[:5], runs)
    for attack in attacks:
        with suppress(ResponseError):  # the last attack may have made this one impossible
            attack(house.redis)
        ids += await add(stores[1], number=3)
    await asyncio.gather(*[work(store, ids, runs, seconds=15) for store in stores])
    assert set(runs.values()) == {1}
    await until(lambda: all(store.dispatch.mode == "streams" for store in stores))
    ids = await add(stores[0], number=3)
    await work(stores[1], ids, runs, seconds=5)
    async with asyncio.timeout(10):
        while not house.is_empty():
            await stores[0].sweep(100)
            assert await take(stores[1], 5) == []
    await until(lambda: all(store.dispatch.mode == "streams" for store in stores))


@pytest.mark.parametrize("name", texts("default"))
async def test_a_value_that_is_not_ours_ends_no_process_and_loses_no_task(house: House, name: str) -> None:
    await suffer(house, [texts("default")[name]])


@pytest.mark.parametrize("kind", ["string", "hash", "stream"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_key_of_another_type_ends_no_process_and_loses_no_task(house: House, name: str, kind: str) -> None:
    await suffer(house, [other_type(name, kind)])


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
async def test_any_of_that_in_any_order(house: House, seed: int) -> None:
    dice = random.Random(seed)
    kinds = ("string", "list", "hash", "set", "zset", "stream")
    attacks = [*texts("default").values(), *texts("high").values()]
    attacks += [other_type(name, kind) for name in NAMES for kind in kinds]
    attacks += [lambda redis, name=name: redis.delete(KEYS + name) for name in NAMES]  # type: ignore[misc]
    await suffer(house, dice.sample(attacks, 12))


async def test_the_reason_names_the_keys_and_what_is_done_and_the_log_what_was_dropped(house: House) -> None:
    store = await house.store(back_seconds=0.5)
    await add(store)
    other_type("/sent", "string")(house.redis)
    with capture_logs() as lines:
        await add(store)
        reason = store.dispatch.reason or ""
        await until(lambda: store.dispatch.mode == "streams")
    assert f"holds under {KEYS}* what is not ours (WRONGTYPE" in reason
    assert "dropped and made anew" in reason
    assert "script" not in reason
    (line,) = [line for line in lines if line["event"].startswith("what nobody of us put into Redis")]
    assert line["what"] == [f"{KEYS}/sent"]


async def test_entries_without_a_task_are_told_once_in_a_while(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await house.store()
    await take(store)
    with capture_logs() as lines:
        for number in range(20):
            house.redis.xadd(KEYS + "default", {"job_id": f"x{number}"})
            await take(store)
        assert [line["entries"] for line in lines] == [1]
        dispatcher: Dispatcher = store._dispatcher
        monkeypatch.setattr(dispatcher, "_nonsense_at", 0.0)
        house.redis.xadd(KEYS + "default", {"a": "b"})
        await take(store)
    assert [line["entries"] for line in lines] == [1, 20]


async def test_counts_of_classes_that_somebody_deleted_come_back(house: House) -> None:
    """A worker without a handler for a class must not read the stream in which it waits."""
    store = await house.store(tending=BRISK)
    await add(store, number=3)
    await add(store, number=2, task_class="B")
    house.redis.delete(f"{KEYS}/classes/default")
    await store.sweep(100)
    assert house.redis.hgetall(f"{KEYS}/classes/default") == {b"A": b"3", b"B": b"2"}
    house.redis.delete(f"{KEYS}/sent")
    await store.sweep(100)
    async with asyncio.timeout(10):
        while tasks := await take(store, 5):
            await finish(store, tasks)
            await store.sweep(100)
    await until(lambda: not house.waiting())
    await store.sweep(100)
    assert house.redis.hgetall(f"{KEYS}/classes/default") == {}


@pytest.mark.parametrize("end", [None, 365 * 86400])
async def test_a_backlog_is_not_stopped_by_a_sign_that_does_not_end(house: House, end: int | None) -> None:
    """Neither by one without an end, nor by one that ends in a year."""
    store = await house.store(cap=20, tending=BRISK)
    ids = await add(store, number=100)
    house.redis.set(f"{KEYS}/filling/default", "1", ex=end)
    await work(store, ids, Counter(), seconds=10)
    async with asyncio.timeout(10):
        while house.redis.hexists(f"{KEYS}/behind", "default"):
            await take(store)
            await asyncio.sleep(0.02)


# ---- replies


JUNK: tuple[Any, ...] = (None, -1, 2**70, b"", b"x", b"\xff", b"-1", b"9" * 40, [], [None], [[[]]], [b"a", 1], 1.5, "x")
READERS: dict[Callable[[Any], Any], Any] = {
    streams_replies.read_added: [1, 2, [b"3"], b"q", b"1-2"],
    streams_replies.read_entries: [b"q", b"1-2"],
    streams_replies.read_reading: [0, b"", 0, 2, [b"q", b"A", b"1-2 7 1-3 8"], [b"q", b"1", b"2"], 0],
    streams_replies.read_tended: [0, 0, [b"q", b"1-2", b"7"], b"", b""],
    streams_replies.read_mended: [b"0", [b"k"]],
    streams_replies.read_news: [[b"s", [[b"1-2", [b"a", b"b"]]]]],
    streams_replies.read_ids: [b"1"],
}
"""Each with a reply as it must be."""


@pytest.mark.parametrize("read", READERS)
def test_a_reply_is_read_or_refused_whatever_it_is(read: Callable[[Any], Any]) -> None:
    dice = random.Random(5)
    assert read(READERS[read])
    for _ in range(3000):
        reply = mutated(dice.choice([READERS[read], *READERS.values(), *JUNK]), dice)
        with suppress(ValueError):
            read(reply)


def mutated(reply: Any, dice: random.Random) -> Any:
    """The same with something in it that must not be there, or without something."""
    if not isinstance(reply, list) or not reply or dice.random() < 0.2:
        return dice.choice(JUNK)
    place = dice.randrange(len(reply))
    changed = [mutated(reply[place], dice)] if dice.random() < 0.8 else []
    return [*reply[:place], *changed, *reply[place + 1 :]]


@pytest.mark.parametrize("seed", range(3))
async def test_replies_that_nobody_understands_are_an_outage(house: House, seed: int) -> None:
    stores = [await house.store(tending=BRISK) for _ in range(2)]
    dice = random.Random(seed)
    spoilt = [spoil(store, dice) for store in stores]
    runs: Counter[int] = Counter()
    ids: list[int] = []
    async with asyncio.timeout(30):
        while sum(store.dispatch.falls for store in stores) < 10:
            ids += await add(dice.choice(stores), number=3)
            await work(dice.choice(stores), ids[-2:], runs)
    await asyncio.gather(*[work(store, ids, runs) for store in stores])
    assert set(runs.values()) == {1}
    for calm in spoilt:
        calm()
    await until(lambda: all(store.dispatch.mode == "streams" for store in stores))


def spoil(store: StreamsStore, dice: random.Random) -> Callable[[], None]:
    """Spoil each tenth reply to a script, until what is returned is called."""
    link = store._line.link
    plain = link.call

    async def call(operation: str, *command: bytes | str | int) -> Any:
        reply = await plain(operation, *command)
        return mutated(reply, dice) if operation.startswith("streams_") and dice.random() < 0.1 else reply

    link.call = call  # type: ignore[method-assign]  # a server that has gone mad

    def calm() -> None:
        link.call = plain  # type: ignore[method-assign]

    return calm


# ---- names of queues


async def test_a_queue_that_no_route_leads_to_is_named_at_the_start(house: House) -> None:
    options = StoreOptions(routes=Routes((("*IndexWorker", "index"),)))
    with capture_logs() as lines:
        await house.store(url=NOWHERE, options=options, queues=("hgih", "default", "index", "Own"))
    assert [(line["queue"], line["did_you_mean"]) for line in lines] == [("Own", None), ("hgih", "high")]

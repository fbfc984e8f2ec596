"""Thousands of lanes: the order stays exact whatever is asked for, and a lease costs no more than that."""

import random
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Lease, NewTask, Pause, PauseKind, Release
from stores.redis import RedisStore
from tests.clock import START, Clock
from tests.servers import RedisServer
from tests.stores.redis_house import add, assert_whole, client_of, commands, cost_of, emptied, settle, worker

QUEUES = 5
SIZES = {"ready": (150, 1000), "due": (1010, 1500)}
"""Classes in each queue, few and many. Due rows are looked at up to a window of 1,000: both are beyond it."""


@pytest.fixture
async def store(redis_server: RedisServer, clock: Clock) -> AsyncIterator[RedisStore]:
    async with emptied(redis_server, StoreOptions(now=clock)) as store:
        yield store


# ---- order

Passes = Callable[[NewTask], bool]
NAMED = frozenset({"C1", "C5", "C17", "C33", "no such class"})

ASKED: dict[str, tuple[dict[str, Collection[str]], Passes]] = {
    "all": ({}, lambda new: True),
    "one class": ({"classes": ["C7"]}, lambda new: new.task_class == "C7"),
    "a class twice": ({"classes": ["C7", "C7"]}, lambda new: new.task_class == "C7"),
    "some classes": ({"classes": NAMED}, lambda new: new.task_class in NAMED),
    "most classes": ({"classes": {f"C{n}" for n in range(38)}}, lambda new: int(new.task_class[1:]) < 38),
    "one queue": ({"queues": ["q1"]}, lambda new: new.queue == "q1"),
    "classes of a queue": (
        {"classes": NAMED, "queues": ["q0", "q2"]},
        lambda new: new.task_class in NAMED and new.queue in ("q0", "q2"),
    ),
    "without some": ({"without_classes": NAMED}, lambda new: new.task_class not in NAMED),
    "without some of a queue": (
        {"without_classes": NAMED, "queues": ["q1"]},
        lambda new: new.task_class not in NAMED and new.queue == "q1",
    ),
}


@pytest.mark.parametrize("due", [False, True], ids=["ready", "due"])
@pytest.mark.parametrize("asked", ASKED)
async def test_rows_of_hundreds_of_lanes_come_by_priority_and_id(
    store: RedisStore, clock: Clock, asked: str, due: bool
) -> None:
    dice = random.Random(asked)
    news = [
        NewTask(
            task_class=f"C{dice.randrange(40)}",
            queue=f"q{dice.randrange(4)}",
            priority=dice.randrange(3),
            delay_until=START - dice.randrange(5) if due else None,
        )
        for _ in range(900)
    ]
    rows = await store.enqueue(news)
    await store.pause(Pause(PauseKind.QUEUE, "q3"))
    await store.pause(Pause(PauseKind.CLASS, "C2"))
    filters, passes = ASKED[asked]
    wanted = [
        row.id
        for row, new in sorted(zip(rows, news, strict=True), key=lambda pair: (pair[0].priority, pair[0].id))
        if passes(new) and new.queue != "q3" and new.task_class != "C2"
    ]
    taken: list[int] = []
    while tasks := await store.lease(worker(), dice.choice((1, 7, 200)), 60, **filters):  # type: ignore[arg-type]
        taken += [task.id for task in tasks]
    assert taken == wanted
    await assert_whole(store)


async def test_among_rows_of_one_second_those_of_dead_workers_stand_by_their_ids_in_the_window(
    store: RedisStore, clock: Clock
) -> None:
    """R036: more than a window of them is due, and the one that is most urgent stands first in it."""
    (urgent,) = await add(store, 1, task_class="B", priority=1)
    await add(store, 1000, priority=5)
    await add(store, 400, task_class="C", priority=5)
    while await store.lease(worker(), 1000, 20):
        pass
    clock.advance(100)
    assert [task.id for task in await store.lease(worker(), 3, 20)] == [urgent, urgent + 1, urgent + 2]


# ---- cost


async def fill(store: RedisStore, classes: int, *, delay_until: int | None = None) -> None:
    """A task in each lane, all of one priority, those of the class `Rare` last."""
    for queue in range(QUEUES):
        await store.enqueue(
            [NewTask(task_class=f"C{number}", queue=f"q{queue}", delay_until=delay_until) for number in range(classes)]
        )
    await store.enqueue([NewTask(task_class="Rare", queue="q0", delay_until=delay_until)] * 40)


LEASES: dict[str, dict[str, Collection[str]]] = {
    "whatever comes": {},
    "a class": {"classes": ["Rare"]},
    "some classes": {"classes": [*(f"No{number}" for number in range(30)), "Rare"]},
    "a queue": {"queues": ["q1"]},
    "a class of a queue": {"classes": ["Rare"], "queues": ["q0"]},
    "all but some classes": {"without_classes": [f"C{number}" for number in range(20)]},
}


async def lease_ten(store: RedisStore, due_first: bool, filters: dict[str, Collection[str]]) -> None:
    """Take ten and give them back, so that the next call finds what this one found."""
    tasks = await store.lease(worker(), 10, 60, due_first=due_first, **filters)  # type: ignore[arg-type]
    assert len(tasks) == 10
    await settle(store, tasks, Release())


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("what", LEASES)
async def test_a_lease_runs_as_many_commands_over_thousands_of_lanes_as_over_few(
    redis_server: RedisServer, store: RedisStore, what: str, kind: str
) -> None:
    """With queues and classes that are paused, and so in nobody's way."""
    due = kind == "due"
    costs: list[int] = []
    for classes in SIZES[kind]:
        with client_of(redis_server) as client:
            client.flushall()
            await fill(store, classes, delay_until=1 if due else None)
            await store.pause(Pause(PauseKind.QUEUE, "q4"))
            await store.pause(Pause(PauseKind.CLASS, "C30"))
            costs.append(sum((await cost_of(client, lambda: lease_ten(store, due, LEASES[what]))).values()))
    # the window may end in another queue, and a reading begin elsewhere
    assert costs[1] <= costs[0] + (8 if due else 0)
    assert costs[1] < (1300 if due else 300)


MANY_QUEUES = (50, 2000)

IN_MANY_QUEUES: dict[str, tuple[dict[str, Collection[str]], int]] = {
    "a queue": ({"queues": ["last"]}, 1),
    "some queues": ({"queues": ["last", "no such queue", "q7"]}, 1),
    "a rare class": ({"classes": ["Rare"]}, 1),
    "classes that are nowhere": ({"classes": ["No", "Nor"]}, 0),
    "all but the class that is everywhere": ({"without_classes": ["A"]}, 1),
    "all but some classes": ({"without_classes": ["B", "A", "a"]}, 1),
    "whatever comes": ({}, 1),
}


@pytest.mark.parametrize("due", [False, True], ids=["ready", "due"])
@pytest.mark.parametrize("what", IN_MANY_QUEUES)
async def test_a_lease_runs_as_many_commands_over_thousands_of_queues_as_over_few(
    redis_server: RedisServer, store: RedisStore, what: str, due: bool
) -> None:
    filters, wanted = IN_MANY_QUEUES[what]
    delay = 1 if due else None

    async def lease_one() -> None:
        tasks = await store.lease(worker(), 1, 60, due_first=due, **filters)  # type: ignore[arg-type]
        assert len(tasks) == wanted
        await settle(store, tasks, Release())

    costs: list[int] = []
    for queues in MANY_QUEUES:
        with client_of(redis_server) as client:
            client.flushall()
            for start in range(0, queues, 1000):
                await store.enqueue(
                    [
                        NewTask(task_class="A", queue=f"q{number}", delay_until=delay)
                        for number in range(start, min(queues, start + 1000))
                    ]
                )
            await store.enqueue([NewTask(task_class="Rare", queue="last", delay_until=delay)])
            costs.append(sum((await cost_of(client, lease_one)).values()))
        await assert_whole(store)
    # a window of due rows looks into each of 1,000 lanes
    if not due or what not in ("whatever comes", "some queues"):
        assert costs[1] <= costs[0] + 8
        assert costs[1] < 150


async def test_a_class_that_is_paused_in_thousands_of_queues_is_in_nobodys_way(
    redis_server: RedisServer, store: RedisStore
) -> None:
    await store.enqueue([NewTask(task_class="A", queue=f"q{number}", priority=1) for number in range(1000)])
    await store.enqueue([NewTask(task_class="B", queue="q500")] * 20)
    await store.pause(Pause(PauseKind.CLASS, "A"))

    async def lease_ten() -> None:
        tasks = await store.lease(worker(), 10, 60)
        assert [task.task_class for task in tasks] == ["B"] * 10
        await settle(store, tasks, Release())

    with client_of(redis_server) as client:
        assert sum((await cost_of(client, lease_ten)).values()) < 150


async def test_one_script_raises_so_many_bounds_and_the_lease_is_what_it_was(
    redis_server: RedisServer, store: RedisStore, clock: Clock
) -> None:
    """Renewals leave bounds behind; a server is not held up for all of them at once."""
    lanes = 600
    await store.enqueue([NewTask(task_class=f"C{number}") for number in range(lanes)])
    held = await store.lease(worker(), lanes, 20)
    dead = held[-1]
    clock.advance(15)
    await store.renew([Lease(task.id, task.lease_owner) for task in held[:-1] if task.lease_owner], 300)
    clock.advance(60)
    raised: list[int] = []
    script = store.calls.script

    async def counted(name: str, *arguments: Any, **options: Any) -> Any:
        with client_of(redis_server) as client:
            client.config_resetstat()
            reply = await script(name, *arguments, **options)
            raised.append(sum(commands(client).values()))
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.calls, "script", counted)
        assert [task.id for task in await store.lease(worker(), 5, 60)] == [dead.id]
    assert len(raised) == 3
    assert max(raised) < 600
    await assert_whole(store)
    with client_of(redis_server) as client:
        assert sum((await cost_of(client, lambda: store.lease(worker(), 5, 60))).values()) < 50


async def test_a_look_for_changes_costs_the_same_over_5000_lanes_that_wait(
    redis_server: RedisServer, store: RedisStore
) -> None:
    costs = []
    for classes in SIZES["ready"]:
        with client_of(redis_server) as client:
            client.flushall()
            await fill(store, classes, delay_until=START + 1000)
            costs.append(await cost_of(client, lambda: store.calls.script("changed", 0, "")))
    assert costs[1] == costs[0]
    assert sum(costs[0].values()) < 20

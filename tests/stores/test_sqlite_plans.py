"""How the hot statements run: by which index, and that their work does not grow with rows they do not ask for."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Pause, PauseKind, Settlement
from stores.sqlite import SqliteStore, open_store
from stores.sqlite_session import Session, open_sessions
from tests.clock import START, Clock

VALUES: dict[str, object] = {
    "lanes": None,
    "without": "[]",
    "limit": 100,
    "now": START,
    "patience": 10,
    "window": 1000,
    "announced": START,
    "owner": "qr:1",
    "expires": START + 20,
    "ids": "[1,2]",
}


@pytest.fixture
def session(path: Path) -> Iterator[Session]:
    """A session on a new file."""
    writing, reading = open_sessions(path, StoreOptions(), "NORMAL")
    yield writing
    writing.connection.close()
    reading.connection.close()


def plan(session: Session, name: str, values: object) -> str:
    rows = session.connection.execute(f"EXPLAIN QUERY PLAN {session.statements[name]}", values).fetchall()  # type: ignore[arg-type]
    return "\n".join(row[3] for row in rows)


@pytest.mark.parametrize(
    ("name", "values", "steps"),
    [
        ("pick_ready", VALUES, ["SEARCH task USING COVERING INDEX ready (lane=?)|INDEX ready (lane=?)"]),
        ("pick_due", VALUES, ["INDEX timed (bucket=? AND expires<?)", "INDEX timed (bucket>?)"]),
        ("next_due", VALUES, ["INDEX timed (bucket=? AND expires>?)"]),
        ("take", VALUES, ["SEARCH task USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("rows", ("[1]",), ["SEARCH task USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("complete", (1, 2, 3), ["SEARCH task USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("write", (1,) * 12, ["SEARCH task USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("renew", (1, 2, None), ["SEARCH task USING INTEGER PRIMARY KEY (rowid=?)"]),
        ("over", (1, 2), ["INDEX over (archived_epoch<?)"]),
        ("trim_attempts", (1, 2), ["SEARCH attempt USING COVERING INDEX attempt_task (task_id=?)"]),
        ("find_key", ("x",), ["SEARCH idempotency USING PRIMARY KEY (key=?)"]),
    ],
)
def test_a_hot_statement_seeks_and_never_reads_the_whole_table(
    session: Session, name: str, values: object, steps: list[str]
) -> None:
    found = plan(session, name, values)
    assert "SCAN task" not in found
    for step in steps:
        assert any(form in found for form in step.split("|")), found


def test_a_page_of_a_list_comes_from_its_index_without_sorting(session: Session) -> None:
    values = {**VALUES, "after_priority": 1, "after_id": 1, "before": 9, "offset": 0, "states": None, "results": None}
    wanted = (
        "object_phid",
        "container_phid",
        "min_failures",
        "max_failures",
        "min_priority",
        "max_priority",
        "ended_since",
    )
    values |= dict.fromkeys(wanted)
    active, archived = plan(session, "list_active", values), plan(session, "list_archived", values)
    assert "INDEX active" in active
    assert "INDEX archived (id<?)" in archived
    assert "TEMP B-TREE" not in active + archived


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    async with open_store(path, StoreOptions(now=clock), synchronous="NORMAL") as opened:
        yield opened


@contextmanager
def steps_counted(session: Session) -> Iterator[Callable[[], int]]:
    """Count the hundreds of steps that SQLite's machine makes, which no neighbour on the computer can change."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    session.connection.set_progress_handler(step, 100)
    try:
        yield lambda: steps * 100
    finally:
        session.connection.set_progress_handler(None, 0)


async def writing_session(store: SqliteStore) -> Session:
    return await store._writer.call("test", lambda session: session, alone=True)


async def cost(store: SqliteStore, **asked: object) -> int:
    """Steps of one lease of 10 rows."""
    session = await writing_session(store)
    with steps_counted(session) as count:
        await store.lease("qr:1", 10, 60, **asked)  # type: ignore[arg-type]
        return count()


async def fill(store: SqliteStore, task_class: str, count: int, **columns: object) -> None:
    for _ in range(count // 1000):
        await store.enqueue([NewTask(task_class=task_class, **columns)] * 1000)  # type: ignore[arg-type]


MOUNTAIN = 20_000
BOUND = 5_000
"""Steps that a lease of 10 rows may take; passing over a mountain row by row would take more than 100,000."""

WINDOW_BOUND = 50_000
"""The same where 1,000 due rows are looked at, some 33 steps each."""


async def test_ready_rows_of_other_classes_cost_nothing(store: SqliteStore) -> None:
    await fill(store, "Mountain", MOUNTAIN, priority=1)
    await store.enqueue([NewTask(task_class="Rare")] * 20)
    assert await cost(store, classes={"Rare"}) < BOUND
    assert await cost(store, without_classes={"Mountain"}) < BOUND


async def test_ready_rows_of_other_queues_cost_nothing(store: SqliteStore) -> None:
    await fill(store, "A", MOUNTAIN, priority=1, queue="bulk")
    await store.enqueue([NewTask(task_class="A", queue="fast")] * 20)
    assert await cost(store, queues={"fast"}) < BOUND


async def test_paused_rows_at_the_head_cost_nothing(store: SqliteStore) -> None:
    await fill(store, "Paused", MOUNTAIN, priority=1)
    await store.enqueue([NewTask(task_class="A")] * 20)
    await store.pause(Pause(PauseKind.CLASS, "Paused"))
    assert await cost(store) < BOUND


async def test_due_rows_of_other_classes_cost_nothing(store: SqliteStore) -> None:
    await fill(store, "Mountain", MOUNTAIN, delay_until=1)
    await store.enqueue([NewTask(task_class="Rare", delay_until=2)] * 20)
    assert await cost(store, classes={"Rare"}) < BOUND


async def test_rows_that_wait_or_are_held_cost_nothing(store: SqliteStore, clock: Clock) -> None:
    await fill(store, "A", MOUNTAIN // 2, delay_until=START + 1000, priority=1)
    await fill(store, "A", MOUNTAIN // 2, priority=1)
    for number in range(MOUNTAIN // 2000):
        assert len(await store.lease(f"qr:held:{number}", 1000, 60)) == 1000
    await store.enqueue([NewTask(task_class="A")] * 5)
    assert await cost(store) < BOUND
    clock.advance(65)  # the leases are over, but our workers' patience is not
    assert await cost(store) < BOUND


async def test_many_due_rows_cost_a_window_and_not_the_mountain(store: SqliteStore) -> None:
    await fill(store, "A", MOUNTAIN, delay_until=1)
    assert await cost(store) < WINDOW_BOUND
    await fill(store, "A", MOUNTAIN, delay_until=1)
    assert await cost(store) < WINDOW_BOUND


async def test_settling_does_not_grow_with_the_archive(store: SqliteStore) -> None:
    await fill(store, "A", 3000)
    costs = []
    for number in range(3):
        owner = f"qr:{number}"
        tasks = await store.lease(owner, 1000, 60)
        with steps_counted(await writing_session(store)) as count:
            await store.settle([Settlement.held(Lease(task.id, owner), Complete()) for task in tasks])
            costs.append(count())
    assert max(costs) < 1.2 * min(costs)


async def test_an_idle_store_looks_at_its_file_a_few_times_a_second(path: Path) -> None:
    async with open_store(path) as idle:
        statements: list[str] = []
        await idle._writer.call(
            "test", lambda session: session.connection.set_trace_callback(statements.append), alone=True
        )
        assert not await idle.changed(1.0)
        assert 3 <= statements.count("PRAGMA data_version") <= 6
        assert len(statements) <= 8

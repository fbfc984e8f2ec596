"""Which due rows a lease looks at where more are due than it looks at (docs/architecture.md, rule 6 and section 7)."""

from typing import Any

import pytest

from queue_runtime.store import Store
from queue_runtime.task import NewTask, Retry, Settlement
from tests.clock import START, Clock
from tests.contract.steps import HTTP, SETTLED, add, held, verdicts, worker

WINDOW = 1000
WAIT = 30
PATIENCE = 10  # the default of StoreOptions

KINDS = ("Delayed", "Retried", "Held", "Working")
"""Four kinds of waiting rows, each in a lane of its own, so that the window runs across lanes and kinds."""


async def make_due_together(store: Store, clock: Clock, priorities: list[int]) -> list[int]:
    """Rows of one expiry, whose kinds take turns; their ids."""
    ids = await add(
        store,
        *[
            NewTask(
                task_class=KINDS[place % len(KINDS)],
                priority=priority,
                delay_until=START + WAIT if place % len(KINDS) == 0 else None,
            )
            for place, priority in enumerate(priorities)
        ],
    )
    assert clock.now == START
    retried = await store.lease(worker(), WINDOW, WAIT, classes={"Retried"})
    settled = await verdicts(store, *[Settlement.held(held(task), Retry(wait=WAIT)) for task in retried])
    assert set(settled) == {SETTLED}
    await store.lease(HTTP, WINDOW, WAIT, classes={"Held"})
    await store.lease(worker(), WINDOW, WAIT, classes={"Working"})
    rows = await store.list_active(5000)
    assert {row.lease_expires for row in rows} == {START + WAIT}
    return ids


async def leased(store: Store, limit: int, **filters: Any) -> list[int]:
    return [task.id for task in await store.lease(worker(), limit, 600, **filters)]


@pytest.mark.parametrize("asked", ["all", "classes", "ids"])
async def test_where_a_second_holds_more_rows_than_the_window_the_lowest_ids_are_in_it(
    store: Store, clock: Clock, asked: str
) -> None:
    """Priority decides among these thousand alone; with each row that is taken the next id moves in.

    It is the same where a lease names all classes or all rows that there are.
    """
    priorities = [5] * (WINDOW + 4)
    priorities[WINDOW - 1], priorities[WINDOW] = 3, 1
    ids = await make_due_together(store, clock, priorities)
    named: dict[str, dict[str, Any]] = {"classes": {"classes": KINDS}, "ids": {"only": ids}}
    filters = named.get(asked, {})
    clock.advance(WAIT + 1 + PATIENCE)
    taken = await leased(store, 2, **filters)
    assert taken == [ids[WINDOW - 1], ids[0]], "the last of the window, and not the one behind it"
    assert await leased(store, 3, **filters) == [ids[WINDOW], ids[1], ids[2]]


async def test_a_row_due_a_second_longer_is_in_the_window_whatever_its_id(store: Store, clock: Clock) -> None:
    """It takes a place there from the highest of the ids that are due together."""
    priorities = [5] * (WINDOW + 4)
    priorities[WINDOW - 2], priorities[WINDOW - 1] = 3, 1
    ids = await make_due_together(store, clock, priorities)
    (older,) = await add(store, NewTask(task_class="Delayed", priority=4, delay_until=START + WAIT - 1))
    assert older > ids[-1]
    clock.advance(WAIT + 1 + PATIENCE)
    assert await leased(store, 3) == [ids[WINDOW - 2], older, ids[0]]
    assert await leased(store, 2) == [ids[WINDOW - 1], ids[1]]

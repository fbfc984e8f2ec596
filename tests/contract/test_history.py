"""The error history of a task: what, when, whose, and how much of it is kept."""

from queue_runtime.store import Store
from queue_runtime.task import (
    MAX_HISTORY,
    MAX_MESSAGE,
    MAX_TRACE,
    Attempt,
    AttemptKind,
    Fail,
    Failure,
    Retry,
    Settlement,
)
from tests.clock import Clock
from tests.contract.steps import OUTCOMES, add_plain, errors, held, settle, take, take_new


async def test_a_retry_and_a_failure_each_leave_one_entry(store: Store, clock: Clock) -> None:
    first = await take_new(store)
    clock.advance(1)
    await settle(store, held(first), Retry(wait=0, failure=Failure("boom", "Traceback …", 4711)))
    failed_at = clock.now
    clock.advance(10)
    second = await take(store)
    await settle(store, held(second), Fail(Failure("over", duration_us=12)))

    assert await errors(store, first.id) == [
        Attempt(
            attempt=1,
            kind=AttemptKind.RETRY,
            when=failed_at,
            owner=first.lease_owner,
            duration_us=4711,
            message="boom",
            trace="Traceback …",
        ),
        Attempt(
            attempt=2,
            kind=AttemptKind.FAILURE,
            when=clock.now,
            owner=second.lease_owner,
            duration_us=12,
            message="over",
            trace="",
        ),
    ]


async def test_ends_that_are_no_failures_leave_no_entry(store: Store) -> None:
    for kind in ("complete", "yield", "unknown", "release"):
        task = await take_new(store)
        await settle(store, held(task), OUTCOMES[kind])
        assert await errors(store, task.id) == []
    (gone,) = await add_plain(store, 1)
    await store.cancel([gone])
    assert await errors(store, gone) == []


async def test_an_outcome_that_was_lost_leaves_no_entry(store: Store) -> None:
    task = await take_new(store)
    await store.free([task.id])
    await settle(store, held(task), Retry())
    await settle(store, held(task), Fail())
    assert await errors(store, task.id) == []


async def test_a_replayed_failure_leaves_no_second_entry(store: Store) -> None:
    task = await take_new(store)
    await store.settle([Settlement.held(held(task), Fail())] * 3)
    assert len(await errors(store, task.id)) == 1


async def test_only_the_newest_entries_are_kept_oldest_first(store: Store, clock: Clock) -> None:
    task = await take_new(store)
    for number in range(1, MAX_HISTORY + 4):
        await settle(store, held(task), Retry(wait=0, failure=Failure(str(number))))
        clock.advance(1)
        task = await take(store)
    wanted = [str(number) for number in range(4, MAX_HISTORY + 4)]
    history = await errors(store, task.id)
    assert [entry.message for entry in history] == wanted
    assert [entry.attempt for entry in history] == [int(number) for number in wanted]


async def test_long_texts_are_cut_by_characters(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Retry(failure=Failure("\u00e9" * 9000, "\U0001f642" * 20_000)))
    (entry,) = await errors(store, task.id)
    assert entry.message == "\u00e9" * MAX_MESSAGE
    assert entry.trace == "\U0001f642" * MAX_TRACE


async def test_texts_that_are_no_valid_unicode_do_not_stop_the_round(store: Store) -> None:
    """R086, R081: a handler's error text may hold anything, such as the file name in an OSError."""
    task, other = await take_new(store), await take_new(store)
    settled = await store.settle(
        [
            Settlement.held(held(task), Retry(failure=Failure("no file \udcff\0", "\ud800 trace"))),
            Settlement.held(held(other), Retry(failure=Failure("fine"))),
        ]
    )
    assert [one.verdict for one in settled] == ["settled", "settled"]
    (entry,) = await errors(store, task.id)
    assert entry.message.startswith("no file ")
    entry.message.encode()
    entry.trace.encode()


async def test_history_survives_archive_and_retry(store: Store) -> None:
    task = await take_new(store)
    await settle(store, held(task), Fail(Failure("first")))
    assert [entry.message for entry in await errors(store, task.id)] == ["first"]
    await store.retry([task.id])
    assert [entry.message for entry in await errors(store, task.id)] == ["first"]
    await settle(store, held(await take(store)), Fail(Failure("second")))
    assert [entry.message for entry in await errors(store, task.id)] == ["first", "second"]


async def test_histories_come_in_the_order_asked(store: Store) -> None:
    first, second = await take_new(store), await take_new(store)
    await settle(store, held(second), Fail(Failure("two")))
    await settle(store, held(first), Fail(Failure("one")))
    found = await store.history([second.id, 999_999, first.id, second.id])
    assert [[entry.message for entry in entries] for entries in found] == [["two"], [], ["one"], ["two"]]
    assert await store.history([]) == []


async def test_an_unfenced_failure_names_the_owner_that_held_the_row(store: Store) -> None:
    task = await take_new(store)
    await store.settle([Settlement.unfenced(task.id, Retry())])
    assert [entry.owner for entry in await errors(store, task.id)] == [task.lease_owner]

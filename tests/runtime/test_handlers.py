"""What a handler may do, and what the queue makes of it."""

import asyncio
import functools
import gc
import threading
import time
from collections.abc import Awaitable, Callable

import anyio
import msgspec
import pytest

from queue_runtime.registry import Context, PermanentFailure, Registry, Retry, Unknown, Yield
from queue_runtime.stats import Ending
from queue_runtime.store import StoreOptions
from queue_runtime.task import MAX_FOLLOWUPS, NewTask, Result, Sentinel, Task
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import Worker, all_succeeded, ended, enqueue, failures, new, open_reference, until


class Point(msgspec.Struct):
    x: int


async def run_one(
    handler: Callable[[Context, str], Awaitable[None]] | Callable[[Context, str], None],
    *,
    data: str = "",
    max_attempts: int | None = None,
    timeout: float | None = None,
) -> tuple[Worker, int]:
    """Run a task of this handler until its first outcome is written."""
    store, registry = open_reference(), Registry()
    registry.task("A", max_attempts=max_attempts, timeout=timeout, retry=1000)(handler)
    worker = Worker(store, registry)
    (task_id,) = await enqueue(store, "A", data=data)
    async with worker.running():
        await until(lambda: sum(worker.stats.of("A").endings.values()))
    return worker, task_id


async def test_a_handler_that_returns_ends_its_task_as_a_success() -> None:
    seen: list[str] = []

    async def handler(context: Context, data: str) -> None:
        seen.append(data)

    worker, task_id = await run_one(handler, data='{"as": "it is"}')
    row = (await worker.store.get_archived([task_id]))[0]
    assert row is not None
    assert row.result is Result.SUCCESS
    assert row.duration_us >= 0
    assert seen == ['{"as": "it is"}']
    assert worker.stats.total(Ending.SUCCEEDED) == 1
    assert worker.stats.active == 0


async def test_data_arrives_as_the_type_the_handler_asks_for() -> None:
    store, registry = open_reference(), Registry()
    seen: list[Point] = []

    @registry.task("A")
    async def handler(context: Context, data: Point) -> None:
        seen.append(data)

    ids = await enqueue(store, "A", data='{"x": 3}')
    async with Worker(store, registry).running():
        await until(lambda: all_succeeded(store, ids))
    assert seen == [Point(3)]


async def test_data_that_does_not_fit_is_a_permanent_failure_with_the_reason() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("A")
    async def handler(context: Context, data: Point) -> None:
        raise AssertionError("must not run")

    (wrong,) = await enqueue(store, "A", data='{"x": "three"}')
    (broken,) = await enqueue(store, "A", data="{")
    async with Worker(store, registry).running():
        await until(lambda: ended(store, wrong) is not None and ended(store, broken) is not None)
    assert ended(store, wrong) is ended(store, broken) is Result.FAILURE
    assert failures(store, wrong) == ["data: expected int, got str at $.x"]
    assert failures(store, broken) == ["data: input data was truncated"]


class OwnKind(BaseException):
    """Not an Exception: what a handler must be able to raise without harm."""


def recurse() -> None:
    recurse()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        OwnKind("odd"),
        SystemExit(3),
        KeyboardInterrupt(),
        MemoryError(),
        GeneratorExit(),
        StopIteration(),
        StopAsyncIteration(),
        ExceptionGroup("two", [ValueError("a"), TypeError("b")]),
        BaseExceptionGroup("two", [OwnKind("a")]),
        asyncio.CancelledError(),
        TimeoutError(),
        msgspec.ValidationError("of something else"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_whatever_a_handler_raises_counts_as_one_temporary_failure(error: BaseException, kind: str) -> None:
    async def in_loop(context: Context, data: str) -> None:
        raise error

    def in_thread(context: Context, data: str) -> None:
        raise error

    worker, task_id = await run_one(in_loop if kind == "async" else in_thread)
    row = (await worker.store.get([task_id]))[0]
    assert row is not None
    assert (row.failure_count, row.lease_owner) == (1, Sentinel.RETRY)
    (attempt,) = (await worker.store.history([task_id]))[0]
    if isinstance(error, asyncio.CancelledError):
        assert attempt.message == "the handler was cancelled, but not by the runtime"
    elif not isinstance(error, StopIteration | StopAsyncIteration):  # Python itself replaces these in a coroutine
        assert type(error).__name__ in attempt.message
        assert type(error).__name__ in attempt.trace
    assert attempt.duration_us >= 0


async def test_an_endless_recursion_counts_as_one_temporary_failure() -> None:
    async def handler(context: Context, data: str) -> None:
        recurse()

    worker, task_id = await run_one(handler)
    (attempt,) = (await worker.store.history([task_id]))[0]
    assert "RecursionError" in attempt.message


async def test_the_loop_goes_on_after_handlers_that_raise_the_worst() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("Bad", retry=1000)
    async def bad(context: Context, data: str) -> None:
        raise SystemExit

    @registry.task("Good")
    async def good(context: Context, data: str) -> None:
        await asyncio.sleep(0)

    await enqueue(store, "Bad", 20)
    ids = await enqueue(store, "Good", 20)
    async with Worker(store, registry, slots=2).running():
        await until(lambda: all_succeeded(store, ids))


async def test_an_exception_without_a_text_and_one_with_a_lone_surrogate_are_recorded() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    async def mute(context: Context, data: str) -> None:
        raise Mute

    async def odd(context: Context, data: str) -> None:
        raise ValueError("half \ud83d")

    worker, task_id = await run_one(mute)
    assert (await worker.store.history([task_id]))[0][0].message == "Mute: (no text)"
    worker, task_id = await run_one(odd)
    (attempt,) = (await worker.store.history([task_id]))[0]
    assert attempt.message == "ValueError: half ?"
    attempt.trace.encode()


async def test_returning_anything_is_a_temporary_failure_that_says_so() -> None:
    async def number(context: Context, data: str) -> None:
        return 7  # type: ignore[return-value]  # the fault under test

    def forgotten(context: Context, data: str) -> None:
        return number(context, data)  # type: ignore[return-value]  # the fault under test

    worker, task_id = await run_one(number)
    assert failures_of(worker, task_id) == ["the handler returned int; a handler returns None"]
    worker, task_id = await run_one(forgotten)
    assert failures_of(worker, task_id) == ["the handler returned coroutine; a handler returns None"]


def failures_of(worker: Worker, task_id: int) -> list[str]:
    return failures(worker.store, task_id)  # type: ignore[arg-type]  # run_one uses the reference store


async def test_retry_yield_unknown_and_permanent_failure_end_the_run_as_they_say() -> None:
    async def retry(context: Context, data: str) -> None:
        raise Retry(7, reason="later")

    async def put_off(context: Context, data: str) -> None:
        raise Yield(60)

    async def unknown(context: Context, data: str) -> None:
        raise Unknown(30)

    async def never(context: Context, data: str) -> None:
        raise PermanentFailure("never")

    worker, task_id = await run_one(retry)
    row = (await worker.store.get([task_id]))[0]
    assert row is not None
    assert (row.lease_owner, row.failure_count, failures_of(worker, task_id)) == (Sentinel.RETRY, 1, ["later"])
    assert 5 <= (row.lease_expires or 0) - time.time() <= 8

    worker, task_id = await run_one(put_off)
    row = (await worker.store.get([task_id]))[0]
    assert row is not None
    assert (row.lease_owner, row.failure_count) == (Sentinel.YIELD, 0)

    worker, task_id = await run_one(unknown)
    row = (await worker.store.get([task_id]))[0]
    assert row is not None
    assert (row.lease_owner, row.failure_count) == (Sentinel.UNKNOWN, 0)

    worker, task_id = await run_one(never)
    assert (await worker.store.get_archived([task_id]))[0].result is Result.FAILURE  # type: ignore[union-attr]
    assert failures_of(worker, task_id) == ["never"]


async def test_a_retry_with_a_wait_that_is_no_number_is_still_a_failure() -> None:
    async def handler(context: Context, data: str) -> None:
        raise Retry("soon")  # type: ignore[arg-type]  # the fault under test

    worker, task_id = await run_one(handler)
    row = (await worker.store.get([task_id]))[0]
    assert row is not None
    assert row.failure_count == 1


async def test_the_failure_that_reaches_max_attempts_ends_the_task() -> None:
    store, registry = open_reference(), Registry()
    attempts: list[int] = []

    @registry.task("A", max_attempts=3, retry=0)
    async def handler(context: Context, data: str) -> None:
        attempts.append(context.attempt)
        raise ValueError

    (task_id,) = await enqueue(store, "A")
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: ended(store, task_id) is not None)
    assert ended(store, task_id) is Result.FAILURE
    assert attempts == [1, 2, 3]
    assert worker.stats.of("A").endings[Ending.RETRIED] == 2
    assert worker.stats.of("A").endings[Ending.FAILED] == 1


async def test_a_raised_maximum_wins_over_that_of_the_class() -> None:
    async def handler(context: Context, data: str) -> None:
        raise Retry(max_attempts=1)

    worker, task_id = await run_one(handler, max_attempts=5)
    assert (await worker.store.get_archived([task_id]))[0].result is Result.FAILURE  # type: ignore[union-attr]


async def test_a_task_without_an_attempt_left_fails_without_running() -> None:
    store, registry = open_reference(), Registry()

    @registry.task("A", max_attempts=3)
    async def handler(context: Context, data: str) -> None:
        raise AssertionError("must not run")

    (task_id,) = await enqueue(store, "A")
    row = store.tables.active[task_id]
    store.tables.active[task_id] = msgspec.structs.replace(row, failure_count=3)
    async with Worker(store, registry).running():
        await until(lambda: ended(store, task_id) is not None)
    assert failures(store, task_id) == ["failed 3 times, the maximum is 3"]


async def test_lost_leases_use_up_no_attempt() -> None:
    """R085: the window ends twice without any failure of the handler."""
    store, registry = open_reference(), Registry()

    @registry.task("A", max_attempts=1)
    async def handler(context: Context, data: str) -> None:
        await asyncio.sleep(0)

    (task_id,) = await enqueue(store, "A")
    row = store.tables.active[task_id]
    for number in range(2):
        store.tables.active[task_id] = msgspec.structs.replace(
            row, lease_owner=f"qr:dead:{number}", lease_expires=1, lost_count=number
        )
    async with Worker(store, registry).running():
        await until(lambda: ended(store, task_id) is not None)
    assert ended(store, task_id) is Result.SUCCESS


async def test_a_class_nobody_registered_is_a_failure_with_a_clear_message() -> None:
    """A store whose names do not tell case apart may hand out such a task."""

    class Sloppy(ReferenceStore):
        async def lease(self, owner: str, limit: int, seconds: int, **settings: object) -> list[Task]:
            return await super().lease(owner, limit, seconds)

    store, registry = Sloppy(StoreOptions()), Registry()
    registry.task("A")(nothing)
    (task_id,) = await enqueue(store, "a")
    worker = Worker(store, registry, retry_seconds=1000)
    async with worker.running():
        await until(lambda: failures(store, task_id))
    assert failures(store, task_id) == ["no handler for task class a"]


async def nothing(context: Context, data: str) -> None:
    """A handler that is done at once."""


async def test_a_type_that_is_missing_at_first_use_fails_the_task_and_not_the_loop() -> None:
    """R101."""
    store, registry = open_reference(), Registry()

    async def broken(context: Context, data: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    registry.task("Broken", retry=1000)(broken)
    registry.task("Good")(nothing)
    (bad,) = await enqueue(store, "Broken")
    good = await enqueue(store, "Good", 3)
    async with Worker(store, registry, slots=1).running():
        await until(lambda: all_succeeded(store, good) and failures(store, bad))
    assert failures(store, bad) == ["NameError: name 'Nowhere' is not defined"]


async def test_follow_ups_are_stored_with_the_success_and_inherit_the_priority() -> None:
    store, registry = open_reference(), Registry()
    contexts: list[Context] = []

    @registry.task("Parent")
    async def parent(context: Context, data: str) -> None:
        contexts.append(context)
        context.enqueue(NewTask(task_class="Child"))
        context.enqueue(NewTask(task_class="Child", priority=9))

    await store.enqueue([new("Parent", priority=77)])
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: worker.stats.total(Ending.SUCCEEDED))
        children = [task for task in store.tables.active.values() if task.task_class == "Child"]
        assert sorted(child.priority for child in children) == [9, 77]
        with pytest.raises(RuntimeError, match="has ended"):
            contexts[0].enqueue(NewTask(task_class="Child"))
        assert not await contexts[0].renew(5)


async def test_follow_ups_of_a_run_that_failed_are_dropped() -> None:
    async def handler(context: Context, data: str) -> None:
        context.enqueue(NewTask(task_class="Child"))
        raise ValueError

    worker, task_id = await run_one(handler)
    assert [task.id for task in await worker.store.list_active(10)] == [task_id]


async def test_too_many_follow_ups_are_refused_at_once() -> None:
    async def handler(context: Context, data: str) -> None:
        for _ in range(MAX_FOLLOWUPS + 1):
            context.enqueue(NewTask(task_class="Child"))

    worker, task_id = await run_one(handler)
    assert failures_of(worker, task_id) == [f"InvalidRequest: followups: must be at most {MAX_FOLLOWUPS}"]


async def test_follow_ups_start_without_a_wait() -> None:
    class Silent(ReferenceStore):
        async def changed(self, timeout: float) -> bool:
            await anyio.sleep(timeout)
            return False

    store, registry = Silent(StoreOptions()), Registry()
    began: dict[str, float] = {}

    @registry.task("Parent")
    async def parent(context: Context, data: str) -> None:
        context.enqueue(NewTask(task_class="Child"))
        began["parent"] = time.monotonic()

    @registry.task("Child")
    async def child(context: Context, data: str) -> None:
        began["child"] = time.monotonic()

    await enqueue(store, "Parent")
    async with Worker(store, registry, slots=8).running():
        await until(lambda: "child" in began)
    assert began["child"] - began["parent"] < 0.5


async def test_a_plain_function_runs_in_a_thread_and_leaves_the_loop_free() -> None:
    store, registry = open_reference(), Registry()
    threads: set[int] = set()
    release = threading.Event()

    @registry.task("Slow")
    def slow(context: Context, data: str) -> None:
        threads.add(threading.get_ident())
        assert release.wait(10)
        context.enqueue(NewTask(task_class="Quick"))

    registry.task("Quick")(nothing)
    slow_ids = await enqueue(store, "Slow", 2)
    worker = Worker(store, registry, slots=4)
    async with worker.running():
        await until(lambda: len(threads) == 2)
        quick = await enqueue(store, "Quick", 50)
        await until(lambda: all_succeeded(store, quick))
        assert threading.get_ident() not in threads
        release.set()
        await until(lambda: all_succeeded(store, slow_ids))
        await until(lambda: worker.stats.of("Quick").endings[Ending.SUCCEEDED] == 52)


async def test_a_partial_and_an_object_can_be_handlers() -> None:
    store, registry = open_reference(), Registry()
    seen: list[object] = []

    class Callable_:
        async def __call__(self, context: Context, data: Point) -> None:
            seen.append(data)

    async def three(extra: str, context: Context, data: str) -> None:
        seen.append(extra + data)

    registry.task("Object")(Callable_())
    registry.task("Partial")(functools.partial(three, "with "))
    ids = await enqueue(store, "Object", data='{"x": 1}') + await enqueue(store, "Partial", data="text")
    async with Worker(store, registry, slots=1).running():
        await until(lambda: all_succeeded(store, ids))
    assert seen == [Point(1), "with text"]


async def test_no_run_is_lost_to_the_garbage_collector(logs: list[Log]) -> None:
    """R048: every started handler ends, though nothing but the runtime refers to its task."""
    store, registry = open_reference(), Registry()

    @registry.task("A")
    async def handler(context: Context, data: str) -> None:
        await anyio.sleep(0.001)

    async def collect() -> None:
        while True:
            gc.collect()
            await anyio.sleep(0.01)

    ids = await enqueue(store, "A", 1000)
    async with anyio.create_task_group() as group:
        group.start_soon(collect)
        async with Worker(store, registry, slots=50).running():
            await until(lambda: all_succeeded(store, ids), seconds=30)
        group.cancel_scope.cancel()


async def test_each_failure_is_one_log_line_with_the_facts(logs: list[Log]) -> None:
    """R110."""
    store, registry = open_reference(), Registry()

    @registry.task("Now")
    async def now(context: Context, data: str) -> None:
        raise Retry(1000, reason="later")

    @registry.task("Never")
    async def never(context: Context, data: str) -> None:
        raise PermanentFailure("no")

    await store.enqueue([new("Now", object_phid="PHID-1"), new("Never", object_phid="PHID-2")])
    worker = Worker(store, registry)
    async with worker.running():
        await until(lambda: worker.stats.total(Ending.RETRIED, Ending.FAILED) == 2)
    temporary, permanent = (line for line in logs if "failed" in line["event"])
    assert (temporary["log_level"], temporary["reason"], temporary["object_phid"]) == ("warning", "later", "PHID-1")
    assert (permanent["log_level"], permanent["reason"], permanent["attempt"]) == ("error", "no", 1)
    assert permanent["owner"].startswith("qr:")
    assert permanent["task_class"] == "Never"


async def follow_up_text(context: Context, data: str) -> None:
    context.enqueue("SomeClass")  # type: ignore[arg-type]


async def follow_up_fraction(context: Context, data: str) -> None:
    context.enqueue(NewTask(task_class="B", priority=1.5))  # type: ignore[arg-type]


async def follow_up_bytes(context: Context, data: str) -> None:
    context.enqueue(NewTask(task_class="B", data=b"bytes"))  # type: ignore[arg-type]


async def try_text_times(context: Context, data: str) -> None:
    raise Retry(wait=1, max_attempts="3")  # type: ignore[arg-type]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


async def raise_unspeakable(context: Context, data: str) -> None:
    raise Unspeakable


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (follow_up_text, "a follow-up must be a NewTask, not str"),
        (follow_up_fraction, "priority: must be a whole number, not float"),
        (follow_up_bytes, "data: must be text, not bytes"),
        (try_text_times, "max_attempts: must be a whole number, not str"),
        (raise_unspeakable, "Unspeakable"),
    ],
)
async def test_nonsense_from_a_handler_is_its_own_failure_and_costs_nobody_else(
    handler: Callable[[Context, str], Awaitable[None]], says: str
) -> None:
    worker, task_id = await run_one(handler)
    assert worker.stats.of("A").endings[Ending.RETRIED] == 1
    ((entry,),) = await worker.store.history([task_id])
    assert says in entry.message

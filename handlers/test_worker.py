"""PhabricatorTestWorker: takes as long and fails as often as its data asks for."""

import anyio
import msgspec
from msgspec import Struct

from queue_runtime.errors import StoreUnavailable
from queue_runtime.registry import Context, PermanentFailure, Retry, Yield
from queue_runtime.task import YIELD_FLOOR

TASK_CLASS = "PhabricatorTestWorker"


class Wishes(Struct, frozen=True, rename="camel"):
    """The task's data; Phorge spells most keys like the worker methods whose answers they replace.

    `duration` is in seconds, though an archived task shows microseconds. `getMaximumRetryCount` is the highest
    failure count that still runs, so m means m + 1 runs.
    """

    duration: float | None = None
    do_work: object = None
    get_required_lease_time: int | None = None
    get_maximum_retry_count: int | None = None
    get_wait_before_retry: int | None = None


def read_wishes(data: str) -> Wishes:
    """Decode the data as leniently as PHP would: numeric strings count, and an empty map arrives as `[]`."""
    try:
        if msgspec.json.decode(data) == []:
            return Wishes()
        return msgspec.json.decode(data, type=Wishes, strict=False)
    except msgspec.DecodeError as error:  # a ValidationError is one too
        raise PermanentFailure(f"the task's data is not a test worker's: {error}") from error


async def run_test_worker(context: Context, data: str) -> None:
    """Run one task in Phorge's order: retry limit, lease time, duration, ending. An unknown `doWork` succeeds."""
    wishes = read_wishes(data)
    limit = wishes.get_maximum_retry_count
    # the store ends our own runs by max_attempts; this is for rows that failed under somebody else
    if limit is not None and context.task.failure_count > limit:
        raise PermanentFailure(f"failed {context.task.failure_count} times, {limit} allowed")
    if wishes.get_required_lease_time:
        await _hold(context, wishes.get_required_lease_time)
    if wishes.duration:
        if wishes.duration < 0:
            raise _temporary("the duration is negative", wishes)
        await anyio.sleep(wishes.duration)
    if wishes.do_work == "fail-temporary":
        raise _temporary("asked to fail for now", wishes)
    if wishes.do_work == "fail-permanent":
        raise PermanentFailure("asked to fail for good")


async def _hold(context: Context, seconds: int) -> None:
    try:
        await context.renew(seconds)
    except StoreUnavailable as error:  # nothing has run, so an outage is no failure of the task
        raise Yield(YIELD_FLOOR) from error


def _temporary(reason: str, wishes: Wishes) -> Retry:
    limit = wishes.get_maximum_retry_count
    return Retry(wishes.get_wait_before_retry, reason=reason, max_attempts=None if limit is None else limit + 1)

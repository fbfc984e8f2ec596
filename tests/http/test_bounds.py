"""The time of requests, which one timer bounds for all of them."""

import asyncio

import pytest

from queue_runtime.api.bounds import Bounds

SHORT = 0.05
LONG = 10.0


async def overrun(bounds: Bounds, *, move: float = 0.0) -> float:
    """Work for too long, and say after how many seconds that was stopped."""
    now = asyncio.get_running_loop().time
    began = now()
    try:
        with bounds.begin() as bound:
            bound.move(began + move)
            await asyncio.sleep(LONG)
    except TimeoutError:
        return now() - began
    raise AssertionError("nobody stopped it")


async def test_what_takes_too_long_ends_in_a_time_out() -> None:
    assert SHORT <= await overrun(Bounds(SHORT)) < LONG / 2


async def test_what_ends_in_time_is_left_alone() -> None:
    bounds = Bounds(SHORT)
    for _ in range(3):
        with bounds.begin():
            await asyncio.sleep(0)
    await asyncio.sleep(2 * SHORT)  # were a bound still open, it would end this


async def test_each_ends_in_its_own_time() -> None:
    bounds = Bounds(4 * SHORT)
    first = asyncio.create_task(overrun(bounds))
    await asyncio.sleep(2 * SHORT)
    took = await asyncio.gather(first, overrun(bounds))
    assert all(4 * SHORT <= one < LONG / 2 for one in took)


async def test_a_bound_that_is_moved_ends_later() -> None:
    assert 4 * SHORT <= await overrun(Bounds(SHORT), move=4 * SHORT) < LONG / 2


async def test_a_bound_never_moves_to_an_earlier_time() -> None:
    assert 4 * SHORT <= await overrun(Bounds(4 * SHORT), move=-1) < LONG / 2


async def test_a_task_that_somebody_cancels_is_cancelled() -> None:
    task = asyncio.create_task(overrun(Bounds(LONG)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_meets_the_time_out_wins() -> None:
    async def wait() -> None:
        with Bounds(LONG).begin() as bound:
            bound.expire()
            await asyncio.sleep(LONG)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_errors_of_the_work_itself_pass() -> None:
    with pytest.raises(KeyError), Bounds(LONG).begin():
        raise KeyError

"""PhabricatorTestWorker does what its data asks for, as Phorge's class does."""

import time

import anyio
import pytest

from handlers.test_worker import TASK_CLASS, run_test_worker
from queue_runtime.errors import StoreUnavailable
from queue_runtime.registry import PermanentFailure, Retry, Yield
from tests.handlers.fakes import FakeRun, context_for


@pytest.mark.parametrize("data", ["{}", "[]", '{"doWork":null}', '{"doWork":"whatever"}', '{"doWork":3,"else":1}'])
async def test_it_succeeds_unless_asked_to_fail(data: str) -> None:
    await run_test_worker(context_for(TASK_CLASS), data)


async def test_it_fails_for_now_with_the_wait_of_its_class_when_none_is_given() -> None:
    with pytest.raises(Retry) as ending:
        await run_test_worker(context_for(TASK_CLASS), '{"doWork":"fail-temporary"}')
    assert (ending.value.wait, ending.value.max_attempts) == (None, None)


async def test_it_fails_for_now_with_the_wait_that_is_given() -> None:
    with pytest.raises(Retry) as ending:
        await run_test_worker(context_for(TASK_CLASS), '{"doWork":"fail-temporary","getWaitBeforeRetry":9}')
    assert ending.value.wait == 9


async def test_it_fails_for_good() -> None:
    with pytest.raises(PermanentFailure):
        await run_test_worker(context_for(TASK_CLASS), '{"doWork":"fail-permanent"}')


async def test_a_retry_count_of_m_means_m_plus_one_runs() -> None:
    data = '{"doWork":"fail-temporary","getMaximumRetryCount":2}'
    for failures in range(3):
        with pytest.raises(Retry) as ending:
            await run_test_worker(context_for(TASK_CLASS, failures=failures), data)
        assert ending.value.max_attempts == 3


async def test_a_task_that_failed_more_often_than_its_retry_count_does_not_run() -> None:
    run = FakeRun()
    data = '{"getMaximumRetryCount":2,"getRequiredLeaseTime":60}'
    with pytest.raises(PermanentFailure):
        await run_test_worker(context_for(TASK_CLASS, failures=3, run=run), data)
    assert run.renewals == []


async def test_a_retry_count_of_zero_means_one_run() -> None:
    with pytest.raises(Retry) as ending:
        await run_test_worker(context_for(TASK_CLASS), '{"doWork":"fail-temporary","getMaximumRetryCount":0}')
    assert ending.value.max_attempts == 1


async def test_it_holds_its_lease_for_the_time_it_requires() -> None:
    run = FakeRun()
    await run_test_worker(context_for(TASK_CLASS, run=run), '{"getRequiredLeaseTime":3600}')
    assert run.renewals == [3600]


async def test_a_lease_that_cannot_be_extended_in_an_outage_is_no_failure() -> None:
    class Outage(FakeRun):
        async def renew(self, seconds: int) -> bool:
            raise StoreUnavailable("renew")

    with pytest.raises(Yield):
        await run_test_worker(context_for(TASK_CLASS, run=Outage()), '{"getRequiredLeaseTime":3600}')


@pytest.mark.parametrize("duration", ["0.05", '"0.05"', "5e-2"])
async def test_the_duration_is_in_seconds_and_may_be_a_numeric_string(duration: str) -> None:
    began = time.monotonic()
    await run_test_worker(context_for(TASK_CLASS), f'{{"duration":{duration}}}')
    assert 0.05 <= time.monotonic() - began < 5


async def test_it_can_be_cancelled_while_its_duration_passes() -> None:
    with anyio.move_on_after(0.01) as scope:
        await run_test_worker(context_for(TASK_CLASS), '{"duration":3600}')
    assert scope.cancelled_caught


async def test_the_duration_passes_before_it_fails() -> None:
    began = time.monotonic()
    with pytest.raises(PermanentFailure):
        await run_test_worker(context_for(TASK_CLASS), '{"duration":0.05,"doWork":"fail-permanent"}')
    assert time.monotonic() - began >= 0.05


async def test_a_negative_duration_is_a_failure_that_is_tried_again() -> None:
    with pytest.raises(Retry):
        await run_test_worker(context_for(TASK_CLASS), '{"duration":-1}')


@pytest.mark.parametrize("data", ["", "nonsense", "7", '"text"', "[1]", '{"duration":"soon"}', "null"])
async def test_data_that_is_not_its_own_fails_for_good(data: str) -> None:
    with pytest.raises(PermanentFailure):
        await run_test_worker(context_for(TASK_CLASS), data)

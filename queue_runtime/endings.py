"""Turns the way a run ended into the outcome that is stored."""

import asyncio
import inspect
import random
import time
import traceback

import structlog

from queue_runtime import context as raised
from queue_runtime.handler_spec import HandlerSpec
from queue_runtime.run import Run, Stop
from queue_runtime.task import (
    MAX_MESSAGE,
    MAX_TRACE,
    U32,
    Complete,
    Fail,
    Failure,
    Outcome,
    Release,
    Retry,
    Unknown,
    Yield,
)

SPREAD = 0.25
"""Plain retry seconds are stretched by up to this part, so that tasks which failed together come back apart."""


class Endings:
    """Outcomes by the rules: only a failure that really ended counts, and what the handler says itself wins."""

    def __init__(self, *, retry_seconds: float) -> None:
        self.retry_seconds = retry_seconds
        self._log = structlog.get_logger().bind()

    def check_attempts(self, run: Run) -> None:
        """Raise PermanentFailure where the task has no attempt left and must not be run."""
        maximum = run.task.max_attempts if run.task.max_attempts is not None else run.spec.max_attempts
        failures = run.task.failure_count
        if maximum is not None and failures >= maximum:
            raise raised.PermanentFailure(f"failed {failures} times, the maximum is {maximum}")

    def returned(self, run: Run, result: object) -> Outcome:
        """The outcome of a run whose handler returned.

        After a time-out that is a failure all the same. After an order to stop for another reason it is what it
        says: the handler did its work to the end.
        """
        if run.stop is Stop.TIMEOUT:
            return self._retry(run, None, _timed_out(run, ""))
        if result is None:
            return Complete(_duration_us(run), run.followups or ())
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that it was never awaited
        message = _text(f"the handler returned {type(result).__name__}; a handler returns None")
        return self._retry(run, None, Failure(message, "", _duration_us(run)))

    def raised(self, run: Run, error: BaseException) -> Outcome:
        """The outcome of a run whose handler raised this. It raises nothing, whatever the error is."""
        try:
            return self._judged(run, error)
        except BaseException as fault:  # noqa: BLE001  Retry(wait="soon"), or an error whose own code raises
            try:
                return self._judged(run, fault)
            except BaseException:  # noqa: BLE001  which raises again
                return self.untold(run)

    def untold(self, run: Run) -> Outcome:
        """The outcome of a run of which nothing else can be said: made of nothing that a handler brought."""
        if run.stop is not None and run.stop is not Stop.TIMEOUT:
            return Release()
        failure = Failure("the run failed, and what its handler raised cannot be told", "", _duration_us(run))
        return Retry(self._stretched(None), failure, run.spec.max_attempts)

    def _judged(self, run: Run, error: BaseException) -> Outcome:
        match error:
            case raised.Yield(wait=wait):
                return Yield(_seconds(wait))
            case raised.Unknown(wait=wait):
                return Unknown(self._stretched(None) if wait is None else _seconds(wait))
            case raised.PermanentFailure():
                return Fail(_failure(run, error))
        if run.stop is Stop.TIMEOUT:
            return self._retry(run, error, _timed_out(run, _trace(error)))
        if run.stop is not None:
            return Release()
        if isinstance(error, asyncio.CancelledError):
            message = "the handler was cancelled, but not by the runtime"
            return self._retry(run, error, Failure(message, _trace(error), _duration_us(run)))
        return self._retry(run, error, _failure(run, error))

    def _retry(self, run: Run, error: BaseException | None, failure: Failure) -> Retry:
        maximum = run.spec.max_attempts
        if isinstance(error, raised.Retry):
            maximum = error.max_attempts if error.max_attempts is not None else maximum
            if error.wait is not None:
                return Retry(_seconds(error.wait), failure, maximum)
        return Retry(self._policy_wait(run.spec, run.task.failure_count + 1), failure, maximum)

    def _policy_wait(self, spec: HandlerSpec, failures: int) -> int:
        if not callable(spec.retry):
            return self._stretched(spec.retry)
        try:
            return _seconds(spec.retry(failures))
        except BaseException as error:  # noqa: BLE001  a handler author's function: its fault must not cost the outcome
            self._log.error("retry policy failed", task_class=spec.task_class, reason=_text(_message(error)))
            return self._stretched(None)

    def _stretched(self, seconds: float | None) -> int:
        seconds = self.retry_seconds if seconds is None else seconds
        return _seconds(seconds * random.uniform(1.0, 1.0 + SPREAD))


def _seconds(wait: float) -> int:
    return min(max(round(wait), 0), U32)


def _duration_us(run: Run) -> int:
    return run.worked_us if run.worked_us is not None else int((time.monotonic() - run.began) * 1_000_000)


def _timed_out(run: Run, trace: str) -> Failure:
    return Failure(f"timed out after {run.spec.timeout:g} s", trace, _duration_us(run))


def _failure(run: Run, error: BaseException) -> Failure:
    if isinstance(error, raised.Ending):
        message = str(error) or f"{type(error).__name__} without a reason"
        trace = "" if error.__cause__ is None else _trace(error)
    else:
        message, trace = _message(error), _trace(error)
    return Failure(_text(message), trace, _duration_us(run))


def _message(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = f"{error!s}"
    except BaseException:  # noqa: BLE001  an exception whose text cannot be had
        text = "(no text)"
    return f"{name}: {text}" if text else name


def _trace(error: BaseException) -> str:
    """The trace, its end rather than its beginning where it is long."""
    try:
        text = "".join(traceback.format_exception(error))[-MAX_TRACE:]
    except BaseException:  # noqa: BLE001  a SyntaxError whose text is no text, a __cause__ that raises
        return "(the trace cannot be formatted)"
    return _encodable(text)


def _encodable(text: str) -> str:
    """Without lone surrogates, which no store can hold."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _text(message: str) -> str:
    """A message as stores can hold it, and not too long."""
    cut = str.__getitem__(message, slice(MAX_MESSAGE))  # of a subclass of str too, whatever its methods do
    return _encodable(cut)

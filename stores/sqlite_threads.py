"""The threads of the SQLite store: one writes in rounds that share a commit, others read."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from queue_runtime.errors import StoreUnavailable
from stores.sqlite_errors import translate
from stores.sqlite_session import Session, patiently

T = TypeVar("T")
Work = Callable[[Session], T]

SHARED_COMMIT = 256
"""Writes that may share one commit. Reads share nothing: each is answered as soon as it is done."""


class Request(Generic[T]):
    """Work for a thread, and where its answer goes."""

    __slots__ = ("alone", "error", "future", "operation", "result", "rings", "work")

    def __init__(
        self, operation: str, work: Work[T], future: "asyncio.Future[T]", *, rings: bool = False, alone: bool = False
    ) -> None:
        self.operation = operation
        self.work = work
        self.future = future
        self.rings = rings
        """whether work may be there for a lease once this is committed"""
        self.alone = alone
        """needs no transaction"""
        self.result: T | None = None
        self.error: BaseException | None = None


AnyRequest = Request[Any]


class SessionThread:
    """A thread that owns a session and serves requests in the order they came, up to `at_once` in a round.

    `serve` fills in results and errors of one round; `answered` hears of it in the event loop, and whether anything
    was written. The answers of a round go to the event loop in one hand-over.
    A caller that is cancelled leaves the thread and the others alone: work that has begun is done whole.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        serve: Callable[[Session, list[AnyRequest]], None],
        answered: Callable[[Sequence[AnyRequest], bool], None],
        *,
        at_once: int,
    ) -> None:
        self._session = session
        self._serve = serve
        self._answered = answered
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[AnyRequest | None] = SimpleQueue()
        self._closed = False
        self.failing = False
        """whether a round could not be written, and none was since; known in the event loop"""
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, operation: str, work: Work[T], *, rings: bool = False, alone: bool = False) -> T:
        """Have the work done and return its result."""
        if self._closed:
            raise StoreUnavailable(operation, "the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._requests.put(Request(operation, work, future, rings=rings, alone=alone))
        return await future

    def close(self) -> None:
        """Take nothing more; what is waiting is still served."""
        if not self._closed:
            self._closed = True
            self._requests.put(None)

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        while self._round():
            pass
        self._session.connection.close()

    def _round(self) -> bool:
        taken = [self._requests.get()]
        while len(taken) < self._at_once and not self._requests.empty():
            taken.append(self._requests.get())
        # A caller that is gone before its work began wants nothing done.
        batch = [request for request in taken if request is not None and not request.future.cancelled()]
        if batch:
            before = self._session.connection.total_changes
            self._serve_safely(batch)
            self._hand_over(batch, self._session.connection.total_changes != before)
        return taken[-1] is not None

    def _serve_safely(self, batch: list[AnyRequest]) -> None:
        try:
            self._serve(self._session, batch)
        except BaseException as error:  # noqa: BLE001  a thread that died would leave every later caller waiting
            with suppress(sqlite3.Error):  # the next round tries again
                _roll_back(self._session)
            open_ones = [request for request in batch if request.error is None]
            if isinstance(error, sqlite3.Error):
                _fail(self._session, open_ones, error)
            for request in open_ones:
                request.error = request.error or error

    def _hand_over(self, batch: list[AnyRequest], wrote: bool) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it everybody who waited
            self._loop.call_soon_threadsafe(self._deliver, batch, wrote)

    def _deliver(self, batch: list[AnyRequest], wrote: bool) -> None:
        refused = any(isinstance(request.error, StoreUnavailable) and not request.alone for request in batch)
        self.failing = refused or (self.failing and not wrote)
        self._answered(batch, wrote)
        for request in batch:
            if request.future.done():
                continue
            if request.error is None:
                request.future.set_result(request.result)
            else:
                request.future.set_exception(request.error)


def serve_writes(session: Session, batch: list[AnyRequest]) -> None:
    """Run all requests in one transaction, each in its own savepoint; answers hold only after the commit."""
    if _refuse_displaced(session, batch, nothing_happened=True):
        return
    together = []
    for request in batch:
        if request.alone:
            _attempt_alone(session, request)
        else:
            together.append(request)
    if together:
        _commit_together(session, together)


def _commit_together(session: Session, together: list[AnyRequest]) -> None:
    try:
        session.begin()
    except sqlite3.Error as error:
        _fail(session, together, error, nothing_happened=True)
        return
    if len(together) == 1:
        _attempt(session, together[0])
        if together[0].error is not None:
            _roll_back(session)
            return
    else:
        for position, request in enumerate(together):
            _attempt_in_savepoint(session, request)
            if not session.connection.in_transaction:
                # SQLite gave the whole transaction up (no room, a disk error). Everybody goes again alone, so that
                # one large request cannot take the small ones with it.
                _forget(session, together[: position + 1])
                for one in together:
                    serve_writes(session, [one])
                return
    try:
        session.connection.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(session)
        _fail(session, [request for request in together if request.error is None], error)
        return
    _refuse_displaced(session, together, nothing_happened=False)  # before the commit nobody could be sure


def _refuse_displaced(session: Session, requests: list[AnyRequest], *, nothing_happened: bool) -> bool:
    """Fail the requests where the file was removed or replaced: nothing is acknowledged that nobody will find."""
    reason = session.displaced()
    if reason is None:
        return False
    for request in requests:
        away = StoreUnavailable(request.operation, reason, nothing_happened=nothing_happened)
        request.error = request.error or away
    return True


def serve_reads(session: Session, batch: list[AnyRequest]) -> None:
    """Run each request on a snapshot of its own, which ends early when its caller has gone."""
    for request in batch:
        session.unwanted = request.future.cancelled
        try:
            session.begin_reading()
        except sqlite3.Error as error:
            _fail(session, [request], error)
            continue
        _attempt(session, request)
        session.rollback()


def _attempt_alone(session: Session, request: AnyRequest) -> None:
    try:
        request.result = patiently(lambda: request.work(session))
    except sqlite3.Error as error:
        _fail(session, [request], error)
    except BaseException as error:  # noqa: BLE001  as in _attempt
        request.error = error


def _attempt(session: Session, request: AnyRequest) -> None:
    try:
        request.result = request.work(session)
    except sqlite3.Error as error:
        _fail(session, [request], error)
    except BaseException as error:  # noqa: BLE001  whatever it is belongs to the caller, and the thread goes on
        request.error = error


def _attempt_in_savepoint(session: Session, request: AnyRequest) -> None:
    session.connection.execute("SAVEPOINT one")
    _attempt(session, request)
    if not session.connection.in_transaction:
        return
    if request.error is not None:
        session.lanes.forget()
        session.connection.execute("ROLLBACK TO one")
    session.connection.execute("RELEASE one")


def _roll_back(session: Session) -> None:
    session.lanes.forget()
    session.rollback()


def _forget(session: Session, requests: list[AnyRequest]) -> None:
    session.lanes.forget()
    for request in requests:
        request.result, request.error = None, None


def _fail(
    session: Session, requests: list[AnyRequest], error: sqlite3.Error, *, nothing_happened: bool = False
) -> None:
    for request in requests:
        known = translate(error, request.operation, session.path)
        if known is None:
            request.error = error
        else:
            if isinstance(known, StoreUnavailable) and nothing_happened:
                known.nothing_happened = True
            known.__cause__ = error
            request.error = known

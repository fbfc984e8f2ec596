"""Lease calls for callers that may be gone before the answer: what was taken for nobody is given back."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from queue_runtime.errors import StoreUnavailable
from queue_runtime.settler import Settler
from queue_runtime.task import Lease, Release, Settlement, Task

log = structlog.get_logger()


class Taker:
    """Makes lease calls that go on in the store when their caller is gone, and sees to what they bring."""

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self._calls: set[asyncio.Task[object]] = set()
        """under way; kept here because they outlive the requests that made them"""

    async def take(self, lease: Coroutine[Any, Any, list[Task]], owner: str, seconds: float) -> list[Task]:
        """What this lease call takes. Raises TimeoutError, and gives back what it takes after that."""
        call = asyncio.create_task(lease)
        self._keep(call)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(call)
        except (TimeoutError, asyncio.CancelledError):
            # The call goes on in the store, and nobody will learn what it took.
            self._keep(asyncio.create_task(self._give_back_result(call, owner)))
            raise

    async def give_back(self, tasks: list[Task], owner: str) -> None:
        """Release tasks that never reached the caller who leased them under this name."""
        if not tasks:
            return
        try:
            await self._settler.settle(
                [Settlement.held(Lease(task.id, owner, task.lease_expires), Release()) for task in tasks]
            )
        except StoreUnavailable as error:
            log.warning(
                "tasks of a client that went away wait for the end of its lease", owner=owner, reason=str(error)
            )

    async def _give_back_result(self, call: "asyncio.Task[list[Task]]", owner: str) -> None:
        try:
            tasks = await call
        except StoreUnavailable:
            return
        await self.give_back(tasks, owner)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

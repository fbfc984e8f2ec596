"""Callers that follow the rules on a store that may go away at any moment, and keep the books of what was answered."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import Store
from queue_runtime.task import Complete, Lease, NewTask, Retry, Settled, Settlement, Verdict

T = TypeVar("T")


class Load:
    """One enqueuer and one worker, until `stopping`."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._seed = seed
        self._chance = random.Random(seed)
        self.enqueued: list[int] = []
        self.keys: dict[str, int] = {}
        """what each idempotency key was answered"""
        self.ended: list[int] = []
        """ids whose Complete was answered SETTLED or REPLAYED"""
        self.failures = 0
        self.succeeded_at = 0.0
        self.stopping = False

    async def run(self) -> None:
        """Until told to stop; what is under way then is brought to its end."""
        await asyncio.gather(self._enqueue(), self._work())

    async def _enqueue(self) -> None:
        number = 0
        while not self.stopping:
            number += 1
            count = self._chance.choice((1, 1, 3, 20))
            tasks = [NewTask(task_class="A", data="x" * self._chance.choice((1, 5000))) for _ in range(count)]
            for task in await self._once(self._store.enqueue(tasks)) or []:
                self.enqueued.append(task.id)
            key = f"{self._seed}:{number}"
            keyed = NewTask(task_class="Keyed", idempotency_key=key)
            (task,) = await self._until_answered(lambda keyed=keyed: self._store.enqueue([keyed]))  # type: ignore[misc]
            self.keys[key] = task.id

    async def _work(self) -> None:
        sequence = 0
        while not self.stopping:
            sequence += 1
            owner = f"qr:{self._seed:08x}:{sequence}:1@test"
            tasks = await self._once(self._store.lease(owner, 10, 60)) or []
            settlements = [
                Settlement.held(Lease(task.id, owner), Complete(1) if self._chance.random() < 0.8 else Retry(0))
                for task in tasks
            ]
            if not settlements:
                await asyncio.sleep(0.005)
                continue
            settled = await self._until_answered(lambda rest=settlements: self._settle(rest))  # type: ignore[misc]
            for one, asked in zip(settled, settlements, strict=True):
                if one.archived is not None and isinstance(asked.outcome, Complete):
                    self.ended.append(asked.task_id)

    async def _settle(self, settlements: list[Settlement]) -> list[Settled]:
        settled = await self._store.settle(settlements)
        if any(one.verdict is Verdict.BUSY for one in settled):
            raise StoreUnavailable("settle", "a row is locked at this moment")
        return settled

    async def _once(self, call: Awaitable[T]) -> T | None:
        try:
            answer = await call
        except StoreUnavailable:
            self.failures += 1
            await asyncio.sleep(0.01)
            return None
        self.succeeded_at = time.monotonic()
        return answer

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        while (answer := await self._once(call())) is None:
            pass
        return answer

"""Replies with anything in them, cut anywhere: an answer, or an error that says what can be done; never a crash."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from queue_runtime.errors import EventConflict, InvalidRequest, StoreUnavailable
from queue_runtime.store import Store
from queue_runtime.task import ArchivedTask, Lease, Release, Result, Settlement, Task
from stores.remote_line import ServerFault
from tests.stores.test_remote_replies import answering, reply

LEASE = Lease(1, "qr:0:1:1@h")
ROW = {"id": 1, "task_class": "A", "data_id": 1, "priority": 1, "date_created": 1, "date_modified": 1}
TASK: Any = msgspec.to_builtins(msgspec.convert(ROW | {"lease_owner": LEASE.owner, "data": "x"}, Task))
ENDED: Any = msgspec.to_builtins(
    msgspec.convert(ROW | {"result": Result.SUCCESS.value, "duration_us": 1, "archived_epoch": 1}, ArchivedTask)
)
CALLS: list[tuple[Callable[[Store], Awaitable[object]], Any]] = [
    (lambda store: store.lease(LEASE.owner, 1, 5), [TASK]),
    (lambda store: store.renew([LEASE], 5), [TASK]),
    (lambda store: store.settle([Settlement.held(LEASE, Release())]), [{"verdict": "settled", "archived": ENDED}]),
    (lambda store: store.get([1]), [TASK]),
    (lambda store: store.get_archived([1]), [ENDED]),
    (lambda store: store.stats(), {"active": 1, "leased": 1, "archived": 1, "failed": 0, "estimated": False}),
    (lambda store: store.paused(), [{"kind": "class", "name": "A"}]),
    (lambda store: store.free([1]), 1),
    (lambda store: store.ping(), None),
    (lambda store: store.history([1]), [[]]),
    (lambda store: store.sweep(1), {"expired": 0}),
    (lambda store: store.changed(0), {"bell": {"process": "a", "rings": 1}, "patience": 10}),
]
"""Each with what a server answers."""

ERROR = {"code": "ERR_BAD_REQUEST", "message": "m", "field": "f", "reason": "r"}
JUNK: tuple[Any, ...] = (None, True, -1, 0, 2**31, 2**53, 2**64, 10**30, 1e308, 1.5, "", "1", "\x00", "\ud800", [], {})


def spoilt(value: Any, dice: random.Random) -> Any:
    """The same with something in it that must not be there, or without something."""
    if dice.random() < 0.25 or not isinstance(value, list | dict) or not value:
        return dice.choice(JUNK)
    copy = value.copy()
    place = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
    copy[place] = spoilt(value[place], dice)
    if dice.random() < 0.2:
        del copy[place]
    return copy


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
async def test_a_reply_is_read_or_refused_whatever_it_is(seed: int) -> None:
    dice, seen = random.Random(seed), Counter[str]()
    raw = b""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    async with answering(answer, seconds=2) as store:
        for _ in range(300):
            call, good = dice.choice(CALLS)
            body = {"data": spoilt(good, dice)} if dice.random() < 0.9 else spoilt({"error": ERROR}, dice)
            raw = reply(json.dumps(body).encode(), status=dice.choice([200, 200, 200, 400, 409, 500, 503, 507]))
            if dice.random() < 0.25:
                raw = raw[: dice.randrange(len(raw))]
            try:
                await call(store)
                seen["read"] += 1
            except (StoreUnavailable, ServerFault, InvalidRequest, EventConflict) as error:
                seen[type(error).__name__] += 1
    assert min(seen["read"], seen["StoreUnavailable"], seen["ServerFault"]) > 0

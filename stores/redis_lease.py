"""Leasing on Redis: what one call asks for, its reply as tasks, and what becomes of a row that is not text."""

from collections.abc import Collection, Sequence

from queue_runtime.store import StoreOptions
from queue_runtime.task import MAX_LEASE_BYTES, Lease, Task
from stores.lease_request import LeaseRequest
from stores.redis_calls import Calls
from stores.redis_rows import APART, Body, held_task, id_texts, pack

UNREADABLE = "the row or its payload is not UTF-8 text, or the payload is missing: it was not written by this store"


Ended = tuple[Sequence[str], Sequence[str]]
"""Owners whose orders end with this call, and owners whose orders have ended."""

Order = tuple[str, bytes]
"""Channel and token."""


async def lease(
    calls: Calls, options: StoreOptions, request: LeaseRequest, *, ended: Ended = ((), ()), order: Order | None = None
) -> tuple[list[Task], list[Lease]]:
    """Take rows for the owner. The tasks, and the leases of taken rows that are not text and cannot be handed out."""
    rows = (
        names(request.classes),
        names(request.without_classes),
        names(request.queues),
        False if request.only is None else [text for text in id_texts(request.only) if text],
        id_texts(request.without),
        *ended,
        False if order is None else (order[0], order[1].decode()),
    )
    arguments = (
        request.owner,
        request.limit,
        request.seconds,
        options.patience,
        options.max_lost,
        int(request.due_first),
        MAX_LEASE_BYTES,
        pack(rows),
    )
    while (reply := await calls.script("lease", *arguments)) is None:
        pass  # it moved bounds that had grown old, as many as one script may; each call leaves fewer
    expires, ids, bodies, states, expiries, payloads, owners = reply
    if not bodies:
        return [], []
    state_of, expiry_of, apart_of = _numbered(states), _numbered(expiries), _numbered(payloads)
    owner_of, usual = _numbered(owners), int(expires)
    tasks: list[Task] = []
    unreadable: list[Lease] = []
    for number, body in enumerate(bodies):
        task_id = int(ids[10 * number : 10 * number + 10])
        until = int(expiry_of[number]) if number in expiry_of else usual
        owner = owner_of[number].decode() if number in owner_of else request.owner
        calls.saw(task_id)
        parts = Body(body)
        text = _text(apart_of.get(number) if parts.flags & APART else body[parts.head :])
        if text is None or not parts.readable:
            unreadable.append(Lease(task_id, owner))
        else:
            tasks.append(held_task(task_id, parts, state_of.get(number), owner=owner, expires=until, data=text))
    return tasks, unreadable


def _text(data: bytes | None) -> str | None:
    """The payload; None where it is missing or not UTF-8."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def names(wanted: Collection[str] | None) -> list[str] | bool:
    """Names as scripts read them; those that have no UTF-8 form fit nothing. False: all."""
    return False if wanted is None else [name for name in wanted if _is_text(name)]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbered(flat: Sequence[bytes]) -> dict[int, bytes]:
    return {int(number): value for number, value in zip(flat[::2], flat[1::2], strict=True)}

"""Housekeeping on Redis: the sweep, the inventory, and whether the server can be written to."""

from queue_runtime.task import SweepReport
from stores.redis_calls import Calls
from stores.redis_server import ServerFacts

SWEEP_STEP = 200
"""Tasks that one script call deletes; the server serves others in between."""

_DAY = 86400


async def sweep(calls: Calls, limit: int, retention: int | None, event_days: int | None) -> SweepReport:
    """Delete archived tasks whose retention is over, with all that belongs to them, and old events."""
    expired, more = 0, True
    keep_tasks = "" if retention is None else retention
    keep_events = "" if event_days is None else event_days * _DAY
    while more and expired < limit:
        step = min(SWEEP_STEP, limit - expired)
        deleted, left = await calls.script("sweep", step, keep_tasks, keep_events)
        expired, more = expired + deleted, bool(left)
        if deleted < step:
            break
    return SweepReport(expired=expired, more=more and limit > 0)


async def ping(calls: Calls) -> None:
    """Write something that changes nothing: a server that cannot be written to, or would evict, says why."""
    calls.link.look_again()
    await calls.script("ping", repeatable=True)


async def read_facts(calls: Calls) -> ServerFacts:
    """What the server says of itself now; nothing where it may not be asked."""
    calls.link.look_again()
    await calls.command("facts", "PING")
    return calls.link.facts


async def operations(calls: Calls) -> dict[str, object]:
    """Facts about the queue and its server. Sizes are those the server keeps, so the answer costs the same always."""
    now, last_id, sizes = await calls.script("operations", repeatable=True)
    facts = await read_facts(calls)
    records = {name.decode(): count for name, count in zip(sizes[::2], sizes[1::2], strict=True)}
    return {
        "backend": "redis",
        "snapshot": "observational",
        "generatedEpoch": now,
        "lastID": last_id,
        "server": f"{facts.product} {facts.version}".strip(),
        "usedMemoryBytes": facts.used_memory,
        "maxMemoryBytes": facts.max_memory,
        "evictionPolicy": facts.policy,
        "appendOnly": facts.append_only,
        "tables": [{"table": name, "state": "observed", "records": count} for name, count in records.items()],
    }

"""Looks at the Redis of a dispatch, for `queue-runtime doctor --store`."""

from collections.abc import Iterator

from redis.exceptions import RedisError

from queue_runtime.errors import StoreUnavailable
from queue_runtime.findings import Finding, note, ok, warning
from stores.redis_address import Address
from stores.redis_link import Link
from stores.redis_server import SAFE_POLICY, ServerFacts

_IDLE = "tasks are leased from the record itself until it answers"


async def examine(url: str, prefix: str, group: str) -> list[Finding]:
    """What can be said of it. Nothing here is a fault: the record has every task."""
    link = Link(Address(url), connections=1, allow_eviction=True)
    keys = f"{{{prefix}}}:"
    try:
        names = await link.call("doctor", "SMEMBERS", f"{keys}/queues")
        queues = sorted(name.decode(errors="replace") for name in names)
        lengths = {queue: await link.call("doctor", "XLEN", keys + queue) for queue in queues}
        is_shared = await link.call("doctor", "EXISTS", f"{keys}/claim")
    except (StoreUnavailable, RedisError) as error:
        return [warning("dispatch", f"{error}: {_IDLE}")]
    finally:
        await link.aclose()
    waiting = ", ".join(f"{queue} {length}" for queue, length in lengths.items() if length)
    shared = warning(
        "dispatch",
        f"in the last five minutes somebody with another database of record asked for {keys}*: give each installation"
        " its own QUEUE_RUNTIME_STREAMS_PREFIX",
    )
    return [
        *_server(link.facts),
        *([shared] if is_shared else []),
        ok("dispatch", f"group {group}; entries that wait: {waiting or 'none'}"),
    ]


def _server(facts: ServerFacts) -> Iterator[Finding]:
    if facts.version:
        yield ok("redis", f"{facts.product} {facts.version}")
    else:
        yield note("redis", "it answers; the account may not ask INFO, so its version and settings are unknown")
    if facts.policy not in {"", SAFE_POLICY}:
        yield note("eviction", f"maxmemory-policy is {facts.policy}: entries may vanish, and the sweep delivers again")

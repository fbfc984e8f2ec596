"""Looks at a Redis server and at the queue on it, for `queue-runtime doctor --store`, and mends indexes on demand."""

from collections.abc import Iterator

from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.findings import Finding, fault, note, ok, warning
from stores.redis import RedisStore
from stores.redis_check import LOST, Report, check, repair
from stores.redis_server import OLDEST, SAFE_POLICY, ServerFacts, is_old
from stores.redis_upkeep import read_facts

_NEARLY_FULL = 0.9
_ENDS = frozenset({"has lost its end", "has a damaged end"})


async def examine(store: RedisStore, *, mend: bool = False) -> list[Finding]:
    """Everything that can be said of the server and the queue. Raises StoreUnavailable where no queue can live there.

    Processes that work on the queue need not stop, not even for mending: each task is looked at in one moment.
    """
    full = await _is_full(store)
    facts = await read_facts(store.calls)
    found = [*_server(facts), *_persistence(facts, await _save_setting(store)), *_memory(facts, full)]
    found += await _channel(store)
    report = await (repair(store) if mend else check(store))
    return [*found, *_indexes(report, mend)]


async def _is_full(store: RedisStore) -> bool:
    try:
        await store.ping()
    except StoreFull:
        return True
    return False


async def _save_setting(store: RedisStore) -> str | None:
    """When the server takes snapshots; empty: never. None: it may not be asked."""
    try:
        found = await store.calls.command("doctor", "CONFIG", "GET", "save")
    except StoreUnavailable:
        return None
    return found[1].decode() if found else None


async def _channel(store: RedisStore) -> list[Finding]:
    channel = f"{store.calls.keys}bell"
    try:
        await store.calls.command("doctor", "PUBLISH", channel, "0")
    except StoreUnavailable:
        sentence = f"the account may not use the channel {channel}: workers look for work instead of being told of it"
        return [warning("channel", f"{sentence}; give it &{store.calls.keys}*")]
    return [ok("channel", "enqueues wake the workers of other processes at once")]


def _server(facts: ServerFacts) -> Iterator[Finding]:
    if not facts.version:
        yield note("server", "it answers, but not to INFO (renamed or forbidden): its version and settings are unknown")
    elif is_old(facts):
        yield fault("server", f"Redis {facts.version}; {OLDEST[0]}.{OLDEST[1]} or newer is needed")
    else:
        yield ok("server", f"{facts.product} {facts.version}")
    if facts.policy == SAFE_POLICY:
        yield ok("eviction", f"maxmemory-policy is {SAFE_POLICY}: a full server refuses new tasks and deletes none")
    elif facts.policy:
        yield warning("eviction", f"maxmemory-policy is {facts.policy}: a full server deletes tasks; set {SAFE_POLICY}")


def _persistence(facts: ServerFacts, save: str | None) -> Iterator[Finding]:
    if facts.append_failed or facts.save_failed:
        yield fault("persistence", "the server could not write to its disk the last time it tried; see its log")
    if facts.append_only:
        yield ok("persistence", "appendonly is on: a crash loses the last second at most, unless appendfsync is no")
    elif facts.append_only is False and save == "":
        yield warning("persistence", "there is none: a restart of the server loses every task; set appendonly yes")
    elif facts.append_only is False:
        yield warning("persistence", "snapshots only: a crash loses all since the last one; set appendonly yes")


def _memory(facts: ServerFacts, full: bool) -> Iterator[Finding]:
    if full:
        yield fault("memory", "the server is full: new tasks are refused, what runs can end; raise maxmemory")
        return
    if facts.used_memory is None or facts.max_memory is None:
        return
    used = f"{facts.used_memory / 2**20:.1f} MiB"
    if facts.max_memory == 0:
        yield note("memory", f"{used} used, no maxmemory: with one, a full server refuses new tasks and lives on")
    elif facts.used_memory > facts.max_memory * _NEARLY_FULL:
        yield warning("memory", f"{used} used of {facts.max_memory / 2**20:.1f} MiB: new tasks will be refused soon")
    else:
        yield ok("memory", f"{used} used of {facts.max_memory / 2**20:.1f} MiB")


def _indexes(report: Report, mended: bool) -> Iterator[Finding]:
    if report.whole:
        yield ok("indexes", f"{report.tasks} tasks, and each stands where it must")
        return
    for kind, count in sorted(report.differences.items()):
        sentence = f"{count} times: {kind}"
        if mended and kind in LOST:
            yield fault("indexes", f"{sentence}; this cannot be mended, so restore it or enqueue it again")
        elif mended and kind in report.left:
            yield fault(
                "indexes", f"{sentence}; mended again and again, and still so: see who else writes to these keys"
            )
        elif mended and kind in _ENDS:
            yield note("indexes", f"{sentence} (mended: kept as failed, because nobody knows how it ended)")
        elif mended:
            yield note("indexes", f"{sentence} (mended)")
        else:
            yield fault("indexes", sentence)
    for example in report.examples:
        yield note("indexes", f"for example {example}")
    if not mended:
        yield note("indexes", "run `queue-runtime doctor --store --repair`: it makes the indexes follow the tasks")

"""Counts on MySQL, and facts about the server and its tables. No statement here locks anything, or may run for long."""

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

from queue_runtime.task import Backlog, QueueStats
from stores.mysql_driver import Row
from stores.mysql_server import INBOX, WORKER_TABLES
from stores.mysql_session import Session
from stores.mysql_text import Sql

EXACT = 200_000
"""Counts above this are taken from the server's statistics and marked as estimated."""

FOREIGN = 1000
"""How many foreign lease owners are looked at."""

LATELY = 3600
"""Seconds for which the lease owners of ended tasks are of interest."""

_SHARE = 20
"""An estimate is good for this many times as long as it took, at most _LONGEST seconds."""

_LONGEST = 5.0

_NATIVE_OWNER = re.compile(r"\d+:\d+:(.*):\d+")
"""`pid:epoch:host:sequence`"""


async def stats(session: Session) -> QueueStats:
    """Counts: exact up to EXACT, above that as the server estimates."""
    ((active, archived, failed, parked, parked_failed, held, leased),) = await session.read(
        "stats", now=session.now, limit=EXACT + 1
    )
    if max(active, archived) > EXACT:
        sizes = {name: records for _, name, records, _, _ in await _table_sizes(session)}
        active = _estimated(active, sizes.get("worker_activetask"))
        archived = _estimated(archived, sizes.get("worker_archivetask"))
    return QueueStats(
        active=active - parked,
        leased=leased,
        archived=archived,
        failed=failed - parked_failed,
        estimated=max(active, archived, failed, held) > EXACT,
    )


class Estimate:
    """Keeps counts that are estimates anyway for a while: to count again costs the server, and makes them no truer."""

    def __init__(self) -> None:
        self._answer: QueueStats | None = None
        self._until = 0.0

    async def get(self, count: Callable[[], Awaitable[QueueStats]]) -> QueueStats:
        """The last answer while it is good, else a new one of `count`."""
        asked_at = time.monotonic()
        if self._answer is None or asked_at >= self._until:
            answer = await count()
            took = time.monotonic() - asked_at
            self._answer = answer if answer.estimated else None
            self._until = asked_at + min(took * _SHARE, _LONGEST)
            return answer
        return self._answer


def _estimated(counted: int, statistic: int | None) -> int:
    return counted if counted <= EXACT else max(counted, statistic or 0)


async def _table_sizes(session: Session) -> Sequence[Row]:
    """What the server's statistics say of the tables of both databases."""
    server = session.server
    statement = session.fill("table_sizes", schemas=[server.worker_database, server.companion_database])
    if server.is_mariadb or server.version.startswith("5."):
        return (await session.trip(statement))[0].rows
    # MySQL 8 answers from a cache that is a day old
    return (await session.trip("SET SESSION information_schema_stats_expiry = 0", statement))[1].rows


async def backlog(session: Session) -> list[Backlog]:
    """Rows that could be leased now, by class, queue and priority."""
    groups: dict[tuple[str, str, int], tuple[int, int]] = {}
    for name, queue, priority, waiting, oldest in await session.read("backlog", now=session.now, limit=EXACT):
        place = (name, queue or session.options.routes.queue_for(name), priority)
        before, first = groups.get(place, (0, oldest))
        groups[place] = (before + waiting, min(first, oldest))
    return [
        Backlog(task_class=name, queue=queue, priority=priority, waiting=waiting, oldest=oldest)
        for (name, queue, priority), (waiting, oldest) in sorted(groups.items())
    ]


async def operations(session: Session) -> dict[str, object]:
    """Facts about the server and the tables, from its statistics: the answer does not grow with the queue."""
    server = session.server
    ((now,),) = await session.rows("time", now=session.now)
    counter = await session.rows("last_id")
    identity = await physical_identity(session)
    found = {(schema, name): sizes for schema, name, *sizes in await _table_sizes(session)}
    named = [(server.worker_database, name) for name in sorted(WORKER_TABLES)]
    named += [place for place in sorted(found) if place[1] == INBOX or place[0] == server.companion_database]
    facts: dict[str, object] = {
        "backend": "mysql",
        "snapshot": "observational",
        "generatedEpoch": now,
        "serverVersion": server.version,
        "skipLocked": server.skips_locked,
        "companion": server.companion,
        "inbox": server.inbox,
        "lastID": counter[0][0] if counter else 0,
        "foreignLeaseOwners": await foreign_owners(session),
        "tables": [_table_facts(place, found.get(place)) for place in named],
    }
    if identity is None:
        facts["physicalIdentityState"] = "unavailable"
    else:
        facts["physicalDatabaseIdentity"] = identity
    return facts


async def physical_identity(session: Session) -> str | None:
    """A digest that the same database on the same server has for everybody; None where the server has no name."""
    for _, server in await session.rows("identity"):
        if server:
            return sha256(f"{server}/{session.server.worker_database}".encode()).hexdigest()
    return None


def _table_facts(place: tuple[str, str], sizes: Sequence[int | None] | None) -> dict[str, object]:
    facts: dict[str, object] = {"table": ".".join(place), "state": "unavailable" if sizes is None else "observed"}
    if sizes is not None:
        facts |= zip(("records", "approximateDataBytes", "approximateIndexBytes"), sizes, strict=True)
    return facts


async def foreign_owners(session: Session) -> list[dict[str, object]]:
    """Hosts whose native taskmasters hold tasks or ended some lately."""
    since = Sql(f"{session.now} - {LATELY}")
    return native_hosts(await session.read("foreign_owners", since=since, limit=FOREIGN))


def native_hosts(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The hosts of native owners, and how many owners of each there are."""
    hosts: dict[str, int] = {}
    for (owner,) in rows:
        native = _NATIVE_OWNER.fullmatch(owner)
        if native:
            hosts[native[1]] = hosts.get(native[1], 0) + 1
    return [{"host": host, "owners": count} for host, count in sorted(hosts.items())]

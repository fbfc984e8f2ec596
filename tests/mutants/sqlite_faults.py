"""Faults in the SQLite store: in its statements, and in the Python around them."""

from tests.mutants.mutant import Mutant


def sql(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a statement."""
    return Mutant(name, "sqlite", "stores/sql/sqlite.sql", ((old, new),), caught_by)


def sqlite(name: str, module: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a module."""
    return Mutant(name, "sqlite", f"stores/{module}.py", ((old, new),), caught_by)


SQLITE_FAULTS: tuple[Mutant, ...] = (
    sql(
        "fresh work by id alone",
        "ORDER BY task.priority, task.id LIMIT :limit\n) CROSS JOIN task",
        "ORDER BY task.id LIMIT :limit\n) CROSS JOIN task",
        "lease_order",
    ),
    sql("due work by id alone", "ORDER BY priority, id LIMIT :limit\n", "ORDER BY id LIMIT :limit\n", "lease_order"),
    sql(
        "parked rows are due",
        "WHEN owner IN ('gorge-completion-pending', 'gorge-failure-pending') THEN NULL",
        "WHEN owner IN ('gorge-completion-pending', 'gorge-failure-pending') THEN 4 * lane",
        "parked",
    ),
    sql(
        "delays wait a second longer",
        "WHEN owner = '(delay)' THEN 4 * lane\n",
        "WHEN owner = '(delay)' THEN 4 * lane + 1\n",
        "due_times",
    ),
    sql(
        "a worker's row is like any other",
        "WHEN substr(owner, 1, 3) = 'qr:' THEN 4 * lane + 3",
        "WHEN substr(owner, 1, 3) = 'qr:' THEN 4 * lane + 2",
        "due_times",
    ),
    sqlite(
        "the row gets another expiry than the reply says",
        "sqlite_lease",
        '"expires": expires, "ids": f"[{task_id}]"',
        '"expires": asked, "ids": f"[{task_id}]"',
        "fences",
    ),
    sql("a renewal forgets what is spent", "expires = ?2, spent = ?3", "expires = ?2", "fences"),
    sql("giving back forgets what is spent", "spent = ?9, ", "", "fences"),
    sqlite(
        "spent expiries are forgotten a second too early",
        "spent_receipts",
        "if one[1] > now]",
        "if one[1] > now + 1]",
        "fences",
    ),
    sqlite(
        "the last second of a spent range is free", "spent_receipts", "<= wanted <= last", "<= wanted < last", "fences"
    ),
    sqlite(
        "a renewal grants a spent expiry on SQLite",
        "ledger",
        "(self.spent(row.id), expires)",
        "(None, expires)",
        "fences",
    ),
    sqlite(
        "small payloads do not count",
        "sqlite_lease",
        "            self._bytes += size\n",
        "            self._bytes += size if size > 8000 else 0\n",
        "lease_order",
    ),
    sql("success does not clear the losses", "date_modified = ?3, lost_count = 0", "date_modified = ?3", "losses"),
    sql(
        "retention counts from the last change of nothing", "archived_epoch <= ?\n", "date_created <= ?\n", "retention"
    ),
    sql(
        "the oldest entries of a history are kept",
        "ORDER BY id DESC LIMIT 1 OFFSET ?2",
        "ORDER BY id LIMIT 1 OFFSET ?2",
        "history",
    ),
    sql(
        "classes are compared without case",
        "task_class TEXT NOT NULL,",
        "task_class TEXT NOT NULL COLLATE NOCASE,",
        "lease_filters",
        "pause",
    ),
    sql(
        "ids are drawn from what is left",
        "UPDATE counter SET last_id = last_id + :count, active",
        "UPDATE counter SET last_id = (SELECT coalesce(max(id), 0) FROM task) + :count, active",
        "retention",
    ),
    sqlite(
        "a receipt is alive in the second of its expiry on SQLite",
        "ledger",
        "lease.expires > now)",
        "lease.expires >= now)",
        "fences",
    ),
    sqlite("renew shortens on SQLite", "ledger", "row.lease_expires >= expires:", "False:", "renew"),
    sqlite(
        "follow-ups get the default priority on SQLite",
        "settling",
        "(child, row.priority)",
        "(child, 2000)",
        "followups",
    ),
    sqlite("follow-ups are lost on SQLite", "sqlite_settle", "    insert(session, followups)\n", "", "followups"),
    sqlite(
        "a round of successes forgets its own replays",
        "sqlite_settle",
        "elif task_id in ended or row[RESULT] is not None:",
        "elif row[RESULT] is not None:",
        "settle_rounds",
    ),
    sqlite(
        "a pause of a queue is ignored on SQLite", "sqlite_lanes", "and queue not in self._stopped_queues", "", "pause"
    ),
    sqlite(
        "a yield that has failed is awakened on SQLite",
        "operating",
        "and row.failure_count == 0 and",
        "and",
        "operators",
    ),
    sqlite("histories outlive their tasks", "sqlite_operators", ', "delete_attempts"', "", "retention"),
    sqlite("an event is not compared", "sqlite_enqueue", "if known[0] != digest:", "if False:", "events"),
)

"""Faults in the MySQL store: in its statements, and in the Python around them."""

from tests.mutants.mutant import Mutant


def sql(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a statement."""
    return Mutant(name, "mysql", "stores/sql/mysql.sql", ((old, new),), caught_by)


def mysql(name: str, module: str, old: str, new: str, *caught_by: str) -> Mutant:
    """A fault in a module."""
    return Mutant(name, "mysql", f"stores/mysql_{module}.py", ((old, new),), caught_by)


MYSQL_FAULTS: tuple[Mutant, ...] = (
    sql(
        "fresh work of MySQL by id alone",
        "id NOT IN (:without) AND {further}\n    ORDER BY priority, id",
        "id NOT IN (:without) AND {further}\n    ORDER BY id",
        "lease_order",
    ),
    sql(
        "a delay of MySQL waits a second longer",
        "leaseOwner IS NULL OR leaseOwner = '(delay)' OR (",
        "leaseOwner IS NULL OR (",
        "due_times",
    ),
    sql(
        "MySQL has no patience with workers",
        "leaseExpires < :now - IF(leaseOwner LIKE 'qr:%', {patience}, 0)\n        AND leaseOwner NOT IN",
        "leaseExpires < :now\n        AND leaseOwner NOT IN",
        "due_times",
    ),
    sql(
        "parked rows of MySQL are due",
        "AND leaseOwner NOT IN ('gorge-completion-pending', 'gorge-failure-pending')",
        "",
        "parked",
    ),
    sql(
        "MySQL leases what is not ready any more",
        "WHERE id IN (:ids) AND {ready}\n    ORDER",
        "WHERE id IN (:ids)\n    ORDER",
        "concurrency",
    ),
    sql(
        "histories of MySQL keep the oldest",
        "ORDER BY id DESC LIMIT 1 OFFSET :keep",
        "ORDER BY id LIMIT 1 OFFSET :keep",
        "history",
    ),
    sql("MySQL forgets what is spent", "spent = VALUES(spent), ", "", "fences"),
    mysql(
        "payloads of MySQL are shifted by one",
        "enqueue",
        "range(answer.insert_id, answer.insert_id + len",
        "range(answer.insert_id + 1, answer.insert_id + 1 + len",
        "payloads",
        "enqueue",
    ),
    mysql("an event is not compared on MySQL", "enqueue", "if digest != self._digest:", "if False:", "events"),
    mysql("follow-ups of MySQL are lost", "settle", "statements += insertion.statements", "pass", "followups"),
    mysql("a lease of MySQL ignores the bound of bytes", "lease", "self._bytes += row[_SIZE]", "pass", "lease_order"),
    Mutant(
        "MySQL checks no outcome",
        "mysql",
        "stores/mysql.py",
        (("            check_outcome(settlement.outcome)\n", "            pass\n"),),
        ("bounds",),
    ),
    mysql(
        "MySQL grants a spent expiry",
        "lease",
        "first_unspent(row[SPENT], asked) if keeps_receipts",
        "asked if keeps_receipts",
        "fences",
    ),
    mysql(
        "MySQL does not count losses",
        "lease",
        "(row[LOST] or 0) + 1, row[SPENT])) for row",
        "(row[LOST] or 0), row[SPENT])) for row",
        "losses",
    ),
    mysql("a pause of a queue is ignored on MySQL", "candidates", "and queue not in self.not_queues", "", "pause"),
    sql(
        "MySQL looks past `without`",
        "WHERE {ready} AND id NOT IN (:without) AND {of_classes}",
        "WHERE {ready} AND {of_classes}",
        "lease_filters",
    ),
    mysql(
        "the archive of MySQL keeps no owner",
        "ledger",
        "{_known_literal(row.lease_owner)},{literal(row.lease_expires)},",
        "NULL,NULL,",
        "replays",
    ),
)

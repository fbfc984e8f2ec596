"""What the queue's tables in Phorge's database are like, and what the store does with them."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

ENGINE = "InnoDB"


class Column(Struct, frozen=True):
    """A column as information_schema shows it, without the width of numbers."""

    kind: str
    nullable: bool = False
    collation: str | None = None


_U32 = Column("int unsigned")
_U32_OR_NULL = Column("int unsigned", nullable=True)
_U64 = Column("bigint unsigned")
_NAME = Column("varchar(64)", collation="utf8mb4_bin")
_NAME_OR_NULL = Column("varchar(64)", nullable=True, collation="utf8mb4_bin")
_PHID = Column("varbinary(64)", nullable=True)

_TASK = {
    "id": _U32,
    "taskClass": _NAME,
    "leaseOwner": _NAME_OR_NULL,
    "leaseExpires": _U32_OR_NULL,
    "failureCount": _U32,
    "dataID": _U32,
    "priority": _U32,
    "objectPHID": _PHID,
    "containerPHID": _PHID,
    "dateCreated": _U32,
    "dateModified": _U32,
}
_TABLES = {
    "worker_activetask": _TASK | {"failureTime": _U32_OR_NULL},
    "worker_archivetask": _TASK | {"result": _U32, "duration": _U64, "archivedEpoch": _U32_OR_NULL},
    "worker_taskdata": {"id": _U32, "data": Column("longtext", collation="utf8mb4_bin")},
    "lisk_counter": {"counterName": Column("varchar(32)", collation="utf8mb4_bin"), "counterValue": _U64},
}
COLUMNS: Mapping[tuple[str, str], Column] = {
    (table, name): column for table, columns in _TABLES.items() for name, column in columns.items()
}
FIRST_COLUMN: Mapping[str, str] = {table: next(iter(columns)) for table, columns in _TABLES.items()}

KEYS: Mapping[tuple[str, str], Sequence[str]] = {
    ("worker_activetask", "PRIMARY"): ["id"],
    ("worker_activetask", "leaseExpires"): ["leaseExpires"],
    ("worker_activetask", "key_failuretime"): ["failureTime"],
    ("worker_activetask", "taskClass"): ["taskClass"],
    ("worker_activetask", "key_owner"): ["leaseOwner", "priority", "id"],
    ("worker_activetask", "key_object"): ["objectPHID"],
    ("worker_activetask", "key_container"): ["containerPHID"],
    ("worker_archivetask", "PRIMARY"): ["id"],
    ("worker_archivetask", "key_modified"): ["dateModified"],
    ("worker_archivetask", "key_object"): ["objectPHID"],
    ("worker_archivetask", "key_container"): ["containerPHID"],
    ("worker_taskdata", "PRIMARY"): ["id"],
    ("lisk_counter", "PRIMARY"): ["counterName"],
}
"""Indexes that the store's statements name, or could not do without."""

RIGHTS: Mapping[str, Sequence[str]] = {
    "worker_activetask": ["select", "insert", "update", "delete"],
    "worker_archivetask": ["select", "insert", "delete"],
    "worker_taskdata": ["select", "insert", "delete"],
    "lisk_counter": ["select", "insert", "update"],
}
"""What an account must be allowed to do."""

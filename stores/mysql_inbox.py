"""Receipts of events in the Go service's own table, `worker_gorgeinbox`, where an install has one: what it wrote is
answered by us, and what we write could be answered by it."""

import msgspec
import orjson

from queue_runtime.task import DEFAULT_QUEUE, Task
from queue_runtime.wire import task_json


class _Receipt(msgspec.Struct, rename="camel"):
    id: int
    task_class: str
    priority: int
    date_created: int
    date_modified: int
    data_id: int = msgspec.field(name="dataID", default=0)
    lease_owner: str | None = None
    lease_expires: int | None = None
    failure_count: int = 0
    failure_time: int | None = None
    object_phid: str | None = msgspec.field(name="objectPHID", default=None)
    container_phid: str | None = msgspec.field(name="containerPHID", default=None)
    queue: str = DEFAULT_QUEUE
    idempotency_key: str | None = None
    max_attempts: int | None = None


_decoder = msgspec.json.Decoder(_Receipt)


def inbox_text(task: Task) -> str:
    """An answer as the Go service keeps it: the task in Phorge's spelling."""
    return orjson.dumps(task_json(task)).decode()


def inbox_task(text: str) -> Task:
    """The answer that was kept."""
    return Task(**msgspec.structs.asdict(_decoder.decode(text)))

"""Demo handlers, which `make serve` runs: copy this file to begin your own."""

import structlog
from msgspec import Struct

from queue_runtime.registry import Context, Registry

log = structlog.get_logger()
registry = Registry()


class Greeting(Struct):
    """The data of a DemoWorker task: `{"name": "world"}`."""

    name: str = "world"


@registry.task("DemoWorker", timeout=30, max_attempts=3)
async def greet(context: Context, data: Greeting) -> None:
    """Say hello in the log."""
    log.info("hello", name=data.name, task_id=context.task.id, attempt=context.attempt)

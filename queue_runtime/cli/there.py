"""What a command learns of the process at an address: whether it is a worker of ours, and what it leases."""

import json
from http.client import HTTPException
from typing import Any

from queue_runtime.cli.http import ask
from queue_runtime.takeover import Worker

SECONDS = 15.0
"""`/readyz` waits five seconds for a store."""


def look_there(address: str, queues: tuple[str, ...] | None = None) -> Worker:
    """What answers there. `queues`: from which it leases, as far as the settings here say; None: all."""
    if address.endswith(":0"):
        return Worker(
            address, trouble="LISTEN has port 0, which only the running process knows: name its address by --worker"
        )
    try:
        status, text = ask(address, "GET", "/readyz?verbose=1", seconds=SECONDS)
    except (OSError, ValueError, HTTPException) as error:
        return Worker(address, trouble=f"no worker answers at {address} ({error or type(error).__name__})")
    answer = _object(text)
    details = answer.get("details")
    if status not in {200, 503} or answer.get("status") not in {"ok", "unavailable"} or not isinstance(details, dict):
        return Worker(address, trouble=f"what answers at {address} is no worker of ours")
    return _ours(address, answer, details, queues)


def _ours(address: str, answer: dict[str, Any], details: dict[str, Any], queues: tuple[str, ...] | None) -> Worker:
    worker = details.get("worker")
    if details.get("shadow"):
        return Worker(address, ours=True, trouble=f"the process at {address} is a shadow, which takes nothing")
    if not isinstance(worker, dict) or not isinstance(supported := worker.get("supported"), list):
        return Worker(address, ours=True, trouble=f"the process at {address} runs no tasks: its ROLES have no worker")
    reason = answer.get("reason")
    return Worker(
        address,
        ours=True,
        supported=tuple(map(str, supported)),
        queues=queues,
        trouble=None if answer["status"] == "ok" else f"the worker at {address} is not ready: {reason}",
    )


def enqueues_there(worker: Worker, token: str) -> int | None:
    """How many requests to enqueue the process there has answered since its start; None: nobody can say."""
    if not worker.ours:
        return None
    try:
        status, text = ask(worker.address, "GET", "/metrics", token=token, seconds=SECONDS)
    except OSError:
        return None
    return sum(map(_count, text.splitlines())) if status == 200 else None


def _count(line: str) -> int:
    head = "queue_runtime_http_request_seconds_count{"
    if not line.startswith(head) or "enqueue" not in line or 'status="200"' not in line:
        return 0
    return int(float(line.rpartition(" ")[2]))


def _object(text: str) -> dict[str, Any]:
    """The JSON object in it; empty where it is something else."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

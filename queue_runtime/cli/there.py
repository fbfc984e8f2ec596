"""What a command learns of the process at an address: whether it is a worker of ours, and what it leases."""

import json
from http.client import HTTPException
from typing import Any

from queue_runtime.cli.http import ask
from queue_runtime.store import Place
from queue_runtime.takeover import Worker

SECONDS = 15.0
"""`/readyz` waits five seconds for a store."""


def look_there(address: str, here: Place | None) -> Worker:
    """What answers there. `here`: the store that these settings name; None: nobody knows."""
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
    return _ours(address, answer, details, here)


def held_there(worker: Worker, task_class: str) -> str | None:
    """Why the process there does not have Phorge run this class just now, by its own word; None: nobody says."""
    try:
        _, text = ask(worker.address, "GET", "/readyz?verbose=1", seconds=SECONDS)
    except (OSError, ValueError, HTTPException):
        return None
    found: object = _object(text)
    for name in ("details", "conduit", "held", task_class):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _ours(address: str, answer: dict[str, Any], details: dict[str, Any], here: Place | None) -> Worker:
    worker = details.get("worker")
    if details.get("shadow"):
        return Worker(address, ours=True, trouble=f"the process at {address} is a shadow, which takes nothing")
    if not isinstance(worker, dict) or not isinstance(supported := worker.get("supported"), list):
        return Worker(address, ours=True, trouble=f"the process at {address} runs no tasks: its ROLES have no worker")
    queues = worker.get("queues")
    trouble = _not_here(address, details.get("store"), here)
    if answer["status"] != "ok":
        trouble = f"the worker at {address} is not ready: {answer.get('reason')}"
    return Worker(
        address,
        ours=True,
        supported=tuple(map(str, supported)),
        queues=tuple(map(str, queues)) if isinstance(queues, list) else None,
        trouble=trouble,
    )


def _not_here(address: str, said: object, here: Place | None) -> str | None:
    """Why a worker does not work on the store that these settings name; None: it does, as far as anybody knows."""
    if not isinstance(said, dict) or not isinstance(said.get("kind"), str):
        return f"the worker at {address} does not say which store it works on: it may be of an older release"
    if here is not None and not here.may_be(Place(said["kind"], said.get("identity"))):
        return f"the worker at {address} works on another store than the one that these settings name"
    return None


def enqueues_there(worker: Worker) -> int | None:
    """How many requests to enqueue the process there has answered since its start; None: nobody can say."""
    if not worker.ours:
        return None
    try:
        status, text = ask(worker.address, "GET", "/metrics", seconds=SECONDS)  # needs no token, and gets none
        return sum(map(_count, text.splitlines())) if status == 200 else None
    except (OSError, ValueError, OverflowError):
        return None


def _count(line: str) -> int:
    head = "queue_runtime_http_request_seconds_count{"
    if not line.startswith(head) or "enqueue" not in line or 'status="200"' not in line:
        return 0
    return int(float(line.rpartition(" ")[2]))


def _object(text: str) -> dict[str, Any]:
    """The JSON object in it; empty where it is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

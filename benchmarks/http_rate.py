"""Requests a second over HTTP, made by wrk: enqueues and whole cycles on the runtime, a constant on the same server."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.backends import Subject
from benchmarks.payload import payload_text
from benchmarks.processes import free_port, listening, running, wait_until
from benchmarks.runtime import ROOT, Runtime

POST = Path(__file__).with_name("post.lua")
CYCLE = Path(__file__).with_name("cycle.lua")
ENQUEUE = "/api/queue/enqueue"
BATCH = 100
_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_SHARE = re.compile(r"\s(50|99)%\s+([\d.]+)(us|ms|s)\b")
_BAD = re.compile(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)")
_DONE = re.compile(r"Tasks done: (\d+)")
_TO_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


def enqueue(
    folder: Path, *, subject: Subject, server: str, connections: int, seconds: int, batch: int = 1
) -> dict[str, float]:
    """Enqueues through the API of a process that has that role alone; rate counts tasks."""
    runtime = Runtime(folder, subject, {"SERVER": server, "ROLES": "api"})
    one = {"taskClass": "noop", "data": payload_text(12345)}
    path, body = (ENQUEUE, one) if batch == 1 else ("/api/queue/enqueue-batch", {"tasks": [one] * batch})
    with runtime.serve() as served:
        figures = load(folder, f"http://127.0.0.1:{served.port}{path}", body, connections=connections, seconds=seconds)
        stored = served.counts()["activeCount"]
        figures["rss_mib"] = served.child.usage().rss_mib
    if stored < figures["requests"] * batch:
        raise AssertionError(f"{figures['requests']:.0f} requests were answered, {stored} tasks are stored")
    return figures | {"rate": figures["rate"] * batch}


def cycle(folder: Path, *, subject: Subject, connections: int, seconds: int, batch: int = 1) -> dict[str, float]:
    """Callers that enqueue, lease and complete; rate counts tasks that went through all three, a request for each.

    With a batch, each request carries that many (`enqueue-batch`, `lease`, `settle-batch`).
    """
    runtime = Runtime(folder, subject, {"SERVER": "uvicorn", "ROLES": "api"})
    one = {"taskClass": "noop", "data": payload_text(12345)}
    body = one if batch == 1 else {"tasks": [one] * batch}
    with runtime.serve() as served:
        url = f"http://127.0.0.1:{served.port}/api/queue/"
        figures = load(
            folder, url, body, connections=connections, seconds=seconds, script=CYCLE, env={"BENCH_BATCH": str(batch)}
        )
        archived = served.counts()["archivedCount"]
    if not figures["done"] or archived < figures["done"]:
        raise AssertionError(f"{figures['done']:.0f} tasks were completed, {archived} are archived")
    return {"rate": figures["done"] / seconds}


def constant(folder: Path, *, server: str, connections: int, seconds: int) -> dict[str, float]:
    """The bare server: a Starlette app that reads the same request and answers a constant."""
    folder.mkdir(parents=True)
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.constant_app", server, f"127.0.0.1:{port}"]
    with running(command, folder / "serve.log", cwd=ROOT) as child:
        wait_until(lambda: listening(port), child, "the constant app answers")
        one = {"taskClass": "noop", "data": payload_text(12345)}
        return load(folder, f"http://127.0.0.1:{port}{ENQUEUE}", one, connections=connections, seconds=seconds)


def load(
    folder: Path,
    url: str,
    body: object,
    *,
    connections: int,
    seconds: int,
    script: Path = POST,
    env: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Run wrk, once shortly to warm up and once to measure. Any answer but 2xx is an error."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise FileNotFoundError("wrk is not installed (Debian: wrk)")
    text = folder / "body.json"
    text.write_text(json.dumps(body, separators=(",", ":")))
    command = [wrk, "-t1", f"-c{connections}", "--latency", "-s", str(script)]
    full = os.environ | (env or {}) | {"BENCH_BODY": str(text)}
    subprocess.run([*command, "-d1s", url], env=full, check=True, stdout=subprocess.DEVNULL, timeout=30)
    time.sleep(0.2)
    done = subprocess.run(
        [*command, f"-d{seconds}s", url], env=full, check=True, stdout=subprocess.PIPE, timeout=seconds + 30
    )
    return read_wrk(done.stdout.decode())


def read_wrk(report: str) -> dict[str, float]:
    """The figures of wrk's report."""
    if bad := _BAD.search(report):
        raise RuntimeError(f"wrk saw errors: {bad.group(0)}")
    requests = re.search(r"(\d+) requests in", report)
    rate = _RATE.search(report)
    if rate is None or requests is None:
        raise RuntimeError(f"wrk said: {report}")
    figures = {"rate": float(rate.group(1)), "requests": float(requests.group(1))}
    for share, value, unit in _SHARE.findall(report):
        figures[f"p{share}_ms"] = float(value) * _TO_MS[unit]
    if done := _DONE.search(report):
        figures["done"] = float(done.group(1))
    return figures

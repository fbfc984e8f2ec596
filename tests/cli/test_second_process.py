"""A second process on an address that is taken ends before its worker has begun anything."""

import asyncio
import socket
from pathlib import Path

from queue_runtime.task import NewTask
from stores import sqlite
from tests.cli.commands import run

HANDLERS = """
from pathlib import Path
from queue_runtime.registry import Registry
registry = Registry()

@registry.task("MineWorker")
def mine(context, data):
    Path("it-ran").touch()
"""


def test_a_taken_port_ends_the_start_before_a_task_is_taken(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(HANDLERS)
    file = tmp_path / "queue-runtime.sqlite"

    async def fill() -> None:
        async with sqlite.open_store(file) as store:
            await store.enqueue([NewTask(task_class="MineWorker", data="")])

    async def look() -> tuple[int, str | None]:
        async with sqlite.open_store(file) as store:
            (task,) = await store.get([1])
            assert task is not None
            return (await store.stats()).active, task.lease_owner

    asyncio.run(fill())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run("serve", folder=tmp_path, variables={"LISTEN": address, "HANDLERS": "./tasks.py:registry"})
    assert ended.returncode == 1
    assert f"cannot listen on {address}" in ended.stderr
    assert "worker started" not in ended.stderr
    assert asyncio.run(look()) == (1, None)
    assert not (tmp_path / "it-ran").exists()

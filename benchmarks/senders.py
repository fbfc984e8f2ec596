"""Other processes that enqueue now and then: `python -m benchmarks.senders KIND COUNT`.

`store` calls the store, as another process of ours does. `php` writes Phorge's tables with three autocommit
statements, as Phorge's own code does. Prints one JSON line: when each task was sent, from before the first statement.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing

import pymysql

from benchmarks.payload import payload_text
from queue_runtime.compose import opened
from queue_runtime.config import Config, load_config
from queue_runtime.current import Current
from queue_runtime.task import DEFAULT_PRIORITY, NewTask

WARM = range(-5, 0)
PAUSE = (0.05, 0.15)
"""Seconds between two tasks, drawn anew each time."""


async def through_store(config: Config, count: int) -> dict[int, float]:
    """Enqueue through the store."""
    sent = {}
    async with opened(Current(config)) as store:
        for number in (*WARM, *range(count)):
            await asyncio.sleep(random.uniform(*PAUSE))
            sent[number] = time.time()
            await store.enqueue([NewTask(task_class="mark", data=payload_text(number))])
    return sent


def as_php(config: Config, count: int) -> dict[int, float]:
    """Enqueue past the store."""
    sent = {}
    with closing(
        pymysql.connect(
            unix_socket=str(config.mysql_socket),
            user=config.mysql_user,
            database=f"{config.namespace}_worker",
            autocommit=True,
        )
    ) as connection:
        for number in (*WARM, *range(count)):
            time.sleep(random.uniform(*PAUSE))
            sent[number] = time.time()
            _insert(connection, payload_text(number))
    return sent


def _insert(connection: "pymysql.Connection[pymysql.cursors.Cursor]", data: str) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute("INSERT INTO worker_taskdata (data) VALUES (%s)", (data,))
        data_id = cursor.lastrowid
        cursor.execute(
            "INSERT INTO lisk_counter (counterName, counterValue) VALUES ('worker_activetask', LAST_INSERT_ID(1))"
            " ON DUPLICATE KEY UPDATE counterValue = LAST_INSERT_ID(counterValue + 1)"
        )
        task_id = cursor.lastrowid
        now = int(time.time())
        cursor.execute(
            "INSERT INTO worker_activetask (id, taskClass, failureCount, dataID, priority, dateCreated, dateModified)"
            " VALUES (%s, 'mark', 0, %s, %s, %s, %s)",
            (task_id, data_id, DEFAULT_PRIORITY, now, now),
        )


def main(kind: str, count: int) -> None:
    """Send, and say when."""
    config = load_config(os.environ)
    senders: dict[str, Callable[[], dict[int, float]]] = {
        "store": lambda: asyncio.run(through_store(config, count)),
        "php": lambda: as_php(config, count),
    }
    print(json.dumps(sorted(senders[kind]().items())))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

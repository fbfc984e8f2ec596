"""PHP-like writers and ours enqueue together while the server dies: no id is ever given twice (R093)."""

import asyncio
import threading
from contextlib import suppress

import pymysql
import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask
from stores.mysql import open_store
from tests.phorge_php import Php
from tests.phorge_tables import PhorgeTables
from tests.servers import MariaDb

RESTARTS = 2


@pytest.mark.long
async def test_ids_of_php_and_ours_are_unique_over_restarts_and_the_counter_never_goes_back() -> None:
    """And the counter's row is not there at first."""
    with MariaDb(durable=True) as server:
        tables = PhorgeTables(server)
        stop, up = threading.Event(), threading.Event()
        up.set()
        ours: list[int] = []
        native: list[int] = []

        def write_as_php() -> None:
            while not stop.is_set():
                up.wait()
                with suppress(pymysql.Error), Php(tables) as php:
                    while not stop.is_set():
                        native.append(php.schedule("Php"))

        async with open_store(tables.settings(), StoreOptions()) as store:

            async def write() -> None:
                while not stop.is_set():
                    with suppress(StoreUnavailable):
                        ours.extend(task.id for task in await store.enqueue([NewTask(task_class="Ours")] * 3))
                    await asyncio.sleep(0.001)

            threads = [threading.Thread(target=write_as_php) for _ in range(2)]
            for thread in threads:
                thread.start()
            writing = [asyncio.create_task(write()) for _ in range(4)]
            last = 0
            for _ in range(RESTARTS):
                await asyncio.sleep(0.3)
                up.clear()
                server.kill()
                seen = max([*ours, *native])
                await asyncio.to_thread(server.start)
                up.set()
                with Php(tables) as php:
                    ((counter,),) = php.query("SELECT counterValue FROM lisk_counter")
                assert counter >= max(seen, last)
                last = counter
            await asyncio.sleep(0.3)
            stop.set()
            await asyncio.gather(*writing)
            for thread in threads:
                await asyncio.to_thread(thread.join)
        with Php(tables) as php:
            rows = php.query("SELECT id, dataID FROM worker_activetask")
            payloads = {number for (number,) in php.query("SELECT id FROM worker_taskdata")}
            kept = php.query(
                "SELECT COUNT(*) FROM worker_taskdata d WHERE data = ''"
                " AND NOT EXISTS (SELECT 1 FROM worker_activetask WHERE dataID = d.id)"
            )
        tables.close()
    assert len({*ours, *native}) == len(ours) + len(native)
    assert {*ours, *native} <= {task_id for task_id, _ in rows}
    assert {data_id for _, data_id in rows} <= payloads
    assert kept == [(0,)], "a payload of ours belongs to no task"
    assert min(len(ours), len(native)) > 20

"""What the faces tell of a store with a dispatch, while its Redis is away."""

from pathlib import Path

import orjson

from stores import sqlite
from tests.http.house import open_house
from tests.stores.streams_house import NOWHERE, add, over


async def test_the_probe_the_inventory_and_the_metrics_tell_that_the_record_stands_in(tmp_path: Path) -> None:
    async with (
        sqlite.open_store(tmp_path / "queue.sqlite3") as record,
        over(record, NOWHERE) as store,
        open_house(store) as house,
    ):
        await add(store)
        assert orjson.loads((await house.client.get("/readyz")).content) == {"status": "ok"}
        details = orjson.loads((await house.client.get("/readyz?verbose=1")).content)["details"]
        assert (details["dispatch"]["mode"], details["dispatch"]["falls"]) == ("record", 1)
        assert "cannot connect" in details["dispatch"]["reason"]
        inventory = (await house.get("operations")).data
        assert (inventory["backend"], inventory["record"]) == ("streams", "sqlite")
        assert inventory["dispatch"]["mode"] == "record"
        metrics = (await house.client.get("/metrics")).text
        assert 'queue_runtime_dispatch_mode{mode="record"} 1.0' in metrics
        assert 'queue_runtime_dispatch_mode{mode="streams"} 0.0' in metrics
        assert "queue_runtime_dispatch_falls_total 1.0" in metrics

"""The back door of the Redis store: what another program may have written into a row, if one could."""

from pathlib import Path

from redis import Redis

from stores.luatext import compose

PLANT = compose(Path(__file__).with_name("plant.lua").read_text(encoding="utf-8")).text
KEYS = "{queue-runtime}:"
"""How the keys of the default queue begin."""


def plant_row(client: Redis, task_id: int, owner: str | None, expires: int | None) -> None:
    """Write owner and expiry of an active row past the store's rules."""
    client.eval(PLANT, 1, KEYS, "", f"{task_id:010d}", owner or "", "" if expires is None else expires)

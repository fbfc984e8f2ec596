"""Turns down how far the stores look ahead, so that short histories reach beyond it.

Not MySQL's: how many rows it examines hangs together with its window, and with locks (tests/stores/test_mysql_*).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stores import luatext, sqlite_lease
from tests import reference_store

WINDOW = 4
"""Of rows that are due, instead of 1,000."""

LUA = {
    "lease.lua": (("local WINDOW = 1000", f"local WINDOW = {WINDOW}"),),
    "fragments/lanes.lua": (("local RAISES, FEW, VAIN = 250, 8, 16", "local RAISES, FEW, VAIN = 2, 2, 1"),),
}
"""The same in the scripts, and how many bounds, rows and queues a lease looks at before it goes another way."""


@contextmanager
def small_windows() -> Iterator[None]:
    """For the stores that are opened inside, the reference among them."""
    read = luatext.read_lua

    def read_small(path: str) -> str:
        text = read(path)
        for old, new in LUA.get(path, ()):
            assert text.count(old) == 1, f"{path} has this {text.count(old)} times: {old}"
            text = text.replace(old, new)
        return text

    with pytest.MonkeyPatch.context() as patch:
        for module in (reference_store, sqlite_lease):
            patch.setattr(module, "WINDOW", WINDOW)
        patch.setattr(luatext, "read_lua", read_small)
        luatext.load_script.cache_clear()
        try:
            yield
        finally:
            luatext.load_script.cache_clear()

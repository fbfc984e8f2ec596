"""Reads the scripts of the Redis store, one file for each method, and puts the fragments they use in front.

    -- Adds tasks, all or none. use: base rows
    -- In: … Out: …

`use:` in the first line names files of `lua/fragments`, in the order in which they must stand.
"""

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

_USE = re.compile(r"^--.*\buse: ([a-z_ ]+)$")


class Script(Struct, frozen=True):
    """The text of a script, and the name that a server knows it by once it has seen it."""

    text: str
    sha: str


@cache
def load_script(name: str) -> Script:
    """The script of a method."""
    return compose(read_lua(f"{name}.lua"))


def compose(text: str) -> Script:
    """A script with the fragments that its first line names."""
    use = _USE.match(text.partition("\n")[0])
    names = use[1].split() if use else []
    whole = "\n".join([*(read_lua(f"fragments/{name}.lua") for name in names), text])
    return Script(whole, sha1(whole.encode(), usedforsecurity=False).hexdigest())


def read_lua(path: str) -> str:
    """A file of the folder `lua`."""
    return files("stores").joinpath("lua", *path.split("/")).read_text(encoding="utf-8")

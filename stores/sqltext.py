"""Reads the statements of `sql/<dialect>.sql` by the name in their header line.

    -- name: renew
    -- In: lease … Out: one row each.
    UPDATE … {ready} …

`-- fragment: ready` names a piece that other statements use as `{ready}`; it must stand above them.
"""

import re
from importlib.resources import files

_HEADER = re.compile(r"^-- (name|fragment): (\w+)\s*$", re.MULTILINE)
_USE = re.compile(r"\{(\w+)\}")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def load_statements(dialect: str) -> dict[str, str]:
    """All statements of a dialect, by name, with their fragments filled in."""
    text = files("stores").joinpath("sql", f"{dialect}.sql").read_text(encoding="utf-8")
    return parse_statements(text)


def parse_statements(text: str) -> dict[str, str]:
    """Split a text at its header lines. A name that stands twice or an unknown fragment is an error."""
    _, *parts = _HEADER.split(text)
    fragments: dict[str, str] = {}
    statements: dict[str, str] = {}
    for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if name in statements or name in fragments:
            raise ValueError(f"statement {name} stands twice")
        bare = _COMMENT.sub("", body).strip()
        filled = _USE.sub(lambda use: fragments[use[1]], bare)
        if kind == "fragment":
            fragments[name] = filled
        else:
            statements[name] = filled.removesuffix(";")
    return statements

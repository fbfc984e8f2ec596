"""Reads the statements of `sql/<dialect>.sql` by the name in their header line.

    -- name: renew
    -- In: lease … Out: one row each.
    UPDATE … {ready} …

`-- fragment: ready` names a piece that other statements use as `{ready}`; it must stand above them.
"""

import re
from collections.abc import Collection, Mapping
from importlib.resources import files

_HEADER = re.compile(r"^-- (name|fragment): (\w+)\s*$", re.MULTILINE)
_USE = re.compile(r"\{(\w+)\}")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def load_statements(
    dialect: str, given: Mapping[str, str] | None = None, *, only: Collection[str] | None = None
) -> dict[str, str]:
    """All statements of a dialect, by name, with their fragments filled in; `only` some of them.

    They stand in `sql/<dialect>.sql` and, if it is there, `sql/<dialect>_reading.sql`. `given` fragments are known
    from the start, and win over those of the same name in the files.
    """
    return parse_statements("\n".join(read_file(dialect + part) for part in ("", "_reading")), given, only=only)


def read_file(name: str) -> str:
    """The text of a file of statements; nothing where there is none."""
    file = files("stores").joinpath("sql", f"{name}.sql")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def parse_statements(
    text: str, given: Mapping[str, str] | None = None, *, only: Collection[str] | None = None
) -> dict[str, str]:
    """Split a text at its header lines. A name that stands twice or an unknown fragment is an error."""
    _, *parts = _HEADER.split(text)
    given = given or {}
    fragments = dict(given)
    statements: dict[str, str] = {}
    names: set[str] = set()
    for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if name in names:
            raise ValueError(f"statement {name} stands twice")
        names.add(name)
        if only is not None and name not in only:
            continue
        bare = _COMMENT.sub("", body).strip()
        filled = _USE.sub(lambda use: fragments[use[1]], bare)
        if kind == "fragment":
            fragments[name] = given.get(name, filled)
        else:
            statements[name] = filled.removesuffix(";")
    return statements

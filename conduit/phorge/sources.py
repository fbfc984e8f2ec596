"""The PHP code that a Phorge may load: its own, Arcanist's beside it, and that of the libraries it is told to load."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from conduit.phorge.errors import RefusedError

LIBRARY_MARK = "__phutil_library_init__.php"

_SUFFIXES = (".php", ".inc")
_FOLDERS = ("src", "externals", "scripts", "support", "webroot")
"""where a Phorge and an Arcanist have code"""

_NAMESPACE = re.compile(rb"^\s*namespace\s+[\w\\]+\s*[;{]", re.MULTILINE)
_DECLARES = rb"\b(?:class|interface|trait|enum)\s+(%b)\b|\bclass_alias\s*\([^;]*?['\"]\\*(%b)['\"]"


class Code(NamedTuple):
    """Folders with code, and why there may be more of it that was not found."""

    folders: list[Path]
    unknown: list[str]


def find_code(root: Path, config: Mapping[str, object] | None) -> Code:
    """Where the code of the Phorge in this folder is. `config` is what its local.json has; None: unreadable."""
    code = Code([root / name for name in _FOLDERS], [])
    # PHP looks there first; what its own include_path has besides cannot be known here
    arcanist = root.parent / "arcanist"
    if (arcanist / "src" / LIBRARY_MARK).is_file():
        code.folders.extend(arcanist / name for name in _FOLDERS)
    else:
        code.unknown.append(f"{arcanist} is not there, which Phorge loads from somewhere else then: make a link to it")
    if config is None:
        code.unknown.append("conf/local/local.json, which may name libraries to load, cannot be read here")
    for name in _names((config or {}).get("load-libraries")):
        places = (root.parent / name, root / name, root / "webroot" / name)
        library = next((place for place in places if (place / LIBRARY_MARK).is_file()), None)
        if library is None:
            code.unknown.append(f"the library {name}, which load-libraries names, is not found")
        else:
            code.folders.extend((library, library.parent / "externals"))
    for path in sorted((root / "conf").rglob("*.conf.php")):
        if _may_name_libraries(path):
            code.unknown.append(f"{path} may name libraries to load, and only PHP could tell which")
    return code


def php_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Each file of PHP code below a folder, where it is there, and its text. Links are followed, as Phorge does.

    Raises RefusedError for what cannot be read.
    """
    if not folder.is_dir():
        return

    def refuse(error: OSError) -> NoReturn:
        raise RefusedError(f"{error.filename} cannot be read: {error.strerror}") from error

    seen: set[str] = set()
    for here, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(here)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(names):
            path = Path(here, name)
            if name.endswith(_SUFFIXES) and path.is_file():
                try:
                    text = path.read_bytes()
                except OSError as error:
                    refuse(error)
                yield path, text


class Declared:
    """Finds classes, interfaces, traits and enums of some names in PHP code. PHP ignores the case of names."""

    def __init__(self, names: list[str]) -> None:
        words = b"|".join(re.escape(name.encode()) for name in names)
        self._pattern = re.compile(_DECLARES % (words, words), re.IGNORECASE)

    def names(self, text: bytes) -> set[str]:
        """Those that the text declares for all of PHP, in lower case."""
        if _NAMESPACE.search(text):
            return set()
        return {(one or other).decode().lower() for one, other in self._pattern.findall(text)}


def _may_name_libraries(path: Path) -> bool:
    try:
        return b"load-libraries" in path.read_bytes()
    except OSError:
        return True


def _names(value: object) -> list[str]:
    """A list in PHP's sense, which may have got keys."""
    found = list(value.values()) if isinstance(value, dict) else value
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

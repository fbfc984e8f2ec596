"""A Phorge on disk: whether it is one, which of its files answer worker.execute, and putting files of ours into it.

Phorge includes each `.php` file below src/extensions on every request, so a bad one takes the whole site down. Ours are
therefore checked by PHP under a name that Phorge does not look at, and appear whole or not at all.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

from conduit.phorge.errors import RefusedError
from conduit.phorge.php import lint
from conduit.phorge.sources import Code, Declared, find_code, php_files

EXTENSION = "queue-runtime.php"
STUBS = "queue-runtime-stubs.php"

MARKS = {EXTENSION: b"class QueueRuntimeExecuteConduitAPIMethod", STUBS: b"`queue-runtime phorge stubs`"}
"""By what a file of ours is known, whichever version of this product wrote it."""

TOKEN_KEY = "queue-runtime.token"

_METHOD = re.compile(rb"""['"]worker\.execute['"]""")
_IS_METHOD = re.compile(rb"\bextends\s+\\?\w*ConduitAPIMethod\b")
_CLASS = re.compile(rb"\bclass (\w+)\s+extends\b")


class State(StrEnum):
    """What is there under the name of a file of ours."""

    ABSENT = "absent"
    SAME = "same"
    OTHER = "another version of ours"
    FOREIGN = "not ours"


def shipped() -> bytes:
    """The extension that comes with this version."""
    return Path(__file__).with_name(EXTENSION).read_bytes()


def classes_of(text: bytes) -> list[str]:
    """The classes that a file of ours declares."""
    return [name.decode() for name in _CLASS.findall(text)]


class Checkout:
    """One Phorge. Raises RefusedError for a folder that is none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.extensions = root / "src" / "extensions"
        if not (root / "src" / "__phutil_library_map__.php").is_file() or not (root / "bin" / "config").exists():
            raise RefusedError(f"{root} is not a Phorge: it has no src/__phutil_library_map__.php and bin/config")
        if not self.extensions.is_dir():
            raise RefusedError(f"{root} has no folder src/extensions")

    def state(self, name: str, text: bytes) -> State:
        """What is there under this name, compared with what would be written."""
        path = self.extensions / name
        if not path.exists():
            return State.ABSENT
        found = path.read_bytes()
        if found == text:
            return State.SAME
        return State.OTHER if MARKS[name] in found else State.FOREIGN

    def rivals(self) -> list[Path]:
        """Files that answer worker.execute too: the fork's own method, another extension, a copy of ours.

        Two classes with one method name stop all of Conduit.
        """
        return [
            path
            for path, text in self._sources()
            if _METHOD.search(text) and _IS_METHOD.search(text) and path != self.extensions / EXTENSION
        ]

    def declared(self, name: str, classes: list[str]) -> list[str]:
        """Those of the classes that another file than the one of ours with this name declares.

        A second class of one name is a fatal error, on every page of the site. PHP ignores the case of names.
        """
        declared = Declared(classes)
        found: set[str] = set()
        for path, text in self._sources():
            if path != self.extensions / name:
                found |= declared.names(text)
        return [one for one in classes if one.lower() in found]

    def stubs(self) -> list[str]:
        """The classes that stubs of ours stand in for now."""
        path = self.extensions / STUBS
        return classes_of(path.read_bytes()) if path.exists() else []

    def unknown_code(self) -> list[str]:
        """Why Phorge may load code that is not looked at here."""
        return self._code().unknown

    @property
    def config_file(self) -> Path:
        """Where bin/config writes."""
        return self.root / "conf" / "local" / "local.json"

    def config(self) -> dict[str, object] | None:
        """What Phorge's own configuration file has; None: it cannot be read."""
        try:
            found = json.loads(self.config_file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else {}  # PHP writes an empty map as a list

    def token_is_set(self) -> bool | None:
        """Whether Phorge's own configuration file has the token; None: it cannot be read."""
        config = self.config()
        return None if config is None else bool(config.get(TOKEN_KEY))

    def write(self, name: str, text: bytes, check: Callable[[Path], str] = lint) -> str:
        """Put a file of ours there, and say how it was checked. Raises RefusedError where that would do harm."""
        path = self.extensions / name
        if self.state(name, text) is State.FOREIGN:
            raise RefusedError(f"{path} is not a file of queue-runtime; move it away first")
        # not `.php`, so that Phorge does not include it
        new = self.extensions / f".{name}.{os.getpid()}.new"
        try:
            new.write_bytes(text)
            new.chmod(0o644)  # the web server's account reads it
            checked = check(new)
            new.replace(path)
        except OSError as error:
            raise RefusedError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            new.unlink(missing_ok=True)
        return checked

    def remove(self, name: str) -> bool:
        """Take a file of ours away; False: there was none."""
        path = self.extensions / name
        state = self.state(name, b"")
        if state is State.ABSENT:
            return False
        if state is State.FOREIGN:
            raise RefusedError(f"{path} is not a file of queue-runtime; it stays")
        try:
            path.unlink()
        except OSError as error:
            raise RefusedError(f"{path} cannot be removed: {error.strerror}") from error
        return True

    def _sources(self) -> Iterator[tuple[Path, bytes]]:
        for folder in self._code().folders:
            yield from php_files(folder)

    def _code(self) -> Code:
        return find_code(self.root, self.config())

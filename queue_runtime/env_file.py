"""The file of settings, `QUEUE_RUNTIME_ENV_FILE`: lines of NAME=value, read at the start and at every reload."""

import re
from collections.abc import Mapping
from pathlib import Path

from queue_runtime.plain_file import read_plain

PREFIXES = ("QUEUE_RUNTIME_", "GORGE_")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def read_env_file(path: Path, itself: str) -> tuple[Mapping[str, str], list[str]]:
    """What the file sets, and every fault in it. `itself` is the variable that names the file."""
    try:
        text = read_plain(path).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return {}, [f"{itself}: cannot read {path}: {reason}"]
    if text and not text.endswith("\n"):
        return {}, [f"{itself}: {path} does not end with a newline: it looks half written"]
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if problem := _problem(name, equals, value, itself):
            problems.append(f"{path}, line {number}: {problem}")
        elif name in found:
            problems.append(f"{path}, line {number}: {name} is set twice")
        else:
            found[name] = value
    return found, problems


def _problem(name: str, equals: str, value: str, itself: str) -> str | None:
    # never the line itself: there may be a secret in it
    if not equals or not _NAME.fullmatch(name):
        return "must be NAME=value, or begin with # (no `export`, no blanks in the name)"
    if name == itself:
        return f"{name} counts only where the process was started"
    if not name.startswith(PREFIXES):
        return f"{name} is no setting: names begin with {' or '.join(PREFIXES)}"
    if value[:1] in {'"', "'"}:
        return f"{name}: write the value without quotes"
    return None

"""The file of periodic work: read whole and checked whole, every fault with the file, the entry and the field."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from queue_runtime.cron_schedule import Schedule, check_expression, find_zone, stamp
from queue_runtime.errors import ConfigError, InvalidRequest
from queue_runtime.plain_file import read_plain
from queue_runtime.task import NewTask, check_queue

MAX_ENTRIES = 1000

KEYS = ("name", "class", "cron", "timezone", "data", "queue", "priority", "missed")
_REQUIRED = ("name", "class", "cron")
_FIELDS = {"task_class": "class"}
"""Our names of what the file calls otherwise."""


class Missed(StrEnum):
    """What becomes of slots that nobody was there to see."""

    SKIP = "skip"
    """nothing"""

    ONCE = "once"
    """the latest of them is made up for"""


class CronEntry(Struct, frozen=True):
    """One kind of periodic work."""

    name: str
    schedule: Schedule
    task: NewTask
    """what each slot enqueues; its key comes with the slot"""

    missed: Missed = Missed.SKIP

    def key(self, slot: int) -> str:
        """The idempotency key of a slot, the same in every process."""
        return f"cron:{self.name}:{stamp(slot)}"


def read_cron_file(path: Path) -> tuple[CronEntry, ...]:
    """The entries of a file. Raises ConfigError with every fault in it."""
    if find_spec("cronsim") is None:
        raise ConfigError([f"{path}: periodic work needs the extra: pip install 'queue-runtime[cron]'"])
    try:
        tables = tomllib.loads(read_plain(path).decode())
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not UTF-8 text"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: is no TOML: {error}"]) from None
    return _read(path, tables)


def _read(path: Path, tables: Mapping[str, object]) -> tuple[CronEntry, ...]:
    problems = [
        f"{path}: {name}: is no table of this file, which has [[task]] only" for name in tables if name != "task"
    ]
    rows = tables.get("task", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError([*problems, f"{path}: task: must be written as [[task]], once for each entry"])
    if len(rows) > MAX_ENTRIES:
        raise ConfigError([*problems, f"{path}: has {len(rows)} entries, and at most {MAX_ENTRIES} are allowed"])
    entries = []
    first: dict[str, int] = {}
    for place, row in enumerate(rows, 1):
        name = row.get("name")
        title = f"{path}: task {place} ({name})" if isinstance(name, str) else f"{path}: task {place}"
        reader = _EntryReader(row)
        entry = reader.read()
        if isinstance(name, str) and first.setdefault(name, place) != place:
            reader.problems.append(f"name: task {first[name]} has it already")
        problems += [f"{title}: {problem}" for problem in reader.problems]
        if entry is not None:
            entries.append(entry)
    if problems:
        raise ConfigError(problems)
    return tuple(entries)


class _EntryReader:
    """One table of the file. Goes through all its fields, whatever is wrong with some of them."""

    def __init__(self, row: Mapping[str, object]) -> None:
        self._row = row
        self.problems: list[str] = []

    def read(self) -> CronEntry | None:
        """The entry, or None where there are problems."""
        self.problems += [f"{key}: is not a field{_hint(key)}" for key in self._row if key not in KEYS]
        self.problems += [f"{key}: is required" for key in _REQUIRED if key not in self._row]
        name, missed = self._name(), self._missed()
        schedule, task = self._schedule(), self._task()
        if self.problems or schedule is None or task is None:
            return None
        return CronEntry(name, schedule, task, missed)

    def _name(self) -> str:
        name = self._row.get("name", "x")
        try:
            check_queue("name", name)  # type: ignore[arg-type]  # it looks at the type first
        except InvalidRequest as error:
            self.problems.append(str(error))
        return str(name)

    def _missed(self) -> Missed:
        text = self._row.get("missed", Missed.SKIP)
        try:
            return Missed(text)  # type: ignore[arg-type]  # what is no text is no member either
        except ValueError:
            self.problems.append(f"missed: must be {' or '.join(Missed)}, not {text!r}")
            return Missed.SKIP

    def _schedule(self) -> Schedule | None:
        zone, expression = self._text("timezone", "UTC"), self._text("cron", "* * * * *")
        for field, check, value in (("timezone", find_zone, zone), ("cron", check_expression, expression)):
            try:
                check(value)
            except ValueError as error:
                self.problems.append(f"{field}: {error}")
        return None if self.problems else Schedule(expression, zone)

    def _task(self) -> NewTask | None:
        fields: dict[str, object] = {key: self._row[key] for key in ("queue", "priority") if key in self._row}
        if "class" in self._row:
            fields["task_class"] = self._row["class"]
        try:
            fields["data"] = _payload(self._row.get("data", ""))
        except (TypeError, ValueError) as error:
            self.problems.append(f"data: {error}")
        # one by one: each has its own fault
        for field, value in fields.items():
            try:
                NewTask(**({"task_class": "X"} | {field: value}))  # type: ignore[arg-type]  # it looks at the types
            except InvalidRequest as error:
                self.problems.append(f"{_FIELDS.get(error.field, error.field)}: {error.reason}")
        return None if self.problems else NewTask(**fields)  # type: ignore[arg-type]  # checked above

    def _text(self, field: str, default: str) -> str:
        value = self._row.get(field, default)
        if isinstance(value, str):
            return value
        self.problems.append(f"{field}: must be text, not {value!r}")
        return default


def _payload(data: object) -> str:
    """Text as it is; a table or an array as JSON. Raises TypeError or ValueError with the rule."""
    if isinstance(data, str):
        return data
    if not isinstance(data, dict | list):
        raise TypeError(f"must be text, a table or an array, not {data!r}")
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except TypeError:
        raise TypeError("holds a date or a time, which JSON has no form for: write it as text") from None
    except ValueError:
        raise ValueError("holds a number that JSON has no form for") from None


def _hint(key: str) -> str:
    close = get_close_matches(key, KEYS, 1)
    return f": did you mean {close[0]}?" if close else f"; there are {_listed(KEYS)}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"

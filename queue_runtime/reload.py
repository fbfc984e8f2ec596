"""Reads the settings again while everything runs: all that can change then takes effect, or nothing does."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import anyio.to_thread
import structlog
from msgspec import Struct
from msgspec.structs import replace

from queue_runtime.config import Config, Reading
from queue_runtime.current import Current
from queue_runtime.errors import ConfigError
from queue_runtime.settings import SETTINGS, Setting
from queue_runtime.store_values import without_login

LIVE = frozenset(
    {
        "token",
        "slots",
        "class_caps",
        "http_lease_seconds",
        "retry_seconds",
        "grace_seconds",
        "sweep_seconds",
        "cron_file",
        "log_level",
        "block_seconds",
        "mysql_password",
        "redis_url",
        "remote_url",
        "remote_token",
        "conduit_token",
    }
)
"""Fields of the settings that take effect by a reload; of a URL user and password alone. Every other one keeps its
value until a restart. Parts that need the new value for their next use ask `Current` for it; live.py tells the rest."""

_BELONGS_TO: Mapping[str, tuple[str, ...]] = {
    "block_seconds": ("store",),
    "mysql_password": ("store", "record", "mysql_host", "mysql_port", "mysql_socket", "mysql_user"),
    "redis_url": ("store",),
    "remote_url": ("store",),
    "remote_token": ("store", "remote_url"),
    "conduit_token": ("conduit_url", "conduit_host"),
}
"""What each of these belongs to. Where that has a new value which must wait for a restart, it waits too: the secret of
another server is none for this one."""

Apply = Callable[[], list[str]]
"""Puts a checked configuration in force, which cannot fail; says what changed inside the files that it names."""

Prepare = Callable[[Config], Apply]
"""Checks what only the parts know (the file of periodic work, the handlers). Raises ConfigError."""


class Reloaded(Struct, frozen=True):
    """What came of a reload. With problems nothing changed."""

    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """variables that have a new value now, and files with new content"""

    needs_restart: tuple[str, ...] = ()
    """variables that have a new value outside, and keep the old one here"""


class Reloader:
    """One reload at a time: read, check all of it, then put it in force in one step."""

    def __init__(self, current: Current, *, read: Callable[[], Reading], prepare: Prepare) -> None:
        self._current = current
        self._read = read
        self._prepare = prepare
        self._turn = asyncio.Lock()
        self._log = structlog.get_logger().bind()

    async def reload(self) -> Reloaded:
        """Read the settings again. Never raises on what is in them: whatever is wrong, everything stays as it was."""
        async with self._turn:
            try:
                done = await self._reload()
            except Exception as error:  # noqa: BLE001  a process that works must not end by a reload
                self._log.exception("reload failed: nothing has changed", exc_info=error)
                return Reloaded(problems=("the settings could not be read; the log says why",))
        for problem in done.problems:
            self._log.error("reload refused: nothing has changed", problem=problem)
        if not done.problems:
            self._log.info("reloaded", changed=list(done.changed), needs_restart=list(done.needs_restart))
        return done

    async def _reload(self) -> Reloaded:
        # A file system that hangs holds up this reload, and not the end of the process.
        reading = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        old, new = self._current.config, reading.config or self._current.config
        different = [one for one in SETTINGS if getattr(old, one.field) != getattr(new, one.field)]
        live = [one for one in different if _is_live(one.field, old, new)]
        merged = replace(old, **{one.field: getattr(new, one.field) for one in live})
        problems = list(reading.problems)
        try:
            apply = await anyio.to_thread.run_sync(partial(self._prepare, merged), abandon_on_cancel=True)
        except ConfigError as error:
            problems += error.problems
        if problems:
            return Reloaded(problems=tuple(problems))
        self._current.config = merged
        inside = apply()
        for warning in reading.warnings:
            self._log.warning("setting", note=warning)
        stays = [one for one in different if one not in live]
        return Reloaded(changed=(*_names(live), *inside), needs_restart=_names(stays))


def _is_live(field: str, old: Config, new: Config) -> bool:
    """Whether the new value of the field is the old one, or can take its place now."""
    before, after = getattr(old, field), getattr(new, field)
    if before == after:
        return True
    if field not in LIVE or not all(_is_live(other, old, new) for other in _BELONGS_TO.get(field, ())):
        return False
    if field in {"redis_url", "remote_url"}:
        return without_login(before) == without_login(after)
    # Taking the token away may open the queue to everybody, and only the start looks at what else stands in the way.
    return field != "token" or bool(after)


def _names(settings: Sequence[Setting]) -> tuple[str, ...]:
    return tuple(one.variable for one in settings)

"""Which part of a running process takes which setting. The table of those that can change is in reload.py."""

from collections.abc import Callable
from functools import partial

from queue_runtime import logs
from queue_runtime.api.auth import Guard
from queue_runtime.config import Config
from queue_runtime.cron_file import CronEntry, read_cron_file
from queue_runtime.errors import ConfigError
from queue_runtime.registry import Registry
from queue_runtime.reload import Apply
from queue_runtime.settings import BY_FIELD
from queue_runtime.supervisor import Runtime


class Live:
    """Checks a changed configuration with the parts that know about it, and hands it to them."""

    def __init__(
        self,
        runtime: Runtime,
        guard: Guard,
        registry: Registry | None,
        ask_phorge: Callable[[], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._ask_phorge = ask_phorge
        self._guard = guard
        self._registry = registry

    def prepare(self, config: Config) -> Apply:
        """Raises ConfigError with every fault; else gives what puts the configuration in force."""
        problems = cap_problems(config, self._registry)
        entries: tuple[CronEntry, ...] = ()
        try:
            entries = cron_entries(config)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        return partial(self._apply, config, entries)

    def _apply(self, config: Config, entries: tuple[CronEntry, ...]) -> list[str]:
        runtime = self._runtime
        inside = []
        self._guard.change(config.token)
        logs.adjust(config.log_level, config.secrets)
        runtime.grace_seconds = config.grace_seconds
        if self._ask_phorge is not None:
            self._ask_phorge()  # by the token that is now in force
        if runtime.sweep_loop is not None:
            runtime.sweep_loop.sweep_seconds = config.sweep_seconds
        if self._registry is not None and runtime.lease_loop is not None:
            self._registry.cap(config.class_caps)
            runtime.lease_loop.configure(slots=config.slots, retry_seconds=config.retry_seconds)
        if runtime.cron_loop is not None and entries != runtime.cron_loop.entries:
            runtime.cron_loop.replace(entries)
            inside.append(f"{BY_FIELD['cron_file'].variable}: {len(entries)} entries")
        return inside


def cron_entries(config: Config) -> tuple[CronEntry, ...]:
    """The periodic work that this process has to enqueue. Raises ConfigError with every fault in its file."""
    if config.cron_file is None or "sweep" not in config.roles:
        return ()
    try:
        return read_cron_file(config.cron_file)
    except ConfigError as error:
        name = BY_FIELD["cron_file"].variable
        raise ConfigError([f"{name}: {problem}" for problem in error.problems]) from None


def cap_problems(config: Config, registry: Registry | None) -> list[str]:
    """Caps of classes that have no handler of their own here."""
    unknown = sorted(set(config.class_caps) - registry.classes) if registry is not None else []
    name = BY_FIELD["class_caps"].variable
    return [f"{name} names {', '.join(unknown)}, without a handler of its own here"] if unknown else []

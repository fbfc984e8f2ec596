"""Configuration: the environment becomes one frozen Config, or one error that lists every fault."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from queue_runtime import config_values as values
from queue_runtime.config_values import Rule
from queue_runtime.errors import ConfigError
from queue_runtime.gorge_names import GENERIC_NAMES, GORGE_FAMILIES, GORGE_NAMES, GorgeName
from queue_runtime.store import Routes
from queue_runtime.task import MAX_DATA_BYTES

PREFIX = "QUEUE_RUNTIME_"
WEEK = 7 * 86400
STORES = ("sqlite",)


class Config(Struct, frozen=True, kw_only=True):
    """Every setting, read once and checked whole. The table SETTINGS says what each is for."""

    store: Literal["sqlite"]
    sqlite_path: Path
    sqlite_synchronous: Literal["FULL", "NORMAL"]
    listen: tuple[str, ...]
    token: str
    allow_anonymous: bool
    server: Literal["hypercorn", "uvicorn"]
    max_body: int
    request_seconds: float
    roles: frozenset[str]
    handlers: tuple[str, ...]
    slots: int
    task_classes: frozenset[str] | None
    queues: frozenset[str] | None
    routes: Routes
    lease_seconds: int
    http_lease_seconds: int
    retry_seconds: int
    grace_seconds: float
    sweep_seconds: float
    max_lost: int
    retention_days: int | None
    feed_policy_file: Path | None
    log_format: Literal["console", "json"]
    log_level: Literal["debug", "info", "warning", "error"]
    event_loop: Literal["asyncio", "uvloop"]

    @property
    def patience(self) -> int:
        """Seconds for which an expired lease of one of our workers is left to its holder."""
        return max(1, self.lease_seconds // 2)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be seen in a log line or an error text."""
        return tuple(getattr(self, one.field) for one in SETTINGS if one.secret and getattr(self, one.field))


class Setting(Struct, frozen=True):
    """One variable: the only place that knows its default, its rule and what it is for."""

    field: str
    default: str
    """as one would write it; empty: unset, which reads as `unset`"""

    rule: Rule
    sentence: str
    unset: object = None
    secret: bool = False
    worker_only: bool = False
    """without effect where ROLES has no worker"""

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()

    @property
    def file_variable(self) -> str:
        """For a secret: the variable that names a file which holds it."""
        return self.variable + "_FILE"


SETTINGS = (
    Setting("store", "sqlite", values.one_of(*STORES), "where the queue is kept"),
    Setting("sqlite_path", "queue-runtime.sqlite", values.PATH, "the SQLite file; its folder must be writable"),
    Setting("sqlite_synchronous", "FULL", values.one_of("FULL", "NORMAL"),
            "FULL: an answered request is on disk; NORMAL: a power cut may take the last moments"),
    Setting("listen", "127.0.0.1:8090", values.LISTEN, "addresses of the HTTP faces"),
    Setting("token", "", values.TOKEN, "service token that callers send as X-Service-Token", unset="", secret=True),
    Setting("allow_anonymous", "0", values.switch(), "serve without a token on an address others can reach"),
    Setting("server", "hypercorn", values.one_of("hypercorn", "uvicorn"),
            "HTTP server; uvicorn (extra `fast`) answers about four times as many requests a second"),
    Setting("max_body", str(2 * 2**20), values.whole(1024, MAX_DATA_BYTES, "bytes"), "largest request body"),
    Setting("request_seconds", "60", values.seconds(31, 3600),
            "longest time a request may take; more than the longest long poll, 30 s"),
    Setting("roles", "api,worker,sweep", values.some_of("api", "worker", "sweep"), "what this process does"),
    Setting("handlers", "", values.HANDLERS, "registries with your handlers", unset=(), worker_only=True),
    Setting("slots", "32", values.whole(1, 10_000), "tasks that run at once", worker_only=True),
    Setting("task_classes", "", values.TASK_CLASSES, "lease only these classes (default: all that have a handler)",
            worker_only=True),
    Setting("queues", "", values.QUEUES, "lease only from these queues (default: all)", worker_only=True),
    Setting("routes", "", values.ROUTES, "queue of a task that names none", unset=Routes()),
    Setting("lease_seconds", "20", values.whole(3, 86400, "seconds"),
            "lease of this worker, renewed every third of it; work of a killed one runs again after 1.5 times this"),
    Setting("http_lease_seconds", "7200", values.whole(1, WEEK, "seconds"), "lease given to HTTP callers"),
    Setting("retry_seconds", "300", values.whole(0, WEEK, "seconds"),
            "wait after a failed run where neither caller nor handler says"),
    Setting("grace_seconds", "20", values.seconds(0, 3600), "time for running tasks to end after SIGTERM",
            worker_only=True),
    Setting("sweep_seconds", "30", values.seconds(0.1, 3600), "time between two sweeps"),
    Setting("max_lost", "5", values.whole(1, 1000),
            "lost runs (killed worker) after which a task is archived as failed"),
    Setting("retention_days", "14", values.days_or_forever(1, 36_500), "how long ended tasks are kept"),
    Setting("feed_policy_file", "", values.READABLE_FILE, "policy of FeedPublisherHTTPWorker: allowed URIs, silent",
            worker_only=True),
    Setting("log_format", "console", values.one_of("console", "json"), "form of the log lines"),
    Setting("log_level", "info", values.one_of("debug", "info", "warning", "error"), "least level that is logged"),
    Setting("event_loop", "asyncio", values.one_of("asyncio", "uvloop"), "event loop; uvloop is in the extra `fast`"),
)  # fmt: skip  # a table reads better with one setting a line where it fits

_BY_VARIABLE = {one.variable: one for one in SETTINGS}
_BY_FIELD = {one.field: one for one in SETTINGS}

LATER_STORES = frozenset({"mysql", "redis", "streams"})
"""Stores of the design that this version does not have: their names and settings get a clear answer."""

_STORE_OF = {"SQLITE": "sqlite", "MYSQL": "mysql", "NAMESPACE": "mysql", "REDIS": "redis", "RECORD": "streams"}
"""First word of a store-specific variable: the store it belongs to."""

# Kubernetes injects these for a service named queue-runtime, into every pod of the namespace.
_LINK = re.compile(rf"{PREFIX}(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


class Effective(Struct, frozen=True):
    """One setting as it is in force: its text (a secret is masked) and where it came from."""

    variable: str
    text: str
    origin: str


class Reading(Struct, frozen=True):
    """All that came of one look at the environment. `config` is None where there are problems."""

    config: Config | None
    problems: tuple[str, ...]
    notices: tuple[str, ...]
    """lines for the log: variables that were ignored, old names that were taken over"""

    warnings: tuple[str, ...]
    """lines for the log about settings that are wrong although one can start with them"""

    effective: tuple[Effective, ...]


def load_config(environ: Mapping[str, str]) -> Config:
    """The configuration. Raises ConfigError with every fault."""
    reading = read_environment(environ)
    if reading.config is None:
        raise ConfigError(list(reading.problems))
    return reading.config


def explain(environ: Mapping[str, str]) -> list[Effective]:
    """Each setting in force with its origin, secrets masked."""
    return list(read_environment(environ).effective)


def read_environment(environ: Mapping[str, str]) -> Reading:
    """Look at the whole environment once and report everything about it."""
    return _Reader({name: value.strip() for name, value in environ.items()}).read()


class _Reader:
    """One look at the environment. Blanks around a value are dropped, and an empty value is an unset one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {name: value for name, value in environ.items() if value}
        self._problems: list[str] = []
        self._notices: list[str] = []
        self._texts: dict[str, tuple[str, str]] = {}
        """field: (text, name of the variable it came from)"""

    def read(self) -> Reading:
        self._collect_ours()
        self._collect_gorge()
        fields: dict[str, object] = {}
        effective = []
        for setting in SETTINGS:
            text, origin = self._texts.get(setting.field, (setting.default, "default"))
            value = self._value(setting, text, origin)
            fields[setting.field] = value
            shown = "****" if setting.secret and text else text
            effective.append(Effective(setting.variable, shown, origin))
        self._check_store()
        config = msgspec.convert(fields, Config)
        self._check_relations(config)
        return Reading(
            None if self._problems else config,
            tuple(self._problems),
            tuple(self._notices),
            tuple(self._without_effect(config)),
            tuple(effective),
        )

    def _value(self, setting: Setting, text: str, origin: str) -> object:
        try:
            return setting.rule.read(text) if text else setting.unset
        except ValueError as error:
            shown = "" if setting.secret else f" (it is {_cut(text)})"
            if not (setting.field == "store" and text.casefold() in LATER_STORES):
                self._problems.append(f"{origin} {error}{shown}")
            return setting.rule.read(setting.default) if setting.default else setting.unset

    def _collect_ours(self) -> None:
        links = []
        for name, text in sorted(self._environ.items()):
            if not name.startswith(PREFIX):
                continue
            if name in _BY_VARIABLE:
                self._texts[_BY_VARIABLE[name].field] = (text, name)
            elif _LINK.fullmatch(name) and (name != PREFIX + "PORT" or _LINK_VALUE.match(text)):
                links.append(name)
            elif setting := _BY_VARIABLE.get(name.removesuffix("_FILE")):
                self._collect_file(setting)
            elif _store_of(name) is None or _store_of(name) in STORES:
                self._problems.append(f"{name} is not a setting of queue-runtime{_hint(name)}")
        if links:
            self._notices.append(f"ignored, because Kubernetes sets them for a service: {', '.join(links)}")

    def _collect_file(self, setting: Setting) -> None:
        name = setting.file_variable
        if not setting.secret:
            self._problems.append(f"{name} is not a setting: {setting.variable} is no secret, give its value")
        elif setting.variable in self._environ:
            self._problems.append(f"{name} and {setting.variable} are both set: keep one")
        else:
            try:
                text = Path(self._environ[name]).read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                self._problems.append(f"{name}: cannot read {self._environ[name]}: {reason}")
                return
            if not text:
                self._problems.append(f"{name}: {self._environ[name]} is empty")
            self._texts[setting.field] = (text, name)

    def _collect_gorge(self) -> None:
        for name, text in sorted(self._environ.items()):
            if known := GORGE_NAMES.get(name):
                self._take_gorge(known, text)
            elif name in GENERIC_NAMES:
                self._notices.append(f"{name} is not read: {GENERIC_NAMES[name]}")
            elif name.startswith(GORGE_FAMILIES):
                self._notices.append(f"{name} is not a name that gorge or queue-runtime knows: ignored")

    def _take_gorge(self, known: GorgeName, text: str) -> None:
        if reason := known.refusal(text):
            self._problems.append(f"{known.name} cannot be taken over: {reason}")
        elif known.field is None:
            self._notices.append(f"{known.name} is ignored: {known.reason}")
        else:
            ours = PREFIX + known.field.upper()
            text = known.translate(text)
            if ours in self._environ or known.field in self._texts:
                self._compare(known, text, *self._texts.get(known.field, (self._environ.get(ours, ""), ours)))
            self._texts.setdefault(known.field, (text, known.name))
            self._notices.append(f"{known.name} is taken as {ours}{f': {known.reason}' if known.reason else ''}")

    def _compare(self, known: GorgeName, text: str, other: str, origin: str) -> None:
        setting = _BY_FIELD.get(known.field or "")
        try:
            same = setting.rule.read(text) == setting.rule.read(other) if setting else text == other
        except ValueError:
            return  # one of them is a fault of its own and is reported as such
        if not same:
            self._problems.append(f"{known.name} and {origin} are both set, to different values: keep {origin}")

    def _check_store(self) -> None:
        text, origin = self._texts.get("store", (STORES[0], ""))
        store = text.casefold()
        if store in LATER_STORES:
            self._problems.append(f"{origin} is {store}, and this version has {' and '.join(STORES)} only")
        elif store not in STORES:
            return  # reported already; nobody can say which settings would fit
        for name in sorted(self._environ):
            field = GORGE_NAMES[name].field if name in GORGE_NAMES else name
            owner = _store_of(PREFIX + field.upper().removeprefix(PREFIX)) if field else None
            if owner is not None and owner != store and (name in GORGE_NAMES or name.startswith(PREFIX)):
                self._problems.append(
                    f"{name} is a setting for {PREFIX}STORE={owner}, but the store is {store}"
                    f"{'' if origin else ' by default'}: set {PREFIX}STORE={owner}{_not_yet(owner)}, or remove {name}"
                )

    def _without_effect(self, config: Config) -> list[str]:
        if "worker" in config.roles:
            return []
        origins = [self._texts[one.field][1] for one in SETTINGS if one.worker_only and one.field in self._texts]
        if not origins:
            return []
        return [f"without effect, because {PREFIX}ROLES has no worker: {', '.join(origins)}"]

    def _check_relations(self, config: Config) -> None:
        reachable = [address for address in config.listen if not values.is_local(address)]
        token = _BY_FIELD["token"]
        given = {token.variable, token.file_variable, "GORGE_SERVICE_TOKEN"} & self._environ.keys()
        if reachable and not given and not config.allow_anonymous:
            self._problems.append(
                f"{PREFIX}LISTEN has {', '.join(reachable)}, which other machines can reach: set {token.variable} "
                f"(or {token.file_variable}), or {PREFIX}ALLOW_ANONYMOUS=1 if everybody may use the queue"
            )
        if given and config.allow_anonymous:
            self._problems.append(f"{PREFIX}ALLOW_ANONYMOUS=1 contradicts {', '.join(sorted(given))}: keep one")


def _not_yet(store: str) -> str:
    return f" (a later version; this one has {' and '.join(STORES)} only)" if store in LATER_STORES else ""


def _store_of(name: str) -> str | None:
    return _STORE_OF.get(name.removeprefix(PREFIX).partition("_")[0])


# What people write who know other programs; close spelling would lead them astray.
_GUESSES = {"PORT": "LISTEN", "HOST": "LISTEN", "BIND": "LISTEN", "CONCURRENCY": "SLOTS", "WORKERS": "SLOTS"}


def _hint(name: str) -> str:
    word = name.removeprefix(PREFIX)
    known = [one.field.upper() for one in SETTINGS]
    known += [one.field.upper() + "_FILE" for one in SETTINGS if one.secret]
    close = [_GUESSES[word]] if word in _GUESSES else get_close_matches(word, known, 1)
    return f": did you mean {PREFIX}{close[0]}?" if close else ""


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

"""Configuration: the environment becomes one frozen Config, or one error that lists every fault."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from queue_runtime import conduit_values
from queue_runtime import config_values as values
from queue_runtime import gorge_names as gorge
from queue_runtime.env_file import read_env_file
from queue_runtime.errors import ConfigError
from queue_runtime.gorge_names import GorgeName
from queue_runtime.plain_file import read_plain
from queue_runtime.settings import BY_FIELD, BY_VARIABLE, PREFIX, SETTINGS, STORES, Setting, store_of
from queue_runtime.store import Routes
from queue_runtime.store_values import passwords_in


class Config(Struct, frozen=True, kw_only=True):
    """Every setting, read once and checked whole. The table in settings.py says what each is for."""

    env_file: Path | None
    store: Literal["sqlite", "mysql", "redis", "remote", "streams"]
    sqlite_path: Path
    sqlite_synchronous: Literal["FULL", "NORMAL"]
    namespace: str
    mysql_host: str
    mysql_port: int
    mysql_socket: Path | None
    mysql_user: str
    mysql_password: str
    mysql_tls_ca: Path | None
    mysql_connections: int
    mysql_driver: Literal["aiomysql", "asyncmy"]
    redis_url: str
    redis_prefix: str
    redis_allow_eviction: bool
    event_days: int | None
    record: Literal["mysql", "sqlite"]
    streams_prefix: str
    streams_group: str
    queue_policy: Literal["strict", "weighted"]
    block_seconds: float
    remote_url: str
    remote_token: str
    listen: tuple[str, ...]
    token: str
    allow_anonymous: bool
    server: Literal["hypercorn", "uvicorn"]
    max_body: int
    request_seconds: float
    roles: frozenset[str]
    shadow: bool
    ready_selftest: bool
    handlers: tuple[str, ...]
    slots: int
    class_caps: Mapping[str, int]
    task_classes: frozenset[str] | None
    queues: tuple[str, ...] | None
    routes: Routes
    lease_seconds: int
    http_lease_seconds: int
    retry_seconds: int
    grace_seconds: float
    sweep_seconds: float
    cron_file: Path | None
    max_lost: int
    retention_days: int | None
    feed_policy_file: Path | None
    conduit_url: str | None
    conduit_token: str
    conduit_host: str
    conduit_concurrency: int
    conduit_classes: tuple[str, ...]
    conduit_max_reply: int
    conduit_tls_ca: Path | None
    gateway: bool
    gateway_url: str | None
    gateway_seconds: float
    gateway_max_body: int
    gateway_rate: float
    gateway_burst: int
    gateway_exempt: frozenset[str]
    log_format: Literal["console", "json"]
    log_level: Literal["debug", "info", "warning", "error"]
    event_loop: Literal["asyncio", "uvloop"]

    @property
    def patience(self) -> int:
        """Seconds for which an expired lease of one of our workers is left to its holder."""
        return max(1, self.lease_seconds // 2)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be seen in a log line or an error text. What is shorter may be a part of any word."""
        return tuple(one for field in _SECRET for one in _secrets_of(self, field) if len(one) >= LEAST_SECRET)


LEAST_SECRET = 8
"""A secret of fewer characters can be guessed, and is not looked for in log lines, which it would garble."""

_SECRET = [one.field for one in SETTINGS if one.secret]


def _secrets_of(config: Config, field: str) -> tuple[str, ...]:
    """What is secret of a setting: all of it, or the passwords in an address."""
    value: str = getattr(config, field)
    return passwords_in(value) if field.endswith("_url") else (value,)


ENV_FILE = BY_FIELD["env_file"].variable

_ROLE_ALONE = {"sweep": ("cron_file", "retention_days"), "api": ("http_lease_seconds", "max_body")}
"""Settings that one role alone looks at; the table says those of the worker."""

_SERVERS = ("remote", "retention_days")
"""There the server decides, whatever the roles."""

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
    """Look at the whole environment once, and at the files it names, and report everything about it."""
    given = {name: text for name, value in environ.items() if (text := value.strip())}
    return _Reader(given).read()


class _Reader:
    """One look at the environment, where what the process was started with wins over the file of settings."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._problems: list[str] = []
        self._in_file: Mapping[str, str] = {}
        if path := environ.get(ENV_FILE):
            self._in_file, self._problems = read_env_file(Path(path), ENV_FILE)
        # an empty value is an unset one
        self._environ = {name: text for name, text in self._in_file.items() if text} | dict(environ)
        self._started_with = environ
        self._notices: list[str] = []
        self._warnings: list[str] = []
        self._faulty: set[str] = set()
        """fields whose text cannot be read: nothing follows from the default that stands in for it"""
        self._texts: dict[str, tuple[str, str]] = {}
        """field: (text, name of the variable it came from)"""
        self._store, self._store_origin = self._choose_store()
        self._kept_in = self._choose_record() if self._store == "streams" else self._store
        """where the tasks are kept"""

    def read(self) -> Reading:
        self._collect_ours()
        self._collect_gorge()
        fields: dict[str, object] = {}
        effective = []
        for setting in SETTINGS:
            text, origin = self._texts.get(setting.field, (setting.default_for(self._kept_in or ""), "default"))
            fields[setting.field] = self._value(setting, text, origin)
            if setting.store in {None, self._store, self._kept_in} or self._store in setting.also:
                secret = setting.secret or (setting.field in self._faulty and not {"@", "?"}.isdisjoint(text))
                shown = "****" if secret and text and origin != "default" else text
                effective.append(Effective(setting.variable, shown, self._place(origin)))
        config = msgspec.convert(fields, Config)
        self._check_relations(config)
        self._name_what_has_no_effect(config)
        self._name_short_secrets(config)
        return Reading(
            None if self._problems else config,
            tuple(self._problems),
            tuple(self._notices),
            tuple(self._warnings),
            tuple(effective),
        )

    def _place(self, origin: str) -> str:
        """Where a setting came from, for people."""
        return f"{origin} in {ENV_FILE}" if origin in self._in_file and origin not in self._started_with else origin

    def _choose_store(self) -> tuple[str | None, str]:
        """The store, and the variable that says so (empty: the default). None: nobody can say which settings fit."""
        for name in (PREFIX + "STORE", gorge.STORE_NAME):
            if text := self._environ.get(name, "").casefold():
                return text if text in STORES else None, name
        if (sign := gorge.implied_store(self._environ)) is not None:
            self._texts["store"] = (gorge.DEFAULT_STORE, sign)
            self._notices.append(f"the store is {gorge.DEFAULT_STORE}, as it was for gorge, because {sign} is set")
            return gorge.DEFAULT_STORE, sign
        return STORES[0], ""

    def _choose_record(self) -> str:
        setting = BY_FIELD["record"]
        return self._environ.get(setting.variable, setting.default).casefold()

    def _value(self, setting: Setting, text: str, origin: str) -> object:
        try:
            return setting.rule.read(text) if text else setting.unset
        except ValueError as error:
            # an @ in an address may have a password before it, and a ? a token after it
            hidden = setting.secret or not {"@", "?"}.isdisjoint(text) or repr(text) in str(error)
            shown = "" if hidden else f" (it is {_cut(text)})"
            self._faulty.add(setting.field)
            self._problems.append(f"{origin} {error}{shown}")
            return setting.rule.read(setting.default) if setting.default else setting.unset

    def _collect_ours(self) -> None:
        links = []
        for name, text in sorted(self._environ.items()):
            if not name.startswith(PREFIX):
                continue
            if _LINK.fullmatch(name) and (name != PREFIX + "PORT" or _LINK_VALUE.match(text)):
                links.append(name)
            elif self._is_foreign(owner := store_of(name), name):
                self._problems.append(self._foreign(name, str(owner)))
            elif name in BY_VARIABLE:
                self._texts[BY_VARIABLE[name].field] = (text, name)
            elif setting := BY_VARIABLE.get(name.removesuffix("_FILE")):
                self._collect_file(setting)
            else:
                self._problems.append(f"{name} is not a setting of queue-runtime{_hint(name)}")
        if links:
            self._notices.append(f"ignored, because Kubernetes sets them for a service: {', '.join(links)}")

    def _is_foreign(self, owner: str | None, name: str) -> bool:
        """Whether a setting of this name belongs to a store that was not chosen."""
        if owner is None or self._store is None or owner in {self._store, self._kept_in}:
            return False
        setting = BY_VARIABLE.get(name) or BY_VARIABLE.get(name.removesuffix("_FILE"))
        return setting is None or self._store not in setting.also

    def _foreign(self, name: str, owner: str) -> str:
        known = {"": " by default", PREFIX + "STORE": ""}
        records = {"mysql", "sqlite"}
        remedy = "RECORD" if self._store == "streams" and owner in records else "STORE"
        return (
            f"{name} is a setting for {PREFIX}{remedy}={owner}, but the store is {self._store_words}"
            f"{known.get(self._store_origin, f' by {self._store_origin}')}: "
            f"set {PREFIX}{remedy}={owner}, or remove {name}"
        )

    @property
    def _store_words(self) -> str:
        return f"streams over {self._kept_in}" if self._store == "streams" else str(self._store)

    def _collect_file(self, setting: Setting) -> None:
        name = setting.file_variable
        if not setting.secret:
            self._problems.append(f"{name} is not a setting: {setting.variable} is no secret, give its value")
        elif setting.variable in self._environ:
            self._problems.append(f"{name} and {setting.variable} are both set: keep one")
        else:
            try:
                text = read_plain(Path(self._environ[name])).decode().strip()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                self._problems.append(f"{name}: cannot read {self._environ[name]}: {reason}")
                return
            if not text:
                self._problems.append(f"{name}: {self._environ[name]} is empty")
            self._texts[setting.field] = (text, name)

    def _collect_gorge(self) -> None:
        for name, text in sorted(self._environ.items()):
            if known := gorge.GORGE_NAMES.get(name):
                self._take_gorge(known, text)
            elif name in gorge.GENERIC_NAMES:
                self._notices.append(f"{name} is not read: {gorge.GENERIC_NAMES[name]}")
            elif name.startswith(gorge.GORGE_FAMILIES):
                self._notices.append(f"{name} is not a name that gorge or queue-runtime knows: ignored")
        by_gorge = self._store_origin not in {"", PREFIX + "STORE"}
        if self._store in {"redis", "streams"}:
            self._take_gorge_redis(by_gorge)
        if self._store == "mysql" and by_gorge and "namespace" not in self._texts:
            self._texts["namespace"] = (gorge.DEFAULT_NAMESPACE, "gorge's default")
            self._notices.append(
                f"{PREFIX}NAMESPACE is {gorge.DEFAULT_NAMESPACE}, as it was for gorge where nobody said otherwise"
            )

    def _take_gorge(self, known: GorgeName, text: str) -> None:
        owner = store_of(PREFIX + known.field.upper()) if known.field else None
        if reason := known.refusal(text):
            self._problems.append(f"{known.name} cannot be taken over: {reason}")
        elif known.field is None:
            self._notices.append(f"{known.name} is ignored: {known.reason}")
        elif self._is_foreign(owner, PREFIX + str(known.field).upper()) and self._kept_in == "sqlite":
            # gorge had no such store: its queue must not be served from an empty file
            self._problems.append(self._foreign(known.name, str(owner)))
        elif self._is_foreign(owner, PREFIX + known.field.upper()):
            self._notices.append(f"{known.name} is ignored: it is for {owner}, and the store is {self._store_words}")
        elif known.name == gorge.STORE_NAME and self._store == "streams":
            self._take_gorge_record(text)
        elif known.name not in gorge.REDIS_PARTS:
            self._take_over(known.field, known.translate(text), known.name)

    def _take_gorge_record(self, text: str) -> None:
        # gorge kept its tasks where it said; here that is the record, and Redis but brings them to the workers
        if text.casefold() == gorge.DEFAULT_STORE:
            self._take_over("record", text, gorge.STORE_NAME)
        else:
            self._problems.append(
                f"{gorge.STORE_NAME} is {_cut(text)}, but the store is {self._store_words}, which does not see tasks "
                "that gorge keeps elsewhere: let gorge drain its queue, then remove it"
            )

    def _take_gorge_redis(self, by_gorge: bool) -> None:
        names = [name for name in gorge.REDIS_PARTS if name in self._environ]
        if names:
            self._take_over("redis_url", gorge.redis_url(self._environ), " and ".join(names))
        if names or by_gorge:
            self._warnings.append(gorge.REDIS_WARNING)

    def _take_over(self, field: str, text: str, names: str) -> None:
        ours = PREFIX + field.upper()
        if ours in self._environ or field in self._texts:
            self._compare(field, text, names, *self._texts.get(field, (self._environ.get(ours, ""), ours)))
        self._texts.setdefault(field, (text, names))
        self._notices.append(f"{names} {'are' if ' ' in names else 'is'} taken as {ours}")

    def _compare(self, field: str, text: str, names: str, other: str, origin: str) -> None:
        rule = BY_FIELD[field].rule
        try:
            same = rule.read(text) == rule.read(other)
        except ValueError:
            return  # one of them is a fault of its own and is reported as such
        if not same:
            self._problems.append(f"{names} and {origin} are both set, to different values: keep {origin}")

    def _name_short_secrets(self, config: Config) -> None:
        for field in _SECRET:
            origin = self._texts.get(field, ("", ""))[1]
            if field not in self._faulty and any(0 < len(one) < LEAST_SECRET for one in _secrets_of(config, field)):
                what = "the password in it" if field.endswith("_url") else "it"
                self._warnings.append(
                    f"{origin}: {what} has fewer than {LEAST_SECRET} characters, which can be guessed; and it is not"
                    " cut out of log lines, where so few may be a part of any word"
                )

    def _name_what_has_no_effect(self, config: Config) -> None:
        origins = {field: origin for field, (_, origin) in self._texts.items()}
        no_worker = [origins[one.field] for one in SETTINGS if one.worker_only and one.field in origins]
        if no_worker and "worker" not in config.roles:
            self._warnings.append(f"without effect, because {PREFIX}ROLES has no worker: {', '.join(no_worker)}")
        for role, fields in _ROLE_ALONE.items():
            idle = [origins[field] for field in fields if field in origins and (config.store, field) != _SERVERS]
            if idle and role not in config.roles:
                self._warnings.append(f"without effect, because {PREFIX}ROLES has no {role}: {', '.join(idle)}")
        by_address = [origins[field] for field in ("mysql_host", "mysql_port") if field in origins]
        if by_address and config.mysql_socket is not None:
            self._warnings.append(f"without effect, because {PREFIX}MYSQL_SOCKET is set: {', '.join(by_address)}")
        by_server = [origins[field] for field in ("routes", "retention_days") if field in origins]
        if by_server and config.store == "remote":
            self._warnings.append(f"without effect, because the server's settings decide: {', '.join(by_server)}")
        conduit = [origin for field, origin in origins.items() if field.startswith("conduit_")]
        shared = {origins.get("conduit_host"), origins.get("conduit_tls_ca")} if config.gateway else set()
        not_set = config.conduit_url is None and not self._faulty & {"conduit_url", "gateway"}
        if not_set and (unused := sorted(set(conduit) - shared)):
            self._warnings.append(f"without effect, because {PREFIX}CONDUIT_URL is not set: {', '.join(unused)}")
        gateway = sorted(origin for field, origin in origins.items() if field.startswith("gateway_"))
        if gateway and not config.gateway and "gateway" not in self._faulty:
            self._warnings.append(f"without effect, because {PREFIX}GATEWAY is not 1: {', '.join(gateway)}")

    def _check_remote(self, config: Config) -> None:
        if "remote_url" not in self._texts:
            self._problems.append(f"{PREFIX}STORE=remote needs {PREFIX}REMOTE_URL: where the queue is")
        if others := sorted(config.roles - {"worker"}):
            self._problems.append(
                f"{PREFIX}ROLES has {', '.join(others)}, but with {PREFIX}STORE=remote a process can be a worker only: "
                f"the queue-runtime at {PREFIX}REMOTE_URL does the rest"
            )

    def _check_relations(self, config: Config) -> None:
        urls = {"gateway_url", "conduit_url"}
        if config.gateway and config.gateway_url is config.conduit_url is None and not self._faulty & urls:
            self._problems.append(
                f"{PREFIX}GATEWAY=1 needs {PREFIX}GATEWAY_URL or {PREFIX}CONDUIT_URL: where Phorge is"
            )
        passes_on = config.gateway and config.gateway_url is not None
        name, url = ("GATEWAY_URL", config.gateway_url) if passes_on else ("CONDUIT_URL", config.conduit_url)
        if url is not None and (own := conduit_values.listens_there(url, config.listen)):
            self._problems.append(f"{PREFIX}{name} leads to this process itself, which listens on {own}")
        if config.store == "remote":
            self._check_remote(config)
        reachable = [address for address in config.listen if not values.is_local(address)]
        token = BY_FIELD["token"]
        given = {token.variable, token.file_variable, "GORGE_SERVICE_TOKEN"} & self._environ.keys()
        if reachable and not given and not config.allow_anonymous:
            self._problems.append(
                f"{PREFIX}LISTEN has {', '.join(reachable)}, which other machines can reach: set {token.variable} "
                f"(or {token.file_variable}), or {PREFIX}ALLOW_ANONYMOUS=1 if everybody may use the queue"
            )
        if config.shadow and config.ready_selftest:
            self._problems.append(f"{PREFIX}READY_SELFTEST=1 writes to the store, which {PREFIX}SHADOW=1 never does")
        if config.shadow and config.gateway:
            self._problems.append(
                f"{PREFIX}GATEWAY=1 passes calls on that change Phorge and run tasks, which {PREFIX}SHADOW=1 never does"
            )
        if given and config.allow_anonymous:
            self._problems.append(f"{PREFIX}ALLOW_ANONYMOUS=1 contradicts {', '.join(sorted(given))}: keep one")


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

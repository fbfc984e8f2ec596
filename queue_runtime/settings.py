"""The table of settings: the only place that knows their names, defaults and rules, and what they are for."""

from collections.abc import Mapping

from msgspec import Struct

from queue_runtime import conduit_values, store_values
from queue_runtime import config_values as values
from queue_runtime.config_values import Rule
from queue_runtime.store import Routes
from queue_runtime.task import MAX_DATA_BYTES

PREFIX = "QUEUE_RUNTIME_"
STORES = ("sqlite", "mysql", "redis", "remote", "streams")
WEEK = 7 * 86400


class Setting(Struct, frozen=True):
    """One variable."""

    field: str
    default: str
    """as one would write it; empty: unset, which reads as `unset`"""

    rule: Rule
    sentence: str
    unset: object = None
    secret: bool = False
    worker_only: bool = False
    """without effect where ROLES has no worker"""

    store: str | None = None
    """the store it belongs to; None: it counts for all"""

    also: tuple[str, ...] = ()
    """other stores that it counts for"""

    defaults: Mapping[str, str] = {}
    """by store, where one has a default of its own"""

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()

    @property
    def file_variable(self) -> str:
        """For a secret: the variable that names a file which holds it."""
        return self.variable + "_FILE"

    @property
    def default_words(self) -> str:
        """The default, for people; empty where there is none."""
        others = "".join(f" ({store}: {text})" for store, text in self.defaults.items())
        return self.default + others

    def default_for(self, store: str) -> str:
        """The default on this store."""
        return self.defaults.get(store, self.default)


def _sqlite(field: str, default: str, rule: Rule, sentence: str) -> Setting:
    return Setting(field, default, rule, sentence, store="sqlite")


def _mysql(
    field: str, default: str, rule: Rule, sentence: str, *, unset: object = None, secret: bool = False
) -> Setting:
    return Setting(field, default, rule, sentence, unset=unset, secret=secret, store="mysql")


def _remote(field: str, rule: Rule, sentence: str) -> Setting:
    return Setting(field, "", rule, sentence, unset="", secret=True, store="remote")


def _redis(
    field: str, default: str, rule: Rule, sentence: str, *, secret: bool = False, also: tuple[str, ...] = ()
) -> Setting:
    return Setting(field, default, rule, sentence, secret=secret, store="redis", also=also)


def _streams(field: str, default: str, rule: Rule, sentence: str) -> Setting:
    return Setting(field, default, rule, sentence, store="streams")


SETTINGS = (
    Setting("env_file", "", values.PATH,
            "a file with more settings, NAME=value a line; what the process was started with wins"),
    Setting("store", "sqlite", values.one_of(*STORES), "where the queue is kept"),
    _sqlite("sqlite_path", "queue-runtime.sqlite", values.PATH, "the SQLite file; its folder must be writable"),
    _sqlite("sqlite_synchronous", "FULL", values.one_of("FULL", "NORMAL"),
            "FULL: an answered request is on disk; NORMAL: a power cut may take the last moments"),
    _mysql("namespace", "phabricator", store_values.NAMESPACE, "Phorge's storage.default-namespace: the queue is in "
           "{namespace}_worker, what has no column there in {namespace}_queue_runtime"),
    _mysql("mysql_host", "127.0.0.1", store_values.HOST, "the MySQL or MariaDB server"),
    _mysql("mysql_port", "3306", values.whole(1, 65535), "its port"),
    _mysql("mysql_socket", "", values.PATH, "its Unix socket, in place of host and port"),
    _mysql("mysql_user", "phorge", store_values.ACCOUNT, "its account"),
    _mysql("mysql_password", "", store_values.TEXT, "password of the account", unset="", secret=True),
    _mysql("mysql_tls_ca", "", values.READABLE_FILE,
           "authorities to trust: the connection is encrypted and the server's certificate checked"),
    _mysql("mysql_connections", "8", values.whole(1, 100), "most connections of this process"),
    _mysql("mysql_driver", "aiomysql", values.one_of("aiomysql", "asyncmy"),
           "asyncmy (extra `fast`) reads rows faster"),
    _redis("redis_url", "redis://127.0.0.1:6379/0", store_values.REDIS_URL, "the Redis server and its password",
           secret=True, also=("streams",)),
    _redis("redis_prefix", "queue-runtime", store_values.REDIS_PREFIX, "what the keys begin with: {prefix}"),
    _redis("redis_allow_eviction", "0", values.switch(),
           "run on a server that may throw keys away when its memory is full: tasks are lost then"),
    _redis("event_days", "forever", values.days_or_forever(1, 36_500),
           "how long the receipts of enqueue-event are kept"),
    _streams("record", "mysql", values.one_of("mysql", "sqlite"),
             "the database that keeps the tasks, with its own settings; Redis brings them to the workers"),
    _streams("streams_prefix", "queue-runtime-streams", store_values.REDIS_PREFIX,
             "what the keys begin with: {prefix}"),
    _streams("streams_group", "queue-runtime", store_values.REDIS_PREFIX, "the consumer group of all workers"),
    _streams("queue_policy", "strict", values.one_of("strict", "weighted"),
             "strict: a queue is served when those before it are empty; weighted: more often than those behind it"),
    _streams("block_seconds", "5", values.seconds(1, 60), "how long one blocking read of the streams lasts"),
    _remote("remote_url", store_values.REMOTE_URL, "where the queue is: another queue-runtime, whose worker this is"),
    _remote("remote_token", values.TOKEN, "its service token"),
    Setting("listen", "127.0.0.1:8090", values.LISTEN, "addresses of the HTTP faces"),
    Setting("token", "", values.TOKEN, "service token that callers send as X-Service-Token", unset="", secret=True),
    Setting("allow_anonymous", "0", values.switch(), "serve without a token on an address others can reach"),
    Setting("server", "hypercorn", values.one_of("hypercorn", "uvicorn"),
            "HTTP server; uvicorn (extra `fast`) answers about four times as many requests a second"),
    Setting("max_body", str(2 * 2**20), values.whole(1024, MAX_DATA_BYTES, "bytes"), "largest request body"),
    Setting("request_seconds", "60", values.seconds(31, 3600),
            "longest time a request may take; more than the longest long poll, 30 s"),
    Setting("roles", "api,worker,sweep", values.some_of("api", "worker", "sweep"), "what this process does",
            defaults={"remote": "worker"}),
    Setting("shadow", "0", values.switch(), "read the queue and report, take and write nothing"),
    Setting("ready_selftest", "0", values.switch(),
            "try the store with a task of its own every five minutes; `/readyz` says when that failed"),
    Setting("handlers", "", values.HANDLERS, "registries with your handlers", unset=(), worker_only=True),
    Setting("slots", "32", values.whole(1, 10_000), "tasks that run at once", worker_only=True),
    Setting("class_caps", "", values.CLASS_CAPS,
            "runs of a class at once, in place of what its handler says; the class needs a handler of its own here",
            unset={}, worker_only=True),
    Setting("task_classes", "", values.TASK_CLASSES, "lease only these classes (default: all that have a handler)",
            worker_only=True),
    Setting("queues", "", values.QUEUES, "lease only from these queues (default: all); on streams the preferred first",
            worker_only=True),
    Setting("routes", "", values.ROUTES, "queue of a task that names none", unset=Routes()),
    Setting("lease_seconds", "20", values.whole(3, 86400, "seconds"),
            "lease of this worker, renewed every third of it; work of a killed one runs again after 1.5 times this"),
    Setting("http_lease_seconds", "7200", values.whole(1, WEEK, "seconds"), "lease given to HTTP callers"),
    Setting("retry_seconds", "300", values.whole(0, WEEK, "seconds"),
            "wait after a failed run where neither caller nor handler says"),
    Setting("grace_seconds", "20", values.seconds(0, 3600), "time for running tasks to end after SIGTERM",
            worker_only=True),
    Setting("sweep_seconds", "30", values.seconds(0.1, 3600), "time between two sweeps"),
    Setting("cron_file", "", values.READABLE_FILE,
            "periodic work, see below (extra `cron`); enqueued where ROLES has sweep"),
    Setting("max_lost", "5", values.whole(1, 1000),
            "lost runs (killed worker) after which a task is archived as failed"),
    Setting("retention_days", "14", values.days_or_forever(1, 36_500),
            "how long ended tasks are kept (on mysql Phorge's own collector clears the archive)",
            defaults={"mysql": "forever"}),
    Setting("feed_policy_file", "", values.READABLE_FILE, "policy of FeedPublisherHTTPWorker: allowed URIs, silent",
            worker_only=True),
    Setting("conduit_url", "", conduit_values.PHORGE_URL, "Phorge, which runs the classes that have no handler here"),
    Setting("conduit_token", "", values.TOKEN, "service token that Phorge's worker.execute asks for", unset="",
            secret=True, worker_only=True),
    Setting("conduit_host", "", conduit_values.HOST_HEADER,
            "Host header of calls to Phorge: the host of phabricator.base-uri, where CONDUIT_URL has another",
            unset=""),
    Setting("conduit_concurrency", "4", values.whole(1, 1000),
            "tasks that Phorge runs for us at once; stay well below php-fpm's pm.max_children", worker_only=True),
    Setting("conduit_classes", "*", conduit_values.CLASS_PATTERNS, "classes that Phorge may run for us",
            worker_only=True),
    Setting("conduit_max_reply", "64M", conduit_values.REPLY_SIZE,
            "largest reply of Phorge that is read; it holds the follow-ups of one task", worker_only=True),
    Setting("conduit_tls_ca", "", values.READABLE_FILE, "authorities to trust for Phorge, in place of the system's"),
    Setting("gateway", "0", values.switch(), "pass Conduit calls (/api/{method}) on to Phorge"),
    Setting("gateway_url", "", conduit_values.PHORGE_URL, "where to (default: CONDUIT_URL)"),
    Setting("gateway_seconds", "30", values.seconds(0, 86400),
            "longest time a call may take; 0: any time, as always for worker.execute"),
    Setting("gateway_max_body", "10M", conduit_values.BODY_SIZE, "largest body of a call"),
    Setting("gateway_rate", "0", values.seconds(0, 1_000_000, "calls a second"),
            "calls of one address in the long run; 0: any number"),
    Setting("gateway_burst", "20", values.whole(1, 1_000_000), "calls of one address at once"),
    Setting("gateway_exempt", "conduit.ping,conduit.getcapabilities", conduit_values.CONDUIT_METHODS,
            "methods that GATEWAY_RATE does not count", unset=frozenset()),
    Setting("log_format", "console", values.one_of("console", "json"), "form of the log lines"),
    Setting("log_level", "info", values.one_of("debug", "info", "warning", "error"), "least level that is logged"),
    Setting("event_loop", "asyncio", values.one_of("asyncio", "uvloop"), "event loop; uvloop is in the extra `fast`"),
)  # fmt: skip  # a table reads better with one setting a line where it fits

BY_VARIABLE = {one.variable: one for one in SETTINGS}
BY_FIELD = {one.field: one for one in SETTINGS}

_FAMILIES = {"SQLITE", "MYSQL", "REDIS", "REMOTE", "STREAMS"}


def store_of(name: str) -> str | None:
    """The store that a variable belongs to, also one that is misspelt; None: to all."""
    setting = BY_VARIABLE.get(name) or BY_VARIABLE.get(name.removesuffix("_FILE"))
    if setting is not None:
        return setting.store
    family = name.removeprefix(PREFIX).partition("_")[0]
    return family.lower() if family in _FAMILIES else None

"""The old gorge variables: each is taken as one of ours, ignored or refused, and says why."""

from collections.abc import Mapping
from urllib.parse import quote

from msgspec import Struct

GORGE_FAMILIES = ("GORGE_TASKQUEUE_", "GORGE_WORKER_", "GORGE_CONDUIT_")


class GorgeName(Struct, frozen=True):
    """What becomes of one old name.

    With `field` its value is that setting's; without, it is ignored. `refused` stops the start for any value but
    those in `harmless`. `words` translates values that mean something else here.
    """

    name: str
    field: str | None = None
    reason: str = ""
    refused: str = ""
    harmless: frozenset[str] = frozenset()
    words: Mapping[str, str] = {}

    def refusal(self, text: str) -> str | None:
        """Why this value cannot be taken over; None: it can, or it is ignored."""
        return self.refused if self.refused and text.casefold() not in self.harmless else None

    def translate(self, text: str) -> str:
        """The value in our words."""
        return self.words.get(text, text)


STORE_NAME = "GORGE_TASKQUEUE_BACKEND"
DEFAULT_STORE = "mysql"
DEFAULT_NAMESPACE = "phorge"
"""What gorge did where nobody said: a deployment that replaces it meant these."""

_FALSE = frozenset({"0", "false", "no", "off", "f"})
_PHORGE_SIDE = "Phorge's own container reads it, the queue does not"
_PHP_RUNS_IT = "mail and notifications have no native handler here"
_ONE_STORE = (
    "a worker here takes its tasks from the store, not from another queue service: remove it, and give this process "
    "the store of the queue"
)
REDIS_PARTS = ("GORGE_TASKQUEUE_REDIS_ADDR", "GORGE_TASKQUEUE_REDIS_PASSWORD", "GORGE_TASKQUEUE_REDIS_DB")
"""These three together are one URL here."""

REDIS_WARNING = (
    "tasks that gorge keeps in Redis have another form and are not seen here: let gorge drain its queue before it is "
    "replaced"
)

_TABLE = (
    GorgeName("GORGE_LISTEN_ADDR", "listen"),
    GorgeName("GORGE_SERVICE_TOKEN", "token"),
    GorgeName(
        "GORGE_CONFIG_FILE", refused="settings come from the environment alone: give its entries as QUEUE_RUNTIME_*"
    ),
    GorgeName(STORE_NAME, "store"),
    GorgeName("GORGE_TASKQUEUE_MYSQL_HOST", "mysql_host"),
    GorgeName("GORGE_TASKQUEUE_MYSQL_PORT", "mysql_port"),
    GorgeName("GORGE_TASKQUEUE_MYSQL_USER", "mysql_user"),
    GorgeName("GORGE_TASKQUEUE_MYSQL_PASS", "mysql_password"),
    GorgeName("GORGE_TASKQUEUE_NAMESPACE", "namespace"),
    *(GorgeName(name, "redis_url") for name in REDIS_PARTS),
    GorgeName(
        "GORGE_TASKQUEUE_REDIS_KEY_PREFIX",
        reason="our keys are not gorge's, and begin with QUEUE_RUNTIME_REDIS_PREFIX, or QUEUE_RUNTIME_STREAMS_PREFIX",
    ),
    GorgeName("GORGE_TASKQUEUE_LEASE_DURATION", "http_lease_seconds"),
    GorgeName("GORGE_TASKQUEUE_RETRY_WAIT", "retry_seconds"),
    GorgeName(
        "GORGE_TASKQUEUE_SCHEDULER_ENABLED",
        reason="there is no scheduler to switch off",
        refused="there is no scheduler for Phorge's triggers here: leave them to Phorge's own trigger daemon",
        harmless=_FALSE,
    ),
    GorgeName("GORGE_TASKQUEUE_SCHEDULER_CONDUIT_URI", reason="only the scheduler uses it"),
    GorgeName("GORGE_TASKQUEUE_SCHEDULER_CONDUIT_TOKEN", reason="only the scheduler uses it"),
    GorgeName("GORGE_TASKQUEUE_URI", reason=_PHORGE_SIDE),
    GorgeName("GORGE_TASKQUEUE_TOKEN", reason=_PHORGE_SIDE),
    GorgeName("GORGE_TASKQUEUE_DISABLE_PHD_TASKMASTER", reason=_PHORGE_SIDE),
    GorgeName("GORGE_WORKER_TASK_QUEUE_URL", refused=_ONE_STORE),
    GorgeName("GORGE_WORKER_TASK_QUEUE_TOKEN", reason="it goes with GORGE_WORKER_TASK_QUEUE_URL"),
    GorgeName("GORGE_WORKER_LEASE_LIMIT", reason="a lease takes as many tasks as there are free slots"),
    GorgeName("GORGE_WORKER_POLL_INTERVAL_MS", reason="the worker is woken when work arrives"),
    GorgeName("GORGE_WORKER_MAX_WORKERS", "slots"),
    GorgeName("GORGE_WORKER_IDLE_TIMEOUT_SEC", reason="an idle worker is woken when work arrives"),
    GorgeName("GORGE_WORKER_CONDUIT_URL", "conduit_url"),
    GorgeName("GORGE_WORKER_CONDUIT_TOKEN", "conduit_token"),
    GorgeName("GORGE_WORKER_TASK_CLASS_FILTER", "task_classes"),
    GorgeName("GORGE_WORKER_DRAIN_TIMEOUT_SEC", "grace_seconds", words={"0": "30"}),  # gorge: 0 means its default
    GorgeName("GORGE_WORKER_OUTBOX_DSN", reason="outcomes are kept until the store has them, without an outbox"),
    GorgeName("GORGE_WORKER_FEED_POLICY_FILE", "feed_policy_file"),
    GorgeName("GORGE_WORKER_NOTIFICATION_POLICY_FILE", reason=_PHP_RUNS_IT),
    GorgeName("GORGE_WORKER_NOTIFICATION_MODE", reason=_PHP_RUNS_IT),
    GorgeName("GORGE_WORKER_MAIL_OUTBOX_DSN", reason=_PHP_RUNS_IT),
    GorgeName("GORGE_WORKER_MAILER_URL", reason=_PHP_RUNS_IT),
    GorgeName("GORGE_WORKER_MAILER_TOKEN", reason=_PHP_RUNS_IT),
    GorgeName("GORGE_CONDUIT_UPSTREAM_URL", "gateway_url"),
    GorgeName("GORGE_CONDUIT_PROXY_TIMEOUT_SEC", "gateway_seconds"),
    GorgeName("GORGE_CONDUIT_MAX_BODY_SIZE", "gateway_max_body"),
    GorgeName("GORGE_CONDUIT_RATE_LIMIT_RPS", "gateway_rate"),
    GorgeName("GORGE_CONDUIT_RATE_LIMIT_BURST", "gateway_burst"),
    GorgeName("GORGE_CONDUIT_RATE_LIMIT_EXEMPT", "gateway_exempt"),
    GorgeName("GORGE_CONDUIT_URI", reason=_PHORGE_SIDE),
    GorgeName("GORGE_CONDUIT_TOKEN", reason=_PHORGE_SIDE),
)

GORGE_NAMES: Mapping[str, GorgeName] = {one.name: one for one in _TABLE}


def implied_store(environ: Mapping[str, str]) -> str | None:
    """The old name that shows that the queue is in MySQL, where no store is named: gorge took MySQL by default."""
    names = (name for name, one in GORGE_NAMES.items() if (one.field or "").startswith(("mysql_", "namespace")))
    return next((name for name in names if name in environ), None)


def redis_url(environ: Mapping[str, str]) -> str:
    """The URL of the Redis server that the old names mean, with gorge's defaults for what is missing."""
    address, password, database = (environ.get(name, "") for name in REDIS_PARTS)
    account = f":{quote(password, safe='')}@" if password else ""
    return f"redis://{account}{address or '127.0.0.1:6379'}/{database or '0'}"


def _generic(name: str, known: str) -> tuple[str, str]:
    return name, f"the name is too common to act on; if it is meant for gorge, see {known} in docs/operations.md"


# Names without a prefix, which gorge's first release read for its worker and gateway. Other programs use the same
# names, so acting on them could change this service by accident.
GENERIC_NAMES: Mapping[str, str] = dict(
    (
        _generic("LISTEN_ADDR", "GORGE_LISTEN_ADDR"),
        _generic("SERVICE_TOKEN", "GORGE_SERVICE_TOKEN"),
        _generic("TASK_QUEUE_URL", "GORGE_WORKER_TASK_QUEUE_URL"),
        _generic("TASK_QUEUE_TOKEN", "GORGE_WORKER_TASK_QUEUE_TOKEN"),
        _generic("LEASE_LIMIT", "GORGE_WORKER_LEASE_LIMIT"),
        _generic("POLL_INTERVAL_MS", "GORGE_WORKER_POLL_INTERVAL_MS"),
        _generic("MAX_WORKERS", "GORGE_WORKER_MAX_WORKERS"),
        _generic("IDLE_TIMEOUT_SEC", "GORGE_WORKER_IDLE_TIMEOUT_SEC"),
        _generic("CONDUIT_URL", "GORGE_WORKER_CONDUIT_URL"),
        _generic("CONDUIT_TOKEN", "GORGE_WORKER_CONDUIT_TOKEN"),
        _generic("TASK_CLASS_FILTER", "GORGE_WORKER_TASK_CLASS_FILTER"),
        _generic("UPSTREAM_URL", "GORGE_CONDUIT_UPSTREAM_URL"),
    )
)

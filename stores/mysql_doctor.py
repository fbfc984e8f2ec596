"""Looks at a MySQL server and at Phorge's queue on it, for `queue-runtime doctor --store`. Changes nothing."""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from queue_runtime.errors import StoreUnavailable
from queue_runtime.findings import Finding, fault, note, ok, warning
from queue_runtime.store import StoreOptions
from stores import mysql_companion, mysql_server
from stores.mysql_counts import FOREIGN, LATELY, native_hosts
from stores.mysql_driver import Connection, Row, connect
from stores.mysql_errors import DENIED, ServerError
from stores.mysql_pool import IDLE_SECONDS
from stores.mysql_schema import COLUMNS, ENGINE, FIRST_COLUMN, KEYS, RIGHTS, Column
from stores.mysql_settings import MysqlSettings
from stores.mysql_text import Sql, Statement, Value
from stores.sqltext import load_statements

PACKET = 32 * 2**20
"""Phorge asks for a max_allowed_packet of at least so much."""

CLOCKS = 2.0
"""Seconds by which the clocks of the server and of this host may differ unsaid."""


TASKMASTER = "PhabricatorTaskmasterDaemon"

DAEMON_SECONDS = 360
"""Phorge takes a daemon for lost that has not reported for three of its beats, which are two minutes apart."""


class Patient:
    """A connection as the store's own are, and what to ask it."""

    def __init__(self, connection: Connection, settings: MysqlSettings, options: StoreOptions) -> None:
        self.connection = connection
        self.settings = settings
        self.options = options
        self.variables: Mapping[str, str] = {}
        self.statements = mysql_server.statements(settings, options, companion=True, skips_locked=True)
        """those of the store"""

    @property
    def is_read_only(self) -> bool:
        """Whether the server says that it takes no writes."""
        return self.variables.get("read_only", "OFF") != "OFF"

    async def rows(self, statement: str, **values: Value) -> Sequence[Row]:
        """The rows of one statement of mysql_doctor.sql. Raises ServerError."""
        return await self.run(load_statements("mysql_doctor", _NO_TABLE)[statement], **values)

    async def run(self, text: str, **values: Value) -> Sequence[Row]:
        """The rows of any statement."""
        (answer,) = await self.connection.run(Statement(text).fill(values))
        return answer.rows


_NO_TABLE = {"table": "", "column": ""}


async def examine(settings: MysqlSettings, options: StoreOptions) -> list[Finding]:
    """Everything that can be said of the server and the queue. Processes that work on it need not stop.

    Ends early where the tables are not there, or where the connection is lost.
    """
    try:
        connection = await connect(settings)
    except ServerError as error:
        return [fault("server", f"{settings.address}: {error}")]
    patient = Patient(connection, settings, options)
    found: list[Finding] = []
    try:
        await connection.run(mysql_server.SESSION)
        patient.variables = {str(name): str(value) for name, value in await patient.rows("variables")}
        for subject, check in _CHECKS:
            found += await _checked(subject, check, patient)
    except StoreUnavailable as error:
        fix = "" if "QUEUE_RUNTIME_" in error.reason else ": run Phorge's bin/storage upgrade, or see to its rights"
        found.append(fault("tables", f"{error.reason}{fix}"))
    except ServerError as error:
        found.append(fault("server", f"{settings.address}: {error}; nothing further was looked at"))
    finally:
        await connection.close()
    return found


async def _checked(subject: str, check: "Check", patient: Patient) -> list[Finding]:
    try:
        return await check(patient)
    except ServerError as error:
        if error.connection_lost:
            raise
        return [warning(subject, f"cannot be looked at: {error}")]


# ---- the server


async def _server(patient: Patient) -> list[Finding]:
    version = patient.variables.get("version", "")
    found = [ok("server", f"{version} at {patient.settings.address}")]
    if patient.is_read_only:
        found.append(fault("server", "read_only is on: it takes no writes; is this the replica?"))
    if patient.variables.get("wsrep_on") == "ON":
        found.append(warning("server", "a Galera cluster: let all processes use one and the same node"))
    if mysql_server.can_skip_locked(version):
        found.append(ok("locks", "leases pass over rows that others have locked (SKIP LOCKED)"))
    else:
        found.append(
            warning("locks", "no SKIP LOCKED before MariaDB 10.6 and MySQL 8.0.1: leases of several processes collide")
        )
    return found


async def _isolation(patient: Patient) -> list[Finding]:
    isolation = patient.variables.get("transaction_isolation") or patient.variables.get("tx_isolation", "")
    if isolation != "READ-COMMITTED":
        return [fault("isolation", f"sessions stay at {isolation or 'an unknown level'}, not at READ COMMITTED")]
    if patient.variables.get("log_bin") == "ON" and patient.variables.get("binlog_format") == "STATEMENT":
        return [
            fault("isolation", "READ COMMITTED cannot write while binlog_format is STATEMENT; set it to ROW or MIXED")
        ]
    return [ok("isolation", "READ COMMITTED")]


async def _numbers(patient: Patient) -> list[Finding]:
    mode = patient.variables.get("innodb_autoinc_lock_mode", "unknown")
    step = patient.variables.get("auto_increment_increment", "1")
    found = [ok("payload ids", f"innodb_autoinc_lock_mode is {mode}; any will do")]
    if step != "1":
        found.append(note("payload ids", f"they are {step} apart (auto_increment_increment), which is reckoned with"))
    return found


async def _packet(patient: Patient) -> list[Finding]:
    packet = int(patient.variables.get("max_allowed_packet", 0))
    sentence = f"max_allowed_packet is {packet / 2**20:.0f} MiB"
    if packet < PACKET:
        return [warning("packet", f"{sentence}, and Phorge asks for 32: larger payloads are refused")]
    return [ok("packet", sentence)]


async def _waiting(patient: Patient) -> list[Finding]:
    ((server,),) = await patient.rows("server_wait")
    ours = float(patient.variables.get("wait_timeout", 0))
    if ours <= IDLE_SECONDS:
        return [
            warning("wait_timeout", f"the server ends connections idle for {ours:.0f} s, before they are closed here")
        ]
    return [ok("wait_timeout", f"{ours:.0f} s for connections of this account ({server} s is the server's own)")]


async def _clock(patient: Patient) -> list[Finding]:
    before = time.time()
    ((server,),) = await patient.rows("clock")
    after = time.time()
    ahead = float(server) - (before + after) / 2
    how = f"the server's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    if abs(ahead) > CLOCKS + (after - before):
        return [warning("clock", f"{how}: the server's counts, and a delayUntil reckoned here is off by that much")]
    return [ok("clock", how)]


async def _login(patient: Patient) -> list[Finding]:
    account = patient.settings.user
    ((cipher_name, cipher),) = await patient.rows("cipher") or [("", "")]
    over = "TLS" if cipher_name and cipher else "the socket" if patient.settings.socket else "plain TCP"
    ((created, *_),) = await patient.rows("account")
    plugin = re.search(r"IDENTIFIED (?:VIA|WITH) '?(\w+)'?", str(created))
    name = plugin[1] if plugin else "the server's default method"
    found = [ok("login", f"{account}, by {name}, over {over}")]
    if over == "plain TCP" and patient.settings.host not in {"127.0.0.1", "::1", "localhost"}:
        found.append(note("login", "tasks cross the network unencrypted: set the authority's file to turn TLS on"))
    return found


# ---- the queue


async def _tables(patient: Patient) -> list[Finding]:
    schema = patient.settings.worker_database
    await mysql_server.found_tables(patient.connection, patient.settings)
    columns = {
        (table, name): Column(_plain(str(kind)), nullable == "YES", collation)
        for table, name, kind, nullable, collation, *_ in await patient.rows("columns", schema=schema)
    }
    found = [_wrong_column(place, wanted, columns.get(place)) for place, wanted in COLUMNS.items()]
    found += [
        fault("tables", f"{table}.{name} is not Phorge's and has no default: no task can be inserted")
        for table, name, _, nullable, _, default, extra in await patient.rows("columns", schema=schema)
        if table in RIGHTS and (table, name) not in COLUMNS and (nullable, default, extra) == ("NO", None, "")
    ]
    keys: dict[tuple[str, str], list[str]] = {}
    for table, index, column in await patient.rows("keys", schema=schema):
        keys.setdefault((table, index), []).append(column)
    found += [
        fault("tables", f"{table} has no index {index} ({', '.join(wanted)}): run Phorge's bin/storage adjust")
        for (table, index), wanted in KEYS.items()
        if keys.get((table, index)) != wanted
    ]
    found += [
        fault("tables", f"{table} is of engine {engine}, not {ENGINE}: it has no transactions")
        for table, engine in await patient.rows("engines", schema=schema)
        if table in RIGHTS and engine != ENGINE
    ]
    wrong = [finding for finding in found if finding is not None]
    return wrong or [ok("tables", f"those of the queue in {schema} are as expected")]


def _plain(kind: str) -> str:
    """A column's type; older servers add a width to numbers."""
    return re.sub(r"int\(\d+\)", "int", kind)


def _wrong_column(place: tuple[str, str], wanted: Column, found: Column | None) -> Finding | None:
    name = ".".join(place)
    if found is None:
        return fault("tables", f"{name} is missing: is this Phorge older than its queue's tables?")
    if (found.kind, found.nullable) != (wanted.kind, wanted.nullable):
        null = "" if found.nullable else " NOT NULL"
        return warning("tables", f"{name} is {found.kind}{null}, and {wanted.kind} was expected")
    if found.collation != wanted.collation:
        return warning("tables", f"{name} compares by {found.collation}, not by {wanted.collation}: names may mix")
    return None


async def _rights(patient: Patient) -> list[Finding]:
    if patient.is_read_only:
        return []
    found = []
    for table, rights in RIGHTS.items():
        for right in rights:
            if (table, right) == ("worker_taskdata", "delete") and patient.options.retention is None:
                continue  # Phorge's own collector deletes payloads
            found += await _refused(
                patient, right, f"`{patient.settings.worker_database}`.{table}", FIRST_COLUMN[table]
            )
    return found or [ok("rights", "all that are needed on Phorge's tables")]


async def _refused(patient: Patient, right: str, table: str, column: str) -> list[Finding]:
    """Try it on no row at all."""
    text = load_statements("mysql_doctor", {"table": table, "column": column})[f"try_{right}"]
    try:
        await patient.run(text)
    except ServerError as error:
        if error.connection_lost:
            raise
        return [fault("rights", f"{right.upper()} on {table}: {error}")]
    return []


async def _ids(patient: Patient) -> list[Finding]:
    behind = await patient.run(patient.statements["counter_behind"].fill({}))
    counter = await patient.run(patient.statements["last_id"].fill({}))
    last_id = counter[0][0] if counter else 0
    if behind:
        return [
            warning(
                "ids",
                f"a task has id {behind[0][0]}, and the last id handed out is {last_id}: Phorge would use ids twice;"
                " a running queue runtime puts that right within a minute",
            )
        ]
    return [ok("ids", f"the last one handed out is {last_id}, and no task has a higher one")]


async def _companion(patient: Patient) -> list[Finding]:
    database = patient.settings.companion_database
    version = await mysql_companion.found_version(patient.connection, patient.settings)
    wanted = mysql_companion.SCHEMA_VERSION
    if version > wanted:
        return [
            fault("companion", f"{database} has version {version}, this release knows {wanted}: start the newer one")
        ]
    if version == wanted:
        found = [ok("companion", f"{database}, version {version}; Phorge's backups do not hold it")]
        for right in ("select", "insert", "update", "delete"):
            found += await _refused(patient, right, f"`{database}`.task_extra", "task_id")
        return found
    grants = await patient.rows("grants")
    if any(grants_creation(str(row[0]), database) for row in grants):
        return [note("companion", f"{database} is not there yet; `queue-runtime init` or the first start makes it")]
    return [
        warning(
            "companion",
            f"{database} is not there, and {patient.settings.user} may not make it: no queues, idempotency keys, maxima"
            " of attempts, error history or pauses; run `queue-runtime init` with an account that may",
        )
    ]


def grants_creation(grant: str, database: str) -> bool:
    """Whether a line of SHOW GRANTS allows to create this database, by name or by pattern."""
    found = re.match(r"GRANT (.+?) ON [`']?(.+?)[`']?\.\* TO ", grant)
    if not found or not {"ALL PRIVILEGES", "CREATE"} & set(found[1].split(", ")):
        return False
    if found[2] == "*":
        return True
    pattern = re.sub(
        r"\\(.)|(%)|(_)|(.)",
        lambda one: ".*" if one[2] else "." if one[3] else re.escape(one[1] or one[4]),
        found[2],
    )
    return re.fullmatch(pattern, database) is not None


async def _others(patient: Patient) -> list[Finding]:
    since = Sql(f"UNIX_TIMESTAMP() - {LATELY}")
    rows = await patient.run(patient.statements["foreign_owners"].fill({"since": since, "limit": FOREIGN}))
    hosts = ", ".join(str(seen["host"]) for seen in native_hosts(rows))
    book, unread = await _book(patient)
    daemons = book or []
    if hosts:
        found = [note("others", f"native taskmasters of {hosts} work on the queue too; {_NATIVES}")]
    elif alive := _hosts(host for name, host in daemons if name == TASKMASTER):
        found = [note("others", f"native taskmasters run on {alive} and may take tasks at any time; {_NATIVES}")]
    else:
        found = [ok("others", "no native taskmaster has worked on the queue lately"), *_phd(daemons)]
        if unread in DENIED:
            grant = f"GRANT SELECT ON `{patient.settings.namespace}_daemon`.* TO this account"
            found.append(note("daemons", f"Phorge's book of daemons may not be read; {_UNREAD}: {grant}"))
    return found


_NATIVES = (
    "they take tasks of every class. phd.taskmasters = 0 leaves them to this runtime; start phd with --keep-leases"
)


_UNREAD = "an idle taskmaster is not seen, and a lost run in PHP keeps its row for the whole lease of its class"


def _phd(daemons: Sequence[tuple[str, str]]) -> list[Finding]:
    """The other daemons stay, and whoever restarts them can do harm."""
    if not daemons:
        return []
    sentence = f"Phorge's other daemons run on {_hosts(host for _, host in daemons)}: start them by bin/phd start"
    return [
        note("phd", f"{sentence} --keep-leases, without which all leases, waits and delays of the queue end at once")
    ]


async def taskmasters(settings: MysqlSettings, options: StoreOptions) -> tuple[str, ...] | None:
    """Hosts whose native taskmasters Phorge's book of daemons has as alive; None where it cannot be read."""
    try:
        connection = await connect(settings)
    except ServerError:
        return None
    try:
        await connection.run(mysql_server.SESSION)
        book, _ = await _book(Patient(connection, settings, options))
    except ServerError:
        return None
    finally:
        await connection.close()
    return None if book is None else tuple(dict.fromkeys(host for name, host in book if name == TASKMASTER))


async def _book(patient: Patient) -> tuple[list[tuple[str, str]] | None, int]:
    """Class and host of Phorge's daemons that are alive; None, and the number of the error, where it cannot be read."""
    table = f"`{patient.settings.namespace}_daemon`.daemon_log"
    text = load_statements("mysql_doctor", {"table": table, "column": ""})["daemons"]
    try:
        return [(str(name), str(host)) for name, host in await patient.run(text, seconds=DAEMON_SECONDS)], 0
    except ServerError as error:
        if error.connection_lost:
            raise
        return None, error.number


def _hosts(hosts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(hosts))


Check = Callable[[Patient], Awaitable[list[Finding]]]
_CHECKS: Sequence[tuple[str, Check]] = (
    ("server", _server),
    ("login", _login),
    ("isolation", _isolation),
    ("packet", _packet),
    ("wait_timeout", _waiting),
    ("payload ids", _numbers),
    ("clock", _clock),
    ("tables", _tables),
    ("rights", _rights),
    ("ids", _ids),
    ("companion", _companion),
    ("others", _others),
)

"""The doctor's look at a server: it finds what is wrong with it, says what to do, and changes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queue_runtime.findings import Level
from queue_runtime.store import StoreOptions
from stores import mysql_companion
from stores.mysql_doctor import examine, grants_creation
from stores.mysql_settings import MysqlSettings
from tests.phorge_tables import DDL, PhorgeTables
from tests.servers import MariaDb
from tests.stores.mysql_tables import NATIVE, insert_active, insert_archived, php_enqueue

OK, NOTE, WARNING, FAULT = Level.OK, Level.NOTE, Level.WARNING, Level.FAULT
WORKER_RIGHTS = "SELECT, INSERT, UPDATE, DELETE ON `phabricator_worker`.*"


@pytest.fixture
async def tables(phorge: PhorgeTables) -> PhorgeTables:
    """Phorge's tables as they are, and the companion."""
    await mysql_companion.create(phorge.settings())
    return phorge


@pytest.fixture
def spoiled(phorge: PhorgeTables) -> Iterator[PhorgeTables]:
    """Tables that a test may alter."""
    yield phorge
    phorge.execute("DROP TABLE IF EXISTS worker_activetask, worker_archivetask, worker_taskdata, lisk_counter")
    phorge.execute(DDL.read_text())


@contextmanager
def global_variable(phorge: PhorgeTables, name: str, value: object) -> Iterator[None]:
    ((before,),) = phorge.execute(f"SELECT @@GLOBAL.{name}")
    phorge.execute(f"SET GLOBAL {name} = %s", (value,))
    try:
        yield
    finally:
        phorge.execute(f"SET GLOBAL {name} = %s", (before,))


async def found(settings: MysqlSettings, **options: Any) -> dict[str, list[tuple[Level, str]]]:
    """Level and sentence of each finding, by subject."""
    findings: dict[str, list[tuple[Level, str]]] = {}
    for finding in await examine(settings, StoreOptions(**options)):
        findings.setdefault(finding.subject, []).append((finding.level, finding.sentence))
    return findings


async def one(settings: MysqlSettings, subject: str) -> tuple[Level, str]:
    (finding,) = (await found(settings))[subject]
    return finding


def everything(phorge: PhorgeTables) -> list[Any]:
    tables = ["worker_activetask", "worker_archivetask", "worker_taskdata", "lisk_counter"]
    return [
        phorge.execute(f"CHECKSUM TABLE {', '.join(tables)}"),
        phorge.execute("SHOW DATABASES"),
        phorge.execute("SELECT @@GLOBAL.wait_timeout, @@GLOBAL.tx_isolation, @@GLOBAL.sql_mode"),
    ]


async def test_a_healthy_server_is_all_right_and_is_not_changed(tables: PhorgeTables) -> None:
    php_enqueue(tables)
    before = everything(tables)
    findings = await found(tables.settings())
    assert everything(tables) == before
    assert {level for lines in findings.values() for level, _ in lines} == {OK}
    assert set(findings) == {
        "server",
        "login",
        "isolation",
        "packet",
        "wait_timeout",
        "payload ids",
        "clock",
        "tables",
        "rights",
        "ids",
        "companion",
        "others",
        "locks",
    }
    assert "MariaDB" in findings["server"][0][1]


async def test_a_server_that_does_not_answer_is_a_fault(tables: PhorgeTables) -> None:
    findings = await examine(tables.settings(socket="/nowhere/socket"), StoreOptions())
    assert [(one.level, one.subject) for one in findings] == [(FAULT, "server")]
    assert "/nowhere/socket" in findings[0].sentence


async def test_a_wrong_password_is_a_fault_and_not_shown(tables: PhorgeTables) -> None:
    tables.create_account("guarded", "the right one", [WORKER_RIGHTS])
    level, sentence = await one(tables.settings(user="guarded", password="a wrong one"), "server")
    assert level is FAULT
    assert "denied" in sentence
    assert "a wrong one" not in sentence


# ---- tables


async def test_an_unknown_namespace_is_a_fault_that_names_the_others(tables: PhorgeTables) -> None:
    level, sentence = await one(tables.settings(namespace="elsewhere"), "tables")
    assert level is FAULT
    assert "phabricator" in sentence


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ("DROP TABLE worker_taskdata", FAULT, "worker_taskdata"),
        ("ALTER TABLE worker_archivetask DROP archivedEpoch", FAULT, "worker_archivetask.archivedEpoch is missing"),
        ("ALTER TABLE worker_activetask DROP KEY key_owner", FAULT, "no index key_owner (leaseOwner, priority, id)"),
        ("ALTER TABLE worker_activetask ADD extra INT NOT NULL", FAULT, "extra is not Phorge's and has no default"),
        ("ALTER TABLE worker_activetask MODIFY leaseExpires INT NOT NULL", WARNING, "int NOT NULL"),
        (
            "ALTER TABLE worker_activetask MODIFY taskClass VARCHAR(64) COLLATE utf8mb4_general_ci NOT NULL",
            WARNING,
            "utf8mb4_general_ci",
        ),
        ("ALTER TABLE lisk_counter ENGINE = MyISAM", FAULT, "MyISAM"),
    ],
)
async def test_tables_that_are_not_as_expected_are_named(
    spoiled: PhorgeTables, change: str, level: Level, words: str
) -> None:
    spoiled.execute(change)
    lines = (await found(spoiled.settings()))["tables"]
    assert [one for one in lines if one[0] is level and words in one[1]], lines


async def test_columns_that_others_added_with_a_default_do_no_harm(spoiled: PhorgeTables) -> None:
    spoiled.execute("ALTER TABLE worker_activetask ADD extra INT NOT NULL DEFAULT 0, ADD other INT NULL")
    assert (await one(spoiled.settings(), "tables"))[0] is OK


# ---- rights


async def test_each_missing_right_is_named(tables: PhorgeTables) -> None:
    tables.create_account("reader", "", ["SELECT ON `phabricator_worker`.*", "SELECT ON `phabricator_queue_runtime`.*"])
    lines = (await found(tables.settings(user="reader")))["rights"]
    assert {level for level, _ in lines} == {FAULT}
    refused = {sentence.split(":")[0] for _, sentence in lines}
    assert "INSERT on `phabricator_worker`.worker_activetask" in refused
    assert "UPDATE on `phabricator_worker`.lisk_counter" in refused
    assert "DELETE on `phabricator_queue_runtime`.task_extra" in refused
    assert not [sentence for sentence in refused if sentence.startswith("SELECT")]


async def test_payloads_need_not_be_deleted_where_phorge_does_it(tables: PhorgeTables) -> None:
    rights = ["SELECT, INSERT, UPDATE, DELETE ON `phabricator_queue_runtime`.*"]
    for table in ("worker_activetask", "worker_archivetask", "lisk_counter"):
        rights.append(f"SELECT, INSERT, UPDATE, DELETE ON `phabricator_worker`.{table}")
    tables.create_account("careful", "", [*rights, "SELECT, INSERT ON `phabricator_worker`.worker_taskdata"])
    settings = tables.settings(user="careful")
    assert [level for level, _ in (await found(settings, retention=None))["rights"]] == [OK]
    (line,) = (await found(settings, retention=100))["rights"]
    assert line[0] is FAULT
    assert line[1].startswith("DELETE on")


async def test_a_server_that_takes_no_writes_is_a_fault(tables: PhorgeTables) -> None:
    with global_variable(tables, "read_only", 1):
        lines = (await found(tables.settings()))["server"]
    assert [sentence for level, sentence in lines if level is FAULT and "replica" in sentence]


# ---- ids, companion, others


@pytest.mark.parametrize("where", ["active", "archive"])
async def test_a_counter_that_fell_behind_is_a_warning(tables: PhorgeTables, where: str) -> None:
    php_enqueue(tables)
    if where == "active":
        insert_active(tables, 77)
    else:
        insert_archived(tables, id=77)
    level, sentence = await one(tables.settings(), "ids")
    assert level is WARNING
    assert "77" in sentence


async def test_a_missing_companion_is_a_note_where_the_start_makes_it(tables: PhorgeTables) -> None:
    tables.execute(f"DROP DATABASE {tables.companion}")
    level, sentence = await one(tables.settings(), "companion")
    assert level is NOTE
    assert "queue-runtime init" in sentence
    assert (tables.companion,) not in tables.execute("SHOW DATABASES")


async def test_a_missing_companion_is_a_warning_where_the_account_may_not_make_it(tables: PhorgeTables) -> None:
    tables.execute(f"DROP DATABASE {tables.companion}")
    tables.create_account("plain", "", [WORKER_RIGHTS])
    level, sentence = await one(tables.settings(user="plain"), "companion")
    assert level is WARNING
    assert "idempotency keys" in sentence


async def test_a_companion_of_a_newer_release_is_a_fault(tables: PhorgeTables) -> None:
    tables.execute(f"UPDATE {tables.companion}.meta SET value = '99' WHERE name = 'version'")
    try:
        level, sentence = await one(tables.settings(), "companion")
    finally:
        tables.execute(f"DROP DATABASE {tables.companion}")
    assert level is FAULT
    assert "99" in sentence


@pytest.mark.parametrize(
    ("grant", "allowed"),
    [
        ("GRANT ALL PRIVILEGES ON *.* TO `a`@`%` WITH GRANT OPTION", True),
        (r"GRANT ALL PRIVILEGES ON `phabricator\_%`.* TO `a`@`%`", True),
        ("GRANT SELECT, CREATE, DROP ON `phabricator_queue_runtime`.* TO `a`@`%`", True),
        ("GRANT CREATE ON `phabricator%`.* TO 'a'@'%' IDENTIFIED BY PASSWORD '*00'", True),
        ("GRANT SELECT, INSERT ON *.* TO `a`@`%`", False),
        ("GRANT CREATE USER ON *.* TO `a`@`%`", False),
        (r"GRANT ALL PRIVILEGES ON `other\_%`.* TO `a`@`%`", False),
        (r"GRANT ALL PRIVILEGES ON `phabricator\_worker`.* TO `a`@`%`", False),
        ("GRANT ALL PRIVILEGES ON `phabricator_queue_runtime`.`meta` TO `a`@`%`", False),
        ("GRANT PROXY ON ``@`%` TO `root`@`localhost`", False),
        ("GRANT `role` TO `a`@`%`", False),
    ],
)
def test_grants_are_read_as_the_server_means_them(grant: str, allowed: bool) -> None:
    assert grants_creation(grant, "phabricator_queue_runtime") is allowed


async def test_native_taskmasters_are_a_note(tables: PhorgeTables) -> None:
    php_enqueue(tables, leaseOwner=NATIVE, leaseExpires=2**31)
    level, sentence = await one(tables.settings(), "others")
    assert level is NOTE
    assert "web1" in sentence


@pytest.fixture
def daemons(tables: PhorgeTables) -> Iterator[PhorgeTables]:
    """Phorge's book of daemons, with one that ended and one that was lost."""
    tables.execute(
        "CREATE DATABASE phabricator_daemon; CREATE TABLE phabricator_daemon.daemon_log"
        " (daemon VARCHAR(255), host VARCHAR(255), status VARCHAR(8), dateModified INT UNSIGNED)"
    )
    report(tables, "PhabricatorTaskmasterDaemon", "ended", status="exit")
    report(tables, "PhabricatorTaskmasterDaemon", "lost", ago=3600)
    yield tables
    tables.execute("DROP DATABASE phabricator_daemon")


def report(tables: PhorgeTables, daemon: str, host: str, *, status: str = "run", ago: int = 60) -> None:
    values = (daemon, host, status, ago)
    tables.execute("INSERT INTO phabricator_daemon.daemon_log VALUES (%s, %s, %s, UNIX_TIMESTAMP() - %s)", values)


async def test_daemons_that_ended_are_not_taken_for_alive(daemons: PhorgeTables) -> None:
    findings = await found(daemons.settings())
    assert (findings["others"][0][0], "phd" in findings) == (OK, False)


async def test_a_taskmaster_that_only_waits_is_a_note_too(daemons: PhorgeTables) -> None:
    report(daemons, "PhabricatorTaskmasterDaemon", "repo1", status="wait")
    level, sentence = await one(daemons.settings(), "others")
    assert level is NOTE
    assert "repo1" in sentence
    assert "lost" not in sentence
    assert "--keep-leases" in sentence


async def test_where_phorges_other_daemons_run_the_flag_that_keeps_leases_is_named(daemons: PhorgeTables) -> None:
    report(daemons, "PhabricatorTriggerDaemon", "repo1")
    report(daemons, "PhabricatorRepositoryPullLocalDaemon", "repo1")
    level, sentence = await one(daemons.settings(), "phd")
    assert level is NOTE
    assert "on repo1: start them by bin/phd start --keep-leases" in sentence


async def test_an_account_that_may_not_see_the_daemons_goes_without_and_is_told(daemons: PhorgeTables) -> None:
    report(daemons, "PhabricatorTaskmasterDaemon", "repo1")
    daemons.create_account("blind", "", [WORKER_RIGHTS])
    assert (await one(daemons.settings(user="blind"), "others"))[0] is OK
    level, sentence = await one(daemons.settings(user="blind"), "daemons")
    assert level is NOTE
    assert "GRANT SELECT ON `phabricator_daemon`.*" in sentence


async def test_tables_that_are_not_there_yet_name_phorges_own_command(spoiled: PhorgeTables) -> None:
    spoiled.execute("DROP TABLE worker_activetask, worker_archivetask, worker_taskdata, lisk_counter")
    level, sentence = await one(spoiled.settings(), "tables")
    assert level is FAULT
    assert "bin/storage upgrade" in sentence


# ---- settings of the server


async def test_a_small_packet_is_a_warning(tables: PhorgeTables) -> None:
    with global_variable(tables, "max_allowed_packet", 16 * 2**20):
        level, sentence = await one(tables.settings(), "packet")
    assert level is WARNING
    assert "16 MiB" in sentence


async def test_payload_ids_that_are_apart_are_a_note(tables: PhorgeTables) -> None:
    with global_variable(tables, "auto_increment_increment", 3):
        lines = (await found(tables.settings()))["payload ids"]
    assert [level for level, _ in lines] == [OK, NOTE]


async def test_a_clock_that_differs_is_a_warning(tables: PhorgeTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.mysql_doctor.CLOCKS", -10)
    assert (await one(tables.settings(), "clock"))[0] is WARNING


async def test_statements_in_the_binlog_are_a_fault() -> None:
    """The server would refuse every write of a session in READ COMMITTED."""
    with MariaDb("--log-bin=binlog", "--binlog-format=STATEMENT") as server, PhorgeTables(server) as phorge:
        level, sentence = await one(phorge.settings(), "isolation")
        assert level is FAULT
        assert "binlog_format" in sentence


async def test_tasks_over_plain_tcp_to_another_host_are_a_note(tables: PhorgeTables) -> None:
    login = (await found(tables.settings(socket=None)))["login"]
    assert [level for level, _ in login] == [OK]
    assert "plain TCP" in login[0][1]

"""`queue-runtime takeover plan` and `status`: who works on Phorge's queue, and who would run what waits."""

from pathlib import Path

import pytest

from queue_runtime.cli.there import enqueues_there
from queue_runtime.takeover import Who, Worker, who
from tests.backends import Servers
from tests.cli.commands import invoke, run
from tests.cli.conftest import Answers, address_of
from tests.cli.takeovers import (
    CLASS,
    PHP_CLASS,
    TASKMASTER,
    book_of_daemons,
    one_ended,
    phorge_of,
    serving,
    status,
    stub_phorge,
)
from tests.conduit import stub
from tests.conduit.stub import StubPhp
from tests.conduit.test_phorge_doctor import FACTS
from tests.faults.process import Served, enqueue, wait_for
from tests.phorge_php import Taskmaster
from tests.phorge_tables import PhorgeTables


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        ("qr:481e9685:4:19966@host", Who.OURS),
        ("23192:1796040935:web1:2", Who.NATIVE),
        ("23192:1796040935:web:with:colons:2", Who.NATIVE),
        ("gorge-worker-1", Who.CALLERS),
        ("mine:7", Who.ALLOWED),
        ("(yield)", Who.NOBODY),
        ("gorge-completion-pending", Who.NOBODY),
        (None, Who.NOBODY),
    ],
)
def test_an_owner_says_whose_it_is(owner: str | None, whose: Who) -> None:
    assert who(owner, ["mine:*"]) is whose


def test_no_pattern_stands_for_a_native_taskmaster() -> None:
    native = "23192:1796040935:web1:2"
    assert who(native, ["*", "23192:*"]) is Who.NATIVE
    assert who(native, [native]) is Who.ALLOWED
    assert who("gorge-worker-1", ["*"]) is Who.ALLOWED


def test_the_plan_has_the_way_there_and_the_way_back() -> None:
    done = invoke("takeover", "plan", "--phorge", "/opt/phorge")
    assert done.exit_code == 0
    there, _, back = done.output.partition("The way back")
    assert "/opt/phorge/bin/config set phd.taskmasters 0" in there
    order = [
        "SHADOW=1 queue-runtime serve",
        "doctor --store",
        "queue-runtime selftest",
        "queue-runtime doctor --conduit ",
        "takeover check",
        "taskmasters 0",
    ]
    assert sorted(order, key=there.index) == order
    assert "queue-runtime takeover status" in there
    # a token is no argument of a command, which every account may read
    assert "printf %s TOKEN | /opt/phorge/bin/config set --stdin queue-runtime.token" in there
    assert "/opt/phorge/bin/config set phd.taskmasters NUMBER" in back
    assert "phd restart" not in done.output  # it has no --keep-leases
    assert done.output.count("phd start --keep-leases") == 2


def test_a_folder_with_spaces_is_one_word_of_each_command(tmp_path: Path) -> None:
    done = invoke("takeover", "plan", "--phorge", "/opt/my phorge")
    assert done.output.count("/opt/my phorge") == done.output.count("'/opt/my phorge'") > 5


@pytest.mark.parametrize("command", ["status", "check"])
def test_a_store_that_no_taskmaster_sees_is_refused(command: str, tmp_path: Path) -> None:
    done = run("takeover", command, folder=tmp_path, variables={"SQLITE_PATH": str(tmp_path / "queue.sqlite")})
    assert (done.returncode, "the store mysql alone" in done.stderr) == (1, True)


def test_it_is_not_done_while_nobody_works(settings: dict[str, str], tmp_path: Path) -> None:
    code, said = status(settings, tmp_path)
    assert (code, "not done: no task was ended" in said) == (1, True), said


def test_it_is_done_when_only_this_runtime_has_worked(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found):
        one_ended(served)
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, "takeover: done" in said) == (0, True), said
    assert "1 ran in handlers here and 0 in Phorge or a fallback; archived as 1 success" in said


def test_it_is_not_done_when_the_worker_is_gone(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found):
        one_ended(served)
        served.tell_and_wait()
    code, said = status(found, tmp_path)
    assert (code, f"not done: no worker answers at {found['LISTEN']}" in said) == (1, True), said


def test_it_is_not_done_while_a_task_waits_that_no_worker_leases(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with serving(tmp_path, settings) as (served, found), Taskmaster(servers.phorge) as taskmaster:
        one_ended(served)
        waiting = taskmaster.schedule(PHP_CLASS)
        code, said = status(found, tmp_path)
        assert (code, f"leases: 1 of {PHP_CLASS}" in said) == (1, True), said
        assert f"1 tasks wait for somebody: 1 of {PHP_CLASS}" in said
        (task,) = taskmaster.lease()
        assert task.id == waiting
        taskmaster.write("DELETE FROM worker_activetask WHERE id = %s", (waiting,))
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, "takeover: done" in said) == (0, True), said


def test_a_worker_elsewhere_is_named(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    """Two pools, of which none leases everything."""
    pools = ({"TASK_CLASSES": CLASS}, {"TASK_CLASSES": "SleepWorker"})
    with (
        serving(tmp_path, settings, **pools[0]) as (served, found),
        serving(tmp_path, settings, **pools[1]) as (other, there),
    ):
        one_ended(served)
        with served.client() as client:
            client.post("/api/queue/pause", json={"taskClass": "SleepWorker"})
            enqueue(client, "SleepWorker")
            code, said = status(found, tmp_path, "--worker", f"http://{there['LISTEN']}")
            assert (code, "while leasing is paused for the class SleepWorker" in said) == (1, True), said
            client.post("/api/queue/resume", json={"taskClass": "SleepWorker"})
        both = ["--worker", found["LISTEN"], "--worker", f"http://{there['LISTEN']}"]
        code, said = status(found, tmp_path, *both)
        assert (code, "takeover: done" in said) == (0, True), said
        served.tell_and_wait()
        other.tell_and_wait()
    code, said = status(found, tmp_path, "--worker", "no address at all")
    assert (code, "no worker answers at no address at all" in said) == (1, True), said


def test_it_is_not_done_while_a_queue_that_the_worker_passes_by_has_tasks(
    settings: dict[str, str], tmp_path: Path
) -> None:
    narrow = settings | {"QUEUES": "default"}
    with serving(tmp_path, narrow) as (served, found), served.client() as client:
        one_ended(served)
        client.post("/api/queue/enqueue", json={"taskClass": CLASS, "queue": "search"})
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, f"leases: 1 of {CLASS}" in said) == (1, True), said


def test_it_is_not_done_while_a_native_taskmaster_acts(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with serving(tmp_path, settings) as (served, found), Taskmaster(servers.phorge) as taskmaster:
        one_ended(served)
        taskmaster.schedule("SomeWorker")
        taskmaster.schedule("SomeWorker")
        held, other = taskmaster.lease(2)
        code, said = status(found, tmp_path)
        assert (code, "native taskmasters of web1" in said) == (1, True), said
        assert "hold 2 tasks" in said
        taskmaster.archive(held, result=0)
        taskmaster.archive(other, result=1)
        code, said = status(found, tmp_path, "--allow", "*")
        served.tell_and_wait()
    assert (code, "ended 2 in the last" in said) == (1, True), said
    assert "not done: native taskmasters of web1" in said


def test_a_native_taskmaster_that_ended_an_old_task_is_seen_behind_thousands_of_newer_ones(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with Taskmaster(servers.phorge) as taskmaster:
        taskmaster.schedule("SomeWorker")
        (old,) = taskmaster.lease()
        servers.phorge.execute(
            "INSERT INTO worker_archivetask (id, taskClass, leaseOwner, leaseExpires, failureCount, dataID, result,"
            " duration, priority, dateCreated, dateModified, archivedEpoch)"
            " SELECT 100000 + seq, 'SomeWorker', 'qr:0badcafe:1:1@host', 1, 0, seq, 0, 1, 2000, 1700000000, 1700000000,"
            " 1700000000 FROM seq_1_to_5100"
        )
        taskmaster.archive(old, result=0)
        code, said = status(settings, tmp_path)
    assert (code, "native taskmasters of web1" in said) == (1, True), said


def test_it_is_not_done_while_somebody_acts_who_is_not_allowed(settings: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, settings) as (served, found), served.client() as client:
        one_ended(served)
        enqueue(client, "SomeWorker")
        client.post("/api/queue/lease", json={"limit": 1}, headers={"X-Lease-Owner": "gorge-worker-1"})
        code, said = status(found, tmp_path)
        assert (code, "not of this runtime act" in said) == (1, True), said
        assert "gorge-worker-1" in said
        assert "2 requests to enqueue came over HTTP" in said
        code, said = status(found, tmp_path, "--allow", "gorge-*")
        served.tell_and_wait()
    assert (code, "takeover: done" in said) == (0, True), said


def test_it_is_not_done_while_phorge_has_not_the_method(settings: dict[str, str], tmp_path: Path) -> None:
    php = StubPhp()
    php.broken = stub.NO_METHOD
    with (
        stub_phorge(php, settings) as delegating,
        serving(tmp_path, delegating) as (served, found),
        served.client() as client,
    ):
        one_ended(served)
        wait_for("readiness turns red", lambda: client.get("/readyz").status_code == 503, 20)
        code, said = status(found, tmp_path)
        served.tell_and_wait()
    assert (code, f"not done: the worker at {found['LISTEN']} is not ready: conduit: " in said) == (1, True), said


def test_a_shadow_and_a_process_without_worker_are_no_workers(settings: dict[str, str], tmp_path: Path) -> None:
    for more, words in (({"SHADOW": "1"}, "is a shadow"), ({"ROLES": "api,sweep"}, "runs no tasks")):
        chosen = {"SQLITE_PATH": ""} | settings | {"LISTEN": "127.0.0.1:0"} | more
        with Served(tmp_path, **chosen) as served, served.client() as client:
            code, said = status(settings, tmp_path, "--worker", client.base_url.netloc.decode())
            served.tell_and_wait()
        assert (code, words in said) == (1, True), said


@pytest.mark.parametrize(("code", "body"), [(200, "<html></html>"), (200, "[]"), (200, "{}"), (503, "busy"), (404, "")])
def test_what_answers_and_is_no_worker_of_ours_is_told(
    settings: dict[str, str], tmp_path: Path, queue: type[Answers], code: int, body: str
) -> None:
    queue.status, queue.body = code, body.encode()
    address = address_of(queue)
    for command in ("status", "check"):
        done = run("takeover", command, folder=tmp_path, variables=settings | {"LISTEN": address})
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert f"what answers at {address} is no worker of ours" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a":' * 100_000, "is no worker of ours"),
        (b'{"status":"ok","details":{"worker":{"supported":["*"]}}}', "does not say which store"),
        (b'{"status":"ok","details":{"worker":{"supported":[{},null]},"store":{"kind":"sqlite"}}}', "another store"),
        (b'{"status":"unavailable","reason":"\\u001b[2J\\nok","details":{"worker":{"supported":[]}}}',
         "is not ready: \N{REPLACEMENT CHARACTER}[2J ok"),
    ],
)  # fmt: skip
def test_a_hostile_peer_is_told_and_gets_no_token(
    settings: dict[str, str], tmp_path: Path, queue: type[Answers], body: bytes, words: str
) -> None:
    queue.body = body
    address = address_of(queue)
    code, said = status(settings | {"LISTEN": address, "TOKEN": "the-service-token"}, tmp_path)
    assert (code, words in said, "Traceback" in said) == (1, True, False), said
    assert {token for _, token, _ in queue.seen} == {None}


@pytest.mark.parametrize("count", ["NaN", "1e999", "many", "2.0"])
def test_odd_metrics_of_a_peer_are_no_count(queue: type[Answers], count: str) -> None:
    queue.body = f'queue_runtime_http_request_seconds_count{{route="enqueue",status="200"}} {count}\n'.encode()
    worker = Worker(address_of(queue), ours=True)
    assert enqueues_there(worker) == (2 if count == "2.0" else None)


def test_a_worker_of_another_store_is_not_taken_for_ours(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with PhorgeTables(servers.mariadb, "another") as tables:
        elsewhere = settings | {"NAMESPACE": tables.namespace}
        with serving(tmp_path, settings) as (served, found), serving(tmp_path, elsewhere) as (other, there):
            one_ended(served)
            assert status(found, tmp_path)[0] == 0
            for command in ("status", "check"):
                done = run("takeover", command, folder=tmp_path, variables=settings | {"LISTEN": there["LISTEN"]})
                assert done.returncode == 1
                assert f"the worker at {there['LISTEN']} works on another store" in done.stdout, done.stdout
            served.tell_and_wait()
            other.tell_and_wait()


def test_native_taskmasters_that_have_nothing_to_do_are_seen(
    settings: dict[str, str], tmp_path: Path, servers: Servers
) -> None:
    with serving(tmp_path, settings) as (served, found):
        one_ended(served)
        code, said = status(found, tmp_path)
        assert (code, "book of daemons cannot be read" in said) == (0, True), said
        with book_of_daemons(servers.phorge):
            code, said = status(found, tmp_path)
            assert (code, "book of daemons" in said) == (0, False), said
        with book_of_daemons(servers.phorge) as report:
            report(TASKMASTER, "web1", "wait")
            report(TASKMASTER, "web2", "wait")
            code, said = status(found, tmp_path)
            assert (code, "not done: native taskmasters are alive on web1, web2" in said) == (1, True), said
            checked = run("takeover", "check", folder=tmp_path, variables=found)
        served.tell_and_wait()
    assert "native taskmasters are alive on web1, web2" in checked.stdout
    assert "none has acted" not in checked.stdout
    # nothing here went through PHP, so they stay on
    assert "native taskmasters must stay on yet: no canary went through PHP" in checked.stdout


def test_taskmasters_that_phorge_is_to_start_are_seen(settings: dict[str, str], tmp_path: Path) -> None:
    php = phorge_of(1, locks=True)
    for wanted, done in ((4, False), (0, True)):
        php.facts = FACTS | {"taskmasters": wanted}
        with stub_phorge(php, settings) as delegating, serving(tmp_path, delegating) as (served, found):
            served.wait_for_event("Phorge runs tasks")
            one_ended(served)
            code, said = status(found, tmp_path)
            checked = run("takeover", "check", folder=tmp_path, variables=found)
            served.tell_and_wait()
        assert (code == 0, f"phd.taskmasters is {wanted}" in said) == (done, not done), said
        assert checked.returncode == 0
        assert f"next is step {5 if done else 4}: " in checked.stdout, checked.stdout


def test_it_makes_nothing_where_nothing_was(settings: dict[str, str], tmp_path: Path, servers: Servers) -> None:
    with PhorgeTables(servers.mariadb, "looked_at") as tables:
        status(settings | {"NAMESPACE": tables.namespace}, tmp_path)
        there = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
        assert tables.execute(there, (tables.companion,)) == []

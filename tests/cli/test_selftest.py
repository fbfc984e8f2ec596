"""`queue-runtime selftest`, and the selftest that readiness tells of."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends import Servers
from tests.cli.commands import run
from tests.faults.process import Served, wait_for

STEPS = ["enqueue", "read", "lease", "renew", "settle", "fence", "archive", "cancel", "clean up"]


@pytest.fixture(params=["sqlite", "mysql", "redis", "streams"])
def variables(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> dict[str, str]:
    """Settings of an empty store of each kind."""
    redis = {"REDIS_URL": servers.redis.socket_url} if request.param in {"redis", "streams"} else {}
    mysql = {}
    if request.param in {"mysql", "streams"}:
        servers.phorge.empty()
        mysql = {"MYSQL_SOCKET": servers.mariadb.socket, "MYSQL_USER": "root"}
    if redis:
        servers.redis_client.flushall()
    sqlite = {"SQLITE_PATH": str(tmp_path / "queue.sqlite")} if request.param == "sqlite" else {}
    return {"STORE": request.param} | redis | mysql | sqlite


def test_it_passes_and_says_how_long_each_step_took(variables: dict[str, str], tmp_path: Path) -> None:
    done = run("selftest", folder=tmp_path, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["enqueue:", "read:", "lease:", "renew:"]
    assert lines[-1].startswith("ok       selftest: passed; what stays is tasks ")


def test_it_passes_as_json(variables: dict[str, str], tmp_path: Path) -> None:
    done = run("selftest", "--json", folder=tmp_path, variables=variables)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["ok"], facts["trouble"]) == (0, True, None)
    assert [one["name"] for one in facts["steps"]] == STEPS
    assert len(facts["taskIDs"]) == 3


def test_a_store_that_is_away_is_told(tmp_path: Path) -> None:
    away = {"STORE": "mysql", "MYSQL_SOCKET": str(tmp_path / "nothing"), "MYSQL_USER": "root"}
    done = run("selftest", folder=tmp_path, variables=away)
    assert (done.returncode, "enqueue failed: the store does not answer" in done.stdout) == (1, True), done.stdout
    assert "queue-runtime doctor --store" in done.stdout


def test_a_shadow_runs_none(tmp_path: Path) -> None:
    variables = {"SQLITE_PATH": str(tmp_path / "queue.sqlite"), "SHADOW": "1"}
    done = run("selftest", folder=tmp_path, variables=variables)
    assert (done.returncode, "run it without" in done.stderr) == (1, True)
    assert not (tmp_path / "queue.sqlite").exists()


def test_what_it_did_not_try_is_told(variables: dict[str, str], tmp_path: Path) -> None:
    with Served(tmp_path, **({"SQLITE_PATH": ""} | variables)) as served, served.client() as client:
        client.post("/api/queue/pause", json={"queue": "default"})
        done = run("selftest", folder=tmp_path, variables=variables)
        client.post("/api/queue/resume", json={"queue": "default"})
        served.tell_and_wait()
    assert done.returncode == 0, done.stdout
    assert "leasing is paused for the queue default, so lease, renew and settle were not tried" in done.stdout


def test_readiness_tells_how_the_last_one_went(tmp_path: Path) -> None:
    with Served(tmp_path, READY_SELFTEST=1) as served, served.client() as client:

        def last() -> dict[str, object] | None:
            found: dict[str, object] | None = client.get("/readyz?verbose=1").json()["details"].get("selftest")
            return found

        found = wait_for("the first selftest", last, 20) or {}
        assert (found["ok"], found["reason"]) == (True, None)
        assert client.get("/readyz").status_code == 200
        served.tell_and_wait()


def test_readiness_turns_red_where_it_fails_and_says_why(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client():
        served.tell_and_wait()
    with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as database:
        database.execute("CREATE TRIGGER broken BEFORE INSERT ON task BEGIN SELECT RAISE(ABORT, 'no such luck'); END")
    with Served(tmp_path, READY_SELFTEST=1) as served, served.client() as client:
        wait_for("readiness turns red", lambda: client.get("/readyz").status_code == 503, 20)
        answer = client.get("/readyz?verbose=1").json()
        assert "selftest: enqueue failed" in answer["reason"]
        assert answer["details"]["faults"]["selftest"] in answer["reason"]
        assert client.get("/healthz").status_code == 200

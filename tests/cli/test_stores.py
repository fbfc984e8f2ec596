"""One setting chooses the store: the same process runs the same task on each, and its doctor knows it."""

from pathlib import Path

import pytest

from queue_runtime.settings import STORES
from tests.backends import Servers
from tests.cli.commands import run
from tests.faults.process import Served, archived, enqueue, wait_for

GRANTS = ["SELECT, INSERT, UPDATE, DELETE ON phabricator_worker.*", "ALL ON phabricator_queue_runtime.*"]


def test_the_operations_page_names_the_rights_that_these_tests_run_with() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert all(f"GRANT {grant} TO" in page for grant in GRANTS)


def settings_of(store: str, servers: Servers, folder: Path) -> dict[str, str]:
    """What a deployment on this store sets; its store is empty."""
    match store:
        case "sqlite":
            return {"SQLITE_PATH": str(folder / "queue.sqlite")}
        case "mysql":
            servers.phorge.empty()
            servers.phorge.create_account("phorge", "pw", GRANTS)
            return {"STORE": store, "MYSQL_SOCKET": servers.mariadb.socket, "MYSQL_PASSWORD": "pw"}
        case "streams":
            servers.redis_client.flushall()
            path = str(folder / "queue.sqlite")
            return {"STORE": store, "RECORD": "sqlite", "SQLITE_PATH": path, "REDIS_URL": servers.redis.socket_url}
        case _:
            servers.redis_client.flushall()
            return {"STORE": store, "REDIS_URL": servers.redis.socket_url}


@pytest.fixture(params=[one for one in STORES if one != "remote"])  # see tests/faults/test_remote_worker.py
def chosen(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> dict[str, str]:
    """The settings of each store in turn."""
    return settings_of(str(request.param), servers, tmp_path)


def test_a_task_runs_on_the_chosen_store(chosen: dict[str, str], tmp_path: Path) -> None:
    assert run("init", folder=tmp_path, variables=chosen).returncode == 0
    with Served(tmp_path, **({"SQLITE_PATH": ""} | chosen)) as served, served.client() as client:
        (task_id,) = enqueue(client, "SleepWorker", '{"seconds": 0.01}')
        task = wait_for("the end of the task", lambda: archived(client, task_id), 20)
        assert task is not None
        assert task["result"] == 0
        found = run("doctor", "--store", folder=tmp_path, variables=chosen | {"LISTEN": "127.0.0.1:0"})
        assert found.returncode == 0, found.stdout
        served.tell_and_wait()


def test_init_may_be_run_again(chosen: dict[str, str], tmp_path: Path) -> None:
    for _ in range(2):
        ended = run("init", folder=tmp_path, variables=chosen)
        assert (ended.returncode, ended.stderr) == (0, "")

"""Starts that cannot go well end with one clear sentence, and two processes may share one file."""

import os
import signal
import socket
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.process import SCRIPT, Served, archived, check_clean_log, enqueue, ledger, wait_for


def refusal(served: Served) -> tuple[int, str]:
    """Exit code and the text it leaves, which is never a traceback."""
    code = served.wait(30)
    assert "Traceback" not in served.log, served.log
    return code, served.log


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Served(tmp_path, LISTEN=address) as served:
            code, text = refusal(served)
    assert code == 1
    assert f"cannot listen on {address}" in text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir()
    with sqlite3.connect(folder / "queue.sqlite") as database:
        database.execute("PRAGMA journal_mode = WAL")
    database.close()
    wrapper: tuple[str, ...] = ()
    if os.geteuid() == 0:
        # root writes everywhere, so the folder is mounted read-only for this process alone
        mount = f'mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && exec "$@"'
        wrapper = ("unshare", "--mount", "sh", "-c", mount, "sh")
    else:
        folder.chmod(0o500)
    with Served(tmp_path, wrapper=wrapper, SQLITE_PATH=folder / "queue.sqlite") as served:
        code, text = refusal(served)
    assert code == 1
    assert str(folder) in text


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with Served(tmp_path, SQLITE_PATH=tmp_path / "missing" / "queue.sqlite") as served:
        code, text = refusal(served)
    assert code == 1
    assert str(tmp_path / "missing") in text


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client() as client:
        enqueue(client, "SleepWorker")
        served.tell_and_wait()
    with sqlite3.connect(tmp_path / "queue.sqlite") as database:
        database.execute("PRAGMA user_version = 9999")
    database.close()
    with Served(tmp_path) as served:
        code, text = refusal(served)
    assert code == 1
    assert "newer" in text


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "queue.sqlite").write_text("these are my notes " * 1000)
    with Served(tmp_path) as served:
        code, text = refusal(served)
    assert code == 1
    assert "queue.sqlite" in text
    assert (tmp_path / "queue.sqlite").read_text().startswith("these are my notes")


@pytest.mark.parametrize("handlers", ["missing.py:registry", "broken.py:registry"])
def test_handlers_that_cannot_be_loaded_stop_the_start(tmp_path: Path, handlers: str) -> None:
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    with Served(tmp_path, HANDLERS=handlers) as served:
        code, text = refusal(served)
    assert code == 2
    assert f"QUEUE_RUNTIME_HANDLERS: {handlers}" in text
    assert not (tmp_path / "queue.sqlite").exists()


def test_two_processes_share_one_file(tmp_path: Path) -> None:
    with Served(tmp_path) as one, Served(tmp_path) as two, one.client() as first, two.client() as second:
        ids = [
            task
            for _ in range(20)
            for client in (first, second)
            for task in enqueue(client, "SleepWorker", '{"seconds": 0.02}', 10)
        ]
        wait_for("all are archived", lambda: first.get("/api/queue/stats").json()["data"]["archivedCount"] == 400, 60)
        assert len(set(ids)) == 400
        assert all(archived(second, task)["result"] == 0 for task in ids[::40])  # type: ignore[index]  # see above
        assert sorted(line["id"] for line in ledger(tmp_path)) == sorted(ids)
        assert len({line["pid"] for line in ledger(tmp_path)}) == 2
        one.tell_and_wait()
        two.tell_and_wait()


def test_without_the_api_role_only_probes_are_served(tmp_path: Path) -> None:
    with Served(tmp_path, ROLES="worker,sweep") as served, served.client() as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/api/worker/stats").status_code == 200
        assert client.post("/api/queue/enqueue", json={"taskClass": "X"}).status_code == 404


def test_a_token_never_reaches_the_log(tmp_path: Path) -> None:
    token = "s3cret-s3cret"
    with Served(tmp_path, TOKEN=token, LOG_LEVEL="debug") as served, served.client() as client:
        assert client.get("/api/queue/stats", params={"token": token}).status_code == 200
        assert client.get("/api/queue/stats", params={"token": token + "x"}).status_code == 401
        assert client.get("/api/queue/stats", headers={"X-Service-Token": token}).status_code == 200
        assert client.get("/metrics").status_code == 200
        served.tell_and_wait()
        assert token not in served.log


def test_the_fast_extra_serves_and_stops_as_well(tmp_path: Path) -> None:
    with Served(tmp_path, SERVER="uvicorn", EVENT_LOOP="uvloop") as served, served.client() as client:
        (task,) = enqueue(client, "SleepWorker", '{"seconds": 0.05}')
        wait_for("it is archived", lambda: archived(client, task), 10)
        served.tell_and_wait()


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "queue.sock"
    with Served(tmp_path, LISTEN=f"unix:{path}") as served:
        assert served.wait_for_event("listening")["addresses"] == [f"unix:{path}"]
        asked = subprocess.run(
            [SCRIPT, "health", "--ready"], env={"QUEUE_RUNTIME_LISTEN": f"unix:{path}"}, timeout=20, check=False
        )
        assert asked.returncode == 0
        served.tell_and_wait()
    assert not path.exists()


def test_a_file_that_somebody_holds_is_waited_for(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as database:
        database.execute("BEGIN EXCLUSIVE")
        with Served(tmp_path) as served, Served(tmp_path) as told, Served(tmp_path, EVENT_LOOP="uvloop") as fast:
            for one in (told, fast):
                one.wait_for_event("store away")
                one.tell(signal.SIGTERM)
            for one in (told, fast):
                assert one.wait(10) == 0, one.log
                check_clean_log(one)
            served.wait_for_event("store away")
            database.rollback()
            with served.client() as client:
                (task,) = enqueue(client, "SleepWorker")
                wait_for("it is archived", lambda: archived(client, task), 10)
            assert len(served.events("store away")) == 1
            served.tell_and_wait()


def test_a_worker_that_would_have_nothing_to_do_does_not_start(tmp_path: Path) -> None:
    with Served(tmp_path, TASK_CLASSES="SleepWroker") as served:
        code, text = refusal(served)
    assert code == 2
    assert "QUEUE_RUNTIME_TASK_CLASSES names no class that has a handler here" in text
    assert "SleepWorker" in text
    assert not (tmp_path / "queue.sqlite").exists()


def test_settings_of_a_worker_that_does_not_run_here_get_a_warning(tmp_path: Path) -> None:
    with Served(tmp_path, ROLES="api", SLOTS=4) as served:
        served.wait_for_event("listening")
        (line,) = [line for line in served.events("setting") if line["level"] == "warning"]
        assert line["note"].endswith("ROLES has no worker: QUEUE_RUNTIME_HANDLERS, QUEUE_RUNTIME_SLOTS")


def test_a_class_that_waits_for_nobody_here_is_named_without_a_scrape(tmp_path: Path) -> None:
    with Served(tmp_path, ROLES="api,worker", SWEEP_SECONDS=0.1) as served, served.client() as client:
        enqueue(client, "NobodysWorker")
        line = served.wait_for_event("tasks wait for a class that has no handler here")
        assert line["task_class"] == "NobodysWorker"

"""A real process that reads its settings again, and real processes that share periodic work."""

import json
import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

from tests.faults.process import SCRIPT, Served, archived, check_clean_log, enqueue, ledger, wait_for

TICK = '[[task]]\nname = "tick"\nclass = "SleepWorker"\ncron = "* * * * * *"\ndata = {}\n'


def reload(served: Served, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """`queue-runtime reload` beside it, as an operator would run it; settings without the prefix."""
    (address,) = served.wait_for_event("listening")["addresses"]
    environ = {"PATH": os.environ["PATH"]} | {f"QUEUE_RUNTIME_{name}": str(text) for name, text in settings.items()}
    if not arguments:
        arguments = ("--url", f"http://{address}")
    command = [SCRIPT, "reload", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)


def ticks(folder: Path) -> list[str]:
    """The slots that are in the queue, by their keys, oldest first."""
    with closing(sqlite3.connect(folder / "queue.sqlite")) as database:
        keys = [
            key for (key,) in database.execute("SELECT idempotency_key FROM task WHERE idempotency_key LIKE 'cron:%'")
        ]
    return sorted(key.split(":", 2)[2] for key in keys)


def test_settings_change_while_it_serves(tmp_path: Path) -> None:
    file, cron, token = tmp_path / "q.env", tmp_path / "cron.toml", tmp_path / "token"
    token.write_text("t0ken-one")
    cron.touch()
    fixed = f"QUEUE_RUNTIME_TOKEN_FILE={token}\nQUEUE_RUNTIME_CRON_FILE={cron}\n"
    file.write_text(fixed + "QUEUE_RUNTIME_SLOTS=1\n")
    with Served(tmp_path, ENV_FILE=file) as served, served.client() as client:
        client.headers["X-Service-Token"] = "t0ken-one"
        enqueue(client, "SleepWorker", '{"seconds": 60}', 3)
        wait_for("one runs", lambda: len(ledger(tmp_path)) == 1, 10)

        file.write_text(fixed + "QUEUE_RUNTIME_SLOTS=10\nQUEUE_RUNTIME_LOG_LEVEL=debug\nQUEUE_RUNTIME_LISTEN=:1\n")
        done = reload(served, ENV_FILE=file)
        assert done.returncode == 0, done.stderr  # LISTEN was given at the start, and wins
        assert done.stdout.splitlines() == ["changed: QUEUE_RUNTIME_SLOTS", "changed: QUEUE_RUNTIME_LOG_LEVEL"]
        wait_for("three run", lambda: len(ledger(tmp_path)) == 3, 10)

        cron.write_text(TICK)
        file.write_text(file.read_text() + "QUEUE_RUNTIME_SERVER=uvicorn\n")
        done = reload(served, ENV_FILE=file)
        assert done.returncode == 1
        assert done.stdout == "changed: QUEUE_RUNTIME_CRON_FILE: 1 entries\n"
        assert done.stderr == "needs a restart, the old value stays: QUEUE_RUNTIME_SERVER\n"
        wait_for("slots run, and their success is logged", lambda: served.events("task succeeded"), 10)

        cron.write_text(TICK.replace("* * * * * *", "no"))
        done = reload(served, ENV_FILE=file)
        assert done.returncode == 1
        assert "nothing has changed" in done.stderr
        assert f"{cron}: task 1 (tick): cron:" in done.stderr
        count = len(ticks(tmp_path))
        wait_for("the slots go on", lambda: len(ticks(tmp_path)) > count, 10)

        cron.write_text(TICK)
        token.write_text("t0ken-two")
        done = reload(served, ENV_FILE=file)
        assert (done.returncode, "another service token" in done.stderr) == (1, True)
        assert reload(served, "--pid", str(served.inner_pid())).returncode == 0
        client.headers["X-Service-Token"] = "t0ken-two"
        wait_for("the new token is good", lambda: client.get("/api/queue/stats").status_code == 200, 10)
        client.headers["X-Service-Token"] = "t0ken-one"
        assert client.get("/api/queue/stats").status_code == 401
        assert "t0ken-" not in served.log
        served.kill()


def test_signals_in_any_number_are_harmless(tmp_path: Path) -> None:
    file = tmp_path / "q.env"
    file.write_text("QUEUE_RUNTIME_SLOTS=1\n")
    with Served(tmp_path, ENV_FILE=file) as served, served.client() as client:
        for slots in range(2, 60):
            file.write_text(f"QUEUE_RUNTIME_SLOTS={slots}\n")
            served.tell(signal.SIGHUP)
        (task,) = enqueue(client, "SleepWorker")
        wait_for("it is archived", lambda: archived(client, task), 10)
        wait_for("the last value is in force", lambda: _slots(client.get("/readyz?verbose=1").text) == 59, 10)
        served.tell_and_wait()


def _slots(text: str) -> int:
    return int(json.loads(text)["details"]["worker"]["slots"])


def test_processes_that_are_killed_and_started_again_enqueue_each_slot_once(tmp_path: Path) -> None:
    cron = tmp_path / "cron.toml"
    cron.write_text(TICK)
    serve = partial(Served, tmp_path, CRON_FILE=cron, SLOTS=50)
    with serve() as stays:
        stays.wait_for_event("listening")
        for _ in range(2):
            with serve() as served:
                served.wait_for_event("listening")
                seen = len(ticks(tmp_path))
                wait_for("both enqueue", lambda: len(ticks(tmp_path)) >= seen + 2, 10)  # noqa: B023  called here
                served.kill()
        seen = len(ticks(tmp_path))
        wait_for("one goes on", lambda: len(ticks(tmp_path)) >= seen + 2, 10)
        stays.tell_and_wait()
    slots = ticks(tmp_path)
    seconds = [int(datetime.fromisoformat(slot).timestamp()) for slot in slots]
    assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))
    assert len(seconds) > 60
    check_clean_log(stays)


def test_a_pipe_in_the_place_of_the_settings_holds_up_neither_the_work_nor_the_stop(tmp_path: Path) -> None:
    file = tmp_path / "q.env"
    file.write_text("QUEUE_RUNTIME_SLOTS=2\n")
    with Served(tmp_path, ENV_FILE=file) as served, served.client() as client:
        file.unlink()
        os.mkfifo(file)
        served.tell(signal.SIGHUP)
        (refused,) = wait_for("the refusal", lambda: served.events("reload refused: nothing has changed"), 10)
        assert "no regular file" in refused["problem"]
        (task,) = enqueue(client, "SleepWorker")
        wait_for("it is archived", lambda: archived(client, task), 10)
        served.tell_and_wait()

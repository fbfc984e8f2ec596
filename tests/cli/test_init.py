"""What must be there before the first start is made by one command, which may be run again."""

from pathlib import Path

import pytest

from tests.cli.commands import run


def test_on_sqlite_the_file_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "queue-runtime.sqlite"
    first, second = (run("init", folder=tmp_path) for _ in range(2))
    assert (first.returncode, first.stdout) == (0, f"ok       file: {file} is made\n")
    assert (second.returncode, second.stdout) == (0, f"ok       file: {file} was there\n")


def test_a_store_that_cannot_be_used_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    ended = run("init", folder=tmp_path, variables={"SQLITE_PATH": "missing/queue.sqlite"})
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("queue-runtime: the store cannot be used: QUEUE_RUNTIME_SQLITE_PATH: the folder ")


@pytest.mark.parametrize(("store", "setting"), [("mysql", "MYSQL_SOCKET"), ("redis", "REDIS_URL")])
def test_a_server_that_does_not_answer_is_told_in_words(tmp_path: Path, store: str, setting: str) -> None:
    where = f"{'unix://' if store == 'redis' else ''}{tmp_path}/none.sock"
    ended = run("init", folder=tmp_path, variables={"STORE": store, setting: where})
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "none.sock" in ended.stderr + ended.stdout

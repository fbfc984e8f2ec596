"""QUEUE_RUNTIME_ENV_FILE: settings in a file, under those that the process was started with."""

from pathlib import Path

import pytest

from queue_runtime.config import Reading, load_config, read_environment
from tests.cli.commands import invoke

NAME = "QUEUE_RUNTIME_ENV_FILE"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings.env"


def read(path: Path, text: str, **variables: str) -> Reading:
    path.write_text(text, "utf-8")
    return read_environment({NAME: str(path)} | variables)


def test_it_is_read_and_the_environment_wins(path: Path) -> None:
    text = "# ours\n\n QUEUE_RUNTIME_SLOTS = 8 \nQUEUE_RUNTIME_SWEEP_SECONDS=5\nQUEUE_RUNTIME_TOKEN=a=b # c\n"
    reading = read(path, text, QUEUE_RUNTIME_SLOTS="4")
    assert reading.config is not None
    assert (reading.config.slots, reading.config.sweep_seconds, reading.config.token) == (4, 5, "a=b # c")
    origins = {one.variable: (one.text, one.origin) for one in reading.effective}
    assert origins["QUEUE_RUNTIME_SLOTS"] == ("4", "QUEUE_RUNTIME_SLOTS")
    assert origins["QUEUE_RUNTIME_SWEEP_SECONDS"] == ("5", f"QUEUE_RUNTIME_SWEEP_SECONDS in {NAME}")
    assert origins["QUEUE_RUNTIME_TOKEN"][0] == "****"


def test_an_empty_value_is_an_unset_one_on_both_sides(path: Path) -> None:
    reading = read(path, "QUEUE_RUNTIME_SLOTS=8\nQUEUE_RUNTIME_TOKEN=\n", QUEUE_RUNTIME_SLOTS=" ")
    assert reading.config is not None
    assert (reading.config.slots, reading.config.token) == (8, "")


def test_old_names_and_files_of_secrets_work_in_it(path: Path) -> None:
    secret = path.with_name("token")
    secret.write_text("s3cret\n")
    reading = read(path, f"QUEUE_RUNTIME_TOKEN_FILE={secret}\nGORGE_WORKER_MAX_WORKERS=3\n")
    assert reading.config is not None
    assert (reading.config.token, reading.config.slots) == ("s3cret", 3)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("export QUEUE_RUNTIME_SLOTS=4", "must be NAME=value"),
        ("QUEUE_RUNTIME_SLOTS", "must be NAME=value"),
        ("=4", "must be NAME=value"),
        ("PATH=/bin", "PATH is no setting"),
        ('QUEUE_RUNTIME_SLOTS="4"', "QUEUE_RUNTIME_SLOTS: write the value without quotes"),
        (f"{NAME}=/other", "counts only where the process was started"),
        ("QUEUE_RUNTIME_SWEEP_SECONDS=9", "QUEUE_RUNTIME_SWEEP_SECONDS is set twice"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number(path: Path, line: str, fault: str) -> None:
    (problem,) = read(path, f"QUEUE_RUNTIME_SWEEP_SECONDS=5\n{line}\n").problems
    assert problem.startswith(f"{path}, line 2: ")
    assert fault in problem


def test_faults_of_lines_and_of_values_are_reported_together_without_showing_a_line(path: Path) -> None:
    problems = read(path, "export QUEUE_RUNTIME_TOKEN=s3cret\nQUEUE_RUNTIME_SLOTS=0\nQUEUE_RUNTIME_SLOT=1\n").problems
    assert len(problems) == 3
    assert "s3cret" not in "".join(problems)


def test_a_file_that_cannot_be_read_is_a_fault(path: Path) -> None:
    assert read_environment({NAME: str(path)}).problems == (f"{NAME}: cannot read {path}: No such file or directory",)
    path.write_bytes(b"\xff")
    assert "not UTF-8" in read_environment({NAME: str(path)}).problems[0]


def test_commands_read_it_too(path: Path) -> None:
    path.write_text("QUEUE_RUNTIME_SLOTS=8\n")
    assert f"QUEUE_RUNTIME_SLOTS in {NAME}" in invoke("config", **{NAME: str(path)}).stdout


def test_caps_are_read_whole_or_named() -> None:
    assert load_config({"QUEUE_RUNTIME_CLASS_CAPS": "A=1, B = 20"}).class_caps == {"A": 1, "B": 20}
    assert load_config({}).class_caps == {}
    for text in ("A", "A=0", "A=x", "=1", "A=1,A=2", "A=1=2"):
        (problem,) = read_environment({"QUEUE_RUNTIME_CLASS_CAPS": text}).problems
        assert problem.startswith("QUEUE_RUNTIME_CLASS_CAPS ")


def test_a_cap_for_a_class_without_a_handler_stops_the_start(path: Path) -> None:
    result = invoke("doctor", QUEUE_RUNTIME_CLASS_CAPS="NoSuchWorker=1", QUEUE_RUNTIME_LISTEN="127.0.0.1:0")
    assert "fault    handlers: QUEUE_RUNTIME_CLASS_CAPS names NoSuchWorker, without a handler" in result.stdout

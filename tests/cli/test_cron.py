"""`queue-runtime cron`, and what start and doctor say of the file of periodic work."""

from pathlib import Path

import pytest

from tests.cli.commands import invoke, run

FILE = """
[[task]]
name = "nightly"
class = "CleanWorker"
cron = "30 3 * * *"
timezone = "Europe/Berlin"
missed = "once"

[[task]]
name = "tick"
class = "TickWorker"
cron = "*/10 * * * * *"
"""
FAULTY = FILE.replace("30 3", "30 33").replace('"TickWorker"', '""')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cron.toml"
    path.write_text(FILE)
    return path


def test_each_entry_is_printed_with_its_next_three_slots(path: Path) -> None:
    result = invoke("cron", QUEUE_RUNTIME_CRON_FILE=str(path))
    assert result.exit_code == 0
    nightly, *slots, tick, _, _, last = result.stdout.splitlines()
    assert nightly == "nightly: CleanWorker at 30 3 * * * Europe/Berlin, missed slots: once"
    assert [slot.split()[2] for slot in slots] == ["03:30:00"] * 3
    assert all(slot.endswith((" CET", " CEST")) for slot in slots)
    assert tick == "tick: TickWorker at */10 * * * * * UTC, missed slots: skip"
    assert last.endswith("0 UTC")


def test_a_file_is_checked_before_it_is_put_in_place(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(FAULTY)
    result = invoke("cron", str(path))
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()[1:]
    assert first.startswith(f"  {path}: task 1 (nightly): cron: '30 33 * * *': bad hour")
    assert second.startswith(f"  {path}: task 2 (tick): class: must have 1 to 64 characters")


def test_nothing_to_do_is_said(tmp_path: Path) -> None:
    assert "QUEUE_RUNTIME_CRON_FILE is not set" in invoke("cron").stdout
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert "has no entries" in invoke("cron", str(empty)).stdout


def test_a_faulty_file_stops_the_start_and_leaves_no_new_file_behind(path: Path) -> None:
    path.write_text(FAULTY)
    ended = run("serve", folder=path.parent, variables={"CRON_FILE": str(path), "LISTEN": "127.0.0.1:0"})
    assert ended.returncode == 2
    assert f"QUEUE_RUNTIME_CRON_FILE: {path}: task 1 (nightly): cron:" in ended.stderr
    assert f"QUEUE_RUNTIME_CRON_FILE: {path}: task 2 (tick): class:" in ended.stderr
    assert [one.name for one in path.parent.iterdir()] == ["cron.toml"]


def test_a_file_that_is_not_there_is_a_fault_of_the_setting() -> None:
    result = invoke("config", QUEUE_RUNTIME_CRON_FILE="/no/such/file")
    assert result.exit_code == 2
    assert "QUEUE_RUNTIME_CRON_FILE must be a readable file: No such file" in result.stderr


def test_the_doctor_looks_into_the_file(path: Path) -> None:
    def told() -> list[str]:
        result = invoke("doctor", QUEUE_RUNTIME_CRON_FILE=str(path), QUEUE_RUNTIME_LISTEN="127.0.0.1:0")
        return [line for line in result.stdout.splitlines() if "periodic work" in line]

    assert told() == [f"ok       periodic work: {path} has 2 entries; `queue-runtime cron` says when they run"]
    path.write_text(FAULTY)
    start = f"fault    periodic work: QUEUE_RUNTIME_CRON_FILE: {path}: task "
    assert [line.startswith(start) for line in told()] == [True, True]


def test_without_the_role_that_enqueues_it_the_file_has_no_effect_and_that_is_said(path: Path) -> None:
    result = invoke("config", QUEUE_RUNTIME_CRON_FILE=str(path), QUEUE_RUNTIME_ROLES="api,worker")
    assert "without effect, because QUEUE_RUNTIME_ROLES has no sweep: QUEUE_RUNTIME_CRON_FILE" in result.stdout


def test_without_the_extra_the_message_says_how_to_get_it(path: Path) -> None:
    program = (
        "import sys, pathlib; sys.modules['cronsim'] = None\n"
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'cronsim' else find(name, *rest)\n"
        "from queue_runtime.cli.app import cli\n"
        f"cli(['cron', {str(path)!r}])"
    )
    ended = run("-c", program, folder=path.parent, python=True)
    assert ended.returncode == 2
    assert "pip install 'queue-runtime[cron]'" in ended.stderr
    assert "Traceback" not in ended.stderr

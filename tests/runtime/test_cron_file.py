"""The file of periodic work: what it may say, and that every fault is found and named."""

from pathlib import Path

import pytest

from queue_runtime.cron_file import CronEntry, Missed, read_cron_file
from queue_runtime.errors import ConfigError
from queue_runtime.task import NewTask


def read(folder: Path, text: str) -> tuple[CronEntry, ...]:
    path = folder / "cron.toml"
    path.write_text(text, "utf-8")
    return read_cron_file(path)


def problems(folder: Path, text: str) -> list[str]:
    """The faults, without the name of the file, which each must begin with."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    head = f"{folder / 'cron.toml'}: "
    assert all(one.startswith(head) for one in caught.value.problems)
    return [one.removeprefix(head) for one in caught.value.problems]


def entry(**fields: str) -> str:
    """An entry in order, but for these fields (TOML values; empty: left out)."""
    rows = {"name": '"nightly"', "class": '"CleanWorker"', "cron": '"0 3 * * *"'} | fields
    return "[[task]]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items() if value)


def test_an_entry_says_when_what_and_where(tmp_path: Path) -> None:
    text = """
        [[task]]
        name = "nightly"
        class = "CleanWorker"
        cron = "0 3 * * *"
        timezone = "Europe/Berlin"
        data = { keep = 30, "what" = ["logs", "später"] }
        queue = "low"
        priority = 5
        missed = "once"

        [[task]]
        name = "tick"
        class = "TickWorker"
        cron = "*/5 * * * *"
    """
    nightly, tick = read(tmp_path, text)
    assert nightly.task == NewTask(
        task_class="CleanWorker", data='{"keep":30,"what":["logs","später"]}', queue="low", priority=5
    )
    assert (nightly.missed, nightly.schedule.zone) == (Missed.ONCE, "Europe/Berlin")
    assert (tick.task, tick.missed, tick.schedule.zone) == (NewTask(task_class="TickWorker"), Missed.SKIP, "UTC")
    assert tick.key(1_700_000_100) == "cron:tick:2023-11-14T22:15:00Z"


def test_text_is_passed_on_as_it_is(tmp_path: Path) -> None:
    (one,) = read(tmp_path, entry(data="""'{"a" :  1}'"""))
    assert one.task.data == '{"a" :  1}'


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "task = []\n"])
def test_a_file_without_entries_is_no_fault(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": ""}, "name: is required"),
        ({"name": '""'}, "name: must have 1 to 64 letters"),
        ({"name": '"two words"'}, "name: must have 1 to 64 letters"),
        ({"name": "7"}, "name: must be text, not int"),
        ({"class": ""}, "class: is required"),
        ({"class": f'"{"X" * 65}"'}, "class: must have 1 to 64 characters, not 65"),
        ({"class": "7"}, "class: must be text"),
        ({"cron": ""}, "cron: is required"),
        ({"cron": '"0 25 * * *"'}, "cron: '0 25 * * *': bad hour"),
        ({"cron": "5"}, "cron: must be text, not 5"),
        ({"timezone": '"Europe/Berln"'}, "timezone: 'Europe/Berln' is no time zone"),
        ({"timezone": "1"}, "timezone: must be text"),
        ({"data": "5"}, "data: must be text, a table or an array, not 5"),
        ({"data": "{ at = 2026-01-01 }"}, "data: holds a date or a time"),
        ({"data": "[nan]"}, "data: holds a number that JSON has no form for"),
        ({"queue": '"a b"'}, "queue: must have 1 to 64 letters"),
        ({"priority": "-1"}, "priority: must be from 0"),
        ({"priority": "1.5"}, "priority: must be a whole number"),
        ({"priority": "true"}, "priority: must be a whole number"),
        ({"missed": '"all"'}, "missed: must be skip or once, not 'all'"),
        ({"missed": "[1]"}, "missed: must be skip or once"),
        ({"time_zone": '"UTC"'}, "time_zone: is not a field: did you mean timezone?"),
        ({"xyzzy": "1"}, "xyzzy: is not a field; there are name, class, cron"),
    ],
)
def test_a_fault_is_named_with_entry_and_field(tmp_path: Path, fields: dict[str, str], fault: str) -> None:
    (problem,) = problems(tmp_path, entry(**fields))
    title = "task 1 (nightly): " if "name" not in fields else "task 1"
    assert problem.startswith(title)
    assert fault in problem


def test_all_faults_are_found_together(tmp_path: Path) -> None:
    text = entry(cron='"x"', timezone='"y"', priority="-1", queue='"a b"') + entry(data="1") + "[other]\n"
    found = problems(tmp_path, text)
    assert [one.split(": ")[:2] for one in found] == [
        ["other", "is no table of this file, which has [[task]] only"],
        ["task 1 (nightly)", "timezone"],
        ["task 1 (nightly)", "cron"],
        ["task 1 (nightly)", "queue"],
        ["task 1 (nightly)", "priority"],
        ["task 2 (nightly)", "data"],
        ["task 2 (nightly)", "name"],
    ]
    assert found[-1] == "task 2 (nightly): name: task 1 has it already"


def test_what_is_no_such_file_is_one_fault(tmp_path: Path) -> None:
    assert problems(tmp_path, "[[task]\n")[0].startswith("is no TOML: ")
    assert problems(tmp_path, "task = 1\n") == ["task: must be written as [[task]], once for each entry"]
    assert problems(tmp_path, "task = [1]\n") == ["task: must be written as [[task]], once for each entry"]
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    for name, fault in (("latin.toml", "is not UTF-8 text"), ("none.toml", "cannot be read: No such file")):
        with pytest.raises(ConfigError, match=fault):
            read_cron_file(tmp_path / name)

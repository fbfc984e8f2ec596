"""Log lines: one an event, JSON where asked for, and never a secret in them."""

import json
import subprocess
import sys

PROGRAM = """
import logging, structlog
from queue_runtime import logs
logs.configure({form!r}, "info", ("s3cret",))
log = structlog.get_logger()
log.debug("not shown")
log.info("task ended", task_id=7, url="http://h/?token=s3cret", parts=["s3cret"])
logging.getLogger("some.library").warning("refused %s", "s3cret")
logging.getLogger("some.library").info("not shown either")
try:
    raise ValueError("bad s3cret")
except ValueError:
    log.exception("it broke")
"""


def lines(form: str) -> list[str]:
    """What a process of its own logs, because the set-up is for a whole process."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(form=form)], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == ""
    return ended.stderr.splitlines()


def test_json_is_one_object_a_line_for_our_lines_and_those_of_libraries() -> None:
    first, second, third = map(json.loads, lines("json"))
    assert (first["event"], first["level"], first["task_id"]) == ("task ended", "info", 7)
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("refused ****", "warning")
    assert "ValueError: bad ****" in third["exception"]


def test_a_secret_is_hidden_percent_encoded_too() -> None:
    program = PROGRAM.replace("?token=s3cret", "?x=s%33cret")
    ended = subprocess.run(
        [sys.executable, "-c", program.format(form="json")], capture_output=True, text=True, timeout=30, check=True
    )
    assert "s%33cret" not in ended.stderr


def test_no_form_of_the_log_shows_a_secret() -> None:
    for form in ("json", "console"):
        text = "\n".join(lines(form))
        assert "s3cret" not in text
        assert "not shown" not in text
        assert "****" in text


def test_level_and_secrets_change_while_everything_runs_for_loggers_that_are_in_use_too() -> None:
    program = (
        PROGRAM.format(form="json")
        + """
bound = log.bind(who="bound")
bound.debug("too early")
logs.adjust("debug", ["another"])
for one in (log, bound, structlog.get_logger()):
    one.debug("shown", secrets="s3cret another")
logging.getLogger("some.library").info("shown too")
logs.adjust("error", [])
bound.warning("too late")
logging.getLogger("some.library").warning("too late")
bound.error("last", secrets="s3cret another")
"""
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    events = [json.loads(line) for line in ended.stderr.splitlines()[3:]]
    assert [line["event"] for line in events] == ["shown", "shown", "shown", "shown too", "last"]
    assert {line["secrets"] for line in events if "secrets" in line} == {"**** ****"}


def test_a_log_that_cannot_be_written_costs_lines_and_nothing_else() -> None:
    program = PROGRAM.format(form="console") + "\nprint('still here')\n"
    with open("/dev/full", "w") as full:  # noqa: PTH123  a device
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True, timeout=30, check=False
        )
    assert ended.stdout == "still here\n"

"""Log lines: one an event, JSON where asked for, and never a secret in them."""

import json
import os
import subprocess
import sys

import pytest

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


SET_UP = """
import structlog
from queue_runtime import logs
logs.configure({form!r}, "info", {secrets!r})
log = structlog.get_logger()
"""
STRANGE = """
class Broken:
    def __str__(self): raise RuntimeError("no words")
    __repr__ = __str__

class Unsayable(Exception):
    def __str__(self): raise RuntimeError("no words")

for value in ("a\\udcffb", 10**40, -2**63, Broken(), [Broken()], {Broken(): 1}, b"\\xff", float("nan"), "\\x00\\n"):
    log.info("strange", value=value)
log.info("half \\udcff of a pair")
log.info("strange", **{"k\\udcff": 1})
try:
    raise Unsayable
except Unsayable:
    log.exception("it broke")
log.info("last")
"""


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("secrets", [(), ("s3cret-word",)])
def test_whatever_a_line_says_it_is_written_and_raises_nothing(form: str, secrets: tuple[str, ...]) -> None:
    program = SET_UP.format(form=form, secrets=secrets) + STRANGE
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=True)
    written = ended.stderr.decode().splitlines()
    if form == "json":
        events = [json.loads(line)["event"] for line in written]
        assert events == ["strange"] * 9 + ["half \\udcff of a pair", "strange", "it broke", "last"]
        assert json.loads(written[0])["value"] == "a\\udcffb"
    else:
        assert sum("[info] strange" in line for line in written) == 10
        assert written[-1].endswith("[info] last")


def test_a_reader_that_stands_still_costs_lines_and_is_told_how_many() -> None:
    program = (
        SET_UP.format(form="json", secrets=())
        + """
for number in range(3000):
    log.info("line", number=number, filling="x" * 200)
log.info("large", filling="y" * 300_000)
print("written", flush=True)
input()
log.info("again")
print("done", flush=True)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"written\n"  # it was not held up
        begun = b""
        os.set_blocking(process.stderr.fileno(), False)
        while piece := process.stderr.read(2**20):
            begun += piece
        os.set_blocking(process.stderr.fileno(), True)
        process.stdin.write(b"\n")
        process.stdin.flush()
        rest = process.stderr.read()
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in (begun + rest).splitlines()]
    numbers = [line["number"] for line in lines if line["event"] == "line"]
    assert numbers == list(range(len(numbers)))
    (lost,) = [line for line in lines if line["event"].startswith("log lines were lost")]
    assert len(numbers) + lost["lines"] == 3000 + 1
    assert [line["event"] for line in lines[-2:]] == [lost["event"], "again"]


def test_a_line_longer_than_the_pipe_reaches_a_reader_that_reads() -> None:
    program = (
        "from queue_runtime import quiet_file\nquiet_file.PATIENCE = 20\n"
        + SET_UP.format(form="json", secrets=())
        + 'log.info("large", filling="y" * 5_000_000)\nlog.info("last")\n'
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=True)
    large, last = map(json.loads, ended.stderr.splitlines())
    assert len(large["filling"]) == 5_000_000
    assert last["event"] == "last"


def test_the_end_of_the_process_waits_a_moment_for_its_last_lines() -> None:
    program = (
        "from queue_runtime import quiet_file\nquiet_file.LAST_SECONDS = 20\n"
        + SET_UP.format(form="json", secrets=())
        + 'for _ in range(10): log.info("large", filling="y" * 300_000)\nprint("written", flush=True)\n'
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"written\n"
        large, lost = map(json.loads, process.stderr.read().splitlines())
        assert process.wait(30) == 0
    assert (large["event"], len(large["filling"]), lost["lines"]) == ("large", 300_000, 9)


def test_lines_of_several_threads_are_whole() -> None:
    program = (
        SET_UP.format(form="json", secrets=())
        + """
from threading import Thread
def speak(name):
    for number in range(300):
        log.info("line", name=name, number=number, filling="x" * 5000)
threads = [Thread(target=speak, args=(name,)) for name in range(4)]
for one in threads: one.start()
for one in threads: one.join()
"""
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    said = [line for line in lines if line["event"] == "line"]
    lost = sum(line["lines"] for line in lines if line["event"] != "line")
    assert len(said) + lost <= 1200
    assert all(len(line["filling"]) == 5000 for line in said)

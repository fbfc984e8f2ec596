"""The extension for a stock Phorge, under real PHP: who may call it, what it runs, and what it answers."""

import json
import time
from pathlib import Path

import pytest
from msgspec import Raw

from conduit.phorge.stubs import stub_file
from conduit.replies import NO_TOKEN
from handlers.execution import PROBE, Terms, phase_call, plain_call, read_answer, read_terms
from handlers.followups import read_followups
from queue_runtime.task import Task
from tests.conduit.php import TOKEN, Php, versioned


@pytest.fixture
def php(tmp_path: Path) -> Php:
    return Php(tmp_path)


# ---- who may call


@pytest.mark.parametrize("sent", ["another", "", None, TOKEN + "x", TOKEN[:-1]])
def test_another_token_is_refused(php: Php, sent: str | None) -> None:
    php.token = sent
    reply = php.execute({})
    assert (reply.error_code, reply.error_info) == ("ERR-WORKER-AUTH", "A valid service token is required.")
    assert not reply.logged("RAN")


@pytest.mark.parametrize("sent", ["", None, "anything"])
@pytest.mark.parametrize("configured", [None, ""])
def test_nobody_may_call_while_no_token_is_set(php: Php, configured: str | None, sent: str | None) -> None:
    php.config["queue-runtime.token"] = configured
    php.token = sent
    assert php.execute({}).error_code == "ERR-WORKER-AUTH"
    reply = php.call(dict(PROBE))
    assert (reply.error_code, reply.error_info) == (
        "ERR-WORKER-AUTH",
        f"{NO_TOKEN}, so that nobody may call this.",
    )


def test_the_token_may_come_from_phps_environment(php: Php) -> None:
    php.config["queue-runtime.token"] = None
    php.environ["QUEUE_RUNTIME_CONDUIT_TOKEN"] = TOKEN
    assert php.execute({}).result["result"] == "success"
    php.config["queue-runtime.token"] = "the configuration comes first"
    assert php.execute({}).error_code == "ERR-WORKER-AUTH"


@pytest.mark.parametrize("sent", [TOKEN, TOKEN[::-1], "", "0"])
def test_the_token_is_compared_in_equal_time(php: Php, sent: str) -> None:
    php.token = sent
    assert php.execute({}).logged("COMPARED") == [""]


@pytest.mark.parametrize(("token", "sent"), [("0e1234", "0e5678"), ("1000", "1e3"), ("0", "0.0"), ("1", "01")])
def test_tokens_that_are_equal_as_numbers_are_not_equal(php: Php, token: str, sent: str) -> None:
    php.config["queue-runtime.token"] = token
    php.token = sent
    assert php.execute({}).error_code == "ERR-WORKER-AUTH"
    php.token = token
    assert php.execute({}).result["result"] == "success"


def test_the_page_of_the_method_tells_each_error_that_it_may_give(php: Php) -> None:
    assert php.console()["errors"]["worker.execute"] == {
        "ERR-WORKER-AUTH": "A valid service token is required.",
        "ERR-WORKER-CONTEXT": "A valid versioned execution context is required.",
        "ERR-WORKER-CLASS": "This task class may not be run here.",
        "ERR-WORKER-EXIT": "The worker ended PHP itself, by exit().",
        "ERR-NO-TASK-CLASS": "A task class is required.",
    }


def test_the_web_console_neither_shows_the_token_nor_changes_what_may_be_run(php: Php) -> None:
    shown = php.console()
    assert "worker.execute" not in shown["methods"]  # among those that are offered to everybody
    assert shown["options"]["queue-runtime.token"] == {"shown": False, "editable": False}
    assert shown["options"]["queue-runtime.classes"] == {"shown": True, "editable": False}


# ---- what may be run


def test_a_class_that_is_not_allowed_is_refused_before_it_is_looked_for(php: Php) -> None:
    php.config["queue-runtime.classes"] = ["SomeWorker", "OtherWorker"]
    reply = php.execute({})
    assert reply.error_code == "ERR-WORKER-CLASS"
    assert "ActingWorker" in (reply.error_info or "")
    assert php.call(versioned("{}", taskClass="NoSuchWorker", phase="prepare")).error_code == "ERR-WORKER-CLASS"


def test_an_allowed_class_is_run(php: Php) -> None:
    php.config["queue-runtime.classes"] = ["SomeWorker", "ActingWorker"]
    assert php.execute({}).result["result"] == "success"


def test_the_canary_does_nothing_well(php: Php) -> None:
    assert php.call(versioned("{}", taskClass="QueueRuntimeCanaryWorker")).result["result"] == "success"


def test_the_extensions_own_helper_is_no_task(php: Php) -> None:
    reply = php.call(versioned("{}", taskClass="QueueRuntimeFollowupReader"))
    assert reply.result["failureReason"] == "This class is not for tasks."


def test_what_is_no_worker_fails_for_good(php: Php) -> None:
    reply = php.call(versioned("{}", taskClass="NotAWorker"))
    assert reply.result["result"] == "permanent-failure"
    assert "does not extend" in reply.result["failureReason"]


@pytest.mark.parametrize("name", ["NoSuchWorker", "AbstractWorker"])
def test_a_class_that_cannot_be_made_fails_for_now_as_under_a_taskmaster(php: Php, name: str) -> None:
    """A deploy may be under way, or an extension not loaded yet."""
    for phase in ("prepare", "execute"):
        reply = php.call(versioned("{}", taskClass=name, phase=phase))
        assert (reply.result["result"], reply.result["retry"]) == ("failure", 300)
        assert name in reply.result["failureReason"]


# ---- the protocol


def test_it_says_what_it_can_do(php: Php) -> None:
    raw = Raw(json.dumps(php.call(dict(PROBE)).result).encode())
    assert read_terms(raw) == Terms(1, locks=True, keeps=True)


def test_it_tells_what_an_administrator_may_have_got_wrong_and_no_secret(php: Php) -> None:
    php.command += ["-d", "post_max_size=3M", "-d", "memory_limit=64M"]
    php.config |= {"storage.default-namespace": "other", "phd.taskmasters": 4, "queue-runtime.classes": ["A", "B"]}
    reply = php.call(dict(PROBE))
    facts = reply.result["facts"]
    assert TOKEN not in json.dumps(reply.result)
    assert facts.pop("php").startswith(("7.", "8.", "9."))
    assert facts == {
        "sapi": "cli",
        "tokenFrom": "option",
        "postMaxSize": "3M",
        "memoryLimit": "64M",
        "timeLimit": 0,
        "childrenUsedUp": None,
        "namespace": "other",
        "taskmasters": 4,
        "classes": ["A", "B"],
    }


def test_it_tells_that_the_token_comes_from_phps_environment(php: Php) -> None:
    php.config["queue-runtime.token"] = None
    php.environ["QUEUE_RUNTIME_CONDUIT_TOKEN"] = TOKEN
    assert php.call(dict(PROBE)).result["facts"]["tokenFrom"] == "server"
    # php-fpm has it in one of the two places only, which depends on where it was set
    elsewhere = Path(str(php.config["locks"])) / "elsewhere.php"
    elsewhere.write_text("<?php unset($_SERVER['QUEUE_RUNTIME_CONDUIT_TOKEN']);")
    php.load = [elsewhere, *php.load]
    assert php.call(dict(PROBE)).result["facts"]["tokenFrom"] == "environment"


def test_it_tells_a_time_limit_that_it_cannot_lift(php: Php) -> None:
    php.command += ["-d", "disable_functions=set_time_limit"]
    assert php.call(dict(PROBE)).result["facts"]["timeLimit"] == 30


def test_prepare_says_what_cannot_be_run(php: Php) -> None:
    assert php.call(versioned("{", phase="prepare")).result["result"] == "permanent-failure"
    assert php.call(versioned("{}", phase="prepare", taskClass="NotAWorker")).result["result"] == "permanent-failure"


def test_prepare_tells_the_lease_that_the_class_asks_for_and_runs_nothing(php: Php) -> None:
    reply = php.execute({"lease": 14400}, phase="prepare")
    assert reply.result == {"executionVersion": 1, "taskLock": True, "result": "prepared", "leaseDuration": 14400}
    assert php.execute({}, phase="prepare").result["leaseDuration"] is None
    assert php.execute({"lease": "broken"}, phase="prepare").result["result"] == "failure"
    assert not reply.logged("RAN")


@pytest.mark.parametrize(
    "wrong",
    [
        {"executionVersion": 2},
        {"executionVersion": "1"},
        {"phase": "undo"},
        {"phase": None},
        {"taskID": 0},
        {"taskID": "77"},
        {"failureCount": -1},
        {"failureCount": "0"},
        {"priority": None},
        {"leaseOwner": ""},
        {"leaseExpires": "soon"},
        {"data": {"a": 1}},
    ],
    ids=str,
)
def test_a_call_that_is_not_whole_is_refused(php: Php, wrong: dict[str, object]) -> None:
    reply = php.call(versioned("{}") | wrong)
    assert reply.error_code == "ERR-WORKER-CONTEXT"
    assert not reply.logged("RAN")


def test_the_least_numbers_there_may_be_are_taken(php: Php) -> None:
    assert php.execute({}, taskID=1, priority=0, failureCount=0).result["result"] == "success"


def test_a_call_without_a_class_is_refused(php: Php) -> None:
    assert php.call(versioned("{}", taskClass="")).error_code == "ERR-NO-TASK-CLASS"


def test_what_the_runtime_sends_is_understood(php: Php) -> None:
    task = _task()
    reply = php.call(phase_call("execute", task, 1))
    answer = read_answer(Raw(json.dumps(reply.result).encode()), Terms(1, locks=True))
    assert (answer.result, read_followups(answer)) == ("success", [])
    assert php.call(plain_call(task)).result["result"] == "success"


def test_the_first_releases_call_works_and_stores_follow_ups_itself(php: Php) -> None:
    data = json.dumps({"do": "stage", "children": [["OtherWorker", {"a": 1}], ["OtherWorker", {}, {"priority": 9}]]})
    reply = php.call({"taskID": 77, "taskClass": "ActingWorker", "data": data})
    assert reply.result["result"] == "success"
    assert "followups" not in reply.result
    assert "executionVersion" not in reply.result
    stored = [json.loads(line) for line in reply.logged("FLUSHED")]
    assert stored == [["OtherWorker", {"a": 1}, {"priority": 2000}], ["OtherWorker", [], {"priority": 9}]]


def test_what_the_first_releases_call_does_not_tell_is_as_a_taskmaster_has_it(php: Php) -> None:
    reply = php.call({"taskID": "77", "taskClass": "ActingWorker", "data": '{"do":"tell"}'})
    *told, expires, limit, ignored = reply.result["failureReason"].removeprefix("Exception: ").split()
    assert told == ["77", "ActingWorker", "0", "2000", "worker.execute"]
    assert 7000 < int(expires) - time.time() < 7400
    assert (limit, ignored) == ("0", "1")


# ---- data


@pytest.mark.parametrize("text", ["4711", '"text"', "null", "true", "[]", '{"a":[]}', "1.5"])
def test_data_of_every_json_type_reaches_the_worker(php: Php, text: str) -> None:
    """The data of a mail task is a bare number."""
    reply = php.call(versioned(text))
    assert reply.result["result"] == "success"
    assert reply.logged("RAN") == [text]


def test_data_that_is_no_json_fails_for_good(php: Php) -> None:
    for text in ("{", '{"a":"\\ud800"}'):
        reply = php.call(versioned(text))
        assert reply.result["result"] == "permanent-failure"
        assert "not valid JSON" in reply.result["failureReason"]


def test_a_missing_payload_is_null(php: Php) -> None:
    assert php.call(versioned("")).logged("RAN") == ["null"]


# ---- how runs end


def test_a_success_has_its_duration_in_microseconds(php: Php) -> None:
    result = php.execute({}).result
    assert result.keys() == {"executionVersion", "taskLock", "result", "duration", "followups"}
    assert type(result["duration"]) is int
    assert result["followups"] == []
    assert php.execute({"do": "take 20 ms"}).result["duration"] >= 20_000


def test_a_worker_sees_its_task_and_has_no_time_limit(php: Php) -> None:
    reply = php.execute({"do": "tell"}, failureCount=3, leaseExpires=5)
    assert reply.result["failureReason"] == "Exception: 77 ActingWorker 3 1500 qr:1 5 0 1"


def test_a_host_that_has_switched_off_the_time_limits_function_runs_tasks_all_the_same(php: Php) -> None:
    php.command += ["-d", "disable_functions=set_time_limit,ignore_user_abort"]
    assert php.execute({}).result["result"] == "success"


@pytest.mark.parametrize(("seconds", "told"), [(300, 300), (1, 5), (0, 5)])
def test_a_yield_is_at_least_five_seconds(php: Php, seconds: int, told: int) -> None:
    result = php.execute({"do": "yield", "seconds": seconds}).result
    assert (result["result"], result["retry"]) == ("yield", told)


def test_a_permanent_failure_has_its_reason(php: Php) -> None:
    result = php.execute({"do": "give up"}).result
    assert (result["result"], result["failureReason"]) == ("permanent-failure", "it cannot be done")


def test_a_task_that_failed_too_often_is_not_run(php: Php) -> None:
    """A maximum of one allows two runs, as under a taskmaster."""
    assert php.execute({"maximum": 1}, failureCount=1).result["result"] == "success"
    reply = php.execute({"maximum": 1}, failureCount=2)
    assert reply.result["result"] == "permanent-failure"
    assert not reply.logged("RAN")


def test_an_error_of_php_is_a_failure_and_its_trace_is_logged(php: Php) -> None:
    reply = php.execute({"do": "raise"})
    assert reply.result["result"] == "failure"
    assert reply.result["failureReason"].startswith("Error: ")
    assert reply.logged("LOG")


@pytest.mark.parametrize(
    ("wait", "told"), [(None, 300), (17, 17), (0, 0), ("by count", 30), ("by failure", 40), ("broken", 300)]
)
def test_a_failure_waits_as_its_class_says(php: Php, wait: object, told: int) -> None:
    """The class is asked with this failure counted already, and may look at it."""
    reply = php.execute({"do": "throw", "hex": "61", "wait": wait}, failureCount=2)
    assert (reply.result["result"], reply.result["retry"]) == ("failure", told)


def test_a_reason_that_is_not_utf8_is_made_so(php: Php) -> None:
    reply = php.execute({"do": "throw", "hex": "836583588367"})
    assert reply.result["result"] == "failure"
    assert "\ufffd" in reply.result["failureReason"]


BEFORE = "Exception: "


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"a" * 3989, "a" * 3989),  # 4,000 bytes with the class before it
        (b"a" * 3990, "a" * 3989),
        (b"a" + "ä".encode() * 5000, "a" + "ä" * 1994),
        ("ä".encode() * 5000, "ä" * 1994),
        ("漢".encode() * 5000, "漢" * 1329),
        ("😀".encode() * 5000, "😀" * 997),
        (b"\xff" * 5000, "\ufffd" * 1329),
        (b"\x80" * 1_000_000, "\ufffd" * 1329),
        (b"a" * 3987 + "ä".encode(), "a" * 3987 + "ä"),
        (b"a" * 3988 + "ä".encode(), "a" * 3988),
        (b"a" * 3986 + "😀".encode(), "a" * 3986),
    ],
    ids=["fits", "one more", "2 odd", "2", "3", "4", "bad", "much", "last fits", "last does not", "last of 4 does not"],
)
def test_a_reason_has_at_most_4000_bytes_and_ends_with_a_whole_character(php: Php, text: bytes, kept: str) -> None:
    reply = php.execute({"do": "throw", "hex": text.hex()})
    assert reply.result["failureReason"] == BEFORE + kept


@pytest.mark.parametrize("way", ["say", "flush", "buffer", "print 64 MiB"])
def test_what_a_worker_prints_does_not_spoil_the_reply(php: Php, way: str) -> None:
    assert php.execute({"do": way}).result["result"] == "success"


@pytest.mark.parametrize(("way", "told"), [("sticky buffer", None), ("sticky buffer and exit", "ERR-WORKER-EXIT")])
def test_a_buffer_that_cannot_be_ended_neither_stops_nor_spoils_the_reply(php: Php, way: str, told: str | None) -> None:
    """Phorge has something to say of it in its log."""
    out, _ = php.start(versioned(json.dumps({"do": way}))).communicate(timeout=30)
    assert out.startswith("{")
    assert json.loads(out)["error_code"] == told


def test_a_worker_that_ends_php_leaves_an_answer(php: Php) -> None:
    reply = php.execute({"do": "exit"})
    assert (reply.error_code, reply.result) == ("ERR-WORKER-EXIT", None)


def test_a_worker_cannot_save_the_task(php: Php) -> None:
    """The row is the runtime's."""
    live = int(time.time()) + 1000
    for expires, reason in ((live, "LiskEphemeralObjectException"), (1, "after lease expiration")):
        assert reason in php.execute({"do": "save"}, leaseExpires=expires).result["failureReason"]


def test_a_worker_that_asks_for_a_longer_lease_does_not_find_it_in_1970(php: Php) -> None:
    """It is not granted either; `prepare` is there for that."""
    reply = php.execute({"do": "extend"}, leaseExpires=int(time.time()) + 1000)
    left = int(reply.result["failureReason"].removeprefix("Exception: it has "))
    assert 30 < left <= 60


def test_a_worker_may_write_without_a_form(php: Php) -> None:
    assert php.execute({"do": "write"}).result["result"] == "success"


def test_the_queries_of_a_long_run_are_not_kept_in_memory(php: Php) -> None:
    """The call itself and its lock are."""
    assert php.execute({"do": "query"}).result["failureReason"] == "Exception: kept 2"


def test_a_fatal_error_is_phorges_to_tell(php: Php) -> None:
    out, _ = php.start(versioned('{"do":"exhaust"}')).communicate(timeout=30)
    assert out.startswith(">>> UNRECOVERABLE FATAL ERROR <<<")
    assert "error_code" not in out


# ---- follow-ups


def test_follow_ups_are_handed_over_and_not_stored_here(php: Php) -> None:
    children = [
        ["ChildWorker", {"map": {}, "list": [1, 2], "float": 1.5}],
        ["ChildWorker", {}, {"priority": 4000, "objectPHID": "PHID-O", "containerPHID": "PHID-C", "delayUntil": 9}],
        ["ChildWorker", {}, {"priority": None}],
    ]
    reply = php.execute({"do": "stage", "children": children})
    assert not reply.logged("FLUSHED")
    answer = read_answer(Raw(json.dumps(reply.result).encode()), Terms(1, locks=True))
    first, second, third = read_followups(answer)
    assert (first.task_class, first.data, first.priority) == (
        "ChildWorker",
        '{"map":[],"list":[1,2],"float":1.5}',
        1500,  # the parent's
    )
    assert (second.data, second.priority, second.object_phid) == ("[]", 4000, "PHID-O")
    assert (second.container_phid, second.delay_until) == ("PHID-C", 9)
    assert third.priority == 2000


@pytest.mark.parametrize(("priority", "read"), [(1500.5, 1501), ("7", 7), ("7.2", 7), (True, 1)])
def test_options_of_follow_ups_are_read_as_the_database_would(php: Php, priority: object, read: int) -> None:
    options = {"priority": priority, "objectPHID": False, "containerPHID": "", "delayUntil": 1796047200.5}
    reply = php.execute({"do": "stage", "children": [["A", {}, options], ["A", {}, {"objectPHID": 5}]]})
    child, other = read_followups(read_answer(Raw(json.dumps(reply.result).encode()), Terms(1, locks=True)))
    assert (child.priority, child.object_phid, child.container_phid) == (read, None, None)
    assert (child.delay_until, other.delay_until, other.object_phid) == (1796047201, None, "5")


def test_follow_ups_that_cannot_be_told_do_not_have_the_work_done_again(php: Php) -> None:
    for way in ("stage rubbish", "stage a rubbish id"):
        reply = php.execute({"do": way})
        assert reply.result["result"] == "permanent-failure"
        assert "follow-up tasks were lost" in reply.result["failureReason"]


# ---- the lock


def test_a_task_is_locked_under_the_name_that_the_documents_tell(php: Php, tmp_path: Path) -> None:
    php.execute({}, taskID=4711)
    assert [path.name for path in tmp_path.iterdir()] == ["queue-runtime.task.4711"]


def test_a_second_call_for_a_task_that_runs_is_told_that_it_is_busy(php: Php, tmp_path: Path) -> None:
    sign = tmp_path / "go-on"
    first = php.start(versioned(json.dumps({"do": "wait for", "file": str(sign)})))
    try:
        assert first.stderr is not None
        while not (line := first.stderr.readline()).startswith("RAN"):
            assert line
        second = php.execute({})
        plain = php.call({"taskID": 77, "taskClass": "ActingWorker", "data": "{}"})
        another = php.execute({}, taskID=78)
        prepared = php.execute({}, phase="prepare")
    finally:
        sign.touch()
        end = php.finish(first)
    assert second.result == {"executionVersion": 1, "taskLock": True, "result": "busy"}
    assert not second.logged("RAN")
    assert plain.result == {"result": "yield", "retry": 60}  # the first release knows no other word for it
    assert another.result["result"] == "success"
    assert prepared.result["result"] == "prepared"
    assert end.result["result"] == "success"
    assert php.execute({}).result["result"] == "success"


def test_a_task_that_cannot_be_locked_is_not_run(php: Php) -> None:
    """Phorge has no connection left, say. Nothing ran, so it is no failure."""
    php.config["locks"] = "/a/folder/that/is/not/there"
    reply = php.execute({})
    assert reply.result == {"executionVersion": 1, "taskLock": True, "result": "busy", "retry": 15}
    assert not reply.logged("RAN")
    assert reply.logged("LOG")


# ---- beside others


def test_beside_another_class_of_that_name_it_steps_aside(php: Php) -> None:
    """Two of one name would stop all of Conduit."""
    assert php.methods() == ["worker.execute"]
    rival = Path(__file__).parent / "php" / "rival.php"
    mine = list(php.load)
    for order in ([*mine, rival], [rival, *mine]):
        php.load = order
        assert set(php.methods()) == {"worker.execute", "worker.execute.queue-runtime"}
        assert php.call({}).result == "the rival ran it"


def test_a_second_copy_of_the_file_does_no_harm(php: Php, tmp_path: Path) -> None:
    copy = tmp_path / "copy.php"
    copy.write_bytes(php.load[0].read_bytes())
    php.load = [*php.load, copy]
    assert php.methods() == ["worker.execute"]
    assert php.execute({}).result["result"] == "success"


def test_a_stub_gives_its_task_back(php: Php, tmp_path: Path) -> None:
    """A native taskmaster may have taken it. The work is done elsewhere, and no failure is counted."""
    stubs = tmp_path / "stubs.php"
    stubs.write_bytes(stub_file(["OnlyInPython"]))
    php.load = [*php.load, stubs]
    reply = php.call(versioned("{}", taskClass="OnlyInPython"))
    assert (reply.result["result"], reply.result["retry"]) == ("yield", 60)


def _task() -> Task:
    return Task(
        id=77,
        task_class="ActingWorker",
        data_id=1,
        data="{}",
        lease_owner="qr:1:1:1@here",
        lease_expires=1,
        priority=2000,
        date_created=1,
        date_modified=1,
    )

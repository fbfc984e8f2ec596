"""What the doctor finds by asking Phorge: each thing that an administrator gets wrong, and its fix in one sentence."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from handlers import phorge_doctor
from handlers.phorge_doctor import LARGE, Asked, examine, examine_gateway
from queue_runtime.findings import Finding, Level
from tests.conduit import stub
from tests.conduit.php import TOKEN, Php, served
from tests.conduit.stub import Call, Http, StubPhp, error, page

OK, NOTE, WARNING, FAULT = Level.OK, Level.NOTE, Level.WARNING, Level.FAULT

FACTS: dict[str, Any] = {
    "php": "8.2.36",
    "sapi": "fpm-fcgi",
    "tokenFrom": "option",
    "postMaxSize": "32M",
    "memoryLimit": "-1",
    "timeLimit": 0,
    "childrenUsedUp": 0,
    "namespace": "phabricator",
    "taskmasters": 0,
    "classes": ["*"],
}

Answer = Callable[[Call], Awaitable[Http]]


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        stubbed.locks = True
        stubbed.facts = dict(FACTS)
        yield stubbed


async def findings(php: StubPhp, *, children_known: bool = True, **asked: Any) -> list[Finding]:
    settings = {"token": stub.TOKEN, "host": stub.HOST, "namespace": "phabricator"} | asked
    return await examine(Asked(url=php.url, **settings), children_known=children_known)


async def found(php: StubPhp, **asked: Any) -> dict[str, tuple[Level, str]]:
    """Level and sentence by subject."""
    return {one.subject: (one.level, one.sentence) for one in await findings(php, **asked)}


def instead(php: StubPhp, which: Callable[[Call], bool], reply: Http) -> None:
    """Answer some calls so, and the others as before."""
    usual = php.answer

    async def answer(call: Call) -> Http:
        return reply if which(call) else await usual(call)

    php.answer = answer  # type: ignore[method-assign]  # a Phorge of which one thing is wrong


# ---- in order


async def test_a_phorge_in_order_is_all_right_and_no_task_is_run(php: StubPhp) -> None:
    lines = await found(php)
    assert {subject: level for subject, (level, _) in lines.items()} == dict.fromkeys(
        ("conduit", "access", "payloads", "php"), OK
    )
    assert "8.2.36" in lines["php"][1]
    assert (php.runs, {call.phase for call in php.calls}) == ([], {"capabilities"})


async def test_a_method_that_tells_nothing_of_itself_and_does_not_lock_is_the_forks(php: StubPhp) -> None:
    php.locks, php.facts = False, None
    lines = await found(php)
    assert {level for level, _ in lines.values()} == {OK}
    assert "does not lock" in lines["conduit"][1]


@pytest.mark.parametrize("facts", [{"php": 8}, {"sapi": "fpm-fcgi"}, FACTS | {"classes": "*"}])
async def test_facts_that_are_not_understood_are_passed_over(php: StubPhp, facts: dict[str, Any]) -> None:
    php.facts = facts
    assert {level for level, _ in (await found(php)).values()} == {OK}


# ---- the first call

WRONG = {
    "host": (stub.SITE_NOT_FOUND, "CONDUIT_HOST"),
    "allowed-uris": (stub.SITE_NOT_FOUND, "replaces the whole list"),
    "set-up": (stub.SETUP_ERROR, "in a browser"),
    "method": (stub.NO_METHOD, "queue-runtime phorge install DIR"),
    "token": (stub.BAD_TOKEN, "the same token"),
    "clear_env": (error("ERR-WORKER-AUTH", "No service token is set, so that nobody may call this."), "clear_env"),
    "https": (stub.HTTPS_ONLY, "CONDUIT_URL"),
    "syntax": (stub.PARSE_ERROR, "syntax error"),
    "other site": (page(404, "Not Found"), "CONDUIT_URL"),
    "two methods": (error("ERR-CONDUIT-CORE", 'Two objects returned the same key ("worker.execute")'), "remove one"),
    "too many calls": (Http(429, b"slow down"), "CONDUIT_URL"),
    "cut off": (stub.PHP_CUT_OFF, "logs"),
    "exit": (stub.EXIT, "logs"),
    "hang up": (stub.HANG_UP, "logs"),
    "fatal": (stub.FATAL, "log"),
    "nonsense": (Http(200, b"[1]"), "log"),
    "another protocol": (stub.result({"result": "capabilities", "executionVersion": 9}), "version 9"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_phorge_that_does_not_answer_is_a_fault_with_its_fix_and_the_end(php: StubPhp, case: str) -> None:
    reply, words = WRONG[case]
    php.broken = reply
    ((subject, (level, sentence)),) = (await found(php)).items()
    assert (subject, level) == ("conduit", FAULT)
    assert words in sentence
    assert stub.TOKEN not in sentence
    assert len(php.calls) == 1


async def test_nobody_there_is_a_fault(php: StubPhp) -> None:
    gone = StubPhp()
    async with gone.listening():
        pass
    level, sentence = (await found(gone))["conduit"]
    assert level is FAULT
    assert "CONDUIT_URL" in sentence


async def test_a_file_of_authorities_that_is_none_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    asked = Asked(url="https://phorge.test", tls_ca=file)
    assert [(one.level, "CONDUIT_TLS_CA" in one.sentence) for one in await examine(asked)] == [(FAULT, True)]
    assert "CONDUIT_TLS_CA" in (await examine_gateway(asked)).sentence


@pytest.mark.parametrize(("host", "warned"), [("phorge", True), ("phorge.test", False), ("[::1]:80", False)])
async def test_a_host_without_a_dot_is_a_warning(php: StubPhp, host: str, warned: bool) -> None:
    assert ("host" in await found(php, host=host)) is warned
    php.broken = stub.SETUP_ERROR
    assert ("host" in await found(php, host=host)) is warned


# ---- who else may call


async def test_a_method_that_does_not_ask_for_the_token_is_a_fault(php: StubPhp) -> None:
    php.guarded = False
    level, sentence = (await found(php))["access"]
    assert level is FAULT
    assert "without a token" in sentence


async def test_a_method_that_takes_every_token_is_a_fault(php: StubPhp) -> None:
    php.guarded = False
    instead(php, lambda call: "x-service-token" not in call.headers, stub.BAD_TOKEN)
    level, sentence = (await found(php))["access"]
    assert level is FAULT
    assert "with a wrong token" in sentence


async def test_the_first_releases_method_is_a_warning_and_an_open_door(php: StubPhp) -> None:
    php.version = 0
    lines = await found(php)
    assert (lines["conduit"][0], lines["access"][0], lines["payloads"][0]) == (WARNING, FAULT, OK)


@pytest.mark.parametrize("code", ["ERR-WORKER-CONTEXT", "ERR-NO-TASK-CLASS"])
async def test_a_refusal_for_another_reason_than_the_token_is_an_open_door(php: StubPhp, code: str) -> None:
    instead(php, lambda call: call.headers.get("x-service-token") != stub.TOKEN, error(code, "x"))
    assert (await found(php))["access"][0] is FAULT


@pytest.mark.parametrize("reply", [stub.FATAL, stub.NGINX_TIMEOUT, Http(429), page(403, "Forbidden")])
async def test_who_cannot_be_told_whether_strangers_are_refused_is_warned(php: StubPhp, reply: Http) -> None:
    instead(php, lambda call: call.headers.get("x-service-token") != stub.TOKEN, reply)
    assert (await found(php))["access"][0] is WARNING


async def test_a_gateway_that_refuses_strangers_will_do(php: StubPhp) -> None:
    refusal = Http(401, b'{"result":null,"error_code":"ERR-CONDUIT-AUTH","error_info":"x"}')
    instead(php, lambda call: call.headers.get("x-service-token") != stub.TOKEN, refusal)
    assert (await found(php))["access"][0] is OK


# ---- what gets through


@pytest.mark.parametrize(
    "reply",
    [
        page(413, "413 Request Entity Too Large"),
        Http(500, b">>> UNRECOVERABLE FATAL ERROR <<<\n\nIt exceeds the 'post_max_size'"),
        error("ERR-NO-TASK-CLASS", "A task class is required."),
        stub.HANG_UP,
        stub.PHP_CUT_OFF,
    ],
)
async def test_a_large_payload_that_does_not_get_through_is_a_warning(php: StubPhp, reply: Http) -> None:
    instead(php, lambda call: len(str(call.params.get("data"))) >= LARGE, reply)
    level, sentence = (await found(php))["payloads"]
    assert level is WARNING
    assert "post_max_size of PHP" in sentence
    assert "client_max_body_size" in sentence


# ---- what the extension tells


@pytest.mark.parametrize(
    ("fact", "value", "subject", "level", "words"),
    [
        ("memoryLimit", "128M", "memory", WARNING, "php_admin_value"),
        ("timeLimit", 30, "time limit", WARNING, "30 s"),
        ("namespace", "phorge", "namespace", FAULT, "QUEUE_RUNTIME_NAMESPACE to phorge"),
        ("taskmasters", 4, "taskmasters", NOTE, "--keep-leases"),
        ("classes", ["A", "B"], "classes", WARNING, "queue-runtime.classes"),
        ("childrenUsedUp", 12, "children", WARNING, "pm.max_children"),
    ],
)
async def test_a_fact_that_does_harm_is_named_with_its_fix(
    php: StubPhp, fact: str, value: object, *, subject: str, level: Level, words: str
) -> None:
    php.facts = FACTS | {fact: value}
    lines = await found(php)
    assert lines[subject][0] is level
    assert words in lines[subject][1]
    assert {one for one, (how, _) in lines.items() if how is not OK} == {subject}


async def test_where_the_queue_is_not_in_phorges_tables_its_taskmasters_and_namespace_do_not_matter(
    php: StubPhp,
) -> None:
    php.facts = FACTS | {"namespace": "phorge", "taskmasters": 4}
    assert {level for level, _ in (await found(php, namespace=None)).values()} == {OK}


async def test_classes_that_both_sides_name_are_all_right(php: StubPhp) -> None:
    php.facts = FACTS | {"classes": ["A", "B"]}
    assert "classes" not in await found(php, patterns=("A", "B"))
    assert "C*" in (await found(php, patterns=("A", "C*")))["classes"][1]


@pytest.mark.parametrize(
    ("facts", "known", "hinted"),
    [(FACTS, False, True), (None, False, True), (FACTS | {"sapi": "cli-server"}, False, False), (FACTS, True, False)],
)
async def test_the_number_of_children_is_hinted_at_only_where_it_can_matter(
    php: StubPhp, facts: dict[str, Any] | None, known: bool, hinted: bool
) -> None:
    php.facts = facts
    assert ("children" in await found(php, children_known=known)) is hinted


# ---- the gateway


async def test_the_phorge_behind_the_gateway_is_pinged(php: StubPhp) -> None:
    asked = Asked(url=php.url, host=stub.HOST)
    assert (await examine_gateway(asked)).level is OK
    assert [call.method for call in php.calls] == ["conduit.ping"]
    php.broken = stub.SITE_NOT_FOUND
    answer = await examine_gateway(asked)
    assert (answer.level, "Site Not Found" in answer.sentence) == (FAULT, True)


# ---- real PHP


async def examine_real(php: Php, folder: Path, token: str = TOKEN) -> dict[str, tuple[Level, str]]:
    async with served(php, folder) as url:
        asked = Asked(url=url, token=token, host="phorge.test", namespace="phabricator")
        return {one.subject: (one.level, one.sentence) for one in await examine(asked)}


async def test_under_real_php_a_phorge_in_order_is_all_right(tmp_path: Path) -> None:
    php = Php(tmp_path)
    php.command += ["-d", "post_max_size=40M", "-d", "memory_limit=-1"]
    php.config["phd.taskmasters"] = 0
    lines = await examine_real(php, tmp_path)
    assert {subject: level for subject, (level, _) in lines.items()} == dict.fromkeys(
        ("conduit", "access", "payloads", "php"), OK
    )
    assert "cli-server" in lines["php"][1]


async def test_under_real_php_an_unset_token_names_the_pools_setting(tmp_path: Path) -> None:
    php = Php(tmp_path)
    php.config["queue-runtime.token"] = None
    ((_, (level, sentence)),) = (await examine_real(php, tmp_path)).items()
    assert level is FAULT
    assert "clear_env" in sentence


async def test_under_real_php_another_token_is_told_from_an_unset_one(tmp_path: Path) -> None:
    ((_, (level, sentence)),) = (await examine_real(Php(tmp_path), tmp_path, token="another")).items()
    assert level is FAULT
    assert "the same token" in sentence
    assert "another" not in sentence


async def test_under_real_php_a_form_that_php_throws_away_is_a_warning(tmp_path: Path) -> None:
    php = Php(tmp_path)
    php.command += ["-d", "post_max_size=8M"]
    level, sentence = (await examine_real(php, tmp_path))["payloads"]
    assert level is WARNING
    assert "post_max_size" in sentence


def test_the_large_payload_is_above_what_php_and_nginx_take_by_default() -> None:
    assert phorge_doctor.LARGE > 8 * 2**20

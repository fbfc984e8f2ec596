"""What the doctor reads in Phorge's configuration and in php-fpm's pools."""

import json
from pathlib import Path
from typing import Any

import pytest

from conduit.phorge.checkout import Checkout
from handlers.phorge_doctor import Asked
from handlers.phorge_files import examine_checkout, examine_pool
from queue_runtime.findings import Finding, Level

OK, NOTE, WARNING, FAULT = Level.OK, Level.NOTE, Level.WARNING, Level.FAULT

TOKEN = "the-token-of-both"
ASKED = Asked(url="http://phorge", token=TOKEN, host="phorge.example", concurrency=4, namespace="phabricator")
BASE = {"phabricator.base-uri": "https://phorge.example/"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with what makes a Phorge recognisable."""
    for name in ("src/__phutil_library_map__.php", "src/extensions/README", "bin/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def configured(root: Path, asked: Asked = ASKED) -> list[Finding]:
    return list(examine_checkout(Checkout(root), asked))


def write(root: Path, config: object) -> None:
    file = root / "conf" / "local" / "local.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(config if isinstance(config, str) else json.dumps(config))


def look(root: Path, config: object, asked: Asked = ASKED) -> dict[str, tuple[Level, str]]:
    write(root, config)
    return {one.subject: (one.level, one.sentence) for one in configured(root, asked)}


def test_a_configuration_in_order_is_all_right(root: Path) -> None:
    lines = look(root, BASE | {"queue-runtime.token": TOKEN, "phd.taskmasters": 0, "queue-runtime.classes": ["*"]})
    assert {subject: level for subject, (level, _) in lines.items()} == {"host": OK, "token": OK}


def test_a_host_that_phorge_does_not_serve_is_a_fault_and_the_list_is_merged(root: Path) -> None:
    config = {"phabricator.base-uri": "https://base.example/", "phabricator.allowed-uris": ["https://old.example/"]}
    level, sentence = look(root, config)["host"]
    assert level is FAULT
    assert "CONDUIT_HOST to base.example" in sentence
    assert """allowed-uris '["https://old.example/", "https://phorge.example/"]'""" in sentence


@pytest.mark.parametrize("host", ["OLD.example", "old.example:8080", "phorge.example"])
def test_a_host_of_either_list_is_served_whatever_its_port(root: Path, host: str) -> None:
    config = BASE | {"phabricator.allowed-uris": ["https://old.example/", 7]}
    assert look(root, config, Asked(url="http://x", host=host))["host"][0] is OK


@pytest.mark.parametrize(
    ("config", "subject", "level", "words"),
    [
        ({}, "host", NOTE, "phabricator.base-uri"),
        ([], "host", NOTE, "phabricator.base-uri"),
        ("no json", "configuration", NOTE, "cannot be read"),
        (BASE | {"security.require-https": True}, "https", WARNING, "https address"),
        (BASE | {"queue-runtime.token": "another one"}, "token", FAULT, "QUEUE_RUNTIME_CONDUIT_TOKEN"),
        (BASE | {"storage.default-namespace": "phorge"}, "namespace", FAULT, "QUEUE_RUNTIME_NAMESPACE to phorge"),
        (BASE | {"phd.taskmasters": 4}, "taskmasters", NOTE, "--keep-leases"),
        (BASE | {"queue-runtime.classes": ["A"]}, "classes", WARNING, "the same"),
    ],
)
def test_what_does_harm_is_named_with_its_fix(
    root: Path, config: object, subject: str, level: Level, words: str
) -> None:
    lines = look(root, config)
    assert lines[subject][0] is level
    assert words in lines[subject][1]
    assert {one for one, (how, _) in lines.items() if how is not OK} == {subject}
    assert "another one" not in lines[subject][1].replace("another one than", "")


def test_where_the_queue_is_elsewhere_namespace_and_taskmasters_do_not_matter(root: Path) -> None:
    config = BASE | {"storage.default-namespace": "phorge", "phd.taskmasters": 4}
    assert set(look(root, config, Asked(url="http://x", host="phorge.example"))) == {"host"}


# ---- pools


def pool(folder: Path, text: str, **changed: Any) -> list[tuple[Level, str]]:
    file = folder / "www.conf"
    file.write_text(text)
    asked = Asked(url="http://phorge", token=TOKEN, **{"concurrency": 4, **changed})
    return [(one.level, one.sentence) for one in examine_pool(file, asked)]


GOOD = f"""
; a comment
[global]
error_log = /var/log/fpm.log
[www]
user = www-data
listen = /run/php/php8.2-fpm.sock
pm = dynamic
pm.max_children = 20 ; enough
;request_terminate_timeout = 10
env[PATH] = /usr/bin:/bin
env[QUEUE_RUNTIME_CONDUIT_TOKEN] = "{TOKEN}"
php_admin_value[error_log] = /var/log/php.log
"""


def test_a_pool_in_order_is_all_right(tmp_path: Path) -> None:
    assert [level for level, _ in pool(tmp_path, GOOD)] == [OK, OK]


@pytest.mark.parametrize(("children", "level"), [("4", FAULT), ("3", FAULT), ("7", WARNING), ("8", OK), ("x", FAULT)])
def test_children_must_be_left_for_people(tmp_path: Path, children: str, level: Level) -> None:
    text = GOOD.replace("pm.max_children = 20 ; enough", f"pm.max_children = {children}")
    found = pool(tmp_path, text)[0]
    assert found[0] is level
    assert "CONDUIT_CONCURRENCY" in found[1]


@pytest.mark.parametrize(
    ("line", "level", "words"),
    [
        ("request_terminate_timeout = 30s", WARNING, "30 s"),
        ("request_terminate_timeout = 5m", WARNING, "300 s"),
        ("request_terminate_timeout = 1d", None, ""),
        ("request_terminate_timeout = 0", None, ""),
        ("php_admin_value[memory_limit] = 128M", WARNING, "memory_limit"),
        ("php_admin_value[max_execution_time] = 60", WARNING, "max_execution_time"),
    ],
)
def test_a_limit_that_no_code_can_lift_is_a_warning(tmp_path: Path, line: str, level: Level | None, words: str) -> None:
    found = [one for one in pool(tmp_path, GOOD + line) if one[0] is not OK]
    assert [one[0] for one in found] == ([] if level is None else [level])
    assert all(words in sentence for _, sentence in found)


@pytest.mark.parametrize(
    ("lines", "level", "words"),
    [
        ("", NOTE, "clear_env"),
        ("clear_env = yes", NOTE, "clear_env"),
        ("clear_env = no", None, ""),
        ("env[QUEUE_RUNTIME_CONDUIT_TOKEN] = $TOKEN_OF_THE_QUEUE", NOTE, "$TOKEN_OF_THE_QUEUE"),
        ("env[QUEUE_RUNTIME_CONDUIT_TOKEN] = quite-another", FAULT, "set QUEUE_RUNTIME_CONDUIT_TOKEN here"),
    ],
)
def test_a_token_that_does_not_reach_php_is_named(tmp_path: Path, lines: str, level: Level | None, words: str) -> None:
    found = pool(tmp_path, f"[www]\n{lines}\n")
    assert [one[0] for one in found] == ([] if level is None else [level])
    assert all(words in sentence and "quite-another" not in sentence for _, sentence in found)


@pytest.mark.parametrize("text", ["no section\n", "", "[global]\npid = x\n", "\x00\xff"])
def test_another_file_is_a_fault(tmp_path: Path, text: str) -> None:
    assert [level for level, _ in pool(tmp_path, text)] == [FAULT]


def test_each_pool_of_a_file_is_looked_at(tmp_path: Path) -> None:
    text = "[one]\npm.max_children = 4\n[two]\npm.max_children = 40\n"
    assert [level for level, _ in pool(tmp_path, text)] == [FAULT, NOTE, OK, NOTE]

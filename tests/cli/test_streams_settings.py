"""Settings of the streams store: its own, its record's and the address of its Redis."""

from pathlib import Path

import pytest

from queue_runtime.config import load_config, read_environment
from queue_runtime.errors import ConfigError

PREFIX = "QUEUE_RUNTIME_"


def settings(**variables: str) -> dict[str, str]:
    return {PREFIX + name: text for name, text in ({"STORE": "streams"} | variables).items()}


def problems(**variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(settings(**variables))
    return "\n".join(caught.value.problems)


def test_the_record_is_mysql_unless_it_is_said() -> None:
    config = load_config(settings())
    assert (config.store, config.record, config.retention_days) == ("streams", "mysql", None)
    assert (config.streams_prefix, config.streams_group) == ("queue-runtime-streams", "queue-runtime")
    assert (config.queue_policy, config.block_seconds, config.queues) == ("strict", 5.0, None)
    assert load_config(settings(RECORD="SQLite")).retention_days == 14


def test_settings_of_the_record_and_the_address_of_redis_count() -> None:
    config = load_config(settings(MYSQL_HOST="db", REDIS_URL="redis://r:1/2", QUEUES="low, high"))
    assert (config.mysql_host, config.redis_url, config.queues) == ("db", "redis://r:1/2", ("low", "high"))
    assert str(load_config(settings(RECORD="sqlite", SQLITE_PATH="x")).sqlite_path) == "x"


def test_a_setting_of_another_record_tells_how_to_choose_that_record() -> None:
    told = problems(SQLITE_PATH="x")
    assert "set QUEUE_RUNTIME_RECORD=sqlite, or remove QUEUE_RUNTIME_SQLITE_PATH" in told
    assert "STORE=sqlite" not in told
    assert "set QUEUE_RUNTIME_RECORD=mysql, or remove" in problems(RECORD="sqlite", MYSQL_HOST="db")
    assert "set QUEUE_RUNTIME_STORE=redis, or remove" in problems(REDIS_PREFIX="x")


def test_the_password_of_redis_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:pw@r:1/2\n")
    assert load_config(settings(REDIS_URL_FILE=str(tmp_path / "url"))).redis_url == "redis://:pw@r:1/2"


def test_settings_of_other_stores_are_refused_with_the_record_in_mind() -> None:
    assert "but the store is streams over mysql" in problems(SQLITE_PATH="x")
    assert "but the store is streams over sqlite" in problems(RECORD="sqlite", MYSQL_HOST="db")
    for name in ("REDIS_PREFIX", "EVENT_DAYS", "REMOTE_URL", "REDIS_FOO"):
        assert f"QUEUE_RUNTIME_{name} is a setting for" in problems(**{name: "x"})
    assert "QUEUE_RUNTIME_STREAMS_FOO is not a setting" in problems(STREAMS_FOO="x")


@pytest.mark.parametrize(
    ("name", "text"),
    [("RECORD", "redis"), ("STREAMS_PREFIX", "a{b}"), ("STREAMS_GROUP", "a b"), ("QUEUE_POLICY", "fair"),
     ("BLOCK_SECONDS", "0.5"), ("BLOCK_SECONDS", "x"), ("QUEUES", ",")],
)  # fmt: skip
def test_bad_values_stop_the_start_with_the_variables_name(name: str, text: str) -> None:
    assert f"QUEUE_RUNTIME_{name}" in problems(**{name: text})


def test_what_is_in_force_is_shown_for_both_parts() -> None:
    shown = {one.variable.removeprefix(PREFIX) for one in read_environment(settings()).effective}
    assert {"RECORD", "MYSQL_HOST", "REDIS_URL", "STREAMS_PREFIX", "BLOCK_SECONDS"} <= shown
    assert not shown & {"SQLITE_PATH", "REDIS_PREFIX", "REMOTE_URL"}


def test_beside_another_store_they_are_refused() -> None:
    for name in ("RECORD", "STREAMS_PREFIX", "QUEUE_POLICY", "BLOCK_SECONDS"):
        (problem,) = read_environment({PREFIX + name: "x"}).problems
        assert "is a setting for QUEUE_RUNTIME_STORE=streams" in problem

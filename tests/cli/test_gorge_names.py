"""Old gorge names are taken over, ignored or refused, each with one line, and never silently."""

from pathlib import Path

import pytest

from queue_runtime.config import load_config, read_environment
from queue_runtime.gorge_names import GENERIC_NAMES, GORGE_NAMES


def test_the_names_we_can_honour_are_taken_over_with_one_line_each() -> None:
    environ = {
        "GORGE_LISTEN_ADDR": ":8090",
        "GORGE_SERVICE_TOKEN": "t0ken",
        "GORGE_TASKQUEUE_LEASE_DURATION": "3600",
        "GORGE_TASKQUEUE_RETRY_WAIT": "60",
        "GORGE_WORKER_MAX_WORKERS": "4",
        "GORGE_WORKER_TASK_CLASS_FILTER": "A,B",
        "GORGE_WORKER_DRAIN_TIMEOUT_SEC": "45",
    }
    config = load_config(environ)
    assert (config.listen, config.token) == ((":8090",), "t0ken")
    assert (config.http_lease_seconds, config.retry_seconds, config.slots) == (3600, 60, 4)
    assert (config.task_classes, config.grace_seconds) == (frozenset("AB"), 45.0)
    notices = read_environment(environ).notices
    assert len(notices) == len(environ)
    assert all("t0ken" not in notice for notice in notices)


def test_a_lease_duration_is_that_of_http_callers_and_not_our_workers() -> None:
    config = load_config({"GORGE_TASKQUEUE_LEASE_DURATION": "3600"})
    assert (config.http_lease_seconds, config.lease_seconds) == (3600, 20)


def test_a_drain_time_of_zero_means_what_it_meant_for_gorge() -> None:
    assert load_config({"GORGE_WORKER_DRAIN_TIMEOUT_SEC": "0"}).grace_seconds == 30


@pytest.mark.parametrize(
    ("name", "text"),
    [("MYSQL_HOST", "db"), ("MYSQL_PORT", "3307"), ("MYSQL_USER", "u"), ("MYSQL_PASS", "pw"), ("NAMESPACE", "ns")],
)
def test_a_deployment_on_mysql_that_names_no_store_stays_on_mysql(name: str, text: str) -> None:
    reading = read_environment({f"GORGE_TASKQUEUE_{name}": text})
    assert reading.config is not None
    assert reading.config.store == "mysql"
    assert f"the store is mysql, as it was for gorge, because GORGE_TASKQUEUE_{name} is set" in reading.notices


def test_a_deployment_on_mysql_is_never_served_from_an_empty_sqlite_file() -> None:
    """Not even where somebody asks for it, without taking the old names away."""
    environ = {"GORGE_TASKQUEUE_MYSQL_PASS": "hunter2", "QUEUE_RUNTIME_STORE": "sqlite"}
    (problem,) = read_environment(environ).problems
    assert problem == (
        "GORGE_TASKQUEUE_MYSQL_PASS is a setting for QUEUE_RUNTIME_STORE=mysql, but the store is sqlite: "
        "set QUEUE_RUNTIME_STORE=mysql, or remove GORGE_TASKQUEUE_MYSQL_PASS"
    )


def test_all_names_of_a_deployment_on_mysql_work() -> None:
    environ = {
        "GORGE_TASKQUEUE_BACKEND": "mysql",
        "GORGE_TASKQUEUE_MYSQL_HOST": "db",
        "GORGE_TASKQUEUE_MYSQL_PORT": "3307",
        "GORGE_TASKQUEUE_MYSQL_USER": "queue",
        "GORGE_TASKQUEUE_MYSQL_PASS": "pw",
        "GORGE_TASKQUEUE_NAMESPACE": "phabricator",
    }
    config = load_config(environ)
    assert (config.store, config.mysql_host, config.mysql_port) == ("mysql", "db", 3307)
    assert (config.mysql_user, config.mysql_password, config.namespace) == ("queue", "pw", "phabricator")


def test_what_gorge_did_by_default_is_done_for_a_deployment_that_replaces_it() -> None:
    config = load_config({"GORGE_TASKQUEUE_BACKEND": "mysql"})
    assert (config.mysql_host, config.mysql_port, config.mysql_user) == ("127.0.0.1", 3306, "phorge")
    assert config.namespace == "phorge"
    # who names the store by our own name gets our own default
    assert load_config({"QUEUE_RUNTIME_STORE": "mysql"}).namespace == "phabricator"


def test_the_old_names_of_redis_become_one_url() -> None:
    environ = {
        "GORGE_TASKQUEUE_BACKEND": "redis",
        "GORGE_TASKQUEUE_REDIS_ADDR": "cache:6380",
        "GORGE_TASKQUEUE_REDIS_PASSWORD": "p@ss/word",
        "GORGE_TASKQUEUE_REDIS_DB": "3",
        "GORGE_TASKQUEUE_REDIS_KEY_PREFIX": "gorge:tq:",
    }
    reading = read_environment(environ)
    assert reading.config is not None
    assert reading.config.redis_url == "redis://:p%40ss%2Fword@cache:6380/3"
    assert reading.config.redis_prefix == "queue-runtime"
    assert not any("p@ss" in line or "p%40" in line for line in (*reading.notices, *reading.warnings))
    (warning,) = reading.warnings
    assert "not seen here" in warning
    assert load_config({"GORGE_TASKQUEUE_BACKEND": "redis"}).redis_url == "redis://127.0.0.1:6379/0"
    assert load_config({"GORGE_TASKQUEUE_BACKEND": "redis", "GORGE_TASKQUEUE_REDIS_DB": "2"}).redis_url.endswith("/2")


ON_STREAMS = {"QUEUE_RUNTIME_STORE": "streams"}


def test_the_old_names_of_mysql_and_of_redis_count_on_streams_over_mysql() -> None:
    """The tasks stay where gorge had them, and the streams come beside them."""
    environ = ON_STREAMS | {
        "GORGE_TASKQUEUE_BACKEND": "mysql",
        "GORGE_TASKQUEUE_MYSQL_HOST": "db",
        "GORGE_TASKQUEUE_MYSQL_PORT": "3307",
        "GORGE_TASKQUEUE_MYSQL_USER": "queue",
        "GORGE_TASKQUEUE_MYSQL_PASS": "hunter2",
        "GORGE_TASKQUEUE_NAMESPACE": "phorge",
        "GORGE_TASKQUEUE_REDIS_ADDR": "cache:6380",
        "GORGE_TASKQUEUE_REDIS_PASSWORD": "p@ss",
        "GORGE_TASKQUEUE_REDIS_DB": "3",
        "GORGE_TASKQUEUE_REDIS_KEY_PREFIX": "gorge:tq:",
    }
    reading = read_environment(environ)
    config = reading.config
    assert config is not None, reading.problems
    assert (config.store, config.record, config.streams_prefix) == ("streams", "mysql", "queue-runtime-streams")
    assert (config.mysql_host, config.mysql_port, config.mysql_user) == ("db", 3307, "queue")
    assert (config.mysql_password, config.namespace) == ("hunter2", "phorge")
    assert config.redis_url == "redis://:p%40ss@cache:6380/3"
    assert "GORGE_TASKQUEUE_BACKEND is taken as QUEUE_RUNTIME_RECORD" in reading.notices
    assert any("GORGE_TASKQUEUE_REDIS_KEY_PREFIX is ignored" in notice for notice in reading.notices)
    assert not any("p@ss" in line or "hunter2" in line for line in (*reading.notices, *reading.warnings))


@pytest.mark.parametrize("name", ["ADDR", "PASSWORD", "DB"])
@pytest.mark.parametrize("store", ["redis", "streams"])
def test_each_old_name_of_redis_is_taken_or_told_as_a_conflict_on_both_stores(store: str, name: str) -> None:
    environ = {"QUEUE_RUNTIME_STORE": store, f"GORGE_TASKQUEUE_REDIS_{name}": "7"}
    wanted = {
        "ADDR": "redis://7/0",
        "PASSWORD": "redis://:7@127.0.0.1:6379/0",
        "DB": "redis://127.0.0.1:6379/7",
    }
    reading = read_environment(environ)
    assert reading.config is not None
    assert reading.config.redis_url == wanted[name]
    assert f"GORGE_TASKQUEUE_REDIS_{name} is taken as QUEUE_RUNTIME_REDIS_URL" in reading.notices
    (warning,) = (one for one in reading.warnings if "fewer than 8 characters" not in one)
    assert "tasks that gorge keeps in Redis" in warning
    (problem,) = read_environment(environ | {"QUEUE_RUNTIME_REDIS_URL": "redis://r/1"}).problems
    assert f"GORGE_TASKQUEUE_REDIS_{name} and QUEUE_RUNTIME_REDIS_URL are both set, to different values" in problem


@pytest.mark.parametrize("word", ["redis", "postgres"])
@pytest.mark.parametrize("record", ["", "mysql", "sqlite"])
def test_tasks_that_gorge_has_in_redis_are_no_record_of_the_streams(word: str, record: str) -> None:
    environ = ON_STREAMS | {"GORGE_TASKQUEUE_BACKEND": word, "QUEUE_RUNTIME_RECORD": record}
    (problem,) = read_environment(environ).problems
    assert f"GORGE_TASKQUEUE_BACKEND is '{word}', but the store is streams over" in problem
    assert "let gorge drain its queue" in problem


def test_streams_over_sqlite_are_never_put_in_the_place_of_a_queue_on_mysql() -> None:
    over_sqlite = ON_STREAMS | {"QUEUE_RUNTIME_RECORD": "sqlite"}
    (problem,) = read_environment(over_sqlite | {"GORGE_TASKQUEUE_MYSQL_HOST": "db"}).problems
    assert "GORGE_TASKQUEUE_MYSQL_HOST is a setting for QUEUE_RUNTIME_RECORD=mysql" in problem
    assert "but the store is streams over sqlite" in problem
    (problem,) = read_environment(over_sqlite | {"GORGE_TASKQUEUE_BACKEND": "mysql"}).problems
    assert "GORGE_TASKQUEUE_BACKEND and QUEUE_RUNTIME_RECORD are both set, to different values" in problem


def test_old_names_of_the_store_that_gorge_did_not_use_are_told_and_ignored() -> None:
    both = {"GORGE_TASKQUEUE_MYSQL_HOST": "db", "GORGE_TASKQUEUE_REDIS_ADDR": "cache:6379"}
    reading = read_environment(both)
    assert reading.config is not None
    assert reading.config.store == "mysql"
    assert "GORGE_TASKQUEUE_REDIS_ADDR is ignored: it is for redis, and the store is mysql" in reading.notices
    reading = read_environment({**both, "GORGE_TASKQUEUE_BACKEND": "redis"})
    assert reading.config is not None
    assert (reading.config.store, reading.config.redis_url) == ("redis", "redis://cache:6379/0")
    assert "GORGE_TASKQUEUE_MYSQL_HOST is ignored: it is for mysql, and the store is redis" in reading.notices


def test_an_address_in_redis_alone_does_not_choose_the_store() -> None:
    (problem,) = read_environment({"GORGE_TASKQUEUE_REDIS_ADDR": "cache:6379"}).problems
    assert "but the store is sqlite by default: set QUEUE_RUNTIME_STORE=redis" in problem


def test_the_old_name_of_the_store_takes_our_words_only() -> None:
    # gorge took MySQL for any word it did not know
    (problem,) = read_environment({"GORGE_TASKQUEUE_BACKEND": "postgres"}).problems
    assert problem.startswith("GORGE_TASKQUEUE_BACKEND must be one of sqlite")


def test_the_store_by_both_names_must_be_the_same() -> None:
    (problem,) = read_environment({"GORGE_TASKQUEUE_BACKEND": "redis", "QUEUE_RUNTIME_STORE": "mysql"}).problems
    assert problem.endswith("both set, to different values: keep QUEUE_RUNTIME_STORE")
    assert load_config({"GORGE_TASKQUEUE_MYSQL_HOST": "db", "QUEUE_RUNTIME_STORE": "mysql"}).mysql_host == "db"


def test_both_names_with_different_values_are_a_fault_and_with_the_same_are_not() -> None:
    both = {"GORGE_TASKQUEUE_LEASE_DURATION": "100", "QUEUE_RUNTIME_HTTP_LEASE_SECONDS": "200"}
    (problem,) = read_environment(both).problems
    assert "GORGE_TASKQUEUE_LEASE_DURATION and QUEUE_RUNTIME_HTTP_LEASE_SECONDS are both set" in problem
    assert load_config(both | {"GORGE_TASKQUEUE_LEASE_DURATION": "0200"}).http_lease_seconds == 200
    same = {"GORGE_LISTEN_ADDR": ":8090", "QUEUE_RUNTIME_LISTEN": " :8090", "QUEUE_RUNTIME_TOKEN": "t"}
    assert read_environment(same).problems == ()


def test_two_tokens_that_differ_are_a_fault_that_shows_neither() -> None:
    (problem,) = read_environment({"GORGE_SERVICE_TOKEN": "one1", "QUEUE_RUNTIME_TOKEN": "two2"}).problems
    assert "one1" not in problem
    assert "two2" not in problem


def test_a_bad_value_is_reported_under_the_name_it_was_given_by() -> None:
    (problem,) = read_environment({"GORGE_WORKER_MAX_WORKERS": "0"}).problems
    assert problem.startswith("GORGE_WORKER_MAX_WORKERS must be a whole number from 1")


@pytest.mark.parametrize(
    "name",
    [
        "GORGE_WORKER_TASK_QUEUE_URL",
        "GORGE_CONFIG_FILE",
    ],
)
def test_what_this_version_cannot_do_is_refused_with_the_reason(name: str) -> None:
    (problem,) = read_environment({name: "x"}).problems
    assert problem.startswith(f"{name} cannot be taken over: ")


def test_a_scheduler_that_is_off_is_ignored_and_one_that_is_on_is_refused() -> None:
    assert read_environment({"GORGE_TASKQUEUE_SCHEDULER_ENABLED": "false"}).problems == ()
    assert len(read_environment({"GORGE_TASKQUEUE_SCHEDULER_ENABLED": "true"}).problems) == 1


@pytest.mark.parametrize("name", [*GENERIC_NAMES, "GORGE_WORKER_LEASE_LIMIT", "GORGE_WORKER_NO_SUCH_NAME"])
def test_names_that_are_ignored_are_told_in_one_line(name: str) -> None:
    reading = read_environment({name: "7"})
    assert reading.problems == ()
    (notice,) = reading.notices
    assert name in notice
    assert reading.config == load_config({})


def test_other_gorge_services_may_keep_their_variables() -> None:
    assert read_environment({"GORGE_RENDER_URL": "x"}).notices == ()


@pytest.mark.parametrize("name", GORGE_NAMES)
def test_the_operations_page_has_every_old_name(name: str) -> None:
    assert f"`{name}`" in (Path(__file__).parents[2] / "docs" / "operations.md").read_text()

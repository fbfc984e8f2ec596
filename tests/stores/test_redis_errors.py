"""What a server's errors mean, as servers of several ages write them; and which servers are too old."""

import builtins

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    InvalidResponse,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from queue_runtime.errors import StoreFull, StoreUnavailable
from stores.redis_errors import Cut, Refused, error_code, reason_of, translate, translate_damage
from stores.redis_server import ServerFacts, objection, read_info

WRAPPED = "Error running script (call to f_1234): @user_script:42: @user_script: 42: -{} "
"""How servers before 7.0 write an error of a command inside a script."""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ReadOnlyError("You can't write against a read only replica."), Refused, "replica"),
        (
            ResponseError(WRAPPED.format("READONLY") + "You can't write against a read only replica."),
            Refused,
            "replica",
        ),
        (BusyLoadingError("Redis is loading the dataset in memory"), Refused, "reading its data"),
        (ResponseError("MASTERDOWN Link with MASTER is down"), Refused, "without a master"),
        (ResponseError("CLUSTERDOWN The cluster is down"), Refused, "cluster is down"),
        (ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"), Refused, "moving"),
        (ResponseError("BUSY Redis is busy running a script."), Refused, "busy"),
        (ConnectionError("max number of clients reached"), Refused, "too many clients"),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), StoreFull, "maxmemory"),
        (ResponseError(WRAPPED.format("OOM") + "command not allowed"), StoreFull, "maxmemory"),
        (ResponseError("FULL no task ids left"), StoreFull, "task ids end at 4294967295"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), StoreUnavailable, "cannot save"),
        (ResponseError(WRAPPED.format("MISCONF") + "Errors writing to the AOF file"), StoreUnavailable, "cannot save"),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), StoreUnavailable, "too few replicas"),
        (ResponseError("DENIED Redis is running in protected mode"), StoreUnavailable, "no connections from here"),
        (AuthenticationError("invalid username-password pair"), StoreUnavailable, "password"),
        (ResponseError("SUPERSEDED this slot has a later call"), StoreUnavailable, "took its place"),
        (ConnectionError("Connection closed by server."), Cut, "connection was lost"),
        (TimeoutError("Timeout reading from socket"), Cut, "connection was lost"),
    ],
)
def test_an_error_is_what_its_caller_can_do_about_it(error: RedisError, kind: type[Exception], words: str) -> None:
    found = translate("lease", error)
    assert type(found) is kind
    assert isinstance(found, StoreUnavailable)
    assert found.operation == "lease"
    assert words in found.reason


@pytest.mark.parametrize("message", ["syntax error", "wrong number of arguments for 'evalsha' command"])
def test_a_fault_of_our_own_is_seen_as_it_is(message: str) -> None:
    assert translate("lease", ResponseError(message)) is None
    assert translate_damage("lease", ResponseError(message)) is None


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "damaged"),
        (WRAPPED.format("WRONGTYPE") + "Operation against a key", "damaged"),
        ("user_script:12: attempt to index a nil value script: 5955, on @user_script:12.", "damaged"),
        ("value is not an integer or out of range", "damaged"),
        ("unknown command 'CONFIG', with args beginning with: 'GET'", "lacks a command"),
        ("Unknown Redis command called from script script: 5955, on @user_script:12.", "lacks a command"),
    ],
)
def test_a_queue_that_is_not_as_it_was_written_is_an_outage_with_its_reason(message: str, words: str) -> None:
    found = translate_damage("lease", ResponseError(message))
    assert isinstance(found, StoreUnavailable)
    assert words in found.reason


@pytest.mark.parametrize(
    "error",
    [ResponseError("upstream failure"), ResponseError("EVENTUALLY maybe"), InvalidResponse("Protocol Error: b'x'")],
)
def test_an_answer_that_nobody_knows_leaves_the_outcome_open(error: RedisError) -> None:
    """Proxies have words of their own: a success must not become a failure for them, nor a process end."""
    found = translate_damage("settle", error)
    assert isinstance(found, Cut)
    assert str(error) in found.reason


@pytest.mark.parametrize("error", [TimeoutError(), builtins.TimeoutError(), ConnectionError(), OSError()])
def test_an_error_without_words_is_given_some(error: Exception) -> None:
    assert reason_of(error)


@pytest.mark.parametrize("error", [MovedError("3999 10.0.0.1:6381"), ResponseError("MOVED 3999 10.0.0.1:6381")])
def test_a_moved_queue_has_an_address(error: RedisError) -> None:
    found = translate("lease", error)
    assert isinstance(found, Refused)
    assert found.moved_to == ("10.0.0.1", 6381)


def test_a_cluster_that_does_not_name_the_host_gives_no_address() -> None:
    found = translate("lease", ResponseError("MOVED 3999 :6381"))
    assert isinstance(found, Refused)
    assert found.moved_to is None


def test_a_missing_script_is_known_by_its_code() -> None:
    assert error_code(NoScriptError("No matching script.")) == "NOSCRIPT"
    assert error_code(ResponseError("NOSCRIPT No matching script.")) == "NOSCRIPT"


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (b"redis_version:6.0.16\r\n", "Redis 6.0.16; 6.2 or newer is needed"),
        (b"redis_version:5.0.14\r\n", "6.2 or newer"),
        (b"redis_version:6.2.0\r\n", None),
        (b"redis_version:7.2.4\r\nvalkey_version:8.1.0\r\n", None),
        (b"redis_version:10.0.0\r\n", None),
        (b"", None),
        (b"redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n", "maxmemory-policy is allkeys-lru"),
    ],
)
def test_servers_that_are_too_old_or_evict_are_refused(info: bytes, words: str | None) -> None:
    found = objection(read_info(info), allow_eviction=False)
    assert found is None if words is None else words in (found or "")


def test_what_a_server_does_not_tell_is_unknown() -> None:
    assert read_info(b"# Server\r\n\r\nnonsense") == ServerFacts()

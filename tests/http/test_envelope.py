"""What holds for every request: the envelope, exact paths, methods, bodies, ids, and silence about the inside."""

import asyncio
import gc
from collections.abc import Sequence

import httpx2
import pytest
from starlette.types import Message
from structlog.testing import capture_logs

from queue_runtime.errors import StoreFull, StoreUnavailable
from queue_runtime.task import NewTask, QueueStats, Task
from tests.backends import Opened
from tests.faulty_store import FaultyStore
from tests.http.house import House, open_house

pytestmark = pytest.mark.parametrize("opened", ["reference"], indirect=True)

POST_ROUTES = [
    "enqueue",
    "lease",
    "complete",
    "fail",
    "yield",
    "cancel",
    "awaken",
    "renew",
    "finalize",
    "resolve",
    "enqueue-event",
    "enqueue-batch",
    "settle-batch",
    "free",
    "retry",
    "priority",
    "delay",
    "pause",
    "resume",
]
GET_ROUTES = ["stats", "tasks", "meta", "operations", "archive", "paused"]

SECRET = "SELECT password FROM users WHERE host = 'db-7.internal'"


class BrokenStore(FaultyStore):
    """A store with a bug: every call raises something that nobody raises on purpose."""

    async def stats(self) -> QueueStats:
        raise RuntimeError(SECRET)

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Task]:
        raise RuntimeError(SECRET)


@pytest.mark.parametrize("path", ["/nothing", "/api", "/api/queue", "/api/queue/nothing", "/api/worker/stats"])
async def test_an_unknown_path_is_404_in_the_envelope(house: House, path: str) -> None:
    assert (await house.get(path)).error == (404, "ERR_NOT_FOUND")


@pytest.mark.parametrize("path", ["/api/queue/stats/", "/healthz/", "/api/queue//stats", "/api/queue/Stats"])
async def test_paths_are_exact(house: House, path: str) -> None:
    answer = await house.get(path)
    assert answer.error == (404, "ERR_NOT_FOUND")


@pytest.mark.parametrize("path", POST_ROUTES)
async def test_a_route_that_writes_takes_post_alone(house: House, path: str) -> None:
    answer = await house.get(path)
    assert answer.error == (405, "ERR_METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("path", [*GET_ROUTES, "tasks/1", "archive/1", "/", "/healthz", "/readyz", "/metrics"])
async def test_a_route_that_reads_takes_get_alone(house: House, path: str) -> None:
    answer = await house.post(path, {})
    assert answer.error == (405, "ERR_METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/api/queue/stats", "/api/queue/tasks"])
async def test_head_is_answered_where_get_is(house: House, path: str) -> None:
    reply = await house.client.head(path)
    assert (reply.status_code, reply.content) == (200, b"")


async def test_head_has_no_body_for_an_error_either(house: House) -> None:
    reply = await house.client.head("/api/queue/tasks/99")
    assert (reply.status_code, reply.content) == (404, b"")


@pytest.mark.parametrize("path", POST_ROUTES)
@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b"[]", b"null", b'"text"', b"7", b'{"a":1}x', b"{'a':1}", b"\xef\xbb\xbf{}"]
)
async def test_a_body_that_is_no_json_object_is_refused(house: House, path: str, body: bytes) -> None:
    answer = await house.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.error == (400, "ERR_BAD_REQUEST")


@pytest.mark.parametrize(
    "body",
    [
        b'{"taskClass":"A","data":"\xff"}',
        b'{"taskClass":"A","data":"\xed\xa0\x80"}',
        b'{"taskClass":"A","data":"\\ud800"}',
        b'{"taskClass":"A","other":"\xff"}',
        b'{"taskClass":"A","other":"\\udfff"}',
        b'{"taskClass":"A","\xff":1}',
    ],
)
async def test_text_that_is_not_unicode_is_refused(house: House, body: bytes) -> None:
    answer = await house.post("enqueue", content=body, headers={"Content-Type": "application/json"})
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert (await house.get("tasks")).data == []


async def test_a_body_nested_without_end_is_refused(house: House) -> None:
    body = b'{"x":' + b"[" * 100_000
    answer = await house.post("enqueue", content=body, headers={"Content-Type": "application/json"})
    assert answer.error == (400, "ERR_BAD_REQUEST")


@pytest.mark.parametrize("media", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_another_content_type_is_refused(house: House, media: str | None) -> None:
    headers = {} if media is None else {"Content-Type": media}
    answer = await house.post("enqueue", content=b'{"taskClass":"A"}', headers=headers)
    assert answer.error == (400, "ERR_BAD_REQUEST")


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"])
async def test_parameters_and_case_of_the_content_type_do_not_matter(house: House, media: str) -> None:
    answer = await house.post("enqueue", content=b'{"taskClass":"A"}', headers={"Content-Type": media})
    assert answer.data["taskClass"] == "A"


async def test_unknown_keys_are_ignored_and_of_a_repeated_key_the_last_one_counts(house: House) -> None:
    body = b'{"taskClass":"A","id":77,"extra":{"a":[1]},"priority":1,"priority":2,"taskClass":"B"}'
    task = (await house.post("enqueue", content=body, headers={"Content-Type": "application/json"})).data
    assert (task["taskClass"], task["priority"], task["id"]) == ("B", 2, 1)


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("enqueue", {"taskClass": 7}, "taskClass"),
        ("enqueue", {"taskClass": "A", "data": {"a": 1}}, "data"),
        ("enqueue", {"taskClass": "A", "priority": "5"}, "priority"),
        ("enqueue", {"taskClass": "A", "priority": 1.0}, "priority"),
        ("enqueue", {"taskClass": "A", "priority": True}, "priority"),
        ("enqueue", {"taskClass": "A", "priority": 2**63}, "priority"),
        ("enqueue", {"taskClass": "A", "priority": -(2**63) - 1}, "priority"),
        ("enqueue", {"taskClass": "A", "priority": 10**30}, "priority"),
        ("lease", {"limit": "1"}, "limit"),
        ("lease", {"taskClasses": "A"}, "taskClasses"),
        ("lease", {"taskClasses": ["A", 1]}, "taskClasses[1]"),
        ("complete", {"taskID": "1"}, "taskID"),
        ("fail", {"taskID": 1, "permanent": 1}, "permanent"),
        ("awaken", {"taskIDs": [1, None]}, "taskIDs[1]"),
        ("finalize", {"followups": [{}, {"taskClass": 1}]}, "followups[1].taskClass"),
        ("enqueue-event", {"task": {"data": 1}}, "task.data"),
        ("enqueue-batch", {"tasks": [{"taskClass": "A"}, {"priority": "x"}]}, "tasks[1].priority"),
        ("settle-batch", {"settlements": [{"leaseExpires": "x"}]}, "settlements[0].leaseExpires"),
    ],
)
async def test_a_wrong_type_is_refused_and_its_key_is_named(
    house: House, path: str, body: dict[str, object], names: str
) -> None:
    answer = await house.post(path, body)
    assert answer.error == (400, "ERR_BAD_REQUEST")
    assert answer.message.startswith(f"{names}: ")
    assert (await house.get("tasks")).data == []


async def test_a_request_id_is_echoed_when_it_is_fit_and_made_when_it_is_not(house: House) -> None:
    assert (await house.get("stats", headers={"X-Request-Id": "caller-7"})).headers["x-request-id"] == "caller-7"
    assert (await house.get("nothing", headers={"X-Request-Id": "caller-8"})).headers["x-request-id"] == "caller-8"
    for unfit in ("", "x" * 129, "caf\u00e9", "a\tb"):
        made = (await house.get("stats", headers={"X-Request-Id": unfit.encode("utf-8")})).headers["x-request-id"]
        assert made not in ("", unfit)
        assert len(made) == 16


async def test_each_request_is_one_line_of_the_access_log(house: House) -> None:
    with capture_logs() as lines:
        await house.get("tasks?limit=3", headers={"X-Request-Id": "r-1"})
        await house.post("cancel", {"taskID": 9})
    seen = [line for line in lines if line["event"] == "request"]
    assert [(line["method"], line["uri"], line["status"]) for line in seen] == [
        ("GET", "/api/queue/tasks?limit=3", 200),
        ("POST", "/api/queue/cancel", 404),
    ]
    assert seen[0]["request_id"] == "r-1"


@pytest.mark.parametrize("name", ["token", "Token", "access_token", "password", "api_key", "secret", "to%6ben"])
async def test_credentials_in_a_query_are_masked_in_the_log(house: House, name: str) -> None:
    with capture_logs() as lines:
        await house.get(f"stats?limit=1&{name}=hunter2&x=y")
    assert "hunter2" not in str(lines)
    assert lines[0]["uri"] == f"/api/queue/stats?limit=1&{name}=***&x=y"


@pytest.mark.parametrize("path", ["stats", "enqueue"])
async def test_a_bug_inside_is_told_to_the_log_alone(opened: Opened, path: str) -> None:
    async with open_house(BrokenStore(opened.store)) as house:
        with capture_logs() as lines:
            answer = await (house.get(path) if path == "stats" else house.post(path, {"taskClass": "A"}))
    assert answer.error == (500, "ERR_INTERNAL")
    assert answer.message == "internal server error"
    assert "password" not in str(answer)
    assert any(line["log_level"] == "error" for line in lines)


@pytest.mark.parametrize(
    ("error", "status"),
    [(StoreUnavailable("stats", "db-7.internal:3306 refused"), 503), (StoreFull("stats", "/data is full"), 507)],
)
async def test_an_outage_says_no_more_than_that(opened: Opened, error: StoreUnavailable, status: int) -> None:
    class Away(FaultyStore):
        async def stats(self) -> QueueStats:
            raise error

    async with open_house(Away(opened.store)) as house:
        answer = await house.get("stats")
    assert answer.error == (status, "ERR_INTERNAL")
    assert answer.message == "internal server error"
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1


async def test_an_outage_is_logged_once_and_not_for_each_request(opened: Opened) -> None:
    faulty = FaultyStore(opened.store)
    async with open_house(faulty) as house:
        faulty.down = True
        with capture_logs() as lines:
            for _ in range(20):
                assert (await house.get("stats")).status == 503
        faulty.down = False
    assert len([line for line in lines if line["log_level"] == "warning" and "callers" in line["event"]]) == 1


async def test_a_store_that_hangs_is_503_after_the_time_for_a_request(opened: Opened) -> None:
    class Stuck(FaultyStore):
        async def stats(self) -> QueueStats:
            await asyncio.Event().wait()
            raise AssertionError

    async with open_house(Stuck(opened.store), request_seconds=0.05) as house:
        assert (await house.get("stats")).error == (503, "ERR_INTERNAL")


async def test_while_stopping_every_reply_closes_its_connection(house: House) -> None:
    assert "connection" not in (await house.get("stats")).headers
    house.lifecycle.stopping.set()
    assert (await house.get("stats")).headers["connection"] == "close"
    assert (await house.get("nothing")).headers["connection"] == "close"


async def test_a_request_leaves_nothing_for_the_garbage_collector(house: House) -> None:
    body = b'{"taskClass":"A"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    async def call() -> None:
        path = "/api/queue/enqueue"
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "query_string": b""}
        await house.app({**scope, "headers": headers}, receive, send)

    await call()
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            await call()
        assert gc.collect() < 100
    finally:
        gc.enable()
    assert [message["status"] for message in sent[::2]] == [200] * 101


async def test_replies_are_json(house: House) -> None:
    reply: httpx2.Response = await house.client.get("/api/queue/tasks")
    assert reply.headers["content-type"].split(";")[0] == "application/json"
    assert reply.content == b'{"data":[]}'

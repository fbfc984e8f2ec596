"""The service token: where it is asked for, which one counts, and that nobody learns it."""

import pytest
from structlog.testing import capture_logs

from tests.backends import Opened
from tests.http.house import FakeWorker, open_house

pytestmark = pytest.mark.parametrize("opened", ["reference"], indirect=True)

TOKEN = "s3cret-t\u00f6ken"
RIGHT = {"X-Service-Token": TOKEN.encode()}
WRONG = {"X-Service-Token": "wrong"}
QUERY = "?token=s3cret-t%C3%B6ken"


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {}, 401),
        ("", RIGHT, 200),
        ("", WRONG, 401),
        (QUERY, {}, 200),
        ("?token=wrong", {}, 401),
        (QUERY, WRONG, 401),
        ("?token=wrong", RIGHT, 200),
        (QUERY, {"X-Service-Token": ""}, 200),
        ("?x=1&token=s3cret-t%C3%B6ken", {}, 200),
        ("?Token=s3cret-t%C3%B6ken", {}, 401),
        ("?token=", {}, 401),
        ("", {"X-Service-Token": TOKEN.encode()[:-1]}, 401),
        ("", {"X-Service-Token": TOKEN.encode() + b"x"}, 401),
        ("", {"Authorization": "Bearer s3cret"}, 401),
    ],
)
async def test_a_header_counts_before_the_query(
    opened: Opened, query: str, headers: dict[str, str | bytes], status: int
) -> None:
    async with open_house(opened.store, token=TOKEN) as house:
        answer = await house.get(f"stats{query}", headers=headers)
        assert answer.status == status
        if status == 401:
            assert answer.error == (401, "ERR_UNAUTHORIZED")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/queue/nothing"),
        ("GET", "/api/queue"),
        ("GET", "/api/queue/"),
        ("DELETE", "/api/queue/stats"),
        ("POST", "/api/queue/enqueue"),
        ("GET", "/api/queue/tasks/x"),
        ("GET", "/api/worker/stats"),
        ("GET", "/api/worker/nothing"),
        ("GET", "/api%2Fqueue/stats"),
        ("GET", "/api/%71ueue/stats"),
    ],
)
async def test_the_whole_prefix_is_guarded_before_anything_else_is_looked_at(
    opened: Opened, method: str, path: str
) -> None:
    async with open_house(opened.store, token=TOKEN, worker=FakeWorker()) as house:
        reply = await house.client.request(method, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "ERR_UNAUTHORIZED")


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
async def test_probes_need_no_token(opened: Opened, path: str) -> None:
    async with open_house(opened.store, token=TOKEN) as house:
        assert (await house.get(path)).status == 200


async def test_a_path_that_only_begins_alike_is_not_guarded(opened: Opened) -> None:
    async with open_house(opened.store, token=TOKEN) as house:
        assert (await house.get("/api/queues")).error == (404, "ERR_NOT_FOUND")


async def test_without_a_token_everything_passes(opened: Opened) -> None:
    async with open_house(opened.store) as house:
        assert (await house.get("stats", headers=WRONG)).status == 200


async def test_no_token_reaches_a_log_line_or_a_reply(opened: Opened) -> None:
    async with open_house(opened.store, token="hunter2-right") as house:
        with capture_logs() as lines:
            answers = [
                await house.get("stats?token=hunter2-wrong"),
                await house.get("stats", headers={"X-Service-Token": "hunter2-wrong"}),
                await house.get("stats?token=hunter2-right"),
                await house.get("nothing?token=hunter2-right"),
            ]
    assert "hunter2" not in str(lines)
    assert "hunter2" not in str([answer.body for answer in answers])

"""FeedPublisherHTTPWorker posts snapshots to allowed hooks, and loses no story."""

import json
import logging
import threading
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from handlers import feed_publisher
from handlers.feed_publisher import TASK_CLASS, FeedPublisher
from queue_runtime.context import Context
from queue_runtime.registry import ANY_CLASS, HandlerSpec, PermanentFailure, Retry, Yield
from tests.handlers.fakes import Hook, answer, context_for, hook_server

BODY = "storyID=12&storyData%5Btitle%5D=%C3%A4+b&epoch=1700000000"


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    async with hook_server() as server:
        yield server


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    return tmp_path / "policy.json"


@pytest.fixture
def publisher(policy_file: Path) -> FeedPublisher:
    return FeedPublisher(policy_file)


def write(policy_file: Path, text: str) -> None:
    policy_file.write_text(text)


def allow(policy_file: Path, *uris: str, silent: bool = False) -> None:
    write(policy_file, json.dumps({"silent": silent, "uris": uris}))


def snapshot(uri: str, **more: object) -> str:
    return json.dumps({"deliveryVersion": 1, "uri": uri, "body": BODY, **more})


async def test_it_posts_the_form_as_phorge_rendered_it(hook: Hook, policy_file: Path, publisher: FeedPublisher) -> None:
    allow(policy_file, "https://other.test/", f"{hook.origin}/feed?key=1")
    await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed?key=1"))
    (request,) = hook.requests
    assert request.line == "POST /feed?key=1 HTTP/1.1"
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert request.body == BODY.encode()


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_any_2xx_is_success(status: int, hook: Hook, policy_file: Path, publisher: FeedPublisher) -> None:
    hook.reply = answer(status)
    allow(policy_file, f"{hook.origin}/feed")
    await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))
    assert len(hook.requests) == 1


@pytest.mark.parametrize("status", [304, 400, 404, 410, 500, 503])
async def test_any_other_answer_is_tried_again(
    status: int, hook: Hook, policy_file: Path, publisher: FeedPublisher
) -> None:
    hook.reply = answer(status)
    allow(policy_file, f"{hook.origin}/feed")
    with pytest.raises(Retry, match=f"{hook.origin} answered {status}"):
        await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))


async def test_a_redirect_is_not_followed(hook: Hook, policy_file: Path, publisher: FeedPublisher) -> None:
    hook.reply = answer(307, f"Location: {hook.origin}/elsewhere\r\n")
    allow(policy_file, f"{hook.origin}/feed", f"{hook.origin}/elsewhere")
    with pytest.raises(Retry, match="answered 307"):
        await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))
    assert len(hook.requests) == 1


async def test_a_hook_that_is_down_is_tried_again(policy_file: Path, publisher: FeedPublisher) -> None:
    async with hook_server() as gone:
        uri = f"{gone.origin}/feed"
    allow(policy_file, uri)
    with pytest.raises(Retry, match="was not reached: ConnectError"):
        await publisher(context_for(TASK_CLASS), snapshot(uri))


async def test_the_secret_of_an_address_that_is_down_is_in_no_trace(
    policy_file: Path, publisher: FeedPublisher
) -> None:
    async with hook_server() as gone:
        uri = gone.origin.replace("//", "//user:sesame@") + "/path-sesame?token=sesame"
    allow(policy_file, uri)
    with pytest.raises(Retry) as ending:
        await publisher(context_for(TASK_CLASS), snapshot(uri))
    assert "sesame" not in "".join(traceback.format_exception(ending.value))


async def test_a_hook_that_never_answers_is_given_up_in_time(
    hook: Hook, policy_file: Path, publisher: FeedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_publisher, "DELIVERY_SECONDS", 0.2)
    hook.reply = None
    allow(policy_file, f"{hook.origin}/feed")
    with pytest.raises(Retry, match="was not reached"):
        await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))


async def test_silent_mode_succeeds_without_a_request(hook: Hook, policy_file: Path, publisher: FeedPublisher) -> None:
    allow(policy_file, f"{hook.origin}/feed", silent=True)
    await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))
    await publisher(context_for(TASK_CLASS), snapshot("https://removed.test/feed"))
    assert hook.requests == []


@pytest.mark.parametrize(
    "change",
    ["/feed/more", "/fee", "/feed?x=1", "/feed/../other", "/feed#x", "", "@evil.test/feed", ".evil.test/feed"],
)
async def test_only_the_very_address_is_allowed(
    change: str, hook: Hook, policy_file: Path, publisher: FeedPublisher
) -> None:
    allow(policy_file, f"{hook.origin}/feed")
    with pytest.raises(PermanentFailure, match="not in the feed policy"):
        await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}{change}"))
    assert hook.requests == []


@pytest.mark.parametrize("uri", ["", "file:///etc/passwd", "ftp://127.0.0.1/", "http://[::1", "http:///feed", "x"])
async def test_an_address_of_another_kind_is_never_allowed(
    uri: str, policy_file: Path, publisher: FeedPublisher
) -> None:
    allow(policy_file, "https://example.test/feed")
    with pytest.raises(PermanentFailure):
        await publisher(context_for(TASK_CLASS), snapshot(uri))


async def test_the_same_address_in_another_spelling_is_allowed(
    hook: Hook, policy_file: Path, publisher: FeedPublisher
) -> None:
    allow(policy_file, f"{hook.origin}/feed")
    await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin.upper()}/a/../feed"))
    assert hook.requests[0].line == "POST /feed HTTP/1.1"


async def test_a_policy_counts_from_the_moment_it_is_changed(
    hook: Hook, policy_file: Path, publisher: FeedPublisher
) -> None:
    allow(policy_file)
    with pytest.raises(PermanentFailure):
        await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))
    allow(policy_file, f"{hook.origin}/feed")
    await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))
    allow(policy_file, f"{hook.origin}/feed", silent=True)
    await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))
    assert len(hook.requests) == 1


async def test_a_missing_policy_is_tried_again_and_names_the_file(policy_file: Path, publisher: FeedPublisher) -> None:
    with pytest.raises(Retry, match=str(policy_file)):
        await publisher(context_for(TASK_CLASS), snapshot("https://example.test/feed"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '{"silent":false}',
        '{"uris":[]}',
        '{"silent":0,"uris":[]}',
        '{"silent":false,"uris":"https://example.test/feed"}',
        '{"silent":false,"uris":["example.test/feed"]}',
        '{"silent":false,"uris":["http://example.test:99999/"]}',
    ],
)
async def test_a_malformed_policy_is_tried_again_and_names_the_file(
    text: str, policy_file: Path, publisher: FeedPublisher
) -> None:
    write(policy_file, text)
    with pytest.raises(Retry, match=str(policy_file)):
        await publisher(context_for(TASK_CLASS), snapshot("https://example.test/feed"))


@pytest.mark.parametrize("data", ['{"deliveryVersion":1}', '{"deliveryVersion":1,"uri":"https://a.test/","body":[]}'])
async def test_a_malformed_snapshot_fails_for_good(data: str, policy_file: Path, publisher: FeedPublisher) -> None:
    allow(policy_file, "https://a.test/")
    with pytest.raises(PermanentFailure, match="snapshot"):
        await publisher(context_for(TASK_CLASS), data)


OTHER_FORMS = [
    '{"key":"6000","uri":"https://example.test/feed"}',
    '{"deliveryVersion":2,"uri":"https://example.test/feed","body":""}',
    '{"deliveryVersion":true,"uri":"https://example.test/feed","body":""}',
    '{"deliveryVersion":"1","uri":"https://example.test/feed","body":""}',
    "[]",
    "12",
    "",
]


@pytest.mark.parametrize("data", OTHER_FORMS)
async def test_other_forms_go_to_the_fallback_as_they_are(data: str, policy_file: Path) -> None:
    seen = []

    async def fallback(context: Context, data: str) -> None:
        seen.append((context, data))

    context = context_for(TASK_CLASS)
    spec = HandlerSpec(ANY_CLASS, fallback)
    await FeedPublisher(policy_file, fallback=lambda: spec)(context, data)
    assert seen == [(context, data)]


async def test_a_fallback_that_is_a_plain_function_gets_a_thread(policy_file: Path) -> None:
    threads = []

    def fallback(context: Context, data: str) -> None:
        threads.append(threading.current_thread())
        if data == "refuse":
            raise PermanentFailure("as it says")

    spec = HandlerSpec(ANY_CLASS, fallback)
    publisher = FeedPublisher(policy_file, fallback=lambda: spec)
    await publisher(context_for(TASK_CLASS), "{}")
    with pytest.raises(PermanentFailure, match="as it says"):
        await publisher(context_for(TASK_CLASS), "refuse")
    assert threading.main_thread() not in threads
    assert len(threads) == 2


@pytest.mark.parametrize("data", OTHER_FORMS)
async def test_without_a_fallback_other_forms_are_put_off_and_not_failed(data: str, publisher: FeedPublisher) -> None:
    with structlog.testing.capture_logs() as logs, pytest.raises(Yield) as ending:
        await publisher(context_for(TASK_CLASS), data)
    assert ending.value.wait == 300
    assert [(line["log_level"], line["task_id"]) for line in logs] == [("warning", 7)]


async def test_the_secret_of_an_address_is_in_no_reason_and_no_log(
    hook: Hook, policy_file: Path, publisher: FeedPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    hook.reply = answer(500)
    uri = hook.origin.replace("//", "//user:sesame@") + "/path-sesame?token=sesame"
    allow(policy_file, uri)
    with caplog.at_level(logging.DEBUG), pytest.raises(Retry) as ending:
        await publisher(context_for(TASK_CLASS), snapshot(uri))
    assert hook.requests[0].headers["authorization"].startswith("Basic ")
    assert "sesame" not in f"{ending.value.reason} {caplog.text}"


async def test_a_huge_reply_is_not_read(hook: Hook, policy_file: Path, publisher: FeedPublisher) -> None:
    hook.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nx"
    allow(policy_file, f"{hook.origin}/feed")
    await publisher(context_for(TASK_CLASS), snapshot(f"{hook.origin}/feed"))

"""Both ends have to fit: version, token, role and address. What does not is told in words, and logged once."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_runtime import store_wire as wire
from queue_runtime.errors import InvalidRequest, StoreUnavailable, StoreUnusable
from queue_runtime.store import StoreOptions
from queue_runtime.task import NewTask
from stores import remote
from stores.remote_address import read_address
from stores.remote_line import ServerFault
from tests.http.house import open_house, serve
from tests.listener import listening
from tests.reference_store import ReferenceStore
from tests.stores.remote_house import TOKEN, Far, add, far_store


def loud(lines: Sequence[Mapping[str, object]]) -> list[object]:
    """What was logged as an error."""
    return [line["event"] for line in lines if line["log_level"] == "error"]


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    async with far_store(tmp_path) as far:
        yield far


async def test_a_server_of_another_version_is_named_with_both_versions(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_runtime.api.store._VERSION", b"1")
    with capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"speaks version '1' .* this process version '2'"):
                await far.store.ping()
    assert loud(lines) == ["the server of the queue cannot be used as it is configured"]
    assert far.behind.calls["ping"] == 0


@pytest.mark.parametrize(("given", "said"), [({}, "does not say which"), ({wire.VERSION_HEADER: "1"}, "version '1'")])
async def test_a_caller_of_another_version_is_told_both_versions(far: Far, given: dict[str, str], said: str) -> None:
    headers = given | {"X-Service-Token": TOKEN}
    for method in ("ping", "a_method_of_the_future"):
        answer = await far.house.post(wire.PATH + method, {}, headers=headers)
        assert answer.error == (400, "ERR_STORE_VERSION")
        assert "speaks version 2 " in answer.message
        assert said in answer.message
        assert answer.headers[wire.VERSION_HEADER] == "2"


async def test_methods_and_bodies_that_do_not_exist_are_refused(far: Far) -> None:
    headers = {"X-Service-Token": TOKEN, wire.VERSION_HEADER: str(wire.VERSION)}
    assert (await far.house.post(wire.PATH + "drop_everything", {}, headers=headers)).error == (404, "ERR_NOT_FOUND")
    answer = await far.house.post(wire.PATH + "sweep", {"limit": "5"}, headers=headers)
    assert (answer.status, answer.body["error"]["code"]) == (400, "ERR_BAD_REQUEST")
    assert "limit" in answer.message
    assert not far.behind.calls["sweep"]


@pytest.mark.parametrize("token", ["", "another one"])
async def test_a_wrong_token_is_named_once_and_heals_without_a_restart(far: Far, token: str) -> None:
    async with remote.open_store(f"unix:{far.proxy.socket}", token) as store:
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="401: the token is missing or wrong"):
                    await store.stats()
        assert len(loud(lines)) == 1
    assert TOKEN not in str(lines)


async def test_a_server_without_the_role_api_is_named(tmp_path: Path) -> None:
    async with far_store(tmp_path, roles=frozenset({"sweep"})) as far:
        with pytest.raises(StoreUnavailable, match=r"404: no queue-runtime with the role api"):
            await far.store.ping()


@asynccontextmanager
async def stranger(reply: bytes) -> AsyncIterator[str]:
    """The URL of a server that answers every request with these bytes and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()

    async with listening(answer) as port:
        yield f"http://127.0.0.1:{port}"


def reply(status: int, body: bytes = b"<html>", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


OURS = f"{wire.VERSION_HEADER}: {wire.VERSION}"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_trouble_between_both_ends_is_an_outage(status: int) -> None:
    async with stranger(reply(status)) as url, remote.open_store(url, TOKEN) as store:
        with pytest.raises(StoreUnavailable, match=f"answered {status}"):
            await store.ping()


@pytest.mark.parametrize("status", [200, 204, 301, 302, 400, 403, 404, 405, 418])
async def test_something_that_is_no_queue_is_an_outage_that_is_logged_as_a_fault(status: int) -> None:
    """A captive portal, a wrong port, a redirect to a login page: the token goes nowhere else."""
    moved = reply(status, b"" if status == 204 else b"<html>", "Location: http://127.0.0.1:9/login")
    async with stranger(moved) as url, remote.open_store(url, TOKEN) as store:
        with capture_logs() as lines, pytest.raises(StoreUnavailable, match=f"answered {status}"):
            await store.ping()
    assert len(loud(lines)) == 1


async def test_a_proxy_that_takes_no_large_bodies_refuses_the_large_call_alone() -> None:
    async with stranger(reply(413)) as url, remote.open_store(url, TOKEN) as store:
        with pytest.raises(InvalidRequest, match="on the way"):
            await add(store)


async def test_a_call_that_is_too_large_is_refused_before_it_is_sent(far: Far) -> None:
    with pytest.raises(InvalidRequest, match="a call takes at most"):
        await far.store.enqueue([NewTask(task_class="A", data="x" * wire.MAX_CALL_BYTES)])
    assert far.proxy.opened == 0


async def test_a_call_may_be_larger_than_the_bodies_of_other_callers(tmp_path: Path) -> None:
    async with far_store(tmp_path, max_body=1024) as far:
        (task_id,) = await add(far.store, data="x" * 5000)
        (found,) = await far.store.get([task_id])
        assert found is not None
        assert found.data == "x" * 5000
        headers = {"X-Service-Token": TOKEN, wire.VERSION_HEADER: str(wire.VERSION)}
        answer = await far.house.post(wire.PATH + "get", {"task_ids": "0" * wire.MAX_CALL_BYTES}, headers=headers)
        assert answer.error == (413, "ERR_TOO_LARGE")


class Broken(ReferenceStore):
    """Has a bug."""

    async def free(self, task_ids: object) -> int:
        raise ZeroDivisionError("a secret of the server")


async def test_a_bug_of_the_server_is_no_outage() -> None:
    """Whoever repeats such a call meets the bug again: a settler would for ever, with all that waits behind it."""
    async with (
        open_house(Broken(StoreOptions())) as house,
        serve(house, "hypercorn") as running,
        remote.open_store(f"http://{running.host}:{running.port}", "") as store,
    ):
        with capture_logs() as lines, pytest.raises(ServerFault, match=r"its log says why \(request \w+\)") as caught:
            await store.free([1])
    assert "secret" not in str(caught.value)
    assert [line["method"] for line in lines if line["event"] == "a store call failed"] == ["free"]


@pytest.mark.parametrize("answer", [b'{"data": [1]}', b'{"data": null}', b'{"error": 7}', b"\xff"])
async def test_an_answer_of_ours_that_cannot_be_read_is_no_outage_either(answer: bytes) -> None:
    async with stranger(reply(200, answer, OURS)) as url, remote.open_store(url, TOKEN) as store:
        with pytest.raises((ServerFault, StoreUnavailable)):
            await store.stats()


@pytest.mark.parametrize(
    ("url", "name", "is_private"),
    [
        ("http://localhost:80", "http://localhost:80", True),
        ("http://queue:80/a/", "http://queue:80/a/", False),
        ("https://u:secret@q/p", "https://q/p", True),
        ("unix:/run/q", "unix:/run/q", True),
        ("unix:///run/q", "unix:///run/q", True),
    ],
)
def test_an_address_has_a_name_without_secrets(url: str, name: str, is_private: bool) -> None:
    address = read_address(url)
    assert address.name == name
    assert (address.is_encrypted or address.stays_on_this_machine) is is_private
    assert address.socket in (None, "/run/q")


@pytest.mark.parametrize("url", ["", "queue:80", "ftp://queue", "http://", "http://queue:x"])
def test_what_is_no_address_cannot_be_opened(url: str) -> None:
    with pytest.raises(StoreUnusable):
        read_address(url)


async def test_a_prefix_and_a_password_of_a_proxy_in_front_are_sent() -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply(200, b'{"data": null}', OURS))

    async with (
        listening(answer) as port,
        remote.open_store(f"http://user:pass@127.0.0.1:{port}/queue/", TOKEN) as store,
    ):
        await store.ping()
    (request,) = seen
    assert request.startswith(b"POST /queue/api/queue/store/ping HTTP/1.1\r\n")
    head = dict(line.split(b": ", 1) for line in request.strip().lower().split(b"\r\n")[1:])
    assert head[b"authorization"].startswith(b"basic ")
    assert head[b"x-service-token"] == TOKEN.encode()

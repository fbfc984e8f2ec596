"""A bad line to the server: whatever happens to it, a call acts once at most, and the store goes on when it is back."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from queue_runtime.errors import StoreUnavailable
from queue_runtime.server import Kind
from queue_runtime.store import Store, StoreOptions
from queue_runtime.task import Complete, Lease, NewTask, Settlement, Verdict
from stores import remote
from stores.remote_line import CONNECTIONS
from tests.contract.steps import worker
from tests.http.house import serve_with, until
from tests.listener import Serve, listening
from tests.proxy import Fault, Way
from tests.reference_store import ReferenceStore
from tests.stores.relay import relay_to
from tests.stores.remote_house import TOKEN, Far, add, far_store

Move = Callable[[Store], Awaitable[object]]

CALLS: dict[str, Move] = {
    "enqueue": lambda store: store.enqueue([NewTask(task_class="B")]),
    "enqueue_once": lambda store: store.enqueue_once("e", NewTask(task_class="B")),
    "lease": lambda store: store.lease("qr:0:77:1@h", 1, 60),
    "renew": lambda store: store.renew([Lease(1, "qr:0:1:1@h")], 60),
    "settle": lambda store: store.settle([Settlement.held(Lease(1, "qr:0:1:1@h"), Complete())]),
    "cancel": lambda store: store.cancel([1]),
    "sweep": lambda store: store.sweep(10),
    "stats": lambda store: store.stats(),
    "changed": lambda store: store.changed(0.1),
}


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    async with far_store(tmp_path) as far:
        yield far


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[Far]:
    """Gives up a server that is silent for half a second."""
    async with far_store(tmp_path, seconds=0.5) as far:
        yield far


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.STRAND_REQUEST, Fault.LOSE_REPLY, Fault.STRAND_REPLY])
@pytest.mark.parametrize("method", CALLS)
async def test_a_call_whose_line_breaks_is_never_sent_again(far: Far, method: str, fault: Fault) -> None:
    await add(far.store, 2)
    before = far.behind.calls[method]
    trips = far.proxy.trips
    far.proxy.break_at({1: fault})
    with pytest.raises(StoreUnavailable) as caught:
        await CALLS[method](far.store)
    assert caught.value.operation == method
    assert far.proxy.socket in caught.value.reason
    assert far.proxy.trips == trips + 1
    await CALLS[method](far.store)  # and the next one is on a new line
    if method != "changed":
        acted = fault in {Fault.LOSE_REPLY, Fault.STRAND_REPLY}
        assert far.behind.calls[method] == before + 1 + acted


@pytest.mark.parametrize("method", ["lease", "settle", "changed"])
async def test_a_reply_that_ends_early_is_no_reply_wherever_it_ends(method: str) -> None:
    """After each byte of its head, and of its body."""
    store = ReferenceStore(StoreOptions())
    async with serve_with(store, "hypercorn") as running:
        await add(store, data="some data")
        replies = Recorder(running.host, running.port)
        async with asyncio.timeout(30):
            whole = await replies.record(CALLS[method])
            for length in range(len(whole)):
                with pytest.raises(StoreUnavailable):
                    await replies.play(CALLS[method], whole[:length])
            await replies.play(CALLS[method], whole)
    assert whole.endswith(b"}")


class Recorder:
    """Stands between a store and a server: writes down what the server says, or says so much of it as a test wants."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)

    async def record(self, call: Move) -> bytes:
        """The whole reply to this call."""
        said = bytearray()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(*self._server)
            while not said.endswith(b"}"):
                asked, told = asyncio.create_task(reader.read(2**16)), asyncio.create_task(far_reader.read(2**16))
                await asyncio.wait((asked, told), return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    far_writer.write(asked.result())
                if told.done():
                    said.extend(told.result())
                    writer.write(told.result())
                asked.cancel()
                told.cancel()
            far_writer.close()

        await self._ask(call, answer)
        return bytes(said)

    async def play(self, call: Move, reply: bytes) -> None:
        """Answer the call with these bytes, and hang up."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length))
            writer.write(reply)

        await self._ask(call, answer)

    async def _ask(self, call: Move, answer: Serve) -> None:
        async with (
            listening(answer) as port,
            remote.open_store(f"http://127.0.0.1:{port}", "", seconds=5) as store,
        ):
            await call(store)


@pytest.mark.parametrize("deaf", Way)
async def test_a_server_that_falls_silent_is_given_up_after_a_bound(impatient: Far, deaf: Way) -> None:
    await add(impatient.store)
    impatient.proxy.deaf = {deaf}
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable, match="ReadTimeout"):
        await impatient.store.stats()
    with pytest.raises(StoreUnavailable, match="ReadTimeout"):
        await impatient.store.changed(0.2)
    assert asyncio.get_running_loop().time() - began < 3
    impatient.proxy.deaf = set()
    assert (await impatient.store.stats()).active == 1


async def test_a_server_that_is_away_is_an_outage_and_needs_no_reopening(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    async with remote.open_store(f"unix:{socket}", TOKEN) as store:
        for method, call in CALLS.items():
            with pytest.raises(StoreUnavailable, match="ConnectError") as caught:
                await call(store)
            assert caught.value.operation == method
        assert not socket.exists()
    async with remote.open_store("http://127.0.0.1:1", TOKEN) as store:
        with pytest.raises(StoreUnavailable):
            await store.ping()


@pytest.mark.parametrize("kind", ["hypercorn", "uvicorn"])
async def test_a_server_that_restarts_is_found_again_with_all_its_tasks(tmp_path: Path, kind: Kind) -> None:
    store = ReferenceStore(StoreOptions())
    async with (
        serve_with(store, kind, token=TOKEN) as running,
        relay_to(running.host, running.port) as relay,
        remote.open_store(f"http://127.0.0.1:{relay.port}", TOKEN) as far,
    ):
        await add(far, 3)
        (task,) = await far.lease(owner := worker(), 1, 60)
        await asyncio.gather(*[far.stats() for _ in range(5)])
        while await far.changed(0.1):
            pass
        await running.close()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await far.ping()
        async with serve_with(store, kind, token=TOKEN) as again:
            relay.target = (again.host, again.port)
            (settled,) = await far.settle([Settlement.held(Lease(task.id, owner), Complete())])
            assert settled.verdict is Verdict.SETTLED
            again.house.doorbell.count = running.house.doorbell.count
            assert await far.changed(0.1)  # whatever happened meanwhile: it is another bell
            assert (await far.stats()).active == 2


async def test_two_hundred_calls_at_once_share_a_few_lines(far: Far) -> None:
    tasks = await asyncio.gather(*[add(far.store, data=str(number)) for number in range(200)])
    ids = [task_id for (task_id,) in tasks]
    assert len(set(ids)) == 200
    found = await asyncio.gather(*[far.store.get([task_id]) for task_id in ids])
    assert [task.data for (task,) in found if task is not None] == [str(number) for number in range(200)]
    assert far.proxy.opened <= CONNECTIONS
    assert far.behind.calls["enqueue"] < 200  # they share rounds


async def test_a_poll_for_changes_leaves_the_lines_to_the_others(far: Far) -> None:
    await far.store.changed(0.01)
    poll = asyncio.create_task(far.store.changed(5))
    await asyncio.gather(*[far.store.stats() for _ in range(100)])
    await add(far.store)
    async with asyncio.timeout(3):
        assert await poll


# ---- callers that go away


@pytest.mark.parametrize("kind", ["hypercorn", "uvicorn"])
async def test_what_a_cancelled_lease_took_is_given_back(tmp_path: Path, kind: Kind) -> None:
    async with far_store(tmp_path, kind=kind) as far:
        await add(far.store, 5)
        gate = hold(far, "lease")
        call = asyncio.create_task(far.store.lease(worker(), 3, 600))
        await until(lambda: far.behind.calls["lease"] == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: far.proxy.open == 0)
        gate.set()
        await until(lambda: far.behind.calls["settle"] == 1)
        async with asyncio.timeout(5):
            while (await far.store.stats()).leased:  # noqa: ASYNC110  a fact of a store
                await asyncio.sleep(0.01)
        tasks = await far.store.lease(worker(), 10, 60)
        assert [task.lost_count for task in tasks] == [0] * 5


async def test_what_a_lease_took_that_was_too_slow_is_given_back(impatient: Far) -> None:
    await add(impatient.store, 5)
    gate = hold(impatient, "lease")
    with pytest.raises(StoreUnavailable, match="ReadTimeout"):
        await impatient.store.lease(worker(), 3, 600)
    gate.set()
    await until(lambda: impatient.behind.calls["settle"] == 1)
    assert len(await impatient.store.lease(worker(), 10, 60)) == 5


async def test_calls_cancelled_at_any_moment_leave_the_lines_whole(far: Far) -> None:
    chance = random.Random(7)
    for _ in range(10):
        calls = [asyncio.ensure_future(CALLS[chance.choice(list(CALLS))](far.store)) for _ in range(60)]
        await asyncio.sleep(chance.uniform(0, 0.03))  # the random moment
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        async with asyncio.timeout(5):
            assert len(await asyncio.gather(*[far.store.stats() for _ in range(60)])) == 60
    assert far.proxy.open <= CONNECTIONS


def hold(far: Far, method: str) -> asyncio.Event:
    """Let calls of this method wait in the server until the event is set."""
    gate = asyncio.Event()
    behind, plain = far.behind, far.behind._call

    async def held(name: str, call: Callable[[], Awaitable[object]]) -> object:
        if name == method:
            behind.calls[name] += 1
            await gate.wait()
            return await call()
        return await plain(name, call)

    behind._call = held  # type: ignore[method-assign, assignment]  # a test's way to stop time
    return gate

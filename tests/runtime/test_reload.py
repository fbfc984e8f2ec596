"""Settings that change while everything runs: all that can do so at once, or nothing, and whatever stays is named."""

import asyncio
import os
import re
import threading
from pathlib import Path

import anyio
import pytest
from msgspec.structs import asdict

from queue_runtime.api.auth import Guard
from queue_runtime.config import Config, Reading, load_config, read_environment
from queue_runtime.cron_loop import CronLoop
from queue_runtime.current import Current
from queue_runtime.live import Live
from queue_runtime.registry import Context, Registry
from queue_runtime.reload import LIVE, Reloaded, Reloader
from queue_runtime.settings import PREFIX, SETTINGS
from queue_runtime.supervisor import Runtime
from queue_runtime.sweep_loop import SweepLoop
from tests.reference_store import ReferenceStore
from tests.runtime.conftest import Log
from tests.runtime.harness import Worker, all_succeeded, enqueue, failures, open_reference, until
from tests.runtime.test_sweep_loop import SweptStore

ENTRY = '[[task]]\nname = "{name}"\nclass = "A"\ncron = "{cron}"\n'


class Process:
    """One process whose files a test may change: a worker, its housekeeping, and the reload."""

    def __init__(self, folder: Path, registry: Registry | None = None, store: ReferenceStore | None = None) -> None:
        self.file = folder / "settings.env"
        self.cron_file = folder / "cron.toml"
        self.cron_file.touch()
        self.environ = {PREFIX + "ENV_FILE": str(self.file), PREFIX + "CRON_FILE": str(self.cron_file)}
        self.registry = Registry() if registry is None else registry
        self.write(SLOTS="1")
        config = load_config(self.environ)
        self.current = Current(config)
        self.store = open_reference() if store is None else store
        self.worker = Worker(self.store, self.registry, slots=config.slots, retry_seconds=config.retry_seconds)
        self.guard = Guard(config.token)
        self.sweep_loop = SweepLoop(self.store, self.worker.lifecycle, sweep_seconds=config.sweep_seconds)
        self.cron_loop = CronLoop(self.store, self.worker.lifecycle, ())
        self.runtime = Runtime(
            lifecycle=self.worker.lifecycle,
            store=self.store,
            intake=self.worker.intake,
            settler=self.worker.settler,
            doorbell=self.worker.doorbell,
            lease_loop=self.worker.lease_loop,
            sweep_loop=self.sweep_loop,
            cron_loop=self.cron_loop,
            grace_seconds=config.grace_seconds,
        )
        self.asked: list[str] = []
        """the token of each time that Phorge was asked again"""
        live = Live(self.runtime, self.guard, self.registry, self._note_token)
        self.reloader = Reloader(self.current, read=self.read, prepare=live.prepare)

    def _note_token(self) -> None:
        self.asked.append(self.current.config.conduit_token)

    def read(self) -> Reading:
        """What the reload reads."""
        return read_environment(self.environ)

    def write(self, **settings: str) -> None:
        """What the file of settings says from now on."""
        self.file.write_text("".join(f"{PREFIX}{name}={text}\n" for name, text in settings.items()))

    async def reload(self, **settings: str) -> Reloaded:
        """Write the file, and have it read."""
        self.write(**settings)
        return await self.reloader.reload()


class Gate:
    """A handler that waits until it is let through, and knows how many wait in it at once."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.open = asyncio.Event()

    async def __call__(self, context: Context, data: str) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
        finally:
            self.inside -= 1


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_more_slots_start_more_tasks_and_fewer_let_what_runs_go_on_to_its_end(tmp_path: Path, gate: Gate) -> None:
    registry = Registry()
    registry.task("A")(gate)
    process = Process(tmp_path, registry)
    ids = await enqueue(process.store, "A", 9)
    async with process.worker.running():
        await until(lambda: gate.inside == 1)
        assert (await process.reload(SLOTS="5")).changed == ("QUEUE_RUNTIME_SLOTS",)
        await until(lambda: gate.inside == 5)
        assert process.worker.stats.slots == 5
        assert (await process.reload(SLOTS="2")).changed == ("QUEUE_RUNTIME_SLOTS",)
        assert gate.inside == 5
        gate.most = 0
        gate.open.set()
        await until(lambda: all_succeeded(process.store, ids))
    assert gate.most <= 2
    assert process.worker.lease_loop.abandoned_ids == []


async def test_threads_have_as_many_places_as_there_are_slots_now(tmp_path: Path) -> None:
    """A setting that has no effect is a bug: N slots run N at once, in threads too."""
    registry, meeting = Registry(), threading.Barrier(3)

    @registry.task("Thread")
    def meet(context: Context, data: str) -> None:
        meeting.wait(10)

    process = Process(tmp_path, registry)
    ids = await enqueue(process.store, "Thread", 3)
    async with process.worker.running():
        await process.reload(SLOTS="3")
        await until(lambda: all_succeeded(process.store, ids))


async def test_a_cap_comes_goes_and_counts_what_runs_already(tmp_path: Path, gate: Gate) -> None:
    registry = Registry()
    registry.task("A", concurrency=2)(gate)
    other = Gate()
    registry.task("B")(other)
    process = Process(tmp_path, registry)
    await process.reload(SLOTS="20")
    await enqueue(process.store, "A", 9)
    await enqueue(process.store, "B", 9)
    async with process.worker.running():
        await until(lambda: (gate.inside, other.inside) == (2, 9))
        await process.reload(SLOTS="20", CLASS_CAPS="A=4,B=1")
        await until(lambda: gate.inside == 4)
        await enqueue(process.store, "B", 3)
        await process.reload(SLOTS="20", CLASS_CAPS="A=6,B=10")
        await until(lambda: (gate.inside, other.inside) == (6, 10))
        assert (await process.reload(SLOTS="20")).changed == ("QUEUE_RUNTIME_CLASS_CAPS",)
        await until(lambda: other.inside == 12)
        assert gate.inside == 6
        assert [spec.concurrency for spec in registry.specs] == [2, None]
        gate.open.set()
        other.open.set()


async def test_a_cap_for_a_class_without_a_handler_changes_nothing(tmp_path: Path, gate: Gate) -> None:
    registry = Registry()
    registry.task("A")(gate)
    process = Process(tmp_path, registry)
    done = await process.reload(SLOTS="7", CLASS_CAPS="A=1,X=2")
    assert done.problems == ("QUEUE_RUNTIME_CLASS_CAPS names X, without a handler of its own here",)
    assert (process.current.config.slots, registry.specs[0].concurrency) == (1, None)


async def test_the_next_failure_waits_as_the_settings_say_now(tmp_path: Path) -> None:
    registry = Registry()

    @registry.task("Fails")
    async def fail(context: Context, data: str) -> None:
        raise ValueError("always")

    process = Process(tmp_path, registry)
    await process.reload(SLOTS="1", RETRY_SECONDS="5000")
    (task,) = await enqueue(process.store, "Fails")
    async with process.worker.running():
        await until(lambda: failures(process.store, task))
    row = process.store.tables.active[task]
    assert row.lease_expires is not None
    assert row.lease_expires >= row.date_created + 5000


async def test_a_long_rest_of_the_sweep_ends_when_it_shall_be_short(tmp_path: Path) -> None:
    store = SweptStore()
    process = Process(tmp_path, store=store)
    await process.reload(SWEEP_SECONDS="3600")
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(process.sweep_loop.run, stop)
        await until(lambda: len(store.at) == 1)
        await process.reload(SWEEP_SECONDS="0.1")
        await until(lambda: len(store.at) >= 4)
        stop.set()


async def test_periodic_work_is_read_again(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.cron_file.write_text(ENTRY.format(name="one", cron="0 0 * * *"))
    assert (await process.reload()).changed == ("QUEUE_RUNTIME_SLOTS", "QUEUE_RUNTIME_CRON_FILE: 1 entries")
    assert [entry.name for entry in process.cron_loop.entries] == ["one"]
    assert (await process.reload()).changed == ()
    other = tmp_path / "other.toml"
    other.write_text(ENTRY.format(name="two", cron="0 0 * * *"))
    process.environ[PREFIX + "CRON_FILE"] = str(other)
    await process.reload()
    assert [entry.name for entry in process.cron_loop.entries] == ["two"]
    del process.environ[PREFIX + "CRON_FILE"]
    await process.reload()
    assert process.cron_loop.entries == ()


async def test_grace_and_token_change_and_the_token_may_come_from_a_file(tmp_path: Path) -> None:
    process = Process(tmp_path)
    secret = tmp_path / "token"
    for token in ("first", "second"):
        secret.write_text(f"{token}\n")
        done = await process.reload(GRACE_SECONDS="3", TOKEN_FILE=str(secret))
        assert "QUEUE_RUNTIME_TOKEN" in done.changed
        headers = [(b"x-service-token", token.encode())]
        assert process.guard.allows({"headers": headers, "query_string": b""})
        assert not process.guard.allows({"headers": [], "query_string": b"token=wrong"})
    assert process.runtime.grace_seconds == 3


async def test_phorge_is_asked_again_by_the_token_that_is_in_force_then(tmp_path: Path) -> None:
    """Refused by the old one, it would be asked half a minute later."""
    process = Process(tmp_path)
    await process.reload(SLOTS="1", CONDUIT_TOKEN="new-token")
    await process.reload(SLOTS="none")
    assert process.asked == ["new-token"]


async def test_a_token_that_is_taken_away_needs_a_restart(tmp_path: Path) -> None:
    """Else one reload could open the queue to everybody: the addresses stay those of the start."""
    process = Process(tmp_path)
    await process.reload(TOKEN="s3cret")
    done = await process.reload(LISTEN="127.0.0.1:1")
    assert done.needs_restart == ("QUEUE_RUNTIME_LISTEN", "QUEUE_RUNTIME_TOKEN")
    assert process.current.config.token == "s3cret"
    assert not process.guard.allows({"headers": [], "query_string": b""})


Settings = dict[str, str]

MYSQL: Settings = {"STORE": "mysql", "MYSQL_HOST": "db", "MYSQL_PASSWORD": "one"}
STREAMS: Settings = {"STORE": "streams", "MYSQL_PASSWORD": "one", "REDIS_URL": "redis://u:one@r:1/2?ssl_x=y"}
SENTINEL: Settings = {"STORE": "redis", "REDIS_URL": "redis+sentinel://:one@a:1,b:2/queue/0?sentinel_password=one"}
REMOTE: Settings = {"STORE": "remote", "REMOTE_URL": "https://u:one@far/q", "REMOTE_TOKEN": "one"}
CONDUIT: Settings = {"CONDUIT_URL": "http://phorge", "CONDUIT_TOKEN": "one"}


async def reload_from(before: Settings, after: Settings) -> tuple[Reloaded, Config]:
    """What comes of it when a process that was started with `before` reads `after`, and what is in force then."""
    old, new = ({PREFIX + name: text for name, text in one.items()} for one in (before, after))
    current = Current(load_config(old))
    done = await Reloader(current, read=lambda: read_environment(new), prepare=lambda _: list).reload()
    assert done.problems == ()
    return done, current.config


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (MYSQL, {"MYSQL_PASSWORD": "two"}),
        (MYSQL, {"MYSQL_PASSWORD": ""}),
        (STREAMS, {"MYSQL_PASSWORD": "two", "BLOCK_SECONDS": "1"}),
        (STREAMS, {"REDIS_URL": "redis://other:two@r:1/2?ssl_x=y"}),
        (SENTINEL, {"REDIS_URL": "redis+sentinel://u:two@a:1,b:2/queue/0?sentinel_password=two&sentinel_username=u"}),
        (REMOTE, {"REMOTE_TOKEN": "two", "REMOTE_URL": "https://u:two@far/q"}),
        (CONDUIT, {"CONDUIT_TOKEN": "two"}),
    ],
)
async def test_a_new_secret_of_the_same_server_is_in_force_at_once(before: Settings, changes: Settings) -> None:
    done, config = await reload_from(before, before | changes)
    assert done.needs_restart == ()
    assert sorted(done.changed) == sorted(PREFIX + name for name in changes)
    assert config == load_config({PREFIX + name: text for name, text in (before | changes).items()})


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (MYSQL, {"MYSQL_PASSWORD": "two", "MYSQL_HOST": "other"}),
        (MYSQL, {"MYSQL_PASSWORD": "two", "MYSQL_USER": "other"}),
        (STREAMS, {"REDIS_URL": "redis://u:two@other:1/2?ssl_x=y"}),
        (STREAMS, {"REDIS_URL": "redis://u:two@r:1/3?ssl_x=y"}),
        (STREAMS, {"REDIS_URL": "redis://u:two@r:1/2?ssl_x=z"}),
        (STREAMS, {"REDIS_URL": "rediss://u:two@r:1/2?ssl_x=y"}),
        (SENTINEL, {"REDIS_URL": "redis+sentinel://:two@a:1/queue/0"}),
        (REMOTE, {"REMOTE_TOKEN": "two", "REMOTE_URL": "https://u:one@other/q"}),
        (CONDUIT, {"CONDUIT_TOKEN": "two", "CONDUIT_URL": "http://other"}),
    ],
)
async def test_the_secret_of_another_server_waits_for_the_restart_with_it(before: Settings, changes: Settings) -> None:
    done, config = await reload_from(before, before | changes)
    assert done.changed == ()
    assert sorted(done.needs_restart) == sorted(PREFIX + name for name in changes)
    assert config == load_config({PREFIX + name: text for name, text in before.items()})


@pytest.mark.parametrize("other", [{"STORE": "sqlite"}, {"STORE": "streams", "RECORD": "sqlite"}])
async def test_another_store_leaves_this_one_its_secrets(other: Settings) -> None:
    done, config = await reload_from(MYSQL, other | {"SLOTS": "7"})
    assert done.changed == ("QUEUE_RUNTIME_SLOTS",)
    assert {"QUEUE_RUNTIME_STORE", "QUEUE_RUNTIME_MYSQL_PASSWORD"} <= set(done.needs_restart)
    done, config = await reload_from(STREAMS | {"BLOCK_SECONDS": "9"}, other | {"STORE": "sqlite", "RECORD": ""})
    assert done.changed == ()
    assert (config.mysql_password, config.redis_url, config.block_seconds) == ("one", STREAMS["REDIS_URL"], 9)


async def test_what_needs_a_restart_keeps_its_value_and_is_named_each_time(tmp_path: Path, logs: list[Log]) -> None:
    process = Process(tmp_path)
    before = process.current.config
    for _ in range(2):
        done = await process.reload(SLOTS="6", LEASE_SECONDS="90", SQLITE_PATH="/elsewhere")
        assert done.needs_restart == ("QUEUE_RUNTIME_SQLITE_PATH", "QUEUE_RUNTIME_LEASE_SECONDS")
    assert process.current.config.slots == 6
    assert process.current.config.lease_seconds == before.lease_seconds
    (first, second) = [line for line in logs if line["event"] == "reloaded"]
    assert (first["changed"], second["changed"]) == (["QUEUE_RUNTIME_SLOTS"], [])
    assert first["needs_restart"] == second["needs_restart"] == list(done.needs_restart)
    assert (await process.reload(SLOTS="6")).needs_restart == ()


async def test_a_fault_anywhere_changes_nothing_and_all_are_named(tmp_path: Path, logs: list[Log]) -> None:
    process = Process(tmp_path)
    process.cron_file.write_text(ENTRY.format(name="one", cron="0 0 * * *"))
    await process.reload(SLOTS="3")
    before = asdict(process.current.config)
    process.cron_file.write_text(ENTRY.format(name="one", cron="0 0 * * *") + ENTRY.format(name="two", cron="x"))
    done = await process.reload(SLOTS="9", SWEEP_SECONDS="never", GRACE_SECONDS="-1", NONSENSE="1")
    assert [re.split(r"[ :]", problem)[0] for problem in done.problems] == [
        "QUEUE_RUNTIME_NONSENSE",
        "QUEUE_RUNTIME_GRACE_SECONDS",
        "QUEUE_RUNTIME_SWEEP_SECONDS",
        "QUEUE_RUNTIME_CRON_FILE",
    ]
    assert (done.changed, done.needs_restart) == ((), ())
    assert asdict(process.current.config) == before
    assert (process.worker.stats.slots, process.sweep_loop.sweep_seconds) == (3, 30)
    assert [entry.name for entry in process.cron_loop.entries] == ["one"]
    refused = [line["problem"] for line in logs if line["event"].startswith("reload refused")]
    assert refused == list(done.problems)
    # a fault of the file of periodic work alone is enough
    assert len((await process.reload(SLOTS="9")).problems) == 1
    assert process.worker.stats.slots == 3


async def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.file.unlink()
    (problem,) = (await process.reloader.reload()).problems
    assert "QUEUE_RUNTIME_ENV_FILE: cannot read" in problem
    assert process.current.config.slots == 1


@pytest.mark.parametrize("what", ["settings", "secret", "cron"])
async def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    """Who reads it would wait for somebody who writes to it."""
    process = Process(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    settings = {"SLOTS": "2"}
    match what:
        case "settings":
            process.environ[PREFIX + "ENV_FILE"] = str(pipe)
        case "secret":
            settings |= {"TOKEN_FILE": str(pipe)}
        case "cron":
            process.environ[PREFIX + "CRON_FILE"] = str(pipe)
    with anyio.fail_after(5):
        (problem,) = (await process.reload(**settings)).problems
    assert "no regular file" in problem
    assert process.current.config.slots == 1


async def test_a_reload_whose_file_system_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    process, lets_go, reads = Process(tmp_path), threading.Event(), threading.Event()
    plain = process.reloader._read

    def hang() -> Reading:
        reads.set()
        lets_go.wait(30)
        return plain()

    process.reloader._read = hang
    try:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(process.reloader.reload)
                await until(reads.is_set)
                group.cancel_scope.cancel()
    finally:
        lets_go.set()


async def test_a_file_of_settings_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.file.write_text(f"{PREFIX}SLOTS=32\n{PREFIX}SLO")
    assert len((await process.reloader.reload()).problems) == 1
    process.file.write_text(f"{PREFIX}SLOTS=3")  # 32 was meant
    (problem,) = (await process.reloader.reload()).problems
    assert "does not end with a newline: it looks half written" in problem
    assert process.current.config.slots == 1


async def test_a_reload_that_crashes_is_told_and_ends_nothing(tmp_path: Path, logs: list[Log]) -> None:
    process = Process(tmp_path)

    def crash() -> None:
        raise RuntimeError("a bug")

    process.reloader._read = crash  # type: ignore[assignment]  # as a bug would
    assert len((await process.reloader.reload()).problems) == 1
    assert any(line["event"] == "reload failed: nothing has changed" for line in logs)


async def test_reloads_wait_for_each_other(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.write(SLOTS="4")
    done = await asyncio.gather(*(process.reloader.reload() for _ in range(5)))
    assert [one.changed for one in done] == [("QUEUE_RUNTIME_SLOTS",), (), (), (), ()]


def test_the_operations_page_names_exactly_what_takes_effect() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = page.partition("| in force at once | how |")[2].partition("\n\n")[0]
    named = {name.lower() for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == LIVE
    assert {one.field for one in SETTINGS} >= LIVE

"""An account that may not have a companion: all that Phorge needs works, and an extra is refused by its name."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_runtime.errors import InvalidRequest, StoreUnavailable, StoreUnusable
from queue_runtime.store import StoreOptions
from queue_runtime.task import (
    Complete,
    Fail,
    Failure,
    Lease,
    NewTask,
    Outcome,
    Pause,
    PauseKind,
    Release,
    Result,
    Retry,
    Settlement,
    Unknown,
    Verdict,
    Yield,
)
from stores import mysql_companion
from stores.mysql import MysqlStore, open_store
from stores.mysql_settings import MysqlSettings
from tests.clock import START, Clock
from tests.faults.process import Served, archived, enqueue, wait_for
from tests.phorge_tables import PhorgeTables

OWNER = "qr:0badcafe:1:1@test"
WEB = "web1:4711"


@pytest.fixture
def settings(phorge: PhorgeTables) -> Iterator[MysqlSettings]:
    """As an account with rights on Phorge's queue and nothing else. No companion is there."""
    phorge.execute(f"DROP DATABASE IF EXISTS `{phorge.companion}`")
    phorge.create_account("narrow", "secret", [f"SELECT, INSERT, UPDATE, DELETE ON `{phorge.worker}`.*"])
    yield phorge.settings(user="narrow", password="secret")
    phorge.execute("DROP USER narrow@localhost")


@pytest.fixture
async def store(settings: MysqlSettings, clock: Clock) -> AsyncIterator[MysqlStore]:
    async with open_store(settings, StoreOptions(now=clock, patience=0)) as opened:
        yield opened


async def test_a_task_lives_through_all_its_states(store: MysqlStore, clock: Clock) -> None:
    new = [NewTask(task_class=f"Class{number}", data=f"payload {number}", object_phid="PHID-1") for number in range(7)]
    rows = await store.enqueue([*new, NewTask(task_class="Later", delay_until=START + 100)])
    leased = await store.lease(OWNER, 10, 60)
    assert [(row.id, row.data) for row in leased] == [(row.id, new[place].data) for place, row in enumerate(rows[:7])]
    assert None not in await store.renew([Lease(row.id, OWNER) for row in leased], 90)
    outcomes: list[Outcome] = [
        Complete(5, [NewTask(task_class="Child")]),
        Fail(Failure("no")),
        Retry(30, Failure("later")),
        Yield(30),
        Unknown(30),
        Release(),
    ]
    settlements = [Settlement.held(Lease(row.id, OWNER), end) for row, end in zip(leased, outcomes, strict=False)]
    assert {one.verdict for one in await store.settle(settlements)} == {Verdict.SETTLED}
    replayed = [one.verdict for one in await store.settle(settlements)]
    assert replayed == [Verdict.REPLAYED, Verdict.REPLAYED, *[Verdict.LOST] * 4]
    (cancelled,) = await store.cancel([leased[6].id])
    assert cancelled is not None
    assert cancelled.result is Result.CANCELLED
    clock.advance(101)
    again = await store.lease(OWNER, 20, 60)
    assert len(again) == 6, "retry, yield, unknown, release, the child and the delayed one"
    assert [row.failure_count for row in again].count(1) == 1
    assert [row is not None for row in await store.retry([leased[1].id, leased[6].id])] == [True, True]
    assert await store.free([again[0].id]) == 1
    assert await store.priority([again[0].id], 3) == 1
    assert await store.delay([again[0].id], START + 500) == 1
    stats = await store.stats()
    assert (stats.active, stats.archived) == (8, 1)
    assert len(await store.list_active(20)) == 8
    assert await store.history([leased[1].id]) == [[]], "there is no place for errors"
    assert (await store.sweep(100)).expired == 0
    await store.ping()


async def test_receipts_of_callers_work_without_the_place_where_spent_ones_are_kept(
    store: MysqlStore, clock: Clock
) -> None:
    await store.enqueue([NewTask(task_class="A")])
    (task,) = await store.lease(WEB, 1, 60)
    receipt = Lease(task.id, WEB, task.lease_expires)
    (released,) = await store.settle([Settlement.held(receipt, Release())])
    assert released.verdict is Verdict.SETTLED
    clock.advance(1)
    (again,) = await store.lease(WEB, 1, 60)
    assert again.lease_expires != task.lease_expires
    (late,) = await store.settle([Settlement.held(receipt, Complete())])
    assert late.verdict is Verdict.LOST


@pytest.mark.parametrize(("field", "value"), [("queue", "slow"), ("idempotency_key", "key"), ("max_attempts", 3)])
async def test_an_extra_is_refused_by_its_name(store: MysqlStore, phorge: PhorgeTables, field: str, value: Any) -> None:
    plain, extra = NewTask(task_class="A"), NewTask(task_class="A", **{field: value})
    with pytest.raises(InvalidRequest) as caught:
        await store.enqueue([plain, extra])
    assert caught.value.field == field
    assert "companion" in caught.value.reason
    await store.enqueue([plain])
    (task,) = await store.lease(OWNER, 1, 60)
    with pytest.raises(InvalidRequest) as caught:
        await store.settle([Settlement.held(Lease(task.id, OWNER), Complete(followups=[extra]))])
    assert caught.value.field == field
    assert phorge.execute("SELECT COUNT(*) FROM worker_activetask") == [(1,)]


async def test_events_and_pauses_say_what_is_missing(store: MysqlStore) -> None:
    with pytest.raises(StoreUnavailable, match="companion"):
        await store.enqueue_once("event", NewTask(task_class="A"))
    with pytest.raises(InvalidRequest, match="companion"):
        await store.pause(Pause(PauseKind.ALL))
    with pytest.raises(InvalidRequest, match="companion"):
        await store.resume(Pause(PauseKind.ALL))
    assert await store.paused() == []


async def test_lost_runs_are_not_counted_so_a_task_is_never_given_up(store: MysqlStore, clock: Clock) -> None:
    await store.enqueue([NewTask(task_class="A")])
    for number in range(8):
        (task,) = await store.lease(f"qr:1:{number}", 1, 60)
        assert task.lost_count == 0
        clock.advance(61)
    (unreadable,) = await store.enqueue([NewTask(task_class="B")])
    assert len(await store.lease(OWNER, 5, 60)) == 2
    assert unreadable.queue == "default"


async def test_the_companion_is_used_as_soon_as_an_administrator_has_made_it(
    settings: MysqlSettings, phorge: PhorgeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreUnusable, match="narrow may not create phabricator_queue_runtime"):
        await mysql_companion.create(settings)
    assert await mysql_companion.create(phorge.settings())
    phorge.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{phorge.companion}`.* TO narrow@localhost")
    async with open_store(settings, StoreOptions()) as store:
        (task,) = await store.enqueue([NewTask(task_class="A", queue="slow", max_attempts=2)])
        (leased,) = await store.lease(OWNER, 1, 60, queues={"slow"})
        assert (leased.id, leased.max_attempts) == (task.id, 2)


async def test_a_companion_of_a_newer_release_is_left_alone(phorge: PhorgeTables) -> None:
    async with open_store(phorge.settings(), StoreOptions()) as store:
        await store.ping()
    phorge.execute(f"UPDATE `{phorge.companion}`.meta SET value = '99' WHERE name = 'version'")
    try:
        async with open_store(phorge.settings(), StoreOptions()) as store:
            with pytest.raises(StoreUnavailable, match="schema version 99, this release knows"):
                await store.enqueue([NewTask(task_class="A")])
    finally:
        phorge.execute(f"UPDATE `{phorge.companion}`.meta SET value = '1' WHERE name = 'version'")


def test_over_http_an_extra_is_a_400_and_an_event_a_503(
    settings: MysqlSettings, phorge: PhorgeTables, tmp_path: Path
) -> None:
    account: dict[str, Any] = {"MYSQL_USER": settings.user, "MYSQL_PASSWORD": settings.password}
    with (
        Served(tmp_path, STORE="mysql", SQLITE_PATH="", MYSQL_SOCKET=phorge.server.socket, **account) as served,
        served.client() as client,
    ):
        task = {"taskClass": "SleepWorker", "data": "{}"}
        answer = client.post("/api/queue/enqueue", json=task | {"maxAttempts": 3})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "ERR_BAD_REQUEST"
        assert "maxAttempts" in answer.json()["error"]["message"]
        batch = client.post("/api/queue/enqueue-batch", json={"tasks": [task, task | {"queue": "slow"}]})
        assert batch.status_code == 400
        event = client.post("/api/queue/enqueue-event", json={"eventID": "e", "task": task})
        assert event.status_code == 503
        assert client.post("/api/queue/pause", json={"kind": "all"}).status_code == 400
        (task_id,) = enqueue(client, "SleepWorker")
        wait_for("it has run", lambda: archived(client, task_id), 10)
        assert client.get("/readyz").status_code == 200
        served.wait_for_event(
            "no companion database: tasks have no queue, idempotency key or maximum of attempts, there is no error"
            " history, no pause, no event and no count of lost workers; run `queue-runtime init` with an account"
            " that may create it"
        )
        served.tell_and_wait()

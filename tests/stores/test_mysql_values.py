"""What is stored comes back byte for byte, whatever it is and whoever wrote it; what does not fit harms nobody else."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256

import anyio
import pytest
from msgspec.structs import replace

from queue_runtime.errors import EventConflict, InvalidRequest
from queue_runtime.intake import Intake
from queue_runtime.store import StoreOptions
from queue_runtime.task import Complete, Failure, Lease, NewTask, Result, Retry, Settlement, Verdict
from queue_runtime.wire import event_digest
from stores.mysql import MysqlStore, open_store
from stores.mysql_settings import DriverName
from tests.clock import Clock
from tests.phorge_php import Php
from tests.phorge_tables import PhorgeTables

OWNER = "qr:0badcafe:1:1@test"

PAYLOADS = {
    "empty": "",
    "PHP's empty map": "[]",
    "a bare integer": "4711",
    "emoji": '{"text": "\N{PILE OF POO}\N{ZERO WIDTH JOINER}\N{FIRE}"}',
    "NUL and controls": "a\0b\x01\x1a\x7f\n\r\t",
    "quotes": """'"`\\' \\" ''""",
    "backslashes": "\\\\n \\0 \\u0000 \\",
    "percent and braces": "%s %(x)s %% {0} :id :rows :now ?",
    "semicolon and comment": "a; DROP TABLE worker_taskdata; -- # /* */",
    "escaped slashes": '{"path":"\\/a\\/b","name":"\\u00e4"}',
    "spaces at the end": "text   ",
    "right-to-left and combining": "\N{RIGHT-TO-LEFT MARK}e\N{COMBINING ACUTE ACCENT}\N{LINE SEPARATOR}",
    "just below what comes with its row": "x" * 16_384,
    "just above": "x" * 16_385,
    "wide, at the edge": "\N{EURO SIGN}" * 5462,
}


@pytest.fixture(params=["aiomysql", "asyncmy"])
def driver(request: pytest.FixtureRequest) -> DriverName:
    """Each driver."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def store(phorge: PhorgeTables, driver: DriverName, clock: Clock) -> AsyncIterator[MysqlStore]:
    async with open_store(phorge.settings(driver=driver), StoreOptions(now=clock, patience=0)) as opened:
        yield opened


@pytest.fixture
def php(phorge: PhorgeTables) -> Iterator[Php]:
    with Php(phorge) as php:
        yield php


async def test_payloads_of_every_kind_come_back_as_they_were(store: MysqlStore, phorge: PhorgeTables) -> None:
    rows = await store.enqueue([NewTask(task_class="A", data=data) for data in PAYLOADS.values()])
    stored = [raw for (raw,) in phorge.execute("SELECT CAST(data AS BINARY) FROM worker_taskdata ORDER BY id")]
    assert stored == [data.encode() for data in PAYLOADS.values()]
    assert [row and row.data for row in await store.get([row.id for row in rows])] == [*PAYLOADS.values()]
    leased = await store.lease(OWNER, 100, 60)
    assert {row.id: row.data for row in leased} == {
        row.id: data for row, data in zip(rows, PAYLOADS.values(), strict=True)
    }


async def test_five_megabytes_come_back_whole_and_alone_in_their_reply(store: MysqlStore) -> None:
    large = "".join(chr(0x20 + number % 0x2000) for number in range(2_200_000))
    assert len(large.encode()) > 5 * 2**20
    rows = await store.enqueue([NewTask(task_class="A", data=large), NewTask(task_class="A", data=large)])
    for place in range(2):
        (leased,) = await store.lease(OWNER, 10, 60)
        assert leased.id == rows[place].id
        assert leased.data == large


async def test_payloads_that_php_wrote_are_read_as_they_are(store: MysqlStore, php: Php) -> None:
    ids = {php.schedule("A", data): data for data in PAYLOADS.values()}
    assert {row.id: row.data for row in await store.lease(OWNER, 100, 60)} == ids


async def test_names_that_differ_by_case_or_a_space_at_the_end_are_different(store: MysqlStore) -> None:
    """The collation pads: for the server `a` and `a ` are equal, and only case counts."""
    names = ["Name", "name", "NAME", "Namé", "N" * 64, "Ñ" * 64]
    await store.enqueue([NewTask(task_class=name) for name in names])
    for place, name in enumerate(names):
        owner = f"{name[:20]}:{place}"
        (row,) = await store.lease(owner, 10, 60, classes={name})
        assert (row.task_class, row.lease_owner) == (name, owner)
        assert await store.renew([Lease(row.id, owner.upper() + "x", row.lease_expires)], 60) == [None]


async def test_an_owner_that_differs_by_a_space_or_case_does_not_hold_the_row(store: MysqlStore) -> None:
    await store.enqueue([NewTask(task_class="A")])
    (row,) = await store.lease("web", 1, 60)
    for other in ("web ", "Web", "we", "wéb"):
        lease = Lease(row.id, other, row.lease_expires)
        (settled,) = await store.settle([Settlement.held(lease, Complete())])
        assert settled.verdict is Verdict.LOST, other
        assert await store.renew([lease], 60) == [None]


async def test_a_class_with_a_space_at_the_end_is_leased_by_its_own_name_alone(store: MysqlStore) -> None:
    await store.enqueue([NewTask(task_class="A"), NewTask(task_class="A ")])
    (plain,) = await store.lease("qr:1", 10, 60, classes={"A"})
    assert plain.task_class == "A"
    (spaced,) = await store.lease("qr:2", 10, 60, without_classes={"A"})
    assert spaced.task_class == "A "


async def test_binary_phids_survive_every_move_that_they_go_through(store: MysqlStore, php: Php) -> None:
    """A PHID that is no text: the lease that meets the row archives it as failed, and takes the others."""
    bad = php.schedule("A", object_phid=b"\xff\xfe\0PHID", container_phid=b"ok")
    good = php.schedule("A", object_phid="PHID-ä", container_phid=b"\xc3\xa4")
    (row,) = await store.lease(OWNER, 10, 60)
    assert (row.id, row.object_phid, row.container_phid) == (good, "PHID-ä", "ä")
    stored = php.query("SELECT id, result, objectPHID, containerPHID FROM worker_archivetask")
    assert stored == [(bad, int(Result.FAILURE), b"\xff\xfe\0PHID", b"ok")]
    ((attempt,),) = await store.history([bad])
    assert "not UTF-8" in attempt.message
    assert await store.retry([bad]) != [None]
    assert php.query("SELECT objectPHID FROM worker_activetask WHERE id = %s", (bad,)) == [(b"\xff\xfe\0PHID",)]
    (listed, _) = sorted(await store.list_active(5), key=lambda one: one.id)
    assert listed.object_phid == "\\xff\\xfe\x00PHID"
    await store.cancel([bad])
    assert php.query("SELECT objectPHID FROM worker_archivetask WHERE id = %s", (bad,)) == [(b"\xff\xfe\0PHID",)]


async def test_a_row_whose_payload_is_gone_is_archived_as_failed_with_the_reason(store: MysqlStore, php: Php) -> None:
    gone, good = php.schedule("A"), php.schedule("B")
    php.write("DELETE FROM worker_taskdata WHERE id = (SELECT dataID FROM worker_activetask WHERE id = %s)", (gone,))
    assert [row.id for row in await store.lease(OWNER, 10, 60)] == [good]
    (ended,) = await store.get_archived([gone])
    assert ended is not None
    assert (ended.result, ended.data) == (Result.FAILURE, None)
    ((attempt,),) = await store.history([gone])
    assert "payload is missing" in attempt.message


async def test_numbers_at_the_end_of_their_range_are_kept(store: MysqlStore, php: Php, phorge: PhorgeTables) -> None:
    """Unsigned columns, and Phorge's own odd values."""
    top = 2**32 - 1
    (row,) = await store.enqueue([NewTask(task_class="A", priority=top, delay_until=top)])
    assert (await store.get([row.id]))[0] == replace(row, data="")
    task_id = php.schedule("B", priority=0)
    phorge.execute(
        "UPDATE worker_activetask SET failureCount = %s, failureTime = %s WHERE id = %s", (top - 1, top, task_id)
    )
    (leased,) = await store.lease(OWNER, 5, 60)
    assert (leased.failure_count, leased.failure_time, leased.priority) == (top - 1, top, 0)
    (settled,) = await store.settle([Settlement.held(Lease(task_id, OWNER), Complete(2**63 - 1))])
    assert settled.archived is not None
    assert settled.archived.duration_us == 2**63 - 1


async def test_a_failure_count_at_its_end_does_not_make_a_poison_of_the_row(
    store: MysqlStore, php: Php, phorge: PhorgeTables
) -> None:
    task_id = php.schedule("B")
    phorge.execute("UPDATE worker_activetask SET failureCount = 4294967295")
    (leased,) = await store.lease(OWNER, 5, 60)
    other = php.schedule("Other")
    await store.lease("qr:2", 5, 60)
    settlements = [
        Settlement.held(Lease(leased.id, OWNER), Retry(5, Failure("once more"))),
        Settlement.held(Lease(other, "qr:2"), Complete()),
    ]
    assert [one.verdict for one in await store.settle(settlements)] == [Verdict.SETTLED, Verdict.SETTLED]
    (row,) = await store.get([task_id])
    assert row is not None
    assert row.failure_count == 2**32 - 1


async def test_archived_rows_as_old_as_phorge_can_be_read(store: MysqlStore, php: Php, phorge: PhorgeTables) -> None:
    """archivedEpoch is NULL in rows older than the column; a payload may have been collected."""
    task_id = php.schedule("Old")
    await store.cancel([task_id])
    phorge.execute("UPDATE worker_archivetask SET archivedEpoch = NULL; DELETE FROM worker_taskdata")
    (ended,) = await store.get_archived([task_id])
    assert ended is not None
    assert ended.archived_epoch == ended.date_modified
    assert [row.id for row in await store.list_archived(5)] == [task_id]


@asynccontextmanager
async def serving(intake: Intake) -> AsyncIterator[Intake]:
    """The group commit, at work."""
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(intake.run, stop)
        yield intake
        stop.set()


async def test_one_caller_beyond_max_allowed_packet_fails_alone(phorge: PhorgeTables, driver: DriverName) -> None:
    with allowed_packet(phorge, 2**20):
        async with open_store(phorge.settings(driver=driver), StoreOptions()) as store:
            large = NewTask(task_class="Large", data="x" * 1_100_000)
            wide = NewTask(task_class="Wide", data="'" * 600_000)  # grows when it is escaped
            small = NewTask(task_class="Small")
            async with serving(Intake(store)) as intake:
                answers = await asyncio.gather(
                    *(intake.enqueue([task]) for task in (small, large, small, small, small, wide, small)),
                    return_exceptions=True,
                )
            bad = [answer for answer in answers if isinstance(answer, BaseException)]
            assert [type(error) for error in bad] == [InvalidRequest, InvalidRequest]
            assert "max_allowed_packet" in str(bad[0])
            assert phorge.execute("SELECT COUNT(*) FROM worker_activetask") == [(5,)]
            (row, *_) = await store.lease(OWNER, 1, 60)
            with pytest.raises(InvalidRequest):
                await store.settle([Settlement.held(Lease(row.id, OWNER), Complete(followups=[large]))])
            (settled,) = await store.settle([Settlement.held(Lease(row.id, OWNER), Complete())])
            assert settled.verdict is Verdict.SETTLED


@contextmanager
def allowed_packet(phorge: PhorgeTables, size: int) -> Iterator[None]:
    """The server takes so many bytes in one trip, of connections that open from now on."""
    ((allowed,),) = phorge.execute("SELECT @@global.max_allowed_packet")
    phorge.execute(f"SET GLOBAL max_allowed_packet = {size}")
    try:
        yield
    finally:
        phorge.execute(f"SET GLOBAL max_allowed_packet = {allowed}")


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("text", ["x", "'", "\N{PILE OF POO}"], ids=["plain", "escaped", "wide"])
async def test_what_fits_row_by_row_is_stored_whatever_it_weighs_together(
    phorge: PhorgeTables, text: str, step: int
) -> None:
    """As natively: there each row is a statement of its own."""
    payloads = [f"{number}{text * 100_000}" for number in range(20)]
    tasks = [NewTask(task_class="Child", data=data, idempotency_key=data[:3]) for data in payloads]
    phorge.execute(f"SET GLOBAL auto_increment_increment = {step}")
    try:
        with allowed_packet(phorge, 2**20):
            async with open_store(phorge.settings(), StoreOptions()) as store:
                first = await store.enqueue([NewTask(task_class="Parent")])
                await store.lease(OWNER, 1, 60)
                complete = Complete(followups=[NewTask(task_class="Followup", data=data) for data in payloads])
                (settled,) = await store.settle([Settlement.held(Lease(first[0].id, OWNER), complete)])
                assert settled.verdict is Verdict.SETTLED
                rows = await store.enqueue(tasks)
                assert await store.enqueue(tasks) == rows
                active = await store.list_active(99)
                for task_class in ("Followup", "Child"):
                    ids = [row.id for row in active if row.task_class == task_class]
                    assert [task.data for task in await store.get(ids) if task is not None] == payloads
    finally:
        phorge.execute("SET GLOBAL auto_increment_increment = 1")
    assert phorge.execute("SELECT COUNT(*), COUNT(DISTINCT dataID) FROM worker_activetask") == [(40, 40)]
    assert phorge.execute("SELECT COUNT(*) FROM worker_taskdata") == [(41,)]


async def test_a_packet_that_was_made_smaller_meanwhile_is_seen(phorge: PhorgeTables) -> None:
    tasks = [NewTask(task_class="Large", data="x" * 20_000)] * 3
    async with open_store(phorge.settings(), StoreOptions()) as store:
        await store.enqueue(tasks)
        with allowed_packet(phorge, 2**15):
            # two at a time, one of them on a new connection: the server hangs up on it, and is asked anew
            await asyncio.gather(*(store.enqueue(tasks) for _ in range(2)))
    assert phorge.execute("SELECT COUNT(*) FROM worker_activetask") == [(9,)]


INBOX = """
CREATE TABLE worker_gorgeinbox (
    eventID VARBINARY(128) NOT NULL PRIMARY KEY, payloadHash VARCHAR(64) NOT NULL, response TEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin
"""
GO_RESPONSE = (
    '{"id":77,"taskClass":"FeedPublisherHTTPWorker","failureCount":0,"dataID":91,"priority":2000,'
    '"objectPHID":"PHID-1","dateCreated":1690000000,"dateModified":1690000001}'
)
EVENT_TASK = NewTask(task_class="FeedPublisherHTTPWorker", data='{"a":"<b>&\N{LINE SEPARATOR}ä"}', object_phid="PHID-1")


@pytest.fixture
def inbox(phorge: PhorgeTables) -> Iterator[PhorgeTables]:
    """An install that has the Go service's receipts."""
    phorge.execute(INBOX)
    yield phorge
    phorge.execute("DROP TABLE worker_gorgeinbox")


async def test_a_receipt_that_the_go_service_wrote_is_answered(inbox: PhorgeTables, store: MysqlStore) -> None:
    """http-api section 6: the digest is that of Go's compact JSON, the answer its task."""
    inbox.execute("INSERT INTO worker_gorgeinbox VALUES (%s, %s, %s)", (b"event\xc3\xa4", go_digest(), GO_RESPONSE))
    answer = await store.enqueue_once("eventä", EVENT_TASK)
    assert (answer.id, answer.data_id, answer.object_phid) == (77, 91, "PHID-1")
    assert (answer.date_created, answer.date_modified) == (1690000000, 1690000001)
    with pytest.raises(EventConflict):
        await store.enqueue_once("eventä", NewTask(task_class="Other"))
    assert inbox.execute("SELECT COUNT(*) FROM worker_activetask") == [(0,)]


def go_digest() -> str:
    """SHA-256 of the request as Go would write it, put down by hand."""
    text = (
        '{"taskClass":"FeedPublisherHTTPWorker","data":"{\\"a\\":\\"\\u003cb\\u003e\\u0026\\u2028ä\\"}",'
        '"objectPHID":"PHID-1"}'
    )
    return sha256(text.encode()).hexdigest()


async def test_our_receipts_go_where_the_go_service_looks(inbox: PhorgeTables, store: MysqlStore) -> None:
    first = await store.enqueue_once("new", EVENT_TASK)
    ((digest, response),) = inbox.execute("SELECT payloadHash, response FROM worker_gorgeinbox WHERE eventID = 'new'")
    assert digest == go_digest() == event_digest(EVENT_TASK)
    assert f'"id":{first.id}' in response.replace(" ", "")
    assert '"taskClass":"FeedPublisherHTTPWorker"' in response.replace(" ", "")
    # and in the companion too, for the day on which that table goes
    assert inbox.execute(f"SELECT event_id, digest FROM `{inbox.companion}`.event") == [(b"new", digest)]
    await store.cancel([first.id])
    again = await asyncio.gather(*(store.enqueue_once("new", EVENT_TASK) for _ in range(5)))
    assert {answer.id for answer in again} == {first.id}


async def test_events_at_the_same_moment_make_one_task(inbox: PhorgeTables, store: MysqlStore) -> None:
    answers = await asyncio.gather(*(store.enqueue_once("once", EVENT_TASK) for _ in range(20)))
    assert len({answer.id for answer in answers}) == 1
    assert inbox.execute("SELECT COUNT(*) FROM worker_activetask") == [(1,)]


async def test_an_event_is_known_when_the_go_services_table_comes(phorge: PhorgeTables, store: MysqlStore) -> None:
    first = await store.enqueue_once("early", EVENT_TASK)
    phorge.execute(INBOX)
    try:
        store._sessions._pool.forget()
        assert (await store.enqueue_once("early", EVENT_TASK)).id == first.id
        with pytest.raises(EventConflict):
            await store.enqueue_once("early", NewTask(task_class="Other"))
    finally:
        phorge.execute("DROP TABLE worker_gorgeinbox")


async def test_an_event_is_known_when_the_go_services_table_goes(phorge: PhorgeTables, store: MysqlStore) -> None:
    phorge.execute(INBOX)
    try:
        store._sessions._pool.forget()
        first = await store.enqueue_once("late", EVENT_TASK)
    finally:
        phorge.execute("DROP TABLE worker_gorgeinbox")
    store._sessions._pool.forget()
    assert (await store.enqueue_once("late", EVENT_TASK)).id == first.id
    with pytest.raises(EventConflict):
        await store.enqueue_once("late", NewTask(task_class="Other"))
    assert phorge.execute("SELECT COUNT(*) FROM worker_activetask") == [(1,)]

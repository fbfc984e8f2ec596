"""Taskmasters of Phorge's own beside this runtime: they lease from the same tables and never ask for PHP's lock."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handlers import delegate as delegate_module
from handlers import phorge as phorge_module
from handlers.phorge import Phorge
from queue_runtime.lifecycle import Lifecycle
from tests.conduit import stub
from tests.conduit.house import House
from tests.conduit.stub import Call, StubPhp, answers, replies
from tests.runtime.harness import until


@pytest.fixture
async def php() -> AsyncIterator[StubPhp]:
    async with StubPhp().listening() as stubbed:
        stubbed.locks = True
        yield stubbed


class Book:
    """Phorge's book of daemons, or what stands for it."""

    def __init__(self, alive: bool | Exception) -> None:
        self.alive = alive
        self.looks = 0

    async def __call__(self) -> bool:
        self.looks += 1
        if isinstance(self.alive, Exception):
            raise self.alive
        return self.alive


WANTED_AND_ALIVE = [(4, False), (0, True), (None, False), (4, True)]
"""phd.taskmasters as PHP tells it (None: it does not), and whether one is alive."""


def tell(php: StubPhp, taskmasters: int | None) -> None:
    php.facts = None if taskmasters is None else {"taskmasters": taskmasters}


@pytest.mark.parametrize(("wanted", "alive"), WANTED_AND_ALIVE)
async def test_while_natives_may_work_the_row_is_held_for_a_whole_run_in_spite_of_the_lock(
    php: StubPhp, wanted: int | None, alive: bool
) -> None:
    """Should this process be killed, a native taskmaster must not get the row while PHP goes on."""
    tell(php, wanted)
    done = asyncio.Event()

    async def slow(call: Call) -> dict[str, Any]:
        await done.wait()
        return {"result": "success"}

    php.work = slow
    php.lease_durations["PhpWorker"] = 600
    async with House(php, natives=Book(alive)).running() as house:
        task_id = await house.add()
        await until(lambda: php.running[task_id])
        row = house.active(task_id)
        assert (row.lease_expires or 0) - row.date_modified > 7000
        done.set()
        await house.end_of(task_id)


@pytest.mark.parametrize("reply", [stub.NGINX_TIMEOUT, stub.HANG_UP])
async def test_while_natives_may_work_a_lost_answer_keeps_the_row_for_a_whole_run(
    php: StubPhp, reply: stub.Http
) -> None:
    tell(php, 4)
    php.work = replies(reply)
    php.lease_durations["LongWorker"] = 14_400
    async with House(php, natives=Book(False)).running() as house:
        assert await house.wait_of(await house.add(), "(unknown)") == 7200
        assert await house.wait_of(await house.add("LongWorker"), "(unknown)") == 14_400


async def test_while_natives_may_work_a_run_that_goes_on_keeps_the_row_too(php: StubPhp) -> None:
    tell(php, 4)
    php.work = answers(result="busy")
    async with House(php, natives=Book(False)).running() as house:
        assert await house.wait_of(await house.add(), "(unknown)") == 7200


async def test_where_natives_are_known_to_be_off_the_short_lease_will_do(php: StubPhp) -> None:
    tell(php, 0)
    php.work = replies(stub.HANG_UP)
    book = Book(False)
    async with House(php, natives=book, lease_seconds=20).running() as house:
        assert await house.wait_of(await house.add(), "(unknown)") == 20
        await until(lambda: php.probes() == 2)
        await until(lambda: house.delegate.open)
        assert book.looks == 1  # it is believed for a while


async def test_natives_that_are_switched_on_during_a_run_count_when_its_answer_is_lost(php: StubPhp) -> None:
    """The way back: phd.taskmasters is set first, and the runs that this process leaves behind keep their rows."""
    tell(php, 0)
    go_on = asyncio.Event()

    async def lose(call: Call) -> stub.Http:
        await go_on.wait()
        return stub.HANG_UP

    php.work = lose
    async with House(php, natives=Book(False)).running() as house:
        task_id = await house.add()
        await until(lambda: php.running[task_id])
        tell(php, 4)
        house.phorge.ask_again()
        await until(lambda: not house.phorge.alone)
        go_on.set()
        assert await house.wait_of(task_id, "(unknown)") == 7200


async def test_where_natives_are_off_by_phorges_word_only_the_book_decides(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phorge_module, "NATIVES_AGAIN_SECONDS", 0)
    tell(php, 0)
    book = Book(False)
    phorge = Phorge(House(php).client, Lifecycle(), opened=lambda: None, natives=book)
    seen = []
    for alive in (False, True, False):
        book.alive = alive
        await phorge.look()
        assert phorge.terms is not None
        seen.append(phorge.terms.short)
    assert seen == [True, False, True]


async def test_a_book_that_cannot_be_looked_at_in_time_is_no_word_for_it(
    php: StubPhp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> bool:
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(phorge_module, "NATIVES_SECONDS", 0.05)
    tell(php, 0)
    phorge = Phorge(House(php).client, Lifecycle(), opened=lambda: None, natives=hang)
    await phorge.look()
    assert phorge.open
    assert phorge.terms is not None
    assert not phorge.terms.short


async def test_an_error_in_looking_for_natives_ends_nothing(php: StubPhp) -> None:
    tell(php, 0)
    phorge = Phorge(House(php).client, Lifecycle(), opened=lambda: None, natives=Book(RuntimeError("odd")))
    assert await phorge.look() > 0
    assert (phorge.open, "RuntimeError" in phorge.trouble) == (False, True)


async def test_without_a_lock_it_makes_no_difference(php: StubPhp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegate_module, "CLASS_SECONDS", 900)
    php.locks = False
    tell(php, 0)
    php.work = replies(stub.HANG_UP)
    async with House(php, natives=Book(False)).running() as house:
        assert await house.wait_of(await house.add(), "(unknown)") == 900

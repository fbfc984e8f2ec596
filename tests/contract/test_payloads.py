"""Payloads are opaque text, kept byte for byte (docs/architecture.md, rule 9)."""

import pytest
from msgspec.structs import replace

from queue_runtime.errors import InvalidRequest
from queue_runtime.store import Store
from queue_runtime.task import Complete, NewTask
from tests.contract.steps import add, ended, held, ready_ids, row, settle, take, worker

TEXTS = {
    "empty": "",
    "PHP's empty map": "[]",
    "an empty object": "{}",
    "a bare integer": "4711",
    "null": "null",
    "a string zero": '"0"',
    "a float": "1.0",
    "an int beyond 2^53": "12345678901234567890",
    "odd key order and spaces": '{ "b" : 1,"a":[ ] , "b":2}',
    "escaped slashes and unicode": r'{"u":"http:\/\/x\/\u00e9\ud83d\ude42"}',
    "no JSON at all": "not json {",
    "quotes": "it's \"quoted\" `so` \\' \\\\ \\0",
    "percent signs": "%s %d %(name)s 100 % :name ?1 $1 {0}",
    "NUL": "a\0b\0",
    "only NUL": "\0",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x85",
    "line ends": "a\r\nb\nc\r",
    "separators": "\u2028\u2029\u00a0\ufeff",
    "emoji": "\U0001f642\U0001f468\u200d\U0001f469",
    "combining": "e\u0301 is not \u00e9",
    "right to left": "\u202eabc\u202c \u05d0",
    "noncharacters": "\uffff\ufffe\U0010ffff",
    "looks like a blob": "x'00ff'",
    "spaces at the ends": "  x  ",
    "a trailing newline": "x\n",
}


@pytest.mark.parametrize("name", TEXTS)
async def test_a_payload_goes_through_every_step_unchanged(store: Store, name: str) -> None:
    """R086, R090"""
    text = TEXTS[name]
    (task_id,) = await add(store, NewTask(task_class="A", data=text))
    assert (await row(store, task_id)).data == text
    task = await take(store)
    assert task.data == text
    await settle(store, held(task), Complete(followups=[NewTask(task_class="Child", data=text)]))
    assert (await ended(store, task_id)).data == text
    assert (await take(store)).data == text


async def test_odd_payloads_share_a_batch_without_harm(store: Store) -> None:
    """R087"""
    await add(store, *[NewTask(task_class="A", data=text) for text in TEXTS.values()])
    assert [task.data for task in await store.lease(worker(), 100, 60)] == list(TEXTS.values())


@pytest.mark.parametrize("size", [64 * 2**10, 2**20, 5 * 2**20, 17 * 2**20])
async def test_a_large_payload_comes_back_whole(store: Store, size: int) -> None:
    """R088"""
    text = ("0123456789abcde\u00e9" * (size // 17 + 1))[: size - size // 17]
    (task_id,) = await add(store, NewTask(task_class="A", data=text))
    assert (await take(store)).data == text
    assert (await row(store, task_id)).data == text


async def test_text_that_has_no_utf8_form_cannot_be_built_into_a_task() -> None:
    """R086"""
    with pytest.raises(InvalidRequest):
        NewTask(task_class="A", data="a lone surrogate \ud800")


@pytest.mark.parametrize("field", ["task_class", "object_phid", "container_phid", "idempotency_key"])
async def test_odd_names_are_kept_too(store: Store, field: str) -> None:
    names = ["it's", '"', "100 %", "\u00e9", "\U0001f642", " x ", "a\nb", "\u2028", ";--", "NULL"]
    plain = NewTask(task_class="A")
    ids = await add(store, *[replace(plain, **{field: name}) for name in names])
    found = await store.get(ids)
    assert [getattr(task, field) for task in found] == names
    assert await ready_ids(store) == ids

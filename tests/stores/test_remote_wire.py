"""The wire form of the Store protocol: both ends have all of it, and nothing changes on the way."""

import inspect
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec import Struct

from queue_runtime import store_wire as wire
from queue_runtime.api.store import StoreFace
from queue_runtime.doorbell import Doorbell
from queue_runtime.errors import EventConflict, InvalidRequest, QueueRuntimeError, StoreFull, StoreUnavailable
from queue_runtime.intake import Intake
from queue_runtime.lifecycle import Lifecycle
from queue_runtime.settler import Settler
from queue_runtime.store import Store, StoreOptions
from queue_runtime.store_wire import Method
from queue_runtime.task import (
    MAX_MESSAGE,
    Complete,
    Fail,
    Failure,
    Lease,
    NewTask,
    Pause,
    Retry,
    Settlement,
    TaskFilter,
    Unknown,
)
from stores.remote import RemoteStore
from stores.remote_text import encode, fitting
from tests.contract.steps import OUTCOMES
from tests.reference_store import ReferenceStore

PROTOCOL = {name: method for name, method in vars(Store).items() if inspect.iscoroutinefunction(method)}
METHODS: dict[str, Method[Any, Any]] = {one.name: one for one in vars(wire).values() if isinstance(one, Method)}


def test_every_method_of_the_protocol_has_both_ends() -> None:
    store = ReferenceStore(StoreOptions())
    face = StoreFace(
        store=store,
        intake=Intake(store),
        settler=Settler(store),
        doorbell=Doorbell(),
        lifecycle=Lifecycle(),
        patience=1,
    )
    assert len(PROTOCOL) == 25
    assert METHODS.keys() == PROTOCOL.keys() == face.methods.keys()
    for name, method in PROTOCOL.items():
        assert inspect.signature(getattr(RemoteStore, name)) == inspect.signature(method)


@pytest.mark.parametrize("name", sorted(PROTOCOL.keys() - {"changed"}))
def test_a_call_has_the_arguments_of_its_method_and_an_answer_its_type(name: str) -> None:
    """Not `changed`: a connection remembers nothing between two calls, so the caller sends what it has heard."""
    method = METHODS[name]
    hints = get_type_hints(PROTOCOL[name])
    assert method.answer == hints.pop("return")
    assert list(method.call.__struct_fields__) == list(hints)


def shapes(kind: Any, known: dict[str, str]) -> None:
    """The fields of a type and of all that it is made of, by name."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        known[kind.__name__] = ", ".join(repr(one.value) for one in kind)
    elif isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        known[kind.__name__] = ", ".join(f"{field}: {hints[field]}" for field in kind.__struct_fields__)
        for field in kind.__struct_fields__:
            shapes(hints[field], known)
    for part in get_args(kind):
        shapes(part, known)


def structs(kind: Any) -> set[type[Struct]]:
    """All structs that a type is made of, itself included."""
    found = {part for one in get_args(kind) for part in structs(one)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        found |= {kind, *(part for one in get_type_hints(kind).values() for part in structs(one))}
    return found


def test_no_part_of_a_call_may_have_a_field_that_the_server_does_not_know() -> None:
    """What a server ignores it does not do, and its caller never hears of it."""
    parts = {part for method in METHODS.values() for part in structs(method.call)}
    assert {NewTask, TaskFilter, Settlement, Lease, Retry, Failure, Pause, wire.Bell} <= parts
    assert {part.__name__ for part in parts if not part.__struct_config__.forbid_unknown_fields} == set()


@pytest.mark.parametrize("name", ["list_active", "list_archived"])
def test_a_filter_that_the_server_does_not_know_is_refused_by_its_name(name: str) -> None:
    call = {"limit": 5, "offset": 0, "after": None, "before": None, "where": {"of_the_future": 7}}
    method = METHODS[name]
    body = msgspec.json.encode({field: call[field] for field in method.call.__struct_fields__})
    with pytest.raises(InvalidRequest, match=rf"{name}: .*`of_the_future`.*`\$\.where`"):
        method.read_call(body)


def test_the_wire_form_changes_with_its_version_only() -> None:
    """When this fails: raise VERSION in store_wire.py, and write down the new print here. Both ends then know.

    Never a new print alone: version 1 once got a filter so, which its servers left out without a word.
    """
    known: dict[str, str] = {}
    for name, method in METHODS.items():
        shapes(method.call, known)
        shapes(method.answer, known)
        known[name] = f"{method.call} -> {method.answer}"
    shapes(wire.Refusal, known)
    text = "\n".join(f"{name}: {known[name]}" for name in sorted(known))
    assert (wire.VERSION, sha256(text.encode()).hexdigest()[:12]) == (2, "3eacf12ffadf"), text


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("queue", "needs the companion database"),
        EventConflict("order-17"),
        StoreUnavailable("settle", "the server went away"),
        StoreUnavailable("lease"),
        StoreFull("enqueue", "no space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_protocol_travels_as_itself(error: QueueRuntimeError) -> None:
    sent = wire.refusal(error)
    assert sent is not None
    came = wire.raised(msgspec.json.decode(msgspec.json.encode(sent), type=wire.Refusal))
    assert (type(came), str(came), vars(came)) == (type(error), str(error), vars(error))


def test_other_errors_do_not_travel() -> None:
    assert wire.refusal(ValueError("a secret of the server")) is None


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_outcome_arrives_as_it_was_sent(name: str) -> None:
    sent = Settlement.held(Lease(2**63 - 1, "qr:0:1:1@h", 5), OUTCOMES[name])
    assert type(arrived(sent).outcome) is type(sent.outcome)
    assert msgspec.json.encode(arrived(sent)) == msgspec.json.encode(sent)


def test_follow_ups_arrive_whole() -> None:
    task = NewTask(task_class="A", data='a\0"\\/\u2028\U0001f642\x7f', priority=0, idempotency_key="k", max_attempts=3)
    outcome = arrived(Settlement.unfenced(7, Complete(5, (task, task)))).outcome
    assert isinstance(outcome, Complete)
    assert list(outcome.followups) == [task, task]


def test_a_task_outside_the_bounds_is_refused_where_it_arrives() -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.ENQUEUE.read_call(b'{"tasks": [{"task_class": ""}]}')
    assert caught.value.field == "task_class"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"tasks": 1}',
        b'{"tasks": [], "more": 1}',
        b'{"tasks": [{"task_class": "\xff"}]}',
        b"[" * 5000,
    ],
)
def test_a_body_that_is_no_call_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        wire.ENQUEUE.read_call(body)


def test_text_without_a_utf8_form_arrives_as_the_stores_keep_it() -> None:
    """Lone surrogates: escapes in texts, and in names what no row is called."""
    failure = Failure("a \udcff b", "\ud800" * 3, 7)
    sent = fitting(Settlement.held(Lease(1, "\udcff"), Retry(3, failure, 4)))
    came = arrived(sent)
    assert came.outcome == Retry(3, Failure("a \\udcff b", "\\ud800" * 3, 7), 4)
    assert came.lease == Lease(1, "\\udcff\0")


def test_texts_are_cut_before_they_are_sent() -> None:
    """A round of a thousand failures has to fit into one request."""
    long = Failure("x" * 100_000, "y" * 100_000)
    for outcome in (Fail(long), Retry(1, long)):
        sent = encode(wire.SettleCall([fitting(Settlement.unfenced(1, outcome))] * 1000))
        assert len(sent) < wire.MAX_CALL_BYTES
        assert arrived(fitting(Settlement.unfenced(1, outcome))).outcome.failure.message == "x" * MAX_MESSAGE  # type: ignore[union-attr]  # these two have one
    assert fitting(plain := Settlement.unfenced(1, Unknown(3))) is plain


def arrived(settlement: Settlement) -> Settlement:
    """What the server reads of it."""
    settlements: Sequence[Settlement] = wire.SETTLE.read_call(encode(wire.SettleCall([settlement]))).settlements
    (found,) = settlements
    return found

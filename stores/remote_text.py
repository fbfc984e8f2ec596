"""Calls of the Store protocol as JSON, also those that hold text which has no UTF-8 form."""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from queue_runtime.task import MAX_MESSAGE, MAX_TRACE, Fail, Failure, Retry, Settlement
from stores.ledger import storable


def encode(call: Struct) -> bytes:
    """The body of a request."""
    try:
        return msgspec.json.encode(call)
    except UnicodeEncodeError:
        return msgspec.json.encode(_well_formed(msgspec.to_builtins(call)))


def _well_formed(value: object) -> object:
    """The same with names that no store can hold (lone surrogates) turned into others that none holds (a NUL)."""
    match value:
        case str() if (fitting := storable(value)) != value:
            return f"{fitting}\0"
        case dict():
            return {key: _well_formed(one) for key, one in value.items()}
        case list() | tuple():
            return [_well_formed(one) for one in value]
        case _:
            return value


def fitting(settlement: Settlement) -> Settlement:
    """The same with texts as long as a store keeps them, so that a round of failures fits into a request."""
    outcome = settlement.outcome
    match outcome:
        case Fail(failure) | Retry(_, failure, _) if not _fits(failure):
            return replace(settlement, outcome=replace(outcome, failure=_cut(failure)))
        case _:
            return settlement


def _fits(failure: Failure) -> bool:
    texts = failure.message + failure.trace
    return len(failure.message) <= MAX_MESSAGE and len(failure.trace) <= MAX_TRACE and storable(texts) == texts


def _cut(failure: Failure) -> Failure:
    message, trace = storable(failure.message[:MAX_MESSAGE]), storable(failure.trace[:MAX_TRACE])
    return replace(failure, message=message, trace=trace)

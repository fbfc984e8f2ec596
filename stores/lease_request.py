"""The arguments of a lease call, checked once for every store."""

from collections.abc import Collection

from msgspec import Struct

from queue_runtime.task import MAX_LEASE_LIMIT, MAX_LEASE_SECONDS, check_owner, check_range


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """The arguments of Store.lease. Building one raises InvalidRequest where owner or seconds break a bound."""

    owner: str
    limit: int
    seconds: int
    classes: Collection[str] | None
    without_classes: Collection[str]
    queues: Collection[str] | None
    only: Collection[int] | None
    without: Collection[int]
    due_first: bool

    def __post_init__(self) -> None:
        check_owner(self.owner)
        check_range("seconds", self.seconds, 1, MAX_LEASE_SECONDS)


def lowered(limit: int) -> int:
    """The number of rows that a call may ask for: too large ones are lowered, not refused."""
    return max(0, min(limit, MAX_LEASE_LIMIT))

"""Which expiries of a task's receipts are spent: given back or moved while in the future, and never granted again.

Kept as text beside the task: ranges of seconds, `[[first,last],…]`, in order, no two of them touching.
"""

from bisect import insort

import msgspec

from queue_runtime.task import PARKED_OWNERS, is_sentinel, is_worker

MAX_RANGES = 16
"""Beyond that the two nearest become one, which may only lengthen a later lease, by the seconds between them."""

Ranges = list[tuple[int, int]]

_decoder = msgspec.json.Decoder(Ranges)


def is_receipt(owner: str | None) -> bool:
    """Whether this owner's lease is a receipt: an HTTP caller's, whose name may come back."""
    return not (owner is None or is_worker(owner) or is_sentinel(owner) or owner in PARKED_OWNERS)


def spend(spent: str | None, expires: int, now: int) -> str | None:
    """The spent expiries with one more. Those that are over are forgotten: no lease can end there any more."""
    ranges = _read(spent)
    insort(ranges, (expires, expires))
    ranges = _joined([one for one in ranges if one[1] > now])
    while len(ranges) > MAX_RANGES:
        _join_nearest(ranges)
    return msgspec.json.encode(ranges).decode() if ranges else None


def first_unspent(spent: str | None, wanted: int) -> int:
    """The first expiry from the wanted one on that is not spent."""
    for first, last in _read(spent):
        if first <= wanted <= last:
            return last + 1
    return wanted


def _read(spent: str | None) -> Ranges:
    return [] if spent is None else _decoder.decode(spent)


def _joined(ranges: Ranges) -> Ranges:
    """The same seconds, ranges that overlap or touch made one."""
    joined: Ranges = []
    for first, last in ranges:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def _join_nearest(ranges: Ranges) -> None:
    place = min(range(1, len(ranges)), key=lambda at: ranges[at][0] - ranges[at - 1][1])
    ranges[place - 1 : place + 1] = [(ranges[place - 1][0], ranges[place][1])]

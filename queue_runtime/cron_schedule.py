"""When periodic work is due: a cron expression in a time zone, as Unix seconds."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from msgspec import Struct

if TYPE_CHECKING:
    from cronsim import CronSim

MAX_EXPRESSION = 200
FIRST_WINDOW = 60
WIDER = 8

DAY = 86400
"""Between two changes of the clocks of one place are more than so many seconds."""

NOT_FIXED = frozenset({"localtime", "posixrules", "Factory"})
"""Names of time zones that mean something else on another host, or nothing at all."""


class Schedule(Struct, frozen=True):
    """The slots of one expression. Raises ValueError, with the rule, where one of the two is none.

    Across a change of the clocks it does as Debian's cron: a fixed time that does not exist that day is the first
    moment after the gap, a fixed time that comes twice is the first of the two. An expression with `*` in its
    minutes or hours, or with seconds, knows no fixed times: it follows the hours as they really pass.
    """

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        check_expression(self.expression)
        find_zone(self.zone)

    def after(self, moment: int) -> int | None:
        """The first slot later than this second; None: none within 50 years."""
        zone = find_zone(self.zone)
        return self._fixed(moment, zone) if self._is_fixed() else self._passing(moment, zone)

    def _is_fixed(self) -> bool:
        fields = self.expression.split()
        return len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")

    def _fixed(self, moment: int, zone: tzinfo) -> int | None:
        """Each time of the wall clock that fits has one moment, and these rise as the times do."""
        for found in _simulated(self.expression, datetime.fromtimestamp(moment, zone).replace(tzinfo=None)):
            slot = _moment_of(found.replace(tzinfo=zone), zone)
            if slot > moment:
                return slot
        return None

    def _passing(self, moment: int, zone: tzinfo) -> int | None:
        """Each moment at which the wall clock shows what fits.

        From one change of the clocks to the next the wall clock is as good as UTC. The expression is asked for each
        such time by itself, because cronsim misses slots where the clocks change by half an hour.
        """
        begin, known = moment, moment
        while True:
            offset = _offset(known, zone)
            found = next(_simulated(self.expression, datetime.fromtimestamp(begin + offset, UTC)), None)
            if found is None:
                return None
            slot = int(found.timestamp()) - offset
            change = _next_change(known, slot, zone)
            if change is None:
                return slot
            begin, known = change - 1, change  # the first second on the new clock counts too

    def between(self, start: int, end: int) -> list[int]:
        """All slots later than `start` and not later than `end`."""
        found: list[int] = []
        slot = self.after(start)
        while slot is not None and slot <= end:
            found.append(slot)
            slot = self.after(slot)
        return found

    def latest(self, start: int, end: int) -> int | None:
        """The last of them."""
        window = FIRST_WINDOW
        while start < end:
            found = self.between(max(start, end - window), end)
            if found:
                return found[-1]
            if window >= end - start:
                break
            window *= WIDER  # wide enough at last, and never so wide that slots of each second are many
        return None

    def next(self, moment: int, count: int) -> list[datetime]:
        """The next slots, on the wall clock of the zone."""
        found: list[datetime] = []
        slot = self.after(moment)
        while slot is not None and len(found) < count:
            found.append(datetime.fromtimestamp(slot, find_zone(self.zone)))
            slot = self.after(slot)
        return found


def stamp(slot: int) -> str:
    """A slot as it stands in keys and log lines, in UTC."""
    return datetime.fromtimestamp(slot, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _offset(moment: int, zone: tzinfo) -> int:
    """Seconds by which the wall clock of the zone is ahead of UTC."""
    return round((datetime.fromtimestamp(moment, zone).utcoffset() or timedelta()).total_seconds())


def _next_change(moment: int, until: int, zone: tzinfo) -> int | None:
    """The first second later than this one, and not later than `until`, at which the clocks are changed."""
    if zone is UTC:
        return None
    offset, low = _offset(moment, zone), moment
    while low < until:
        high = min(low + DAY, until)
        if _offset(high, zone) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            return high
        low = high
    return None


def _moment_of(wall: datetime, zone: tzinfo) -> int:
    """When the wall clock first shows this, or the first moment after the gap that it lies in."""
    moment = int(wall.timestamp())
    if datetime.fromtimestamp(moment, zone).replace(tzinfo=None) == wall.replace(tzinfo=None):
        return moment
    # Of a time in a gap fold=0 counts on with the clock before it, fold=1 backwards with the one after it.
    change = _next_change(int(wall.replace(fold=1).timestamp()), moment, zone)
    return moment if change is None else change


def find_zone(zone: str) -> tzinfo:
    """The time zone of this name. Raises ValueError where there is none."""
    if zone == "UTC":
        return UTC
    try:
        if zone not in NOT_FIXED:
            return ZoneInfo(zone)
    except (ValueError, KeyError, OSError):  # a bad form, an unknown name, the name of a folder
        pass
    raise ValueError(f"{zone!r} is no time zone, such as UTC or Europe/Berlin")


def check_expression(expression: str) -> None:
    """Raise ValueError, with the rule, unless it is a cron expression that some day fits."""
    from cronsim import CronSimError  # noqa: PLC0415  the extra `cron`: only who has periodic work needs it

    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"must have at most {MAX_EXPRESSION} characters")
    try:
        _simulated(expression, datetime.now(UTC))
    except CronSimError as error:
        reason = str(error)
        raise ValueError(
            f"{expression!r}: {reason[:1].lower() + reason[1:]}; it is minute hour day month weekday, "
            "and may begin with seconds"
        ) from None


def _simulated(expression: str, moment: datetime) -> "CronSim":
    from cronsim import CronSim  # noqa: PLC0415  as above

    return CronSim(expression, moment)

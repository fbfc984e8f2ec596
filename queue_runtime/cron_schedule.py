"""When periodic work is due: a cron expression in a time zone, as Unix seconds."""

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from msgspec import Struct

if TYPE_CHECKING:
    from cronsim import CronSim

MAX_EXPRESSION = 200
FIRST_WINDOW = 60
WIDER = 8


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
        # Fresh each time: between the two passes of a repeated hour an iterator goes back to the first.
        for found in _simulated(self.expression, datetime.fromtimestamp(moment, find_zone(self.zone))):
            slot = int(found.timestamp())
            if slot > moment:
                return slot
        return None

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


def find_zone(zone: str) -> tzinfo:
    """The time zone of this name. Raises ValueError where there is none."""
    if zone == "UTC":
        return UTC
    try:
        return ZoneInfo(zone)
    except (ValueError, KeyError, OSError):  # a bad form, an unknown name, the name of a folder
        raise ValueError(f"{zone!r} is no time zone, such as UTC or Europe/Berlin") from None


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

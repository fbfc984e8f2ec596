"""When periodic work is due: expressions, time zones, and the days on which clocks are changed."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from queue_runtime.cron_schedule import Schedule, stamp

HOUR = 3600
BERLIN = "Europe/Berlin"  # forward on 2026-03-29 at 02:00, back on 2026-10-25 at 03:00
SPRING = int(datetime(2026, 3, 29, tzinfo=ZoneInfo(BERLIN)).timestamp())
AUTUMN = int(datetime(2026, 10, 25, tzinfo=ZoneInfo(BERLIN)).timestamp())


def day(expression: str, start: int, zone: str = BERLIN) -> list[str]:
    """The slots of the local day that begins then, as the wall clock shows them."""
    schedule = Schedule(expression, zone)
    tz = ZoneInfo(zone)
    end = datetime.fromtimestamp(start, tz) + timedelta(days=1)
    slots = schedule.between(start - 1, int(end.timestamp()) - 1)
    return [datetime.fromtimestamp(slot, tz).strftime("%H:%M%z") for slot in slots]


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("*/15 * * * *", "2026-03-29T00:15:00Z"),
        ("0 3 * * *", "2026-03-29T03:00:00Z"),
        ("30 4 1 * *", "2026-04-01T04:30:00Z"),
        ("0 0 * * MON", "2026-03-30T00:00:00Z"),
        ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
        ("0 12 L * *", "2026-03-31T12:00:00Z"),
        ("*/10 * * * * *", "2026-03-29T00:00:10Z"),
    ],
)
def test_expressions_of_five_or_six_fields(expression: str, first: str) -> None:
    midnight = int(datetime(2026, 3, 29, tzinfo=ZoneInfo("UTC")).timestamp())
    slot = Schedule(expression).after(midnight)
    assert slot is not None
    assert stamp(slot) == first


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "* * * * * * *", "61 * * * *", "* 24 * * *", "0 0 31 2 *", "@daily", "*/0 * * * *", "0 0 * * XYZ"],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="minute hour day month weekday"):
        Schedule(expression)


@pytest.mark.parametrize("zone", ["", "Europe", "europe/berlin", "../UTC", "/etc/localtime", "Nowhere/City", "UTC\0",
                                  "localtime", "posixrules", "Factory"])  # fmt: skip
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="is no time zone"):
        Schedule("* * * * *", zone)


def test_a_fixed_time_that_does_not_exist_is_the_first_moment_after_the_gap() -> None:
    assert day("30 2 * * *", SPRING) == ["03:00+0200"]
    assert day("10,50 2 * * *", SPRING) == ["03:00+0200"]
    assert day("30 1,2,3 * * *", SPRING) == ["01:30+0100", "03:00+0200", "03:30+0200"]


def test_a_fixed_time_that_comes_twice_is_the_first_of_the_two() -> None:
    assert day("30 2 * * *", AUTUMN) == ["02:30+0200"]
    assert day("10,50 2 * * *", AUTUMN) == ["02:10+0200", "02:50+0200"]


def test_a_star_follows_the_hours_as_they_pass() -> None:
    assert len(day("30 * * * *", SPRING)) == 23
    assert len(day("30 * * * *", AUTUMN)) == 25
    assert day("*/30 2 * * *", SPRING) == []
    assert day("*/30 2 * * *", AUTUMN) == ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]
    # seconds make a fixed time follow the clock too: it is left out, or comes twice
    assert day("0 30 2 * * *", SPRING) == []
    assert day("0 30 2 * * *", AUTUMN) == ["02:30+0200", "02:30+0100"]


@pytest.mark.parametrize("zone", [BERLIN, "Australia/Lord_Howe", "Antarctica/Troll", "America/St_Johns", "UTC"])
@pytest.mark.parametrize("expression", ["*/20 * * * *", "5,35 0-3 * * *", "0 * * * *", "15 2 * * *", "0 30 1-3 * * *"])
def test_slots_rise_wherever_one_begins_to_count(zone: str, expression: str) -> None:
    """All of a year, from starts on both sides of every change: no slot is seen twice, none goes back."""
    schedule = Schedule(expression, zone)
    start = int(datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")).timestamp())
    for month in range(12):
        moment = start + month * 30 * 86400
        expected = schedule.between(moment, moment + 3 * 86400)
        assert expected == sorted(set(expected))
    for change in (SPRING, AUTUMN):
        slots = schedule.between(change - HOUR, change + 6 * HOUR)
        for moment in range(change, change + 5 * HOUR, 7 * 60):
            after = schedule.after(moment)
            assert after == next(slot for slot in [*slots, after] if slot is not None and slot > moment)
            before = [slot for slot in slots if slot <= moment]
            assert schedule.latest(change - HOUR, moment) == (before[-1] if before else None)


ODD_CHANGES = [
    ("Europe/Berlin", "2027-03-28T01:00"),
    ("Europe/Berlin", "2027-10-31T01:00"),
    ("Europe/Dublin", "2027-10-31T01:00"),
    ("America/Santiago", "2027-09-05T04:00"),
    ("Australia/Lord_Howe", "2027-04-03T15:00"),
    ("Australia/Lord_Howe", "2027-10-02T15:30"),
    ("Antarctica/Troll", "2027-03-28T01:00"),
    ("Antarctica/Troll", "2027-10-31T01:00"),
    ("America/Caracas", "2007-12-09T07:00"),
    ("America/Caracas", "2016-05-01T07:00"),
    ("Asia/Colombo", "2006-04-14T18:30"),
    ("Asia/Pyongyang", "2015-08-14T15:00"),
    ("Asia/Pyongyang", "2018-05-04T15:00"),
    ("Asia/Chita", "2014-10-25T16:00"),
    ("Pacific/Norfolk", "2015-10-03T14:30"),
    ("Pacific/Pitcairn", "1998-04-27T08:30"),
    ("Pacific/Rarotonga", "1990-10-28T10:00"),
    ("Australia/Eucla", "1992-02-29T17:15"),
    ("America/St_Johns", "2006-04-02T03:31"),
    ("America/St_Johns", "2006-10-29T02:31"),
    ("America/Moncton", "1993-10-31T03:01"),
    ("America/Bahia_Banderas", "2010-04-04T09:00"),
    ("America/Danmarkshavn", "1996-01-01T03:00"),
    ("Antarctica/Casey", "2009-10-17T18:00"),
    ("Antarctica/Casey", "2010-03-04T15:00"),
    ("Antarctica/Vostok", "1994-01-31T17:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Pacific/Kwajalein", "1993-08-21T12:00"),
]
"""Changes of the clocks by half an hour, by several, by a day, or at an odd minute: zone and moment in UTC."""

MINUTES, HOURS = range(60), range(24)


@pytest.mark.parametrize(("zone", "moment"), ODD_CHANGES)
def test_slots_around_a_change_are_those_that_a_look_at_each_minute_finds(zone: str, moment: str) -> None:
    tz = ZoneInfo(zone)
    change = int(datetime.fromisoformat(f"{moment}+00:00").timestamp())
    start, end = change - 27 * HOUR, change + 27 * HOUR
    walls = {minute: datetime.fromtimestamp(minute, tz).replace(tzinfo=None) for minute in range(start, end + 1, 60)}
    assert datetime.fromtimestamp(change - 1, tz).utcoffset() != datetime.fromtimestamp(change, tz).utcoffset()

    for expression, minutes, hours in [
        ("*/7 * * * *", MINUTES[::7], HOURS),
        ("30 * * * *", [30], HOURS),
        ("* 2 * * *", MINUTES, [2]),
        ("*/10 0-4 * * *", MINUTES[::10], HOURS[:5]),
        ("5 */3 * * *", [5], HOURS[::3]),
    ]:
        wanted = [at for at, wall in walls.items() if at > start and wall.minute in minutes and wall.hour in hours]
        assert Schedule(expression, zone).between(start, end) == wanted, expression

    for expression, minutes, hours in [
        ("30 2 * * *", [30], [2]),
        ("0,15,30,45 0-4 * * *", MINUTES[::15], HOURS[:5]),
        ("1,59 21-23 * * *", [1, 59], HOURS[21:]),
        ("0 0 * * *", [0], [0]),
    ]:
        first, last = min(walls.values()), max(walls.values())
        days = [first.date() + timedelta(days=day) for day in range((last - first).days + 2)]
        times = [datetime(day.year, day.month, day.day, hour, minute) for day in days for hour in hours
                 for minute in minutes]  # fmt: skip
        # the first moment at which the wall clock shows that, or is past it
        fixed = {next(at for at, wall in walls.items() if wall >= time) for time in times if first < time <= last}
        assert Schedule(expression, zone).between(start, end) == sorted(fixed - {start}), expression


def test_the_latest_slot_is_found_in_a_long_time_at_once() -> None:
    week = 7 * 86400
    assert Schedule("* * * * * *").latest(AUTUMN - week, AUTUMN) == AUTUMN
    assert Schedule("0 0 1 1 *").latest(AUTUMN - week, AUTUMN) is None
    assert Schedule("0 12 24 * *", BERLIN).latest(AUTUMN - week, AUTUMN) == AUTUMN - 12 * HOUR

"""Slots against a model that tries every minute, and clock changes by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.resources import cron
from foliot.work.triggers.schedule import Cron, Once, delay_of, timing_of

ZONES = ["UTC", "America/Chicago", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago"]
CHICAGO = ZoneInfo("America/Chicago")


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def shown(slots: list[int], zone: str) -> list[str]:
    return [datetime.fromtimestamp(slot, ZoneInfo(zone)).isoformat() for slot in slots]


def matching(expression: str, local: datetime) -> bool:
    minutes, hours, days, months, weekdays = cron.field_values(expression)
    weekdays = {day % 7 for day in weekdays}
    if local.minute not in minutes or local.hour not in hours or local.month not in months:
        return False
    by_day, by_weekday = local.day in days, local.isoweekday() % 7 in weekdays
    if len(days) == 31 or len(weekdays) == 7:
        return by_day and by_weekday
    return by_day or by_weekday


def modelled(expression: str, zone: str, after: int, upto: int) -> list[int]:
    """Every minute of the stretch, tried one by one."""
    place = ZoneInfo(zone)
    minute, hour = expression.split()[:2]
    first = after - after % 60 + 60
    if minute.startswith("*") or hour.startswith("*") or len(cron.field_values(expression)[1]) == 24:
        moments = (datetime.fromtimestamp(m, place) for m in range(first, upto + 1, 60))
        return [int(m.timestamp()) for m in moments if matching(expression, m)]
    # Fixed times: walk over the wall clock, which has neither holes nor repetitions, and see when each time comes.
    wall = datetime.fromtimestamp(after, place).replace(tzinfo=None, second=0) - timedelta(hours=3)
    found: set[int] = set()
    while wall.replace(tzinfo=place).timestamp() <= upto + 3 * 3600:
        if matching(expression, wall):
            shifted = wall
            while shifted.replace(tzinfo=place).astimezone(UTC).astimezone(place).replace(tzinfo=None) != shifted:
                shifted += timedelta(minutes=1)
            found.add(int(shifted.replace(tzinfo=place).timestamp()))
        wall += timedelta(minutes=1)
    return sorted(slot for slot in found if after < slot <= upto)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    step = st.integers(1, 20)
    one = st.one_of(
        st.just("*"),
        number.map(str),
        span,
        step.map(lambda n: f"*/{n}"),
        st.tuples(span, step).map("{0[0]}/{0[1]}".format),
    )
    return st.one_of(one, st.lists(st.one_of(number.map(str), span), min_size=2, max_size=3).map(",".join))


EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7)).map(" ".join)
# Around the changes of clocks of 2026 in these zones, where mistakes live.
MOMENTS = st.one_of(
    st.sampled_from([at("2026-03-08T06:00"), at("2026-11-01T05:00"), at("2026-03-29T00:00"), at("2026-10-25T00:00")]),
    st.sampled_from([at("2026-04-04T14:00"), at("2026-10-03T15:00"), at("2026-09-06T03:00"), at("2026-04-05T02:00")]),
    st.integers(at("2026-01-01"), at("2027-01-01")),
).flatmap(lambda moment: st.integers(moment - 7200, moment + 7200))


@settings(max_examples=150, deadline=None)
@given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES), after=MOMENTS, hours=st.integers(1, 30))
def test_slots_are_what_trying_every_minute_finds(expression: str, zone: str, after: int, hours: int) -> None:
    try:
        expression = cron.canonical(expression)
    except ValueError:
        return  # it can never come true, and is refused where it is declared
    upto = after + hours * 3600
    expected = modelled(expression, zone, after, upto)
    timing = Cron(expression, zone)
    found = timing.newest(after, upto, 10_000)
    assert found.slots == expected, shown(found.slots, zone)
    assert not found.more
    assert timing.newest(after, upto, 3).slots == expected[-3:]
    following = timing.after(after)
    assert (following if following is not None and following <= upto else None) == (expected[0] if expected else None)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # 2026-03-08 02:00 is 03:00 in Chicago: a fixed time that is skipped comes at the first minute there is.
        ("30 2 * * *", ["2026-03-08T03:00:00-05:00", "2026-03-09T02:30:00-05:00"]),
        ("0,30 2 * * *", ["2026-03-08T03:00:00-05:00", "2026-03-09T02:00:00-05:00"]),
        # With a star it is real time that counts, and there is no such hour that day.
        ("*/30 2 * * *", ["2026-03-09T02:00:00-05:00", "2026-03-09T02:30:00-05:00"]),
        ("0 * * * *", ["2026-03-08T01:00:00-06:00", "2026-03-08T03:00:00-05:00"]),
    ],
)
def test_a_skipped_hour(expression: str, expected: list[str]) -> None:
    found = Cron(expression, "America/Chicago").newest(
        at("2026-03-08T00:30", "America/Chicago"), at("2026-03-11", "America/Chicago"), 10_000
    )
    assert shown(found.slots[:2], "America/Chicago") == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # 2026-11-01 has 01:00 to 02:00 twice in Chicago: a fixed time counts the first time only.
        ("30 1 * * *", ["2026-11-01T01:30:00-05:00", "2026-11-02T01:30:00-06:00"]),
        ("30 * * * *", ["2026-11-01T00:30:00-05:00", "2026-11-01T01:30:00-05:00", "2026-11-01T01:30:00-06:00"]),
    ],
)
def test_a_repeated_hour(expression: str, expected: list[str]) -> None:
    start = at("2026-11-01T00:00", "America/Chicago")
    found = Cron(expression, "America/Chicago").newest(start, start + 3 * 86400, 10_000)
    assert shown(found.slots[: len(expected)], "America/Chicago") == expected


def test_beginning_inside_the_second_pass_of_a_repeated_hour_repeats_nothing() -> None:
    second_pass = datetime(2026, 11, 1, 1, 10, tzinfo=CHICAGO, fold=1).timestamp()
    following = Cron("30 1 * * *", "America/Chicago").after(second_pass)
    assert following is not None
    assert shown([following], "America/Chicago") == ["2026-11-02T01:30:00-06:00"]


def test_the_weekly_brief_is_at_nine_all_year() -> None:
    slots = Cron("0 9 * * 1", "America/Chicago").newest(at("2026-01-01"), at("2027-01-01"), 100).slots
    local = [datetime.fromtimestamp(slot, CHICAGO) for slot in slots]
    assert len(local) == 52
    assert {(moment.hour, moment.minute, moment.isoweekday()) for moment in local} == {(9, 0, 1)}


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 30 2 1-7", "0 0 31 2,4,6,9,11 *"])
def test_a_date_that_never_comes_is_known_at_once(expression: str) -> None:
    assert Cron(expression).after(0) is None
    assert Cron(expression).newest(0, at("2026-01-01"), 5) == ([], False)


def test_a_day_that_either_field_names_will_do_also_when_one_has_a_step() -> None:
    slots = Cron("0 0 */10 * 1").newest(at("2026-06-01") - 1, at("2026-06-14"), 100).slots
    assert [datetime.fromtimestamp(slot, UTC).day for slot in slots] == [1, 8, 11]


def test_a_year_of_minutes_that_nobody_looked_at_costs_no_more_than_the_newest() -> None:
    found = Cron("* * * * *").newest(at("2000-01-01"), at("2026-01-01"), 5)
    assert found.slots == [at("2026-01-01") - 60 * back for back in (4, 3, 2, 1, 0)]
    assert found.more


def test_the_end_of_the_calendar_is_the_end_of_the_slots() -> None:
    assert Cron("0 0 1 1 *", "Asia/Kolkata").after(at("9999-12-31")) is None
    assert Cron("@daily").after(1e15) is None


def test_one_time_is_read_in_the_zone_or_with_its_own_offset() -> None:
    assert timing_of("", "2026-07-01T09:00:00", "America/Chicago") == Once(at("2026-07-01T14:00"))
    assert timing_of("", "2026-07-01T09:00:00+00:00", "America/Chicago") == Once(at("2026-07-01T09:00"))
    once = Once(100)
    assert (once.after(99), once.after(100)) == (100, None)
    assert once.newest(0, 100, 5).slots == [100]
    assert once.newest(100, 200, 5).slots == []


@settings(deadline=None)
@given(uid=st.text(max_size=5), slot=st.integers(0, 2**33), jitter=st.floats(0, 1e6), room=st.integers(1, 10**6))
def test_a_delay_is_always_the_same_and_ends_before_the_next_slot(
    uid: str, slot: int, jitter: float, room: int
) -> None:
    delay = delay_of(uid, slot, jitter, slot + room)
    assert 0 <= delay < max(min(jitter, room), 1e-300) or delay == 0
    assert delay == delay_of(uid, slot, jitter, slot + room)


def test_delays_spread() -> None:
    delays = [delay_of("u", slot, 60, None) for slot in range(1000)]
    assert min(delays) < 5
    assert max(delays) > 55

"""What was missed, against a model that looks at every slot."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.work.triggers.schedule import (
    LEFT_OUT_ROWS,
    CatchUp,
    Cron,
    Once,
    SlotVerdict,
    Timing,
    first_after,
    next_start,
    start_of,
    verdicts,
)

TIMINGS: st.SearchStrategy[Timing] = st.one_of(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "0 9 * * 1", "30 2 * * *", "0 0 30 2 1-7"]).map(
        lambda expression: Cron(expression, "America/Chicago")
    ),
    st.integers(1_772_900_000, 1_773_100_000).map(Once),
)
RULES = st.builds(
    CatchUp,
    missed=st.sampled_from(["skip", "last", "all"]),
    limit=st.integers(1, 40),
    deadline=st.sampled_from([1.0, 300.0, 7200.0]),
    jitter=st.sampled_from([0.0, 30.0, 4000.0]),
)
# Around the night of 2026-03-08, in which an hour is missing.
MOMENTS = st.integers(1_772_900_000, 1_773_100_000)


def modelled(timing: Timing, rule: CatchUp, after: float, now: float) -> list[SlotVerdict]:
    every = timing.newest(after, now, 10**6).slots
    due = [slot for slot in every if start_of(timing, rule, "u", slot) <= now]
    wanted = rule.limit if rule.missed == "all" else 1
    fire = due[-wanted:]
    if rule.missed == "skip":
        fire = [slot for slot in fire if now - start_of(timing, rule, "u", slot) <= rule.deadline]
    return [SlotVerdict(slot, "" if slot in fire else "left out") for slot in due]


@settings(max_examples=200, deadline=None)
@given(timing=TIMINGS, rule=RULES, after=MOMENTS, span=st.integers(0, 100_000))
def test_verdicts_are_what_the_rule_says(timing: Timing, rule: CatchUp, after: int, span: int) -> None:
    expected = modelled(timing, rule, after, after + span)
    found = verdicts(timing, rule, "u", after=after, now=after + span)
    assert [each.slot for each in found if each.fires] == [each.slot for each in expected if each.fires]
    kept = expected[-len(found) :] if found else []
    assert [each.slot for each in found] == [each.slot for each in kept]
    left_out = len(expected) - len(found)
    assert left_out == 0 or len([each for each in found if not each.fires]) >= LEFT_OUT_ROWS
    assert (left_out > 0) == bool(found and found[0].reason.endswith("others before it"))


@settings(max_examples=100, deadline=None)
@given(timing=TIMINGS, rule=RULES, start=MOMENTS, steps=st.lists(st.integers(-3000, 9000), max_size=15))
def test_looking_at_any_times_decides_each_slot_once_and_fires_none_too_early(
    timing: Timing, rule: CatchUp, start: int, steps: list[int]
) -> None:
    decided: dict[int, str] = {}
    now = float(start)
    for step in steps:
        now += step  # clocks go back, too
        last = max([start, *(slot for slot in decided if slot <= now)])
        for verdict in verdicts(timing, rule, "u", after=last, now=now):
            assert verdict.slot not in decided
            decided[verdict.slot] = verdict.reason
            assert start_of(timing, rule, "u", verdict.slot) <= now
            if verdict.fires and rule.missed == "skip":
                assert now - start_of(timing, rule, "u", verdict.slot) <= rule.deadline


@settings(max_examples=100, deadline=None)
@given(timing=TIMINGS, rule=RULES, after=MOMENTS)
def test_the_next_start_is_when_there_is_something_to_decide(timing: Timing, rule: CatchUp, after: int) -> None:
    following = next_start(timing, rule, "u", after=after)
    if following is None:
        assert isinstance(timing, Once) or timing.after(after) is None
        return
    slot, start = following
    assert start > after
    before = {each.slot for each in verdicts(timing, rule, "u", after=after - 10_000, now=start - 0.001)}
    assert slot not in before
    assert slot in {each.slot for each in verdicts(timing, rule, "u", after=slot - 1, now=start)}


def test_a_new_schedule_counts_from_its_making_and_the_last_slot_before_it_if_in_time() -> None:
    hourly = Cron("0 * * * *")
    assert first_after(hourly, created=7200 + 299, deadline=300) == 7199
    assert first_after(hourly, created=7200 + 302, deadline=300) == 7502
    assert first_after(Cron("0 0 30 2 1-7"), created=5000, deadline=300) == 5000

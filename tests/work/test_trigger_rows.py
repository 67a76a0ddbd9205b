"""What schedules and webhooks remember: decisions that cannot be taken twice, on both stores."""

from __future__ import annotations

import asyncio

import pytest

from foliot.store.base import Database
from foliot.store.triggers import (
    NewSlot,
    begin,
    decide,
    ensure_endpoint,
    forget_slots,
    known_of,
    settle,
    settle_event,
    slots_of,
    take_event,
)


async def test_a_decision_on_what_is_no_longer_true_is_refused(opened_store: Database) -> None:
    await opened_store.write(begin, "u", "hourly", 0.0, 0.0)
    assert await opened_store.write(decide, "u", None, [NewSlot(60_000, "due", command="{}")], 70.0)
    # Somebody who read before that, and wants to decide the next slot as if nothing were under way.
    assert not await opened_store.write(decide, "u", None, [NewSlot(120_000, "due", command="{}")], 130.0)
    assert [slot.slot for slot in await slots_of(opened_store, "u")] == [60_000]
    assert await opened_store.write(decide, "u", 60_000, [NewSlot(120_000, "skipped", "missed")], 130.0)
    assert not await opened_store.write(decide, "nobody", None, [NewSlot(1, "due")], 130.0)


async def test_of_many_who_decide_at_once_one_wins(opened_store: Database) -> None:
    await opened_store.write(begin, "u", "hourly", 0.0, 0.0)
    won = await asyncio.gather(
        *(opened_store.write(decide, "u", None, [NewSlot(60_000, "due", command=str(n))], 70.0) for n in range(10))
    )
    assert sorted(won) == [False] * 9 + [True]


async def test_a_slot_ends_once(opened_store: Database) -> None:
    await opened_store.write(begin, "u", "hourly", 0.0, 0.0)
    await opened_store.write(decide, "u", None, [NewSlot(60_000, "due", command="{}")], 70.0)
    assert await opened_store.write(settle, "u", 60_000, "fired", "", "default/t", 71.0)
    assert not await opened_store.write(settle, "u", 60_000, "skipped", "too late", "", 72.0)
    (slot,) = await slots_of(opened_store, "u")
    assert (slot.state, slot.task, slot.reason, slot.decided_at) == ("fired", "default/t", "", 71.0)


async def test_what_is_forgotten_counts_as_decided_and_what_is_due_is_kept(opened_store: Database) -> None:
    await opened_store.write(begin, "u", "hourly", 0.0, 0.0)
    slots = [NewSlot(60_000, "due", command="{}"), *(NewSlot(n * 60_000, "skipped", "missed") for n in range(2, 6))]
    await opened_store.write(decide, "u", None, slots, 400.0)
    assert await opened_store.write(forget_slots, "u", 2) == 2
    assert [slot.slot // 60_000 for slot in await slots_of(opened_store, "u")] == [5, 4, 1]
    known = await known_of(opened_store, "u", upto=100.0)  # a clock that was set back
    assert known is not None
    assert known.after == 180.0


async def test_a_timing_that_changes_moves_the_beginning_forward_only(opened_store: Database) -> None:
    for timing, since, expected in (("a", 5.0, 100.0), ("a", 500.0, 100.0), ("b", 200.0, 200.0), ("c", 150.0, 200.0)):
        await opened_store.write(begin, "u", timing, 100.0, since)
        known = await known_of(opened_store, "u", upto=1e6)
        assert known is not None
        assert (known.timing, known.since) == (timing, expected)


async def test_an_event_is_taken_once_until_its_time_is_over(opened_store: Database) -> None:
    took = await asyncio.gather(*(opened_store.write(take_event, "w", {"e": 60.0}, 10.0) for _ in range(10)))
    assert sorted(each.new for each in took) == [False] * 9 + [True]
    await opened_store.write(settle_event, "w", ["e"], 10_000, "default/t")
    assert (await opened_store.write(take_event, "w", {"e": 60.0}, 69.0)).task == "default/t"
    later = await opened_store.write(take_event, "w", {"e": 60.0}, 70.0)
    assert (later.new, later.taken_at, later.task) == (True, 70_000, "")
    await opened_store.write(settle_event, "w", ["e"], 10_000, "default/late")  # whoever is late changes nothing
    assert (await opened_store.write(take_event, "w", {"e": 60.0}, 71.0)).task == ""
    await opened_store.write(settle_event, "w", ["e"], 70_000, "")
    assert (await opened_store.write(take_event, "w", {"e": 60.0}, 72.0)).new


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"]])
async def test_an_event_is_known_by_any_of_its_names(names: list[str], opened_store: Database) -> None:
    await opened_store.write(take_event, "w", {"a": 60.0, "s": 60.0}, 10.0)
    assert not (await opened_store.write(take_event, "w", dict.fromkeys(names, 60.0), 11.0)).new


async def test_many_who_ask_at_once_get_one_address(opened_store: Database) -> None:
    found = await asyncio.gather(
        *(opened_store.write(ensure_endpoint, "w", "default", "push", f"fresh-{n}", 1.0) for n in range(10))
    )
    assert len(set(found)) == 1

"""How many runs a worker takes: exactly so many, or as many as the load allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.store.journal.database import SqlJournal
from foliot.store.queue.shares import share_left
from foliot.store.queue.workers import list_workers
from foliot.store.sqlite.database import SqliteDatabase
from foliot.work.worker.places import FEWEST, FIRST, LATE, MOST, OTHERS, PROGRAMS, PROMPT, SPARE, Places, memory_left
from tests.conformance.claims import add, offer, take
from tests.work.worker_kit import CountingDatabase, Doing, Letters, slow, until, working

FENCED = '{"isolation": ["process"]}'


@pytest.fixture
async def db(tmp_path) -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase(await SqliteDatabase.open(tmp_path / "foliot.db"))
    yield database
    await database.close()


@pytest.fixture
def doing(db: CountingDatabase) -> Doing:
    doing = Doing(SqlJournal(db))
    doing.hold_all = True
    return doing


def following(left: float = 1.0) -> Places:
    return Places(memory=lambda: left)


def test_a_number_that_somebody_gave_is_exact_however_the_load_is() -> None:
    places = Places(3)
    assert not places.adjust(at_work=3, late=0.0)
    assert not places.adjust(at_work=3, late=10.0)
    assert [places.free(at_work) for at_work in (0, 2, 3, 4)] == [3, 1, 0, 0]
    assert places.programs(at_work=100) is None


def test_places_are_added_while_all_are_taken_and_the_loop_is_prompt() -> None:
    places = following()
    assert not places.adjust(at_work=FIRST - 1, late=0.0)
    assert places.adjust(at_work=FIRST, late=PROMPT)
    assert FIRST < places.limit < 2 * FIRST
    while places.adjust(at_work=places.limit, late=0.0):
        pass
    assert places.limit == MOST


def test_places_are_taken_away_while_the_loop_is_late_and_some_are_always_left() -> None:
    places = following()
    places.adjust(at_work=FIRST, late=LATE + 0.01)
    assert places.limit < FIRST
    assert places.free(at_work=FIRST) == 0
    for _ in range(100):
        places.adjust(at_work=0, late=10.0)
    assert places.limit == FEWEST


def test_no_place_is_added_where_memory_is_short() -> None:
    places = following(left=SPARE / 2)
    assert not places.adjust(at_work=FIRST, late=0.0)
    assert places.limit == FIRST


@given(st.lists(st.tuples(st.integers(0, 2 * MOST), st.floats(0, 5), st.floats(0, 1))))
def test_places_stay_within_their_bounds_and_say_when_they_grow(looks: list[tuple[int, float, float]]) -> None:
    left = [1.0]
    places = Places(memory=lambda: left[0])
    for at_work, late, left[0] in looks:
        before = places.limit
        assert places.adjust(at_work, late) == (places.limit > before)
        assert FEWEST <= places.limit <= MOST


@pytest.mark.parametrize(
    ("most", "share"), [("max", 0.5), ("1000", 0.25), ("0", 0.5), ("", 0.5)], ids=["no bound", "bound", "none", "empty"]
)
def test_memory_is_what_the_machine_and_the_container_leave(tmp_path: Path, most: str, share: float) -> None:
    (tmp_path / "memory.max").write_text(f"{most}\n")
    (tmp_path / "memory.current").write_text("750\n")
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:       2000 kB\nMemFree:  1 kB\nMemAvailable:   1000 kB\n")
    assert memory_left(tmp_path, machine) == share


@pytest.mark.parametrize(
    ("stat", "left"), [("anon 100\ninactive_file 600\nactive_file 50\n", 0.6), ("anon 1\n", 0.0), ("?", 0.0)]
)
def test_files_that_the_system_keeps_in_memory_for_nobody_leave_it_to_others(
    tmp_path: Path, stat: str, left: float
) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text(stat)
    assert memory_left(tmp_path, tmp_path / "meminfo") == pytest.approx(left)


def test_nothing_is_known_of_memory_on_other_systems(tmp_path: Path) -> None:
    assert memory_left(tmp_path, tmp_path / "meminfo") == 1.0


async def test_a_claim_takes_no_more_runs_with_programs_than_it_is_told_and_others_pass_them(
    db: CountingDatabase,
) -> None:
    await add(db, *(f"p{n}" for n in range(5)), requirements=FENCED)
    await add(db, "r1", "r2", agent="writer")
    claims = await take(db, by=offer(isolation=("process",)), programs=2)
    taken = {lease.run_id for lease in claims.leases}
    assert len(claims.programs) == 2
    assert taken == {*claims.programs, "r1", "r2"}
    assert claims.refused == {"limit": 1}


async def test_runs_that_wait_hold_no_place_and_those_with_programs_do(db: CountingDatabase, doing: Doing) -> None:
    await add(db, *(f"p{n}" for n in range(PROGRAMS + 4)), requirements=FENCED)
    await add(db, *(f"r{n}" for n in range(40)), agent="writer")
    async with working(db, doing, offer(isolation=("process",)), places=following()):
        await doing.until(lambda: len(doing.at_work) == PROGRAMS + 40)
        with_programs = [each for each in doing.at_work if each.startswith("p")]
        assert len(with_programs) == PROGRAMS
        doing.gate(with_programs[0]).set()
        await doing.until(lambda: len(doing.begun) == PROGRAMS + 40 + 1)
        for each in [*doing.at_work, *(f"p{n}" for n in range(PROGRAMS + 4))]:
            doing.gate(each).set()
        await doing.until(lambda: len(doing.finished) == PROGRAMS + 4 + 40)


async def test_a_worker_that_follows_the_load_says_how_many_places_it_has(db: CountingDatabase, doing: Doing) -> None:
    places = following()
    async with working(db, doing, offer(), places=places, heartbeat=0.01):
        await until(lambda: db.calls["worker_beat"] > 0)
        assert [worker.capacity for worker in await list_workers(db)] == [FIRST]
        places.adjust(at_work=0, late=10.0)
        beats = db.calls["worker_beat"]
        await until(lambda: db.calls["worker_beat"] > beats + 1)
        assert [worker.capacity for worker in await list_workers(db)] == [places.limit]


# --- shares of namespaces --------------------------------------------------------------------------------------------


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_namespace_takes_one_more_only_while_it_has_less_than_three_times_what_is_free(free: int, own: int) -> None:
    taken = 0
    while taken < free and own + taken < 3 * (free - taken):
        taken += 1
    assert share_left(free, own) == taken


@pytest.mark.parametrize(("places", "share"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (64, 48), (MOST, MOST * 3 // 4)])
def test_one_namespace_alone_gets_three_quarters_and_all_of_few_places(places: int, share: int) -> None:
    assert share_left(places, 0) == share


@given(st.integers(1, MOST), st.lists(st.integers(0, 5), max_size=60))
def test_whoever_has_nothing_finds_a_place_while_one_is_free(places: int, turns: list[int]) -> None:
    has = Counter[int]()
    for space in turns:
        free = places - has.total()
        left = share_left(free, has[space])
        assert left <= free
        assert left > 0 or has[space] > 0 or free == 0
        has[space] += left


def test_places_are_added_while_a_namespace_that_has_its_share_wants_more() -> None:
    places = following()
    assert not places.adjust(at_work=48, late=0.0)
    assert places.adjust(at_work=48, late=0.0, short=True)


def test_a_late_loop_leaves_places_beside_the_namespace_that_has_most() -> None:
    places = following()
    while places.adjust(at_work=places.limit, late=0.0):
        pass
    for _ in range(100):
        assert not places.adjust(at_work=700, late=10.0, largest=700)
    assert places.free(at_work=700) == OTHERS


def test_places_are_found_again_in_one_look_when_the_loop_is_prompt_with_what_is_at_work() -> None:
    places = following()
    for _ in range(100):
        places.adjust(at_work=500, late=10.0)
    assert places.adjust(at_work=500, late=0.0)
    assert places.free(at_work=500) > 0


@pytest.mark.parametrize(("files", "most"), [(8, FIRST), (512, 256), (10**6, MOST)])
def test_runs_leave_half_of_the_open_files_to_the_rest_of_the_process(files: int, most: int) -> None:
    places = Places(memory=lambda: 1.0, files=lambda: files)
    while places.adjust(at_work=places.limit, late=0.0):
        pass
    assert places.limit == most


@pytest.mark.parametrize("capacity", [8, None], ids=["so many places", "follow the load"])
async def test_runs_of_one_namespace_that_never_end_leave_places_to_another(
    db: CountingDatabase, doing: Doing, capacity: int | None
) -> None:
    """The model of b never answers. The one of a does, and its tasks come later."""
    places, letters = Places(capacity, memory=lambda: 0.0), Letters()  # no places are added
    await add(db, *(f"b{n}" for n in range(2 * places.limit)), namespace="team-b")
    await add(db, "first", namespace="team-a")
    doing.gate("first").set()
    async with working(db, doing, offer(), letters, places=places, pace=slow()):
        await doing.until(lambda: "first" in doing.finished)
        await doing.until(lambda: len(doing.at_work) == places.limit * 3 // 4)
        for n in range(3):
            doing.gate(f"a{n}").set()
            await add(db, f"a{n}", namespace="team-a")
            letters.send(f"a{n}")
            await doing.until(lambda n=n: f"a{n}" in doing.finished)
        assert len(doing.at_work) == places.limit * 3 // 4
        assert {each[0] for each in doing.at_work} == {"b"}
        waiting = next(f"b{n}" for n in range(2 * places.limit) if f"b{n}" not in doing.at_work)
        letters.send(waiting)  # another worker may have room for it
        await until(lambda: any(said[:2] == (waiting, "again") for said in letters.said))
        for n in range(2 * places.limit):
            doing.gate(f"b{n}").set()
        await doing.until(lambda: len(doing.finished) == 2 * places.limit + 4)


async def test_a_namespace_alone_has_all_places_that_somebody_gave(db: CountingDatabase, doing: Doing) -> None:
    await add(db, *(f"r{n}" for n in range(12)))
    async with working(db, doing, offer(capacity=8), pace=slow()):
        await doing.until(lambda: len(doing.at_work) == 8)
        for n in range(12):
            doing.gate(f"r{n}").set()
        await doing.until(lambda: len(doing.finished) == 12)


async def test_runs_with_programs_of_one_namespace_leave_places_to_those_of_another(
    db: CountingDatabase, doing: Doing
) -> None:
    await add(db, *(f"b{n}" for n in range(2 * PROGRAMS)), namespace="team-b", requirements=FENCED)
    await add(db, "a0", namespace="team-a")
    places, letters = following(), Letters()
    async with working(db, doing, offer(isolation=("process",)), letters, places=places, pace=slow()):
        await doing.until(lambda: len(doing.at_work) == 1 + PROGRAMS * 3 // 4)
        await add(db, "a1", namespace="team-a", requirements=FENCED)
        letters.send("a1")
        await doing.until(lambda: "a1" in doing.at_work)
        for each in ["a0", "a1", *(f"b{n}" for n in range(2 * PROGRAMS))]:
            doing.gate(each).set()
        await doing.until(lambda: len(doing.finished) == 2 + 2 * PROGRAMS)


async def test_the_places_that_are_shown_follow_the_load_before_the_next_heartbeat(
    db: CountingDatabase, doing: Doing
) -> None:
    await add(db, *(f"r{n}" for n in range(FIRST)))
    places = following()
    async with working(db, doing, offer(), places=places, heartbeat=1000.0):
        await doing.until(lambda: len(doing.at_work) == FIRST)
        await until(lambda: db.calls["worker_beat"] > 0)
        (worker,) = await list_workers(db)
        assert FIRST < worker.capacity <= places.limit
        for n in range(FIRST):
            doing.gate(f"r{n}").set()

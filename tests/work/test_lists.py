"""Lists by several filters: they show what all of them hold for, at whatever moment it changes, and look at little."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from foliot.errors import NotFound, ReadTooLong
from foliot.store import key_pages
from foliot.store.base import Database
from foliot.store.journal.base import Entry, NewRun
from foliot.store.journal.database import SqlJournal
from foliot.store.key_pages import KeySource, matching_keys
from foliot.store.open import open_database
from foliot.store.resources.selectors import matches_labels, parse_labels
from foliot.store.tasks import NewTask, add_task, end_task
from foliot.store.transaction import Tx
from foliot.work.tasks import list as task_list
from foliot.work.tasks.base import TaskInfo
from foliot.work.tasks.list import TaskList

COMMAND = '{"target_kind":"agent","target":"desk"}'


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = await open_database(url)
    yield opened
    await opened.close()


def task(number: int, **fields: Any) -> NewTask:
    made: dict[str, Any] = {
        "uid": f"u{number}",
        "namespace": "a",
        "name": f"job-{number}",
        "target_kind": "agent",
        "target": "desk",
        "idempotency_key": None,
        "digest": "",
        "priority": 2,
        "lane": "",
        "spawned_by": "",
        "parent": "",
        "labels": {},
        "command": COMMAND,
        "plan": "",
        "graph": b"",
        "summary": {},
        "timer_at": None,
        "now": float(number),
    }
    return NewTask(**{**made, **fields})


def added(tasks: list[tuple[NewTask, str]]) -> Tx[list[int]]:
    keys: list[int] = []
    for each, phase in tasks:
        key = yield from add_task(each, ())
        assert key is not None
        if phase != "queued":
            yield from end_task(key, phase, each.now)
        keys.append(key)
    return keys


class Watched:
    """The database; counts reads by name, keeps what they were given, and does something after one of them."""

    def __init__(self, database: Database, after: int = 0, then: Callable[[], Awaitable[Any]] | None = None) -> None:
        self._database = database
        self._after = after
        self._then = then
        self.reads: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def read(self, name: str, /, **params: Any) -> list[Any]:
        found = await self._database.read(name, **params)
        self.reads.append((name, params))
        if self._then is not None and len(self.reads) == self._after:
            await self._then()
        return found

    @property
    def looked_at(self) -> int:
        return sum(len(json.loads(given["keys"])) for name, given in self.reads if name.endswith("_keys_matching"))


async def walked(tasks: TaskList, limit: int, **filters: Any) -> list[str]:
    names: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await tasks.list(limit=limit, cursor=cursor, **filters)
        names += [each.name for each in page]
        if cursor is None:
            return names


@pytest.fixture
def short_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_pages, "FIRST_STRIDE", 8)
    monkeypatch.setattr(key_pages, "LONGEST_STRIDE", 16)
    monkeypatch.setattr(key_pages, "RARE", 16)


async def test_what_all_filters_hold_for_is_listed_once_and_in_order(database: Database, short_strides: None) -> None:
    chance = random.Random(7)
    made = [
        (
            task(
                number,
                namespace=chance.choice(("a", "a", "b", "c")),
                target=chance.choice(("desk", "desk", "lab")),
                lane=chance.choice(("", "fast")),
                spawned_by=chance.choice(("", "schedule/nightly")),
                labels=chance.choice(({}, {"team": "x"}, {"team": "x", "rank": "1"}, {"team": "y"})),
            ),
            chance.choice(("queued", "succeeded", "succeeded", "failed")),
        )
        for number in range(160)
    ]
    for first in range(0, len(made), 40):
        await database.write(added, made[first : first + 40])
    tasks = TaskList(database)
    choices = product(
        (None, "a", "c"),
        (None, "lab"),
        (None, "fast"),
        (None, "schedule/nightly"),
        ({}, {"team": "x", "rank": "1"}),
        ((), ("failed",), ("queued", "failed")),
    )
    for namespace, target, lane, spawned_by, labels, phases in choices:
        expected = [
            each.name
            for each, phase in reversed(made)
            if namespace in (None, each.namespace)
            and target in (None, each.target)
            and lane in (None, each.lane)
            and spawned_by in (None, each.spawned_by)
            and labels.items() <= each.labels.items()
            and (not phases or phase in phases)
        ]
        found = await walked(
            tasks,
            7,
            namespace=namespace,
            target=target,
            lane=lane,
            spawned_by=spawned_by,
            labels=labels,
            phases=phases,
        )
        assert found == expected, (namespace, target, lane, spawned_by, labels, phases)


def is_odd(info: TaskInfo) -> bool:
    return bool(int(info.created_at) % 2)


SELECTORS = (
    "team",
    "!team",
    "team!=x",
    "team notin (x, z)",
    "team in (x, y)",
    "team in (x, y),rank",
    "team in (y, z),team!=y",
    "team=x,team=y",
    "team=x,!rank",
    "team=x,rank in (1, 2)",
    "team in (" + ",".join(f"v{number}" for number in range(task_list.LOOKED_UP)) + ",y)",
)


@pytest.mark.parametrize("selector", SELECTORS)
async def test_every_selector_lists_what_it_holds_for_whatever_else_is_asked(
    selector: str, database: Database, short_strides: None
) -> None:
    chance = random.Random(11)
    labels: tuple[dict[str, str], ...] = (
        {},
        {"team": "x"},
        {"team": "x", "rank": "1"},
        {"team": "y"},
        {"team": "z", "rank": "2"},
        {"a": "team"},
    )
    made = [
        (task(number, namespace=chance.choice("ab"), labels=chance.choice(labels)), chance.choice(("queued", "failed")))
        for number in range(120)
    ]
    for first in range(0, len(made), 40):
        await database.write(added, made[first : first + 40])
    clauses = parse_labels(selector)
    names = tuple(f"job-{number}" for number in range(0, 120, 3))
    for namespace, phases, chosen, odd in product((None, "a"), ((), ("failed",)), ((), names), (False, True)):
        expected = [
            each.name
            for each, phase in reversed(made)
            if matches_labels(each.labels, clauses)
            and namespace in (None, each.namespace)
            and (not phases or phase in phases)
            and (not chosen or each.name in chosen)
            and (not odd or int(each.now) % 2)
        ]
        fits = is_odd if odd else None
        for limit in (1, 7):
            filters: dict[str, Any] = {"namespace": namespace, "phases": phases, "names": chosen, "fits": fits}
            assert await walked(TaskList(database), limit, selector=clauses, **filters) == expected, (filters, limit)


@pytest.mark.parametrize("namespace", ["a", None])
async def test_names_and_values_of_labels_are_looked_up_among_many(
    namespace: str | None, database: Database, short_strides: None
) -> None:
    many = [(task(number, labels={"team": "x"}), "succeeded") for number in range(400)]
    many[5] = task(5, labels={"team": "y"}), "succeeded"
    for first in range(0, len(many), 50):
        await database.write(added, many[first : first + 50])
    filters: list[dict[str, Any]] = [
        {"names": ["job-5"]},
        {"selector": parse_labels("team in (y, z)")},
        {"selector": parse_labels("team=y")},
    ]
    for rare in filters:
        watched = Watched(database)
        shown, _ = await TaskList(watched).list(namespace=namespace, limit=1, **rare)
        assert [each.name for each in shown] == ["job-5"]
        assert len(watched.reads) <= 12, watched.reads
        assert watched.looked_at <= 2 * key_pages.FIRST_STRIDE


async def test_a_list_reads_all_of_a_task_only_where_its_labels_are_wanted(
    database: Database, short_strides: None
) -> None:
    many = [(task(number, labels={"team": "x"}), "succeeded") for number in range(160)]
    many[5] = task(5), "succeeded"
    for first in range(0, len(many), 40):
        await database.write(added, many[first : first + 40])
    watched = Watched(database)

    shown, cursor = await TaskList(watched).list(namespace="a", limit=1, selector=parse_labels("!team"))

    assert ([each.name for each in shown], cursor) == (["job-5"], None)
    assert [len(json.loads(given["keys"])) for name, given in watched.reads if name == "task_feed_tasks"] == [1]
    assert len(watched.reads) < 30, "however short the page is, many are looked at at a time"


@pytest.mark.parametrize("filters", [{}, {"target": "desk"}, {"namespace": "a", "target": "desk"}])
async def test_a_task_that_goes_on_to_another_phase_during_a_list_is_not_left_out(
    filters: dict[str, str], database: Database
) -> None:
    names: list[str] = []
    for number in range(1, 9):
        (key,) = await database.write(added, [(task(number), "queued")])
        names.insert(0, f"job-{number}")
        watched = Watched(database, number, lambda key=key: database.write(end_task, key, "failed", 1.0))

        shown, _ = await TaskList(watched).list(phases=("queued", "failed"), **filters)

        assert [each.name for each in shown] == names, f"it ended after read {number}: {watched.reads}"


async def test_a_rare_filter_among_frequent_ones_is_the_one_that_is_followed(
    database: Database, short_strides: None
) -> None:
    many = [(task(number, labels={"team": "x"}, lane="fast"), "succeeded") for number in range(400)]
    many[5] = task(5, labels={"team": "x"}, lane="fast"), "failed"
    many[6] = task(6, labels={"team": "x", "rare": "1"}, lane="fast"), "succeeded"
    for first in range(0, len(many), 50):
        await database.write(added, many[first : first + 50])
    for namespace, rare in product(("a", None), ({"phases": ("failed",)}, {"labels": {"team": "x", "rare": "1"}})):
        watched = Watched(database)
        given: dict[str, Any] = {"labels": {"team": "x"}, "target": "desk", "lane": "fast", **rare}

        shown, _ = await TaskList(watched).list(namespace=namespace, **given)

        assert len(shown) == 1
        assert watched.looked_at <= 10 * key_pages.LONGEST_STRIDE < len(many), (namespace, rare)


@pytest.mark.parametrize(
    "filters",
    [{"target": "lab"}, {"lane": "fast"}, {"phases": ("failed",)}, {"phases": ("waiting",)}, {"phases": ("running",)}],
)
async def test_a_list_over_all_namespaces_takes_as_many_reads_however_many_there_are(
    filters: dict[str, Any], database: Database
) -> None:
    reads: list[int] = []
    for first, spaces in ((0, 2), (100, 80)):
        await database.write(
            added, [(task(first + number, namespace=f"n{number}"), "succeeded") for number in range(spaces)]
        )
        watched = Watched(database)
        await TaskList(watched).list(**filters)
        reads.append(len(watched.reads))

    assert reads[0] == reads[1]


async def test_a_list_that_finds_nothing_among_ever_more_gives_up_and_says_so(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.write(added, [(task(number), "queued") for number in range(40)])
    times = iter((0.0, 1.0, key_pages.LONGEST + 1.0))
    tasks = TaskList(database, clock=lambda: next(times))
    monkeypatch.setattr(TaskList, "many", nothing)

    with pytest.raises(ReadTooLong, match="a list of tasks"):
        await tasks.list(namespace="a", phases=("queued",), limit=2)


async def test_a_walk_that_finds_nothing_for_long_gives_up_too(database: Database, short_strides: None) -> None:
    await database.write(added, [(task(number, lane="fast"), "queued") for number in range(60)])
    bounds = {"after_time": 0.0, "before_time": 1e15, "archived": 0}
    walk = [KeySource("task_keys_everywhere", bounds)]
    match = {
        "namespace": "",
        "target": "no",
        "lane": "",
        "spawned_by": "",
        "parent": "",
        "labels": "[]",
        "phases": "[]",
    }
    times = iter((0.0, 1.0, key_pages.LONGEST + 1.0))

    with pytest.raises(ReadTooLong, match="task_keys_matching"):
        await matching_keys(
            database,
            [walk],
            KeySource("task_keys_matching", match),
            before=key_pages.NEWEST,
            count=5,
            clock=lambda: next(times),
        )


async def nothing(_self: TaskList, _keys: object) -> list[Any]:
    return []


async def test_a_name_is_found_by_its_end_among_the_newest(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_list, "FOUND_BY_END", 3)
    await database.write(added, [(task(number), "queued") for number in range(1001, 1006)])
    tasks = TaskList(database)

    assert (await tasks.find("a", "005")).name == "job-1005"
    assert (await tasks.find("a", "job-1001")).name == "job-1001"
    with pytest.raises(NotFound, match="001"):
        await tasks.find("a", "001")


async def test_runs_of_an_agent_in_a_phase_are_found_by_the_rarer_of_both(
    database: Database, short_strides: None
) -> None:
    journal = SqlJournal(database)
    for number in range(60):
        agent, namespace = ("rare" if number in (3, 40) else "clerk"), ("b" if number % 5 == 0 else "a")
        run = NewRun(f"r{number:02}", namespace, agent, "{}", float(number))
        lease = await journal.create(run, [Entry(1, 1.0, "run.created", b"{}")], worker="w", lease_until=1e12)
        assert lease is not None
        if number % 20 == 0:
            await journal.append(lease, [Entry(2, 1.0, "run.failed", b"{}")], phase="failed", summary={})

    async def found(**filters: Any) -> tuple[list[str], int]:
        watched = Watched(database)
        listed = await SqlJournal(watched).list(limit=1000, **filters)  # pyright: ignore[reportArgumentType]
        return [each.id for each in listed], watched.looked_at

    assert (await found(agent="clerk", phases=("failed",)))[0] == ["r20", "r00"]
    assert (await found(agent="clerk", phases=("failed", "running"), namespace="b"))[0] == [
        f"r{number:02}" for number in range(55, -1, -5) if number != 40
    ]
    names, looked_at = await found(agent="rare", phases=("failed", "running"))
    assert names == ["r40", "r03"]
    assert looked_at <= 40
    assert (await found(agent="rare", phases=("failed",), namespace="b"))[0] == ["r40"]

"""Lists that have to look at much: within a deadline, not for clients that have gone, and few of one caller at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from foliot.errors import ReadTooLong
from foliot.runtime.runtime import Runtime
from foliot.server.auth.identity import Caller
from foliot.server.context import ServedResources
from foliot.server.errors import ClientGone
from foliot.server.list_reads import AT_ONCE, WHEN_GONE, ListReads
from foliot.server.tasks.list import Wanted, list_tasks
from foliot.store.audit.log import SqlAuditLog
from foliot.store.base import Filter
from foliot.store.journal.database import SqlJournal
from foliot.store.resources.selectors import matches, parse_fields
from foliot.work.tasks.list import TaskList
from tests.work.test_lists import added, task

ANN = Caller("ann", "token", {"*": frozenset({"reader"})})
BEN = Caller("ben", "token", {"*": frozenset({"reader"})})

LISTS = (
    "/v1/tasks?labelSelector=zzz",
    "/v1/tasks?labelSelector=!form&limit=1",
    "/v1/tasks?fieldSelector=spec.priority%3Dhigh",
    "/v1/tasks?offset=5",
    "/v1/tasks",
    "/v1/agents?labelSelector=zzz",
    "/v1/resources?fieldSelector=spec.priority%3Dhigh",
    "/v1/runs",
    "/v1/audit?outcome=failed",
)


async def never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("path", LISTS)
async def test_every_list_has_one_deadline(
    path: str, app: Starlette, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskList, "list", never)
    monkeypatch.setattr(ServedResources, "list", never)
    monkeypatch.setattr(SqlJournal, "keys", never)
    monkeypatch.setattr(SqlAuditLog, "find", never)
    app.state.services.list_reads = ListReads(0.0)

    answer = await http.get(path)

    assert (answer.status_code, answer.json()["code"]) == (503, "read_too_long")
    assert "narrow the filter" in answer.json()["hint"]


@pytest.mark.parametrize(("path", "searched"), [("/v1/audit?outcome=failed", True), ("/v1/audit?tool=pay", False)])
async def test_what_no_index_answers_waits_for_its_turn(
    path: str, searched: bool, app: Starlette, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    bounds = app.state.services.list_reads.within_bounds

    def noted(*given: Any, searched: bool) -> Any:
        asked.append(searched)
        return bounds(*given, searched=searched)

    monkeypatch.setattr(app.state.services.list_reads, "within_bounds", noted)
    assert (await http.get(path)).status_code == 200
    assert asked == [searched]


async def test_a_caller_has_few_at_once_and_waits_for_nobody_else() -> None:
    reads, go_on = ListReads(60.0), asyncio.Event()
    inside: list[str] = []

    async def read(caller: Caller, searched: bool = True) -> None:
        async with reads.within_bounds(caller, searched=searched):
            inside.append(caller.name)
            await go_on.wait()

    asked = [asyncio.create_task(read(ANN)) for _ in range(AT_ONCE + 3)]
    asked += [asyncio.create_task(read(ANN, searched=False)), asyncio.create_task(read(BEN))]
    for _ in range(5):
        await asyncio.sleep(0)
    assert inside.count("ann") == AT_ONCE + 1, "what an index answers waits for no turn"
    assert inside.count("ben") == 1
    go_on.set()
    await asyncio.gather(*asked)
    assert inside.count("ann") == AT_ONCE + 4


@pytest.mark.parametrize("waiting", [False, True], ids=["at work", "waiting for its turn"])
async def test_what_nobody_waits_for_any_more_ends_and_gives_up_its_place(waiting: bool) -> None:
    reads = ListReads(60.0, at_once=1)
    gone: list[Callable[[], None] | None] = []
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async with reads.within_bounds(ANN, {WHEN_GONE: gone.append}):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

    if waiting:
        first = asyncio.create_task(read())
        await begun.wait()
    last = asyncio.create_task(read())
    await asyncio.sleep(0)
    leave = gone[-1]
    assert leave is not None
    leave()
    with pytest.raises(ClientGone):
        await last
    assert stopped.is_set() is not waiting
    if waiting:
        first.cancel()  # pyright: ignore[reportPossiblyUnboundVariable]
        await asyncio.gather(first, return_exceptions=True)  # pyright: ignore[reportPossiblyUnboundVariable]
    async with reads.within_bounds(ANN):
        pass  # the place is free


async def test_a_deadline_of_something_inside_is_not_taken_for_that_of_the_list() -> None:
    reads = ListReads(60.0)
    with pytest.raises(TimeoutError, match="of a driver"):
        async with reads.within_bounds(ANN):
            raise TimeoutError("of a driver")
    with pytest.raises(ReadTooLong):
        async with ListReads(0.0).within_bounds(ANN):
            await asyncio.Event().wait()


FIELDS = (
    "status.phase=Failed",
    "status.phase!=Failed",
    "status.phase in (Failed, Pending)",
    "status.phase notin (Failed)",
    "status.phase=Failed,status.phase=Pending",
    "status.phase",
    "!status.phase",
    "metadata.name=job-5",
    "metadata.name in (job-5, job-6, none)",
    "metadata.name=job-5,metadata.name=job-6",
    "metadata.name!=job-5",
    "metadata.name=job-5,status.phase=Failed",
    "metadata.namespace=a",
    "metadata.namespace!=a",
    "spec.agent=desk",
    "spec.agent=lab",
    "spec.agent!=lab",
    "spec.agent in (lab, desk)",
    "spec.agent=lab,spec.agent=desk",
    "spec.system=desk",
    "spec.lane=fast",
    "spec.lane!=fast",
    "!spec.lane",
    "status.parent=a/up",
    "status.spawnedBy=schedule/nightly",
    "spec.priority=normal",
    "spec.priority=high",
)


async def test_every_field_selector_shows_what_it_holds_for(app: Starlette, runtime: Runtime) -> None:
    services: Any = app.state.services
    command = '{{"target_kind":"agent","target":"{}","lane":"{}"}}'
    made = [
        (
            task(
                number,
                namespace="ab"[number % 2],
                target=(target := ("desk", "lab")[number % 3 == 0]),
                lane=(lane := ("", "fast")[number % 4 == 0]),
                command=command.format(target, lane),
                parent=("", "a/up")[number % 7 == 0],
                spawned_by=("", "schedule/nightly")[number % 6 == 0],
            ),
            ("queued", "failed", "succeeded")[number % 3],
        )
        for number in range(30)
    ]
    await services.database.write(added, made)
    everything, _ = await list_tasks(services, ANN, Wanted(Filter("Task")), limit=1000, cursor=None)
    assert len(everything) == 30
    for text in FIELDS:
        filter = Filter("Task", fields=parse_fields(text, ["Task"]))
        for limit in (1, 4):
            shown: list[Any] = []
            cursor: str | None = None
            while True:
                page, cursor = await list_tasks(services, ANN, Wanted(filter), limit=limit, cursor=cursor)
                shown += page
                if cursor is None:
                    break
            assert shown == [each for each in everything if matches(each, filter)], text

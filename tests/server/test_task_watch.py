"""A watch of tasks: each change once, with a place to go on from, in whichever process it is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from foliot.common.cancellation import stop_tasks
from foliot.errors import Gone
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.server.auth.identity import Caller, granted
from foliot.server.context import Services
from foliot.server.errors import BadParameter
from foliot.server.streams import task_feed as task_feed_module
from foliot.server.streams.task_watch import Place, all_tasks_frames, newest_place, place_named
from foliot.server.tasks.list import Wanted
from foliot.settings.settings import Settings, load_settings
from foliot.store.base import Delete, Filter, Key, Put, Requirement
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command

SOON = 60.0
ALL = Wanted(Filter("Task"))
ADMIN = Caller("admin", "anonymous", granted(["*"], ["admin"]))


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    made, problems = validate_document(
        {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}
    )
    assert made is not None, problems
    return made


class Watching:
    """A stream of one process, read all the time."""

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.places: list[str] = []
        self._came = asyncio.Condition()
        self._task = asyncio.create_task(self._read(frames))

    async def _read(self, frames: AsyncGenerator[bytes]) -> None:
        async with aclosing(frames):
            async for chunk in frames:
                for frame in chunk.decode().split("\n\n"):
                    fields = dict(line.split(": ", 1) for line in frame.splitlines())
                    if fields:
                        await self._take(fields)

    async def _take(self, fields: dict[str, str]) -> None:
        data = json.loads(fields["data"])
        async with self._came:
            if "id" in fields:
                self.places.append(fields["id"])
            if fields["event"] == "resource":
                resource = data["resource"]
                phase = resource.get("status", {}).get("phase", "")
                self.events.append((data["type"], resource["metadata"]["name"], phase))
            self._came.notify_all()

    async def until(self, *event: str) -> list[tuple[str, str, str]]:
        """All events, as soon as this one is among them."""
        await self.when(lambda: event in self.events)
        return list(self.events)

    async def when(self, condition: Any) -> None:
        async with asyncio.timeout(SOON), self._came:
            await self._came.wait_for(lambda: self._task.done() or condition())
        if self._task.done():
            await self._task

    async def begun(self) -> str:
        await self.when(lambda: self.places)
        return self.places[0]

    async def close(self) -> str:
        """Leave; where to go on."""
        await stop_tasks(self._task)
        return self.places[-1]


class Office:
    """One process on the store: its server, and a worker when it is told to work."""

    def __init__(self, runtime: Runtime, services: Services) -> None:
        self.runtime = runtime
        self.services = services

    def watch(self, wanted: Wanted = ALL, place: Place | None = None, caller: Caller = ADMIN) -> Watching:
        return Watching(all_tasks_frames(self.services, caller, wanted, place))

    async def go_on(self, place: str, wanted: Wanted = ALL) -> Watching:
        return self.watch(wanted, await place_named(self.services, place))

    async def accept(self, name: str, **more: Any) -> None:
        await self.runtime.inside.tasking.tasks.accept(Command("agent", "clerk", name=name, message="go", **more))

    async def work(self) -> None:
        worker = self.runtime.inside.tasking.worker(
            Offer("w", self.runtime.inside.runs.worker, capacity=2), grace=0, once=True
        )
        async with asyncio.timeout(SOON):
            await worker.run()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def offices(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[list[Office]]:
    """Two processes, as far as the store can tell."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        settings = load_settings({"home": str(settings.home), "store": url}, {})
    async with AsyncExitStack() as stack:
        made: list[Office] = []
        for _ in range(2):
            runtime = await stack.enter_async_context(Runtime(settings=settings))
            app = create_app(runtime, settings=settings, auth=Anonymous())
            made.append(Office(runtime, app.state.services))
        await made[0].runtime.inside.resources.write(
            [
                Put(document("ModelEndpoint", "brain", {"provider": "mock", "default_model": "m"})),
                Put(document("Agent", "clerk", {"model_ref": "brain", "prompt": "Work."})),
            ]
        )
        yield made


async def test_tasks_are_told_as_they_come_change_and_go(offices: list[Office]) -> None:
    office = offices[0]
    await office.accept("old")
    stream = office.watch()
    await stream.begun()
    assert stream.events == [("added", "old", "Pending")]
    await office.accept("new")
    await stream.until("added", "new", "Pending")
    await office.work()
    await stream.until("updated", "old", "Succeeded")
    await stream.until("updated", "new", "Succeeded")
    await office.runtime.inside.tasking.tasks.archive("default", "old", by="me")
    await stream.until("deleted", "old", "")
    await office.runtime.inside.tasking.tasks.delete("default", "new")
    await stream.until("deleted", "new", "")
    numbers = [int(place.split(".")[1]) for place in stream.places]
    assert numbers == sorted(set(numbers))
    await stream.close()


async def test_that_a_sub_agent_waits_for_a_person_is_told_of_its_task(offices: list[Office]) -> None:
    office = offices[0]
    script = [{"call": {"ask_user": {"question": "Which?"}}}, {"say": "done"}]
    chief = [{"call": {"agent:asker": {"input": "ask"}}}, {"say": "{last_result}"}]
    declared = [
        *(document("ModelEndpoint", name, {"provider": "scripted", "default_model": "m", "script": turns})
          for name, turns in (("asking", script), ("leading", chief))),
        document("Agent", "asker", {"model_ref": "asking", "prompt": "Ask.", "tools": ["ask_user"]}),
        document("Agent", "chief", {"model_ref": "leading", "prompt": "Lead.", "tools": ["agent:asker"]}),
    ]  # fmt: skip
    await office.runtime.inside.resources.write([Put(each) for each in declared])
    stream = office.watch()
    await stream.begun()
    await office.runtime.inside.tasking.tasks.accept(Command("agent", "chief", name="led", message="go"))
    await stream.until("added", "led", "Pending")
    work = asyncio.create_task(office.work())
    await stream.until("updated", "led", "Waiting")
    (question,) = await office.runtime.inside.questions.open("default")
    await office.runtime.inside.answer_question(question.run_id, question.call_id, "this", by="me")
    await stream.until("updated", "led", "Succeeded")
    await work
    await stream.close()


async def test_a_stream_goes_on_in_another_process_with_only_what_changed(offices: list[Office]) -> None:
    here, there = offices
    await here.accept("a")
    await here.accept("b")
    stream = here.watch()
    await stream.begun()
    place = await stream.close()

    again = await there.go_on(place)
    assert await again.begun() == place
    assert again.events == []
    await again.close()

    await here.accept("c")  # while nobody watches
    await here.runtime.inside.tasking.tasks.cancel("default", "a", by="me")
    again = await there.go_on(place)
    await again.until("updated", "a", "Cancelled")
    assert await again.until("added", "c", "Pending") == again.events
    assert sorted(again.events) == [("added", "c", "Pending"), ("updated", "a", "Cancelled")]
    last = await again.close()

    nothing = await here.go_on(last)
    await nothing.begun()
    assert nothing.events == []
    await nothing.close()


async def test_what_one_process_told_is_not_told_again_by_another(offices: list[Office]) -> None:
    streams = [office.watch() for office in offices]
    for stream in streams:
        await stream.begun()
    for number in range(5):
        await offices[number % 2].accept(f"t{number}")
    for stream in streams:
        for number in range(5):
            await stream.until("added", f"t{number}", "Pending")
        names = [name for _, name, _ in stream.events]
        assert len(names) == len(set(names)) == 5
    assert streams[0].places[-1].split(".")[1] == streams[1].places[-1].split(".")[1] == "5"
    for stream in streams:
        await stream.close()


async def test_a_filter_is_entered_and_left(offices: list[Office]) -> None:
    office = offices[0]
    pending = Wanted(Filter("Task", None, (), (Requirement("status.phase", "=", ("Pending",)),)))
    labelled = Wanted(Filter("Task", None, (Requirement("team", "=", ("a",)),)))
    streams = [office.watch(pending), office.watch(labelled)]
    for stream in streams:
        await stream.begun()
    await office.accept("t", labels={"team": "a"})
    await office.accept("other", labels={"team": "b"})
    await streams[0].until("added", "other", "Pending")
    place = streams[0].places[-1]
    await office.work()
    await streams[0].until("deleted", "t", "")
    assert ("deleted", "other", "") in await streams[0].until("deleted", "other", "")
    await streams[1].until("updated", "t", "Succeeded")
    assert {name for _, name, _ in streams[1].events} == {"t"}
    for stream in streams:
        await stream.close()
    again = await office.go_on(place, pending)
    await again.until("deleted", "t", "")
    await again.until("deleted", "other", "")
    await again.close()


async def test_templates_are_told_among_them_and_what_was_accepted_is_told_as_work(offices: list[Office]) -> None:
    office = offices[0]
    stream = office.watch()
    place = await stream.begun()
    form = document("Task", "form", {"agent": "clerk", "mode": "template"})
    await office.runtime.inside.resources.write([Put(form)])
    await stream.until("added", "form", "Pending")
    await office.accept("t")
    await stream.until("added", "t", "Pending")
    await office.runtime.inside.resources.write([Delete(Key("Task", "default", "form"))])
    await stream.until("deleted", "form", "Pending")
    await stream.close()
    again = await office.go_on(place)
    await again.until("deleted", "form", "Pending")
    await again.until("added", "t", "Pending")
    assert len(again.events) == 3
    await again.close()


async def test_a_task_that_is_older_than_the_newest_is_followed_to_its_end(
    offices: list[Office], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_feed_module, "FOLLOWED", 1)
    office = offices[0]
    await office.accept("cancelled")
    await office.accept("old")
    stream = office.watch()
    await stream.begun()
    for name in ("new", "newer", "newest"):
        await office.accept(name)
        await stream.until("added", name, "Pending")
    await office.runtime.inside.tasking.tasks.cancel("default", "cancelled", by="me")
    await stream.until("updated", "cancelled", "Cancelled")
    await office.work()
    for name in ("old", "new", "newer", "newest"):
        await stream.until("updated", name, "Succeeded")
    await stream.close()


async def test_nobody_sees_tasks_of_namespaces_that_are_not_theirs(offices: list[Office]) -> None:
    office = offices[0]
    stranger = Caller("stranger", "token", granted(["elsewhere"], ["reader"]))
    reader = Caller("reader", "token", granted(["default"], ["reader"]))
    hidden, seen = office.watch(caller=stranger), office.watch(caller=reader)
    asked = office.watch(Wanted(Filter("Task", "default")), caller=stranger)
    for stream in (hidden, seen, asked):
        await stream.begun()
    await office.accept("t")
    await seen.until("added", "t", "Pending")
    assert (hidden.events, asked.events) == ([], [])
    for stream in (hidden, seen, asked):
        await stream.close()


async def test_a_place_that_is_none_is_refused_and_one_too_long_ago_is_gone(
    offices: list[Office], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_feed_module, "FOLLOWED", 3)
    monkeypatch.setattr(task_feed_module, "DROPPED_AT", 4)
    monkeypatch.setattr("foliot.store.tasks.DROPPED_AT", 4)
    office = offices[0]
    for wrong in ("x", "1.", "-1.2", "1.2.3", "9" * 30 + ".1"):
        with pytest.raises(BadParameter):
            await place_named(office.services, wrong)
    assert await place_named(office.services, "17") is None
    with pytest.raises(Gone):
        await place_named(office.services, "0.99")

    stream = office.watch()
    first = await stream.begun()
    for number in range(12):
        await office.accept(f"t{number}")
        await stream.until("added", f"t{number}", "Pending")
        await office.work()
        await stream.until("updated", f"t{number}", "Succeeded")
    place = await stream.close()
    with pytest.raises(Gone):
        await place_named(office.services, first)
    again = await office.go_on(place)
    await office.accept("last")
    assert await again.until("added", "last", "Pending") == [("added", "last", "Pending")]
    await again.close()


async def test_a_watch_takes_over_from_a_list(offices: list[Office]) -> None:
    one, other = offices
    await one.accept("before")
    place = await newest_place(one.services)
    await one.accept("after")

    watching = await other.go_on(str(place))
    await watching.until("added", "after", "Pending")
    await watching.close()

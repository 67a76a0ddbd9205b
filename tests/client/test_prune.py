"""Deleting by prune: what is in use, the work that ends with its Task, and manifests that have nothing in them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from foliot.errors import Conflict, FoliotError, NotFound, UsageError
from foliot.resources.reader import parse_text
from foliot.runtime.local import resources
from foliot.runtime.local.declared_work import DeclaredWork
from foliot.store.base import Filter, Requirement
from foliot.store.resources.database import SqlResourceStore
from foliot.store.tasks import ENDED

DESK = (Requirement("app", "=", ("desk",)),)
WORLD = """\
{kind: ModelEndpoint, metadata: {name: brain, labels: {app: desk}}, spec: {provider: scripted, script: [{say: done}]}}
---
{kind: Tool, metadata: {name: look, labels: {app: desk}}, spec: {type: http, endpoint: "https://look.example/"}}
---
{kind: Agent, metadata: {name: clerk, labels: {app: desk}}, spec: {model_ref: brain, tools: [look]}}
---
{kind: AgentSystem, metadata: {name: office, labels: {app: desk}}, spec: {agents: [clerk]}}
---
{kind: AgentRole, metadata: {name: reader, labels: {app: desk}}, spec: {permissions: [read]}}
"""
TASK = "{kind: Task, metadata: {name: NAME, labels: {app: desk}}, spec: {WHO, input: {q: x}}}"


class Died(Exception):
    """In the place of a process that is killed."""


def read(text: str) -> list[dict[str, Any]]:
    bundle = parse_text(text, "world.yaml")
    bundle.raise_for_errors()
    return bundle.documents


def world(*without: str) -> list[dict[str, Any]]:
    return [each for each in read(WORLD) if each["metadata"]["name"] not in without]


def task(name: str, who: str = "agent: clerk") -> list[dict[str, Any]]:
    return read(TASK.replace("NAME", name).replace("WHO", who))


async def accepted(both, *tasks: dict[str, Any]) -> None:
    await both.client.resources.apply([*world(), *tasks])
    assert all(each.new for each in await both.client.resources.accept(tasks))


async def test_pruning_a_task_ends_its_work_as_deleting_it_does(both):
    pruned, deleted = task("pruned"), task("deleted")
    await accepted(both, *pruned, *deleted)

    foretold = await both.client.resources.apply(world(), dry_run=True, prune=DESK)
    still = await both.work.tasks.get("pruned", namespace="default")
    await both.client.resources.delete("Task", "deleted", namespace="default")
    done = await both.client.resources.apply(world(), prune=DESK)

    assert (still.phase, still.archived_at) == ("queued", None)
    assert {each.document["metadata"]["name"]: each.ends for each in foretold.outcomes if each.action == "deleted"} == {
        "deleted": "cancelled",
        "pruned": "cancelled",
    }
    assert [(each.document["metadata"]["name"], each.ends) for each in done.outcomes if each.action == "deleted"] == [
        ("pruned", "cancelled")
    ]
    for name in ("pruned", "deleted"):
        with pytest.raises(NotFound):
            await both.work.tasks.get(name, namespace="default")


async def test_work_of_a_task_is_ended_by_others_when_who_pruned_it_died_before(both, monkeypatch):
    doomed, revived = task("doomed"), task("revived")
    await accepted(both, *doomed, *revived)
    await both.work.tasks.cancel("doomed", namespace="default")
    await both.work.tasks.retry("doomed", namespace="default")  # the first try was told to end, this one is not

    async def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(DeclaredWork, "end", die)
        with pytest.raises((Died, FoliotError)):
            await both.client.resources.apply(world(), prune=DESK)
    found = await both.client.resources.list(Filter("Task"))
    assert [*found.items] == []  # so no second prune comes upon it
    assert (await both.work.tasks.get("doomed", namespace="default")).phase not in ENDED
    await both.client.resources.apply([*world(), *revived])  # wanted after all

    tasks = both.runtime.inside.tasking.tasks
    await tasks.timers(time.time())
    assert (
        await both.work.tasks.get("doomed", namespace="default")
    ).phase not in ENDED  # who deleted it may be about to do so
    await tasks.timers(time.time() + 60)

    with pytest.raises(NotFound):
        await both.work.tasks.get("doomed", namespace="default")
    assert (await both.work.tasks.get("revived", namespace="default")).phase == "queued"
    assert await tasks.timers(time.time() + 120) is None
    assert await both.runtime.inside.tasking.database.read("task_endings", before="9", after="", count=9) == []


async def test_work_that_a_worker_has_to_end_is_deleted_when_it_has_ended(both, monkeypatch):
    await accepted(both, *task("slow"))
    tasks = both.runtime.inside.tasking.tasks
    with monkeypatch.context() as patched:
        patched.setattr(resources, "ENDING_WAIT", 0.0)
        patched.setattr(tasks, "_wake", None)  # its run is in the hands of a worker that takes its time
        await both.client.resources.delete("Task", "slow", namespace="default")
    told = await both.work.tasks.get("slow", namespace="default")
    await tasks.timers(time.time() + 60)
    again = await both.work.tasks.get("slow", namespace="default")
    await tasks._end_idle_runs("default", "slow")
    await tasks.timers(time.time() + 120)

    with pytest.raises(NotFound):
        await both.work.tasks.get("slow", namespace="default")
    assert told.phase not in ENDED
    assert again.revision == told.revision, "it is told once"
    assert await both.runtime.inside.tasking.database.read("task_endings", before="9", after="", count=9) == []


async def test_nothing_is_left_to_others_when_a_task_is_deleted_with_its_work(both):
    await accepted(both, *task("one"), *task("two"))

    await both.client.resources.delete("Task", "one", namespace="default")
    await both.client.resources.apply(world(), prune=DESK)

    assert await both.runtime.inside.tasking.database.read("task_endings", before="9", after="", count=9) == []


async def test_no_work_is_accepted_for_a_task_that_was_deleted_meanwhile(both):
    both_halves = task("job")
    await both.client.resources.apply([*world(), *both_halves])
    await both.client.resources.delete("Task", "job", namespace="default")

    (taken,) = await both.client.resources.accept(both_halves)

    assert isinstance(taken.error, Conflict)
    with pytest.raises(NotFound):
        await both.work.tasks.get("job", namespace="default")


async def test_a_template_has_no_work_to_end(both):
    template = read(TASK.replace("NAME", "mould").replace("WHO", "agent: clerk, mode: template"))
    await both.client.resources.apply([*world(), *template])

    done = await both.client.resources.apply(world(), prune=DESK)

    assert [each.ends for each in done.outcomes if each.action == "deleted"] == [""]
    with pytest.raises(NotFound):
        await both.work.tasks.get("mould", namespace="default")


async def test_what_open_tasks_use_is_pruned_only_by_force(both):
    tasks = [*task("direct"), *task("whole", "system: office")]
    await accepted(both, *tasks)

    for name in ("clerk", "office", "look", "brain"):
        for dry_run in (True, False):
            with pytest.raises(Conflict, match="tasks that have not ended") as refused:
                await both.client.resources.apply(
                    [*world(name), *tasks], prune=DESK, dry_run=dry_run, allow_missing=True
                )
            assert "force" in (refused.value.hint or "")
    assert len((await both.client.resources.list(Filter(None, "default"))).items) == 7

    applied = await both.client.resources.apply(
        [*world("clerk", "look"), *tasks], prune=DESK, force=True, allow_missing=True
    )
    gone = [each.document["metadata"]["name"] for each in applied.outcomes if each.action == "deleted"]
    assert gone == ["clerk", "look"]


async def test_agents_are_listed_once_however_many_tools_go(both, monkeypatch):
    tools = "---\n".join(
        f'{{kind: Tool, metadata: {{name: t{n}, labels: {{app: desk}}}}, spec: {{type: http, endpoint: "https://a.example"}}}}\n'
        for n in range(5)
    )
    await both.client.resources.apply([*world(), *read(tools)])
    listed: list[str] = []
    plain = SqlResourceStore.list

    async def counted(self: Any, filter: Filter, **how: Any) -> Any:
        listed.append(str(filter.kind))
        return await plain(self, filter, **how)

    monkeypatch.setattr(SqlResourceStore, "list", counted)
    await both.client.resources.apply(world(), prune=DESK)

    assert listed.count("Agent") == 1


async def test_work_that_ends_by_the_same_prune_uses_nothing(both):
    await accepted(both, *task("open"))

    await both.client.resources.apply(world("clerk", "office", "look"), prune=DESK)

    with pytest.raises(NotFound):
        await both.work.tasks.get("open", namespace="default")
    kinds = {each["kind"] for each in (await both.client.resources.list(Filter(None, "default"))).items}
    assert kinds == {"ModelEndpoint", "AgentRole"}


async def test_an_empty_bundle_prunes_nothing_unless_it_is_allowed_to(both):
    assert (await both.client.resources.apply([], prune=DESK)).outcomes == [], (
        "where nothing is found, nothing is refused"
    )
    await both.client.resources.apply(world())

    for dry_run in (True, False):
        with pytest.raises(UsageError, match="5 resources") as refused:
            await both.client.resources.apply([], prune=DESK, dry_run=dry_run)
        assert "empty" in (refused.value.hint or "")
    assert len((await both.client.resources.list(Filter(None, "default"))).items) == 5

    foretold = await both.client.resources.apply([], prune=DESK, dry_run=True, allow_empty=True)
    done = await both.client.resources.apply([], prune=DESK, allow_empty=True)
    assert [each.action for each in foretold.outcomes] == [each.action for each in done.outcomes] == ["deleted"] * 5


async def test_manifests_of_which_none_has_the_labels_are_as_good_as_none(both):
    await both.client.resources.apply(world())
    other = read(WORLD.replace("app: desk", "app: other"))[4:]

    with pytest.raises(UsageError, match="4 resources"):
        await both.client.resources.apply(other, prune=DESK)
    # A resource that moves to other labels is still among the manifests; nothing else is there to delete.
    renamed = [{**each, "metadata": {**each["metadata"], "labels": {"app": "new"}}} for each in world()]
    assert {each.action for each in (await both.client.resources.apply(renamed, prune=DESK)).outcomes} == {"updated"}

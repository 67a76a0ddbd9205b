"""The verbs on resources, the same in this process and over a real server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest

from foliot.errors import Conflict, Gone, InvalidInput, NotFound
from foliot.resources.problems import ManifestError
from foliot.resources.reader import parse_text
from foliot.store.base import Filter, Requirement


def role(name: str, namespace: str = "default", *permissions: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "AgentRole",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"permissions": list(permissions)},
    }


def permission(name: str, when: str) -> dict[str, Any]:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": "ToolPermission",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"tool_ref": "pay", "conditions": [{"when": when, "verdict": "deny"}]},
    }


ROLES = Filter("AgentRole", "default")


async def test_what_is_applied_is_read_back_and_applying_it_again_changes_nothing(both):
    first = await both.client.resources.apply([role("a", "default", "x"), role("b")])
    again = await both.client.resources.apply([role("a", "default", "x"), role("b")])

    assert [outcome.action for outcome in first.outcomes] == ["created", "created"]
    assert [outcome.action for outcome in again.outcomes] == ["unchanged", "unchanged"]
    read = await both.client.resources.get("AgentRole", "a", namespace="default")
    assert read["spec"] == {"permissions": ["x"]}
    assert first.outcomes[0].before is None
    assert again.outcomes[0].before is not None


async def test_a_dry_run_says_what_would_be_and_writes_nothing(both):
    applied = await both.client.resources.apply([role("a")], dry_run=True)

    assert [outcome.action for outcome in applied.outcomes] == ["created"]
    assert (await both.client.resources.list(ROLES)).items == []


async def test_prune_deletes_what_matches_and_is_missing(both):
    await both.client.resources.apply([role("a", app="x"), role("b", app="x"), role("c", app="y")])

    selector = (Requirement("app", "=", ("x",)),)
    applied = await both.client.resources.apply([role("a", app="x")], prune=selector)

    assert [(o.action, o.document["metadata"]["name"]) for o in applied.outcomes] == [
        ("unchanged", "a"),
        ("deleted", "b"),
    ]
    assert [d["metadata"]["name"] for d in (await both.client.resources.list(ROLES)).items] == ["a", "c"]


async def test_lists_are_narrowed_by_selectors_before_they_are_cut_into_pages(both):
    await both.client.resources.apply([role(f"r{n}", even=str(n % 2 == 0).lower()) for n in range(7)])
    even = Filter("AgentRole", "default", (Requirement("even", "in", ("true", "yes")),))

    first = await both.client.resources.list(even, limit=3)
    second = await both.client.resources.list(even, limit=3, cursor=first.cursor)

    names = [d["metadata"]["name"] for page in (first, second) for d in page.items]
    assert names == ["r0", "r2", "r4", "r6"]
    assert second.cursor is None


async def test_all_kinds_and_all_namespaces_are_listed_together(both):
    await both.client.resources.apply([role("a"), role("a", "team-a")])

    found = await both.client.resources.list(Filter())

    assert [(d["kind"], d["metadata"]["namespace"]) for d in found.items] == [
        ("AgentRole", "default"),
        ("AgentRole", "team-a"),
    ]


async def test_a_name_like_another_is_suggested_in_the_same_words(both):
    await both.client.resources.apply([role("writer"), role("reader")])

    with pytest.raises(NotFound) as caught:
        await both.client.resources.get("AgentRole", "wirter", namespace="default")

    assert caught.value.message == "AgentRole/wirter in namespace 'default' does not exist."
    assert caught.value.hint == "did you mean writer?"
    assert caught.value.exit_code == 3


async def test_the_same_name_elsewhere_is_pointed_to(both):
    await both.client.resources.apply([role("writer", "team-a")])

    with pytest.raises(NotFound) as caught:
        await both.client.resources.delete("AgentRole", "writer", namespace="default")

    assert "`-n team-a`" in (caught.value.hint or "")


async def test_every_problem_of_a_manifest_comes_with_its_place(both):
    with pytest.raises(ManifestError) as caught:
        await both.client.resources.apply([role("a"), permission("limits", "args.amount >")])

    found = caught.value.findings
    assert "ToolPermission/limits in default" in {finding.file for finding in found}
    assert ("spec", "conditions", 0, "when") in {finding.problem.path for finding in found}
    assert caught.value.exit_code == 5
    assert (await both.client.resources.list(Filter())).items == []


async def test_replace_needs_the_version_it_was_read_at(both):
    await both.client.resources.apply([role("a")])
    read = await both.client.resources.get("AgentRole", "a", namespace="default")
    await both.client.resources.apply([role("a", "default", "faster")])

    with pytest.raises(Conflict):
        await both.client.resources.replace({**read, "spec": {"permissions": ["late"]}})
    with pytest.raises(Conflict, match="without the version"):
        await both.client.resources.replace(role("a"))

    fresh = await both.client.resources.get("AgentRole", "a", namespace="default")
    outcome = await both.client.resources.replace({**fresh, "spec": {"permissions": ["new"]}})
    assert (outcome.action, outcome.before) == ("updated", fresh)


async def test_delete_at_an_old_version_is_a_conflict(both):
    await both.client.resources.apply([role("a")])

    with pytest.raises(Conflict):
        await both.client.resources.delete("AgentRole", "a", namespace="default", version="999")

    assert (await both.client.resources.delete("AgentRole", "a", namespace="default"))["metadata"]["name"] == "a"
    assert (await both.client.resources.list(ROLES)).items == []


async def test_a_watch_takes_over_where_a_list_ended_and_tells_each_change_once(both):
    await both.client.resources.apply([role("a")])
    page = await both.client.resources.list(ROLES)
    watched = cast("Any", both.client.resources.watch(ROLES, after=page.revision))

    async with aclosing(watched) as changes, asyncio.timeout(60):
        await both.client.resources.apply([role("b"), role("c", "team-a")])
        first = await anext(changes)
        await both.client.resources.apply([role("b", "default", "x")])
        await both.client.resources.delete("AgentRole", "a", namespace="default")
        rest = [await anext(changes) for _ in range(2)]

    told = [(change.action, change.document["metadata"]["name"]) for change in (first, *rest)]
    assert told == [("created", "b"), ("updated", "b"), ("deleted", "a")]


async def test_a_watch_of_all_kinds_keeps_to_its_selector(both):
    revision = (await both.client.resources.list(Filter())).revision
    filter = Filter(None, None, (Requirement("team", "=", ("docs",)),))

    async with (
        aclosing(cast("Any", both.client.resources.watch(filter, after=revision))) as changes,
        asyncio.timeout(60),
    ):
        await both.client.resources.apply([role("a"), role("b", team="docs")])
        change = await anext(changes)

    assert change.document["metadata"]["name"] == "b"


@pytest.mark.parametrize("kind", ["AgentRole", None])
async def test_a_watch_tells_that_something_stopped_matching_its_selector(both, kind):
    await both.client.resources.apply([role("a", team="docs")])
    revision = (await both.client.resources.list(Filter())).revision
    filters = [
        Filter(kind, "default", (Requirement("team", "=", ("docs",)),)),
        Filter(kind, "default", fields=(Requirement("metadata.labels.team", "=", ("docs",)),)),
    ]

    await both.client.resources.apply([role("a", team="sales")])
    await both.client.resources.apply([role("a", team="docs")])

    for filter in filters:
        watched = cast("Any", both.client.resources.watch(filter, after=revision))
        async with aclosing(watched) as changes, asyncio.timeout(60):
            told = [await anext(changes) for _ in range(2)]
        assert [(change.action, change.document["metadata"]["name"]) for change in told] == [
            ("deleted", "a"),
            ("created", "a"),
        ]


async def test_a_watch_from_the_future_is_gone(both):
    with pytest.raises(Gone):
        async with asyncio.timeout(60):
            await anext(cast("Any", both.client.resources.watch(ROLES, after=10_000)))


async def test_a_cursor_that_was_not_given_out_is_refused(both):
    with pytest.raises(InvalidInput):
        await both.client.resources.list(ROLES, cursor="nonsense")


TEAM = """\
{{kind: ModelEndpoint, metadata: {{name: brain}}, spec: {{provider: scripted, script: [{{say: done}}]}}}}
---
{{kind: Agent, metadata: {{name: writer}}, spec: {{model_ref: brain, prompt: Write.}}}}
---
{{kind: Task, metadata: {{name: brief}}, spec: {{agent: writer, input: {{topic: {topic}}}}}}}
"""


def team(topic: str) -> list[dict[str, Any]]:
    text = TEAM.format(topic=topic).replace("{kind:", "{apiVersion: foliot.dev/v1, kind:")
    bundle = parse_text(text, "team.yaml")
    bundle.raise_for_errors()
    return bundle.documents


async def test_tasks_are_read_listed_and_watched_as_they_are_declared(both):
    before = (await both.client.resources.list(Filter("Task"))).revision

    await both.client.resources.apply(team("clocks"))
    (taken,) = await both.client.resources.accept(team("clocks"))

    assert (taken.name, taken.new) == ("brief", True)
    (listed,) = (await both.client.resources.list(Filter("Task", "default"))).items
    assert listed == await both.client.resources.get("Task", "brief", namespace="default")
    assert (listed["spec"]["input"], listed["status"]["phase"]) == ({"topic": "clocks"}, "Pending")
    async with (
        asyncio.timeout(60),
        aclosing(cast("Any", both.client.resources.watch(Filter("Task"), after=before))) as changes,
    ):
        change = await anext(changes)
    assert (change.action, change.document["spec"]["input"]) == ("created", {"topic": "clocks"})
    assert await both.client.resources.opposed(team("clocks")) == []
    (opposed,) = await both.client.resources.opposed(team("bells"))
    assert isinstance(opposed.error, Conflict)

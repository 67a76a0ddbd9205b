"""Whose order an input is, which user a skill was allowed for, and hooks about arguments that a person edits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import HookAct, Runtime, hook
from foliot.engine.hooks.base import Hook
from foliot.errors import Denied
from foliot.kernel.identity import Identity
from foliot.kernel.run.events import HookDecided
from foliot.resources.skill_trust import digest_of_skill, in_quarantine
from foliot.store.sessions.base import Place
from tests.sessions.kit import quiet

paid: list[str] = []


def pay(to: str) -> str:
    paid.append(to)
    return f"paid {to}"


SCRIPT = {"turns": [{"call": {"pay": {"to": "ada"}}}], "otherwise": "{last_result}"}
MANIFESTS = [
    {"kind": "ModelEndpoint", "metadata": {"name": "brain"}, "spec": {"provider": "scripted", "script": SCRIPT}},
    {
        "kind": "Tool",
        "metadata": {"name": "pay"},
        "spec": {"type": "function", "function": f"{__name__}:pay", "effect": "once", "operation_classes": ["write"]},
    },
    {
        "kind": "Agent",
        "metadata": {"name": "desk"},
        "spec": {"model_ref": "brain", "prompt": "P", "tools": ["pay"], "execution": {"on_denied": "tell"}},
    },
    {
        "kind": "ToolPermission",
        "metadata": {"name": "pay"},
        "spec": {
            "tool_ref": "pay",
            "four_eyes": True,
            "operation_rules": [{"operation_class": "write", "verdict": "approval_required"}],
        },
    },
]
CHANNEL = Identity("ann", via="channel:desk").also_ordered_by("cy")


@hook("before_tool", name="guard", on_failure="block")
def guard(act: HookAct) -> Any:
    return None if act.arguments.get("to") == "ada" else act.block("only ada is paid")


@hook("before_tool", name="greedy", on_failure="block")
def greedy(act: HookAct) -> Any:
    return None if act.arguments.get("to") == "ada" else act.change(arguments={"to": "greedy"})


@pytest.fixture
async def runtime(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    paid.clear()
    hooks: list[Hook] = getattr(request, "param", [])
    async with Runtime(tmp_path / "foliot.db", hooks=hooks) as opened:
        await opened.resources.apply(MANIFESTS)
        yield opened


async def asked(runtime: Runtime) -> str:
    """Returns the approval that waits, once it does."""
    async with asyncio.timeout(60):
        while not (found := await runtime.approvals.list()):
            await asyncio.sleep(0)
    (document,) = found
    return document["metadata"]["name"]


async def session_of_ann(runtime: Runtime) -> str:
    place = Place("default", "desk", "ann", "c")
    return (await runtime.inside.sessions.resolve(place, identity=None)).id


async def test_who_declared_a_channel_does_not_approve_what_came_by_it(runtime: Runtime) -> None:
    id = await session_of_ann(runtime)
    await runtime.inside.sessions.say(id, "pay", identity=CHANNEL)
    name = await asked(runtime)

    for by in ("ann", "cy"):
        with pytest.raises(Denied, match="acts for them"):
            await runtime.inside.approvals.decide(name, "approve", by=by)
    await runtime.approvals.approve(name, by="bob")
    assert (await quiet(runtime, id)).turns == 1
    assert paid == ["ada"]


async def test_nor_what_was_steered_into_a_turn_by_it(runtime: Runtime) -> None:
    id = await session_of_ann(runtime)
    said = await runtime.inside.sessions.say(id, "pay", identity=Identity("ann", via="http"))
    name = await asked(runtime)
    await runtime.inside.sessions.say(id, "and more", identity=CHANNEL, mode="steer")
    turn = (await runtime.inside.sessions.get(id, identity=None)).turn
    async with asyncio.timeout(60):
        while "cy" not in (await runtime.inside.runs.load(turn))[1].told_by:
            await asyncio.sleep(0)

    assert said.outcome == "direct"
    with pytest.raises(Denied, match="acts for them"):
        await runtime.inside.approvals.decide(name, "approve", by="cy")
    await runtime.inside.sessions.stop(id, identity=None, drop=True)
    assert paid == []


async def test_the_same_words_from_a_channel_with_another_declarer_are_the_same_input(runtime: Runtime) -> None:
    id = await session_of_ann(runtime)
    first, again = [
        await runtime.inside.sessions.say(id, "pay", identity=each, key="m1")
        for each in (CHANNEL, Identity("ann", via="channel:desk").also_ordered_by("dan"))
    ]
    assert (first.again, again.again) == (False, True)
    await runtime.inside.sessions.stop(id, identity=None, drop=True)


@pytest.mark.parametrize(
    ("runtime", "decided"), [([guard], "refuse"), ([greedy], "do")], indirect=["runtime"], ids=["refuses", "changes"]
)
async def test_hooks_are_asked_about_arguments_that_a_person_edits(runtime: Runtime, decided: str) -> None:
    id = await session_of_ann(runtime)
    await runtime.inside.sessions.say(id, "pay", identity=Identity("ann"))
    await runtime.approvals.edit(await asked(runtime), {"to": "eve"}, by="bob")
    session = await quiet(runtime, id)

    assert paid == []
    facts = [event for _, event in await runtime.inside.runs.facts(session.head)]
    assert [each.then for each in facts if isinstance(each, HookDecided)] == ["do", decided]


@pytest.mark.parametrize("runtime", [[guard]], indirect=True)
async def test_edited_arguments_that_hooks_let_pass_are_used(runtime: Runtime) -> None:
    id = await session_of_ann(runtime)
    await runtime.inside.sessions.say(id, "pay", identity=Identity("ann"))
    await runtime.approvals.edit(await asked(runtime), {"to": "ada"}, by="bob")
    await quiet(runtime, id)
    assert paid == ["ada"]


@pytest.mark.parametrize("user", ["ann", ""])
def test_a_skill_that_was_allowed_for_one_user_is_in_quarantine_for_another(user: str) -> None:
    by = {"uid": "u", "declaredBy": {"user": "mal", "operator": False}}
    spec = {"description": "d", "body": "b", "user": "mal"}
    document = {"kind": "Skill", "metadata": {"name": "s", **by}, "spec": spec}
    allowed = {**document, "spec": {**spec, "allow": digest_of_skill(document)}}

    assert not in_quarantine(allowed)
    assert in_quarantine({**allowed, "spec": {**allowed["spec"], "user": user}})

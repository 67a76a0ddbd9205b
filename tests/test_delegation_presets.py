"""Tasks for copies of the caller under presets, conversations with helpers that go on, and bounds on all of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foliot import Agent, PolicyQuestion, Runtime, ScriptedModel, tool
from foliot.engine.definition.run_options import RunOptions, excluded_by
from foliot.kernel.messages import ModelRequest, ToolResult
from foliot.kernel.run.events import RunCreated, ToolFinished
from foliot.kernel.run.spec import RunSpec
from foliot.resources.problems import ManifestError
from foliot.store.journal.base import RunInfo
from foliot.tools.builtin.presets import BUILT_IN
from tests.test_delegation import DIES, results, until

FAR = {"name": "far", "description": "Of others.", "model": "team-a/m"}
KILLED = "test_delegation_presets import killed_boss as dying_boss"
SCOUT = {"name": "scout", "description": "Looks.", "prompt": "Only look.", "tools": ["look"]}


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


@tool(effect="read")
def shout() -> str:
    """Shout."""
    return "loud"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db", allow_missing=True) as opened:
        yield opened


@pytest.fixture(params=["memory:", "foliot.db"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    store = request.param if request.param == "memory:" else tmp_path / request.param
    async with Runtime(store, allow_missing=True) as opened:
        yield opened


def delegating(*tasks: dict[str, Any]) -> dict[str, Any]:
    return {"call": {"delegate": {"tasks": list(tasks)}}}


class Boss(ScriptedModel):
    """A model that is a boss when it is told "Go", and a helper of every other task, which it answers by repeating.

    `helps` are the turns of helpers, by the first word of their task.
    """

    def __init__(self, *turns: Any, helps: dict[str, list[Any]] | None = None) -> None:
        super().__init__([*turns, {"say": "over"}])
        self._helps = {word: ScriptedModel(given) for word, given in (helps or {}).items()}
        self.asked: list[ModelRequest] = []

    async def respond(self, request: ModelRequest, **more: Any) -> Any:
        self.asked.append(request)
        first = request.messages[0].text
        if first.startswith("Go"):
            return await super().respond(request, **more)
        helper = self._helps.get(first.split()[0]) or ScriptedModel({"turns": [{"say": "done: {input}"}], "loop": True})
        return await helper.respond(request, **more)


def boss(model: ScriptedModel, *tools: Any, name: str = "boss", **spec: Any) -> Agent:
    delegation = spec.pop("delegation", {"presets": [SCOUT]})
    given = {
        "tools": [look, shout, "delegate", *tools],
        "prompt": "You are the boss.",
        "delegation": delegation,
        **spec,
    }
    return Agent(name, model=model, **given)


async def children(runtime: Runtime, parent: str) -> list[RunInfo]:
    return [info for info in reversed(await runtime.inside.runs.journal.list(limit=1000)) if info.parent == parent]


async def spec_of(runtime: Runtime, run_id: str) -> RunSpec:
    return (await runtime.inside.runs.load(run_id))[1].spec


async def began(runtime: Runtime, run_id: str) -> RunCreated:
    created = (await runtime.inside.runs.facts(run_id, limit=1))[0][1]
    assert isinstance(created, RunCreated)
    return created


async def entries(runtime: Runtime, run_id: str) -> list[dict[str, Any]]:
    """The entries of all results of `delegate` in a run."""
    return [entry for value in await results(runtime, run_id) for entry in value["results"].values()]


# --- presets -------------------------------------------------------------------------------------------------------


async def test_a_copy_of_the_caller_does_a_task_under_a_preset(either: Runtime) -> None:
    result = await either.run(boss(Boss(delegating({"task": "a", "preset": "scout"}))), "Go.")

    (entry,) = await entries(either, result.run_id)
    assert (entry["output"], entry["complete"]) == ("done: a", True)
    (child,) = await children(either, result.run_id)
    spec, created = await spec_of(either, child.id), await began(either, child.id)
    assert spec.system == "You are the boss.\n\nOnly look."
    assert [rule.name for rule in spec.tools] == ["look"]
    assert spec.limits.max_seconds == 900
    assert entry["session_id"] == child.id
    assert (created.agent, created.ancestors, created.depth) == ("boss", ("boss",), 1)
    assert {name.partition("/")[0] for name in created.definitions} == {"Agent", "DelegationPreset"}


async def test_a_task_that_names_nobody_is_done_under_the_general_preset_with_all_tools(runtime: Runtime) -> None:
    result = await runtime.run(boss(Boss(delegating({"task": "a"}))), "Go.")

    (child,) = await children(runtime, result.run_id)
    assert {rule.name for rule in (await spec_of(runtime, child.id)).tools} == {"look", "shout", "delegate"}
    assert "DelegationPreset/general" in (await began(runtime, child.id)).definitions


async def test_an_empty_declaration_is_one(runtime: Runtime) -> None:
    result = await runtime.run(boss(Boss(delegating({"task": "a"})), delegation={}), "Go.")

    (child,) = await children(runtime, result.run_id)
    assert "DelegationPreset/general" in (await began(runtime, child.id)).definitions

    kept = {"kind": "Agent", "metadata": {"name": "kept"}, "spec": {"model_ref": "m", "delegation": {}}}
    for document in (kept, {**kept, "spec": {**kept["spec"], "prompt": "Help."}}):
        await runtime.resources.apply([document], allow_missing=True)
        assert (await runtime.resources.get("Agent", "kept"))["spec"]["delegation"] == {}
    await runtime.resources.apply([{**kept, "spec": {"model_ref": "m"}}], allow_missing=True)
    assert "delegation" not in (await runtime.resources.get("Agent", "kept"))["spec"]


async def test_an_empty_list_leaves_no_tools_and_a_timeout_is_the_presets_own(runtime: Runtime) -> None:
    bare = {"name": "bare", "description": "Thinks.", "tools": [], "timeout": "30m"}
    agent = boss(Boss(delegating({"task": "a", "preset": "bare"})), delegation={"presets": [bare]})
    result = await runtime.run(agent, "Go.")

    spec = await spec_of(runtime, (await children(runtime, result.run_id))[0].id)
    assert spec.tools == ()
    assert spec.limits.max_seconds == 1800


async def test_a_task_never_has_more_time_than_is_left_to_its_caller(runtime: Runtime) -> None:
    agent = boss(Boss(delegating({"task": "a"})), limits={"timeout": "60s"})
    result = await runtime.run(agent, "Go.")
    spec = await spec_of(runtime, (await children(runtime, result.run_id))[0].id)
    assert spec.limits.max_seconds is not None
    assert spec.limits.max_seconds <= 60


async def test_a_declared_preset_replaces_a_built_in_one_in_its_place(runtime: Runtime) -> None:
    own = {"name": "explore", "description": "Mine.", "prompt": "Mine."}
    model = Boss(delegating({"task": "a", "preset": "explore"}))
    result = await runtime.run(boss(model, delegation={"presets": [own]}), "Go.")

    spec = await spec_of(runtime, (await children(runtime, result.run_id))[0].id)
    assert spec.system.endswith("\n\nMine.")
    (shown,) = [each.description for each in model.asked[0].tools if each.name == "delegate"]
    names = [line.split(":")[0].removeprefix("- ") for line in shown.splitlines() if line.startswith("- ")]
    assert names == [each.name for each in BUILT_IN]


async def test_a_preset_holds_for_another_agent_too(runtime: Runtime) -> None:
    helper = Agent("helper", model=ScriptedModel([{"say": "hi"}]), prompt="I help.", tools=[look, shout])
    model = Boss(delegating({"task": "a", "agent": "helper", "preset": "scout"}))
    result = await runtime.run(boss(model, helper), "Go.")

    spec = await spec_of(runtime, (await children(runtime, result.run_id))[0].id)
    assert (spec.agent, spec.system) == ("helper", "I help.\n\nOnly look.")
    assert [rule.name for rule in spec.tools] == ["look"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tasks": []}, "at least one task is required"),
        ({}, "tasks is required"),
        ({"tasks": "a"}, "tasks must be an array"),
        ({"tasks": [{"preset": "scout"}]}, "tasks[0]: task is required"),
        ({"tasks": [{"task": " "}]}, "tasks[0]: task is required"),
        ({"tasks": [{"task": "a", "id": "x"}, {"task": "b", "id": "x"}]}, "tasks[1]: duplicate id"),
        (
            {"tasks": [{"task": "a", "preset": "nobody"}]},
            'unknown preset: "nobody" (available: general, explore, review, scout)',
        ),
        ({"tasks": [{"task": "a", "model": "huge"}]}, 'unknown model: "huge" (available: small)'),
        (
            {"tasks": [{"task": "a", "session_id": "s"}, {"task": "b", "session_id": "s"}]},
            "tasks[1]: duplicate session_id",
        ),
    ],
)
async def test_tasks_that_cannot_be_given_are_told_in_these_words(
    runtime: Runtime, given: dict[str, Any], told: str
) -> None:
    agent = boss(Boss({"call": {"delegate": given}}), delegation={"presets": [SCOUT], "models": ["small"]})
    result = await runtime.run(agent, "Go.")
    (error,) = await results(runtime, result.run_id)
    assert (error.code, error.message) == ("invalid_input", told)
    assert await children(runtime, result.run_id) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"preset": "nobody"}, 'unknown preset: "nobody"'), ({"model": "huge"}, 'unknown model: "huge"')],
)
async def test_a_task_that_names_what_is_not_there_fails_alone(
    runtime: Runtime, wrong: dict[str, str], told: str
) -> None:
    model = Boss(delegating({"task": "b", **wrong}, {"task": "a"}))
    result = await runtime.run(boss(model, delegation={"presets": [SCOUT], "models": ["small"]}), "Go.")
    refused, good = await entries(runtime, result.run_id)
    assert refused["error"].startswith(told)
    assert (refused["complete"], good["complete"]) == (False, True)
    assert len(await children(runtime, result.run_id)) == 1


async def test_a_task_that_fails_fails_alone_and_its_conversation_can_go_on(runtime: Runtime) -> None:
    model = Boss(delegating({"task": "break it"}, {"task": "a"}), helps={"break": [{"fail": "overloaded"}]})
    result = await runtime.run(boss(model), "Go.")
    broken, good = await entries(runtime, result.run_id)
    assert (broken["complete"], good["complete"]) == (False, True)
    assert broken["error"]
    assert broken["session_id"]


async def test_a_named_model_answers_the_task(runtime: Runtime) -> None:
    other = Agent("other", model=ScriptedModel([{"say": "from the other model"}]))
    runtime.inside.know(other)
    ref = other.model_ref
    small = {"name": "small", "description": "Small.", "model": "m"}
    agent = boss(Boss(delegating({"task": "a", "preset": "small"})), delegation={"presets": [small]})
    agent.document["spec"]["delegation"]["presets"][0]["model"] = ref  # a manifest could not name an object of Python
    result = await runtime.run(agent, "Go.")
    assert (await entries(runtime, result.run_id))[0]["output"] == "from the other model"


def test_presets_that_are_wrong_are_told_with_their_field() -> None:
    with pytest.raises(ManifestError) as refused:
        boss(Boss(), delegation={"presets": [{"name": "x"}, {"name": "y", "description": "d", "timeout": "soon"}]})
    fields = {finding.field for finding in refused.value.findings}
    assert fields == {"spec.delegation.presets[0].description", "spec.delegation.presets[1].timeout"}


# --- tools that are lost ---------------------------------------------------------------------------------------------


async def test_no_preset_gives_back_what_the_run_above_has_lost(runtime: Runtime) -> None:
    model = Boss(delegating({"task": "a", "preset": "scout"}))
    result = await runtime.inside.run(boss(model), "Go.", options=RunOptions(exclude_tools=("look",)))

    spec = await spec_of(runtime, (await children(runtime, result.run_id))[0].id)
    assert spec.tools == ()
    assert excluded_by(spec) == ("look", "shout", "delegate")


async def test_what_a_preset_takes_away_is_lost_for_the_agents_below_too(runtime: Runtime) -> None:
    helper = Agent("helper", model=ScriptedModel([{"say": "hi"}]), tools=[look, shout])
    quiet = {"name": "quiet", "description": "No noise.", "tools": ["look", "agent:helper", "delegate"]}
    model = Boss(
        delegating({"task": "ask", "preset": "quiet"}),
        helps={"ask": [delegating({"task": "b", "agent": "helper"}), {"say": "x"}]},
    )
    result = await runtime.run(boss(model, helper, delegation={"presets": [quiet]}), "Go.")

    (child,) = await children(runtime, result.run_id)
    (grandchild,) = await children(runtime, child.id)
    assert [rule.name for rule in (await spec_of(runtime, grandchild.id)).tools] == ["look"]


# --- conversations that go on ----------------------------------------------------------------------------------------


class Resuming(Boss):
    """A boss that gives a second task to the session of the first."""

    async def respond(self, request: ModelRequest, **more: Any) -> Any:
        found = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
        if request.messages[0].text.startswith("Go") and len(found) == 1:
            entry = next(iter(msgspec.json.decode(found[0].text)["results"].values()))
            again = ScriptedModel([delegating({"task": "second", "session_id": entry["session_id"]})])
            self.asked.append(request)
            return await again.respond(ModelRequest("m", request.messages[:1]))
        return await super().respond(request, **more)


async def test_a_session_goes_on_where_the_task_before_ended(either: Runtime) -> None:
    model = Resuming(delegating({"task": "first", "preset": "scout"}), {"say": "not asked"})
    result = await either.run(boss(model), "Go.")

    first, second = await children(either, result.run_id)
    created = await began(either, second.id)
    assert (created.after, created.before, created.session if hasattr(created, "session") else "") == (first.id, 2, "")
    assert "DelegationPreset/scout" in created.definitions
    (last,) = [asked for asked in model.asked if asked.messages[-1].text == "second"]
    assert [message.text for message in last.messages] == ["first", "done: first", "second"]
    assert {entry["session_id"] for entry in await entries(either, result.run_id)} == {first.id}


async def test_a_later_turn_of_the_caller_goes_on_with_the_same_helper(either: Runtime) -> None:
    first = await either.run(boss(Boss(delegating({"task": "first"}))), "Go.")
    (session,) = [entry["session_id"] for entry in await entries(either, first.run_id)]
    model = Boss({"say": ""}, {"say": ""}, delegating({"task": "second", "session_id": session}))
    again = await either.run(boss(model), "Go on.", after=first.run_id)

    (child,) = await children(either, again.run_id)
    assert (await began(either, child.id)).after == session


def killed_boss(folder: Path) -> Agent:
    """Its helper is killed with the process while it works on the second task of its session."""

    @tool(effect="idempotent")
    async def die() -> str:
        """Be killed, once."""
        if (folder / "die").exists():
            (folder / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    turns = [{"say": "one"}, {"call": "die"}, {"say": "two"}]
    model = Resuming(delegating({"task": "work"}), {"say": "not asked"}, helps={"work": turns})
    return boss(model, die)


async def test_after_a_kill_the_same_turn_of_a_session_goes_on(tmp_path: Path) -> None:
    (tmp_path / "die").touch()
    store = str(tmp_path / "foliot.db")
    done = subprocess.run(
        [sys.executable, "-c", DIES.replace("test_delegation import dying_boss", KILLED), store, str(tmp_path)],
        timeout=110,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with Runtime(store) as runtime:
        begun = await children(runtime, "r-1")
        assert (await runtime.resume("r-1", agent=killed_boss(tmp_path))).output == "over"
        first, second = await children(runtime, "r-1")
        assert [first.id, second.id] == [info.id for info in begun]
        assert (await began(runtime, second.id)).after == first.id
        assert [entry["output"] for entry in await entries(runtime, "r-1")] == ["one", "two"]


async def refused_session(runtime: Runtime, session: str, *, user: str = "", **more: Any) -> None:
    result = await runtime.run(boss(Boss(delegating({"task": "b", "session_id": session})), **more), "Go.", user=user)
    (entry,) = await entries(runtime, result.run_id)
    assert entry["error"].startswith("session not found")
    assert await children(runtime, result.run_id) == []


async def test_a_session_of_somebody_else_is_not_found(runtime: Runtime) -> None:
    mine = await runtime.run(boss(Boss(delegating({"task": "secret"}))), "Go.", user="ann")
    (session,) = [entry["session_id"] for entry in await entries(runtime, mine.run_id)]
    await refused_session(runtime, session, user="bob")  # another person
    await refused_session(runtime, session, user="ann")  # another conversation of the same person
    await refused_session(runtime, session, user="ann", name="other")  # another agent
    await refused_session(runtime, mine.run_id, user="ann")  # no helper at all
    await refused_session(runtime, "nothing", user="ann")


async def test_a_session_is_not_continued_twice_at_once(runtime: Runtime) -> None:
    first = await runtime.run(boss(Boss(delegating({"task": "first"}))), "Go.")
    (session,) = [entry["session_id"] for entry in await entries(runtime, first.run_id)]
    calls = [{"delegate": {"tasks": [{"task": told, "session_id": session}]}} for told in ("b", "c")]
    model = Boss({"say": ""}, {"say": ""}, {"call": calls})
    again = await runtime.run(boss(model), "Go on.", after=first.run_id)

    turns = [await began(runtime, child.id) for child in await children(runtime, again.run_id)]
    assert len({turn.after for turn in turns}) == len(turns)  # one after the other, or the second was refused


# --- bounds ----------------------------------------------------------------------------------------------------------


async def test_a_copy_cannot_make_copies_of_itself_without_end(runtime: Runtime) -> None:
    again = [delegating({"task": "again"}), {"say": "{last_result}"}]
    result = await runtime.run(boss(Boss(delegating({"task": "again"}), helps={"again": again})), "Go.")

    (child,) = await children(runtime, result.run_id)
    (entry,) = await entries(runtime, child.id)
    assert entry["error"].startswith("cycle: agents would call each other in a circle: boss -> boss (general) ->")


async def test_a_circle_that_is_declared_ends_at_the_depth(runtime: Runtime) -> None:
    again = [delegating({"task": "again"}), {"say": "{last_result}"}]
    model = Boss(delegating({"task": "again"}), helps={"again": again})
    await runtime.run(boss(model, delegation={"allow_cycles": True, "max_depth": 3}), "Go.")

    depths = sorted([(await began(runtime, info.id)).depth for info in await runtime.inside.runs.journal.list()])
    assert depths == [0, 1, 2, 3]
    found = await runtime.inside.runs.journal.list()
    (deepest,) = [info for info in found if (await began(runtime, info.id)).depth == 3]
    assert (await entries(runtime, deepest.id))[0]["error"].startswith("depth limit: agents may delegate 3 deep")


async def test_an_agent_below_cannot_go_deeper_than_the_one_above_allows(runtime: Runtime) -> None:
    low = boss(Boss(delegating({"task": "a"})), name="low", delegation={"max_depth": 10})
    top = boss(Boss(delegating({"task": "Go", "agent": "low"})), low, delegation={"max_depth": 1})
    result = await runtime.run(top, "Go.")
    (child,) = await children(runtime, result.run_id)
    assert (await entries(runtime, child.id))[0]["error"].startswith("depth limit")


async def test_tasks_of_tasks_use_up_one_number_of_runs(either: Runtime) -> None:
    many = [{"task": "more"}] * 10
    model = Boss(delegating(*many), helps={"more": [delegating(*many), {"say": "x"}]})
    result = await either.run(boss(model, delegation={"max_runs": 25, "allow_cycles": True}), "Go.")

    assert result.succeeded
    assert len(await either.inside.runs.journal.list(limit=1000)) == 1 + 25
    (refused,) = {
        entry["error"].split(":")[0]
        for info in await either.inside.runs.journal.list(limit=1000)
        for entry in await entries(either, info.id)
        if "error" in entry
    }
    assert refused == "budget exhausted"


async def test_cancelling_the_caller_ends_helpers_on_every_level(runtime: Runtime) -> None:
    deep = asyncio.Event()

    @tool(effect="read")
    async def dawdle() -> str:
        """Wait for ever."""
        deep.set()
        await asyncio.Event().wait()
        return "never"

    helps = {
        "one": [delegating({"task": "two", "preset": "scout"}), {"say": "x"}],
        "two": [{"call": "dawdle"}, {"say": "x"}],
    }
    scout = {**SCOUT, "tools": ["dawdle"]}
    agent = boss(Boss(delegating({"task": "one"}), helps=helps), dawdle, delegation={"presets": [scout]})
    working = asyncio.create_task(runtime.run(agent, "Go.", run_id="r-1", check=False))
    await asyncio.wait_for(deep.wait(), 60)
    await runtime.runs.cancel("r-1")
    assert (await asyncio.wait_for(working, 60)).phase == "cancelled"

    async def all_ended() -> bool:
        return {info.phase for info in await runtime.inside.runs.journal.list()} == {"cancelled"}

    await until(all_ended)
    assert len(await runtime.inside.runs.journal.list()) == 3


async def test_an_agent_that_declares_nothing_has_the_tool_as_it_was(runtime: Runtime) -> None:
    plain = boss(ScriptedModel([delegating({"task": "a", "preset": "scout"}), {"say": "x"}]), delegation=None)
    result = await runtime.run(plain, "Go.")
    (finished,) = [e for _, e in await runtime.inside.runs.facts(result.run_id) if isinstance(e, ToolFinished)]
    assert finished.result.error is not None
    assert '"agent" is a required property' in finished.result.error.message


# --- what is explained -----------------------------------------------------------------------------------------------

MANIFESTS = [
    {"kind": "ModelEndpoint", "metadata": {"name": "m"}, "spec": {"provider": "scripted", "script": [{"say": "hi"}]}},
    {
        "kind": "Agent",
        "metadata": {"name": "boss"},
        "spec": {"model_ref": "m", "tools": ["delegate"], "delegation": {"presets": [SCOUT]}},
    },
]


@pytest.mark.parametrize(
    ("task", "outcome"),
    [
        ({"task": "a", "preset": "scout"}, "allow"),
        ({"task": "a", "preset": "nobody"}, "deny"),
        ({"task": "a", "agent": "other"}, "deny"),
    ],
)
async def test_a_policy_question_is_answered_as_a_call_is(runtime: Runtime, task: dict[str, Any], outcome: str) -> None:
    await runtime.resources.apply(MANIFESTS, allow_missing=True)
    told = await runtime.policies.explain(PolicyQuestion("boss", "delegate", arguments={"tasks": [task]}))
    assert told.judgement.outcome == outcome, told


async def test_a_model_of_another_namespace_is_not_asked_without_its_grant(runtime: Runtime) -> None:
    theirs = {"name": "m", "namespace": "team-a"}
    await runtime.resources.apply([{**MANIFESTS[0], "metadata": theirs}])
    agent = boss(Boss(delegating({"task": "a", "preset": "far"})), delegation={"presets": [FAR]})
    result = await runtime.run(agent, "Go.")
    (entry,) = await entries(runtime, result.run_id)
    assert entry["complete"] is False
    assert "team-a" in entry["error"]
    assert await children(runtime, result.run_id) == []

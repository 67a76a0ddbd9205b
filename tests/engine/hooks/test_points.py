"""Hooks at every point: what they are given, what they change, and that it is recorded before it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Hook, HookAct, Runtime, ScriptedModel, hook, tool
from foliot.kernel.messages import ModelRequest, Text
from foliot.kernel.run.events import Event, HookDecided, RunFailed, RunSucceeded, StepStarted, ToolFinished, ToolStarted

CALL = {"call": {"look": {"place": "Rome"}}}


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


@tool(effect="read")
def listen() -> str:
    """Listen."""
    return "heard"


class Asked:
    """A model that keeps what it was asked."""

    def __init__(self, turns: Any) -> None:
        self.requests: list[ModelRequest] = []
        self._model = ScriptedModel(turns)

    async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> Any:
        self.requests.append(request)
        return await self._model.respond(request, on_delta=on_delta)

    async def close(self) -> None:
        await self._model.close()


@pytest.fixture(params=["memory:", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory:" else str(tmp_path / "foliot.db")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def facts(runtime: Runtime, run_id: str) -> list[Event]:
    return [event for _, event in await runtime.inside.runs.facts(run_id)]


async def test_every_point_is_asked_in_the_order_of_a_run(store: str) -> None:
    seen: list[str] = []

    @hook("before_run", "before_message", "before_model", "after_model", "before_tool", "after_tool", "after_message",
          "after_run")  # fmt: skip
    def watch(act: HookAct) -> None:
        seen.append(act.point)

    async with Runtime(store, hooks=[watch]) as runtime:
        await runtime.run(Agent("a", model=ScriptedModel([CALL, {"say": "ok"}]), tools=[look]), "Go.")
    before = [point for point in seen if point != "after_model"]  # which is told beside the run
    assert before == [
        "before_run", "before_message", "before_model", "before_tool", "after_tool", "before_model", "after_message",
        "after_run",
    ]  # fmt: skip
    assert seen.count("after_model") == 2


async def test_hooks_go_by_order_then_by_name_and_each_sees_what_the_ones_before_changed(runtime: Runtime) -> None:
    seen: list[tuple[str, str]] = []

    def one(name: str, order: int) -> Any:
        @hook("before_message", name=name, order=order)
        def add(act: HookAct) -> Any:
            seen.append((name, act.text))
            return act.change(text=f"{act.text}{name}")

        return add

    model = Asked([{"say": "ok"}])
    agent = Agent("a", model=model, hooks=[one("z", 1), one("b", 5), one("a", 5)])
    await runtime.run(agent, ">")
    assert seen == [("z", ">"), ("a", ">z"), ("b", ">za")]
    assert model.requests[0].messages[-1].text == ">zab"


async def test_the_arguments_of_a_call_are_those_of_the_hook_and_are_recorded_before_it_starts(
    runtime: Runtime,
) -> None:
    @hook("before_tool")
    def north(act: HookAct) -> Any:
        return act.change(arguments={**act.arguments, "place": "Oslo"})

    result = await runtime.run(
        Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look], hooks=[north]), "Go."
    )
    assert result.output == "seen Oslo"
    events = await facts(runtime, result.run_id)
    decided = next(n for n, each in enumerate(events) if isinstance(each, HookDecided))
    started = next(n for n, each in enumerate(events) if isinstance(each, ToolStarted))
    assert decided < started
    assert events[decided] == HookDecided("before_tool", "call_1_1", ("north",), arguments='{"place":"Oslo"}')


async def test_a_blocked_call_is_not_made_and_the_model_is_told(runtime: Runtime) -> None:
    @hook("before_tool")
    def never(act: HookAct) -> Any:
        return act.block("not today")

    agent = Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look], hooks=[never])
    result = await runtime.run(agent, "Go.")
    assert "not today; it was not run" in result.output
    assert not [each for each in await facts(runtime, result.run_id) if isinstance(each, ToolStarted)]


async def test_a_step_has_the_prompt_the_model_and_the_tools_of_its_hook(runtime: Runtime) -> None:
    @hook("before_model")
    def narrow(act: HookAct) -> Any:
        return act.change(
            system=f"{act.system} Step {act.step}.", model="m-2", tools=["listen"] if act.step == 1 else []
        )

    model = Asked([{"call": "listen"}, {"say": "ok"}])
    await runtime.run(Agent("a", model=model, prompt="Be brief.", tools=[look, listen], hooks=[narrow]), "Go.")
    assert [request.system for request in model.requests] == ["Be brief. Step 1.", "Be brief. Step 2."]
    assert [request.model for request in model.requests] == ["m-2", "m-2"]
    assert [[each.name for each in request.tools] for request in model.requests] == [["listen"], []]


async def test_what_was_not_offered_is_not_run_although_the_model_asks_for_it(runtime: Runtime) -> None:
    @hook("before_model")
    def narrow(act: HookAct) -> Any:
        return act.change(tools=["listen"])

    agent = Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look, listen], hooks=[narrow])
    result = await runtime.run(agent, "Go.")
    assert "there is no tool named 'look'. The tools are: listen." in result.output


async def test_what_a_run_lost_before_it_began_no_step_of_it_regains(runtime: Runtime) -> None:
    class Narrow(Hook):
        name = "narrow"

        def before_run(self, act: HookAct) -> Any:
            return act.change(tools=["listen"])

        def before_model(self, act: HookAct) -> Any:
            assert act.tools == ("listen",)
            return act.change(tools=["look", "listen"])

    model = Asked([CALL, {"say": "{last_result}"}])
    result = await runtime.run(Agent("a", model=model, tools=[look, listen], hooks=[Narrow()]), "Go.")
    assert [[each.name for each in request.tools] for request in model.requests] == [["listen"], ["listen"]]
    assert "there is no tool named 'look'" in result.output
    said = [each for each in await facts(runtime, result.run_id) if isinstance(each, HookDecided) and each.failed]
    assert said[0].failed == {"narrow": "it offers tools that the run does not have: look"}


async def test_the_result_and_the_answer_are_what_the_hooks_made_of_them(runtime: Runtime) -> None:
    class Redact(Hook):
        name = "redact"

        async def after_tool(self, act: HookAct) -> Any:
            return act.change(text=act.text.replace("Rome", "***"))

        async def after_message(self, act: HookAct) -> Any:
            return act.change(text=act.text.upper())

    agent = Agent("a", model=ScriptedModel([CALL, {"say": "It says {last_result}"}]), tools=[look], hooks=[Redact()])
    result = await runtime.run(agent, "Go.")
    assert result.output == "IT SAYS SEEN ***"
    events = await facts(runtime, result.run_id)
    finished = next(each for each in events if isinstance(each, ToolFinished))
    assert (finished.result.content, finished.hooks) == ((Text("seen ***"),), ("redact",))
    _, state = await runtime.inside.runs.load(result.run_id)
    assert state.transcript[-1].text == "IT SAYS SEEN ***"


async def test_an_answer_of_a_hook_is_held_against_the_schema_again(runtime: Runtime) -> None:
    @hook("after_message")
    def spoil(act: HookAct) -> Any:
        return act.change(text="not JSON") if act.step == 1 else None

    agent = Agent(
        "a", model=ScriptedModel([{"say": '{"n": 1}'}, {"say": '{"n": 2}'}]), output=dict[str, int], hooks=[spoil]
    )
    result = await runtime.run(agent, "Go.")
    assert result.value == {"n": 2}


@pytest.mark.parametrize("point", ["before_run", "before_message", "before_model", "after_message"])
async def test_a_run_whose_hook_blocks_ends_with_the_message(runtime: Runtime, point: Any) -> None:
    @hook(point)
    def never(act: HookAct) -> Any:
        return act.block("not today")

    result = await runtime.run(Agent("a", model=ScriptedModel("echo"), hooks=[never]), "Go.", check=False)
    _, state = await runtime.inside.runs.load(result.run_id)
    assert isinstance(state.ended, RunFailed)
    assert (state.ended.code, state.ended.reason, state.ended.message) == ("blocked_by_hook", "never", "not today")


async def test_a_delegate_has_the_hooks_of_what_stands_above_it(runtime: Runtime) -> None:
    seen: list[tuple[str, str]] = []

    @hook("before_run")
    def watch(act: HookAct) -> None:
        seen.append((act.agent, act.parent))

    low = Agent("low", model=ScriptedModel([{"say": "low"}]))
    mid = Agent("mid", model=ScriptedModel([{"call": {"agent:low": {"input": "x"}}}, {"say": "mid"}]), tools=[low])
    top = Agent("top", model=ScriptedModel([{"call": {"agent:mid": {"input": "x"}}}, {"say": "top"}]), tools=[mid],
                hooks=[watch])  # fmt: skip
    result = await runtime.run(top, "Go.")
    assert [agent for agent, _ in seen] == ["top", "mid", "low"]
    assert seen[1][1] == result.run_id
    seen.clear()
    await runtime.run(mid, "Go.")
    assert seen == []


async def test_programs_of_an_agent_pass_its_tool_hooks_and_call_only_what_was_offered(runtime: Runtime) -> None:
    class Narrow(Hook):
        name = "narrow"

        def before_model(self, act: HookAct) -> Any:
            return act.change(tools=["code", "look"])

        def before_tool(self, act: HookAct) -> Any:
            return act.change(arguments={"place": "Oslo"}) if act.tool == "look" else None

    def program(text: str) -> Agent:
        turns = [{"call": {"code": {"program": text}}}, {"say": "{last_result}"}]
        return Agent("a", model=ScriptedModel(turns), tools=["code", look, listen], hooks=[Narrow()])

    assert "seen Oslo" in (await runtime.run(program("await look(place='Rome')"), "Go.")).output
    assert "heard" not in (await runtime.run(program("await listen()"), "Go.")).output


async def test_a_replay_asks_no_hook_and_decides_the_same(runtime: Runtime) -> None:
    seen: list[str] = []

    @hook("before_run", "before_message", "before_model", "before_tool", "after_tool", "after_message")
    def all_of_it(act: HookAct) -> Any:
        seen.append(act.point)
        changes: dict[str, Any] = {
            "before_message": {"text": "Come."},
            "before_model": {"system": "x", "tools": ["look"]},
            "before_tool": {"arguments": {"place": "Oslo"}},
            "after_tool": {"text": "rain"},
            "after_message": {"text": "bye"},
        }
        return act.change(**changes[act.point]) if act.point in changes else None

    agent = Agent("a", model=ScriptedModel([CALL, {"say": "ok"}]), tools=[look, listen], hooks=[all_of_it])
    result = await runtime.run(agent, "Go.")
    asked = len(seen)
    replayed = await runtime.inside.replay(result.run_id)
    assert replayed.difference is None
    assert isinstance(replayed.state.ended, RunSucceeded)
    assert replayed.state.ended.output == "bye"
    assert len(seen) == asked


async def test_a_run_without_hooks_has_no_fact_of_them(runtime: Runtime) -> None:
    result = await runtime.run(Agent("a", model=ScriptedModel([CALL, {"say": "ok"}]), tools=[look]), "Go.")
    events = await facts(runtime, result.run_id)
    assert not [each for each in events if isinstance(each, HookDecided)]
    assert [type(each) for each in events].count(StepStarted) == 2


async def test_an_input_to_a_run_at_work_passes_the_message_hooks(runtime: Runtime) -> None:
    said: list[str] = []

    @hook("before_message")
    def politely(act: HookAct) -> Any:
        said.append(act.text)
        return act.block("rude") if "idiot" in act.text else act.change(text=f"{act.text} Please.")

    @tool(effect="read")
    async def wait() -> str:
        """Wait until something was said."""
        await runtime.runs.say(run_id, "You idiot!")
        await runtime.runs.say(run_id, "Hurry.")
        return "done"

    model = Asked([{"call": "wait"}, {"say": "ok"}])
    run_id = runtime.inside.new_run_id()
    await runtime.run(Agent("a", model=model, tools=[wait], hooks=[politely]), "Go.", run_id=run_id)
    assert said[0] == "Go."
    assert sorted(said[1:]) == ["Hurry.", "You idiot!"]
    texts = [each.text for each in model.requests[-1].messages if each.role == "user"]
    assert texts == ["Go. Please.", "Hurry. Please."]


async def test_what_is_said_to_a_session_and_its_answer_pass_the_message_hooks(tmp_path: Path) -> None:
    seen: list[str] = []

    class Polite(Hook):
        name = "polite"

        def before_message(self, act: HookAct) -> Any:
            seen.append(act.session)
            return act.change(text=f"{act.text} Please.")

        def after_message(self, act: HookAct) -> Any:
            return act.change(text=f"{act.text} Yours.")

    model = Asked([{"say": "one"}, {"say": "two"}])
    async with Runtime(tmp_path / "foliot.db", hooks=[Polite()]) as runtime:
        runtime.inside.know(Agent("a", model=model))
        session = await runtime.sessions.create("a")
        for text in ("First.", "Second."):
            async for event in runtime.sessions.chat(session.id, text):
                last = event
        assert last is not None
    assert set(seen) == {session.id}
    said = [(each.role, each.text) for each in model.requests[-1].messages]
    assert said == [("user", "First. Please."), ("assistant", "one Yours."), ("user", "Second. Please.")]

"""Hooks that hang, raise, lie, widen and meddle: the run does what the hook's policy says, and governance holds."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot import Agent, Hook, HookAct, HookBlock, HookChange, Runtime, ScriptedModel, UsageError, hook, tool
from foliot.engine.hooks.base import POINTS
from foliot.engine.hooks.chain import HookChain, HookFailed, checked
from foliot.kernel.run.events import HookDecided, RunFailed, ToolStarted

CALL = {"call": {"look": {"place": "Rome"}}}
made: list[str] = []


@tool(effect="once")
def look(place: str) -> str:
    """Look at a place."""
    made.append(place)
    return f"seen {place}"


@tool(effect="once")
def drop() -> str:
    """Drop it all."""
    made.append("dropped")
    return "gone"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    made.clear()
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


def hangs(act: HookAct) -> Any:
    threading.Event().wait()


async def hangs_deaf(act: HookAct) -> Any:
    """Hears no cancellation, as code does that catches everything."""
    ends = asyncio.get_running_loop().time() + 1
    while asyncio.get_running_loop().time() < ends:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


def raises(act: HookAct) -> Any:
    raise ValueError("no")


def exits(act: HookAct) -> Any:
    sys.exit(3)


async def cancels(act: HookAct) -> Any:
    raise asyncio.CancelledError


def nonsense(act: HookAct) -> Any:
    return {"arguments": 7}


def surrogates(act: HookAct) -> Any:
    return HookChange(arguments={"place": "\ud800"})


def unprintable(act: HookAct) -> Any:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise Bad


def circular(act: HookAct) -> Any:
    loop: dict[str, Any] = {}
    loop["place"] = loop
    return act.change(arguments=loop)


BROKEN = [hangs, hangs_deaf, raises, exits, cancels, nonsense, surrogates, unprintable, circular]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.__name__)
async def test_a_broken_hook_is_skipped_refuses_the_call_or_ends_the_run_as_it_says(
    runtime: Runtime, broken: Any
) -> None:
    def agent(policy: Any) -> Agent:
        hooked = hook("before_tool", name="broken", timeout=0.05, on_failure=policy)(broken)
        return Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look], hooks=[hooked])

    assert (await runtime.run(agent("ignore"), "Go.")).output == "seen Rome"
    assert made == ["Rome"]
    blocked = await runtime.run(agent("block"), "Go.")
    assert "the hook 'broken' failed, and without it this is not done; it was not run" in blocked.output
    aborted = await runtime.run(agent("abort"), "Go.", check=False)
    _, state = await runtime.inside.runs.load(aborted.run_id)
    assert isinstance(state.ended, RunFailed)
    assert (state.ended.code, state.ended.reason) == ("hook_failed", "broken")
    assert "the hook 'broken' failed at before_tool" in state.ended.message
    assert made == ["Rome"], "nothing was run that a hook refused"


@pytest.mark.parametrize("point", ["before_run", "before_message", "before_model", "after_message"])
@pytest.mark.parametrize(("policy", "phase"), [("ignore", "succeeded"), ("block", "failed"), ("abort", "failed")])
async def test_a_failure_around_the_model_is_ignored_or_ends_the_run(
    runtime: Runtime, point: Any, policy: Any, phase: str
) -> None:
    broken = hook(point, on_failure=policy)(raises)
    result = await runtime.run(Agent("a", model=ScriptedModel("echo"), hooks=[broken]), "Go.", check=False)
    assert result.phase == phase


@pytest.mark.parametrize("point", ["after_model", "after_run"])
async def test_a_failure_of_who_only_looks_on_never_hides_the_answer(runtime: Runtime, point: Any) -> None:
    broken = hook(point, on_failure="ignore", timeout=0.05)(hangs)
    result = await runtime.run(Agent("a", model=ScriptedModel([{"say": "ok"}]), hooks=[broken]), "Go.")
    assert result.output == "ok"


async def test_a_result_whose_hook_failed_is_withheld_although_the_call_was_made(runtime: Runtime) -> None:
    broken = hook("after_tool", on_failure="block")(raises)
    agent = Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look], hooks=[broken])
    result = await runtime.run(agent, "Go.")
    assert made == ["Rome"]
    assert "seen" not in result.output
    assert "the call was made, and its result is withheld" in result.output


async def test_changing_what_it_was_given_changes_nothing(runtime: Runtime) -> None:
    @hook("before_tool", "before_model", "before_run")
    def meddles(act: HookAct) -> None:
        act.arguments["place"] = "Paris"
        act.arguments.clear()
        object.__setattr__(act, "tool", "drop")
        object.__setattr__(act, "tools", ("drop",))
        for message in act.messages:
            for part in message.parts:
                getattr(getattr(part, "error", None), "details", {})["x"] = 1

    turns = [CALL, {"say": "{last_result}"}]
    result = await runtime.run(Agent("a", model=ScriptedModel(turns), tools=[look], hooks=[meddles]), "Go.")
    assert (result.output, made) == ("seen Rome", ["Rome"])


async def test_a_thread_that_goes_on_after_its_hook_changes_nothing_that_is_done(runtime: Runtime) -> None:
    went_on = threading.Event()

    @hook("before_tool")
    def forks(act: HookAct) -> Any:
        mine = {"place": "Oslo"}

        def meddle() -> None:
            mine["place"] = "Paris"
            act.arguments["place"] = "Paris"
            went_on.set()

        threading.Thread(target=meddle, daemon=True).start()
        went_on.wait(5)
        return act.change(arguments={"place": "Oslo"})

    turns = [CALL, {"say": "{last_result}"}]
    result = await runtime.run(Agent("a", model=ScriptedModel(turns), tools=[look], hooks=[forks]), "Go.")
    assert result.output == "seen Oslo"


async def test_a_hook_offers_no_tool_that_the_run_does_not_have(runtime: Runtime) -> None:
    @hook("before_model", on_failure="ignore")
    def widens(act: HookAct) -> Any:
        return act.change(tools=["look", "drop"])

    agent = Agent("a", model=ScriptedModel([{"call": "drop"}, {"say": "{last_result}"}]), tools=[look], hooks=[widens])
    result = await runtime.run(agent, "Go.")
    assert "there is no tool named 'drop'" in result.output
    assert made == []


async def test_arguments_of_a_hook_are_checked_as_those_of_a_model(runtime: Runtime) -> None:
    @hook("before_tool")
    def spoils(act: HookAct) -> Any:
        return act.change(arguments={"place": ["no", "text"]})

    agent = Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look], hooks=[spoils])
    result = await runtime.run(agent, "Go.")
    assert "Error (invalid_input)" in result.output
    assert made == []


CONDITION = {
    "kind": "ToolPermission",
    "metadata": {"name": "not-paris"},
    "spec": {
        "tool_ref": "look",
        "apply_mode": "global",
        "conditions": [{"when": "args.place == 'Paris'", "verdict": "deny", "reason": "not Paris"}],
    },
}


async def test_arguments_of_a_hook_that_a_rule_refuses_are_refused(runtime: Runtime) -> None:
    @hook("before_tool")
    def to_paris(act: HookAct) -> Any:
        return act.change(arguments={"place": "Paris"})

    await runtime.resources.apply([CONDITION], allow_missing=True)
    agent = Agent("a", model=ScriptedModel([CALL, {"say": "{last_result}"}]), tools=[look], hooks=[to_paris])
    result = await runtime.run(agent, "Go.")
    assert "not Paris" in result.output
    assert made == []


MODELS = {
    "kind": "AgentPolicy",
    "metadata": {"name": "cheap"},
    "spec": {"allowed_models": ["python:default/a"], "apply_mode": "global"},
}


async def test_a_model_of_a_hook_that_a_policy_refuses_is_not_asked(runtime: Runtime) -> None:
    @hook("before_model")
    def dearer(act: HookAct) -> Any:
        return act.change(model="dear-one")

    await runtime.resources.apply([MODELS])
    plain = Agent("a", model=ScriptedModel([{"say": "ok"}]))
    assert (await runtime.run(plain, "Go.")).output == "ok"
    hooked = Agent("a", model=ScriptedModel([{"say": "ok"}]), hooks=[dearer])
    result = await runtime.run(hooked, "Go.", check=False)
    assert result.phase == "failed"
    assert "dear-one" in (result.error or "")


async def test_a_run_whose_hook_hangs_can_be_cancelled(runtime: Runtime) -> None:
    reached = asyncio.Event()

    @hook("before_tool", timeout=60)
    async def waits(act: HookAct) -> None:
        reached.set()
        await asyncio.Event().wait()

    run_id = runtime.inside.new_run_id()
    agent = Agent("a", model=ScriptedModel([CALL, {"say": "ok"}]), tools=[look], hooks=[waits])
    running = asyncio.create_task(runtime.run(agent, "Go.", run_id=run_id, check=False))
    await reached.wait()
    await runtime.inside.cancel(run_id, by="ann")
    assert (await running).phase == "cancelled"
    assert made == []


async def test_a_call_that_has_ended_keeps_its_result_when_its_hook_is_cut_off(runtime: Runtime) -> None:
    reached = asyncio.Event()

    @hook("after_tool", timeout=60)
    async def waits(act: HookAct) -> None:
        reached.set()
        await asyncio.Event().wait()

    run_id = runtime.inside.new_run_id()
    agent = Agent("a", model=ScriptedModel([CALL, {"say": "ok"}]), tools=[look], hooks=[waits])
    running = asyncio.create_task(runtime.run(agent, "Go.", run_id=run_id, check=False))
    await reached.wait()
    await runtime.inside.cancel(run_id, by="ann")
    assert (await running).phase == "cancelled"
    _, state = await runtime.inside.runs.load(run_id)
    assert state.transcript[-1].parts[0].text == "seen Rome"  # pyright: ignore


async def test_secrets_in_what_a_hook_raises_are_not_recorded(runtime: Runtime) -> None:
    runtime.inside.runs.hooks._mask = lambda text: text.replace("s3cret", "***")  # pyright: ignore

    @hook("before_tool", on_failure="ignore")
    def tells(act: HookAct) -> None:
        raise ValueError("the key s3cret is wrong")

    result = await runtime.run(
        Agent("a", model=ScriptedModel([CALL, {"say": "ok"}]), tools=[look], hooks=[tells]), "Go."
    )
    events = [event for _, event in await runtime.inside.runs.facts(result.run_id)]
    failed = [each.failed for each in events if isinstance(each, HookDecided)]
    assert failed == [{"tells": "ValueError: the key *** is wrong"}]


async def test_twins_of_a_blocked_call_are_asked_about_themselves(runtime: Runtime) -> None:
    seen: list[str] = []

    @hook("before_tool")
    def first_only(act: HookAct) -> Any:
        seen.append(act.call_id)
        return act.block("once") if len(seen) == 1 else None

    twice = {"call": [{"look": {"place": "Rome"}}, {"look": {"place": "Rome"}}]}
    agent = Agent("a", model=ScriptedModel([twice, {"say": "ok"}]), tools=[look], hooks=[first_only])
    result = await runtime.run(agent, "Go.")
    assert len(seen) == 2
    started = [event for _, event in await runtime.inside.runs.facts(result.run_id) if isinstance(event, ToolStarted)]
    assert [each.call_id for each in started] == seen[1:]
    assert made == ["Rome"]


# --- what cannot be a hook -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "options", "says"),
    [
        ((), {}, "is asked nowhere"),
        (("before_lunch",), {}, "has no point before_lunch"),
        (("before_run",), {"timeout": 0}, "not between 0 and 300 seconds"),
        (("before_run",), {"timeout": "soon"}, "not a duration"),
        (("before_run",), {"timeout": "1h"}, "not between 0 and 300 seconds"),
        (("before_run",), {"on_failure": "shrug"}, "has no on_failure 'shrug'"),
        (("before_run",), {"order": "first"}, "not a whole number"),
        (("before_run",), {"name": "a b"}, "cannot be named 'a b'"),
        (("before_run",), {"scope": "some"}, "has no scope 'some'"),
    ],
)
def test_what_cannot_be_a_hook_is_refused_with_what_is_wrong(points: Any, options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hook(*points, **options)(raises)


def test_two_hooks_of_one_name_and_what_is_none_are_refused() -> None:
    one, two = hook("before_run", name="x")(raises), hook("before_run", name="x")(hangs)
    with pytest.raises(UsageError, match="two hooks of the runtime are named 'x'"):
        Runtime("memory:", hooks=[one, two])
    with pytest.raises(UsageError, match="is no hook"):
        Agent("a", model=ScriptedModel("echo"), hooks=[raises])  # pyright: ignore


# --- any answer ------------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
answers = st.one_of(
    anything,
    st.builds(HookBlock, anything),
    st.builds(HookChange, system=anything, tools=anything, model=anything, arguments=anything, text=anything),
    st.builds(HookChange, tools=st.lists(st.sampled_from(["look", "drop"]))),
)


@given(answer=answers, point=st.sampled_from(POINTS))
@settings(max_examples=300)
def test_any_answer_is_a_failure_or_a_change_that_can_be_recorded_and_widens_nothing(answer: Any, point: Any) -> None:
    act = HookAct(point=point, run_id="r", namespace="n", agent="a", tools=("look",), arguments={"a": 1})
    try:
        changed = checked(answer, act)
    except HookFailed:
        return
    assert set(changed.get("tools", ())) <= {"look"}
    if "arguments" in changed:
        assert isinstance(changed["arguments"], dict)
    for name in ("text", "system", "model"):
        assert changed.get(name, "").encode() is not None


class Hooked(Hook):
    """Changes, refuses or fails as it was told."""

    def __init__(self, name: str, order: int, does: str) -> None:
        self.name, self.order, self.does = name, order, does

    async def before_message(self, act: HookAct) -> Any:
        if self.does == "raise":
            raise ValueError
        return act.block(self.name) if self.does == "block" else act.change(text=f"{act.text}.{self.name}")


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["raise", "block", "change"])), max_size=6))
@settings(max_examples=100, deadline=None)
def test_a_chain_goes_on_up_to_the_first_that_refuses(described: list[tuple[int, str]]) -> None:
    hooks = [Hooked(f"h{n}", order, does) for n, (order, does) in enumerate(described)]
    act = HookAct(point="before_message", run_id="r", namespace="n", agent="a", text="")
    decided = asyncio.run(HookChain(hooks).decide(act))
    told: list[str] = []
    for each in sorted(hooks, key=lambda one: (one.order, one.name)):
        if each.does != "raise":
            told.append(each.name)
        if each.does == "block":
            break
    assert decided.hooks == told
    event = decided.event("message:0")
    blocked = bool(told) and next(each for each in hooks if each.name == told[-1]).does == "block"
    assert (event.then, event.text) == (("refuse", None) if blocked else ("do", "".join(f".{x}" for x in told) or None))

"""The hooks of one run in the hands of one driver: which acts they are asked about, and what is recorded of it.

Before an act the driver asks `due`; what is due is asked by `before`, and the facts that come of it are recorded before
the act is decided again. An act about which there is a fact in the journal is never due: a run that is resumed does not
ask a second time. Only a call whose arguments a person edits afterwards is another act. The order is that of the course
of a run: the run, what was said to it, the question; calls; the answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace as replaced

from foliot.engine.code.conversation import PROGRAM
from foliot.engine.driver.effects import failed
from foliot.engine.hooks.base import HookAct
from foliot.engine.hooks.chain import Decision, HookChain
from foliot.kernel.arguments import parse_object
from foliot.kernel.messages import Message, Text, ToolFailure, ToolResult
from foliot.kernel.run.actions import Action, AskModel, CallIntent, CallTools, Compact, End
from foliot.kernel.run.events import (
    Event,
    HookDecided,
    HookPoint,
    InputReceived,
    ModelResponded,
    RunSucceeded,
    SessionCompacted,
    ToolFinished,
    ToolUnknown,
)
from foliot.kernel.run.folds import inputs_due
from foliot.kernel.run.hooks import question_of, was_asked
from foliot.kernel.run.state import State

Due: TypeAlias = tuple[HookPoint, Sequence[str]]
"""A point, and the names of acts that its hooks have to be asked about."""
# A decision that cannot be recorded is asked for again; more often than this, something is wrong with Foliot.
MOST_ASKED: Final = 5
UNASKED: Final = "the run ended before it was asked"


class RunHooks:
    """`chain` is the set that this driver began with: it keeps it, whatever is enabled meanwhile."""

    def __init__(self, chain: HookChain, generation: int = 0) -> None:
        self.chain = chain
        self.generation = generation
        self._asked: Counter[tuple[HookPoint, str, str]] = Counter()

    # --- before --------------------------------------------------------------------------------------------------

    def due(self, state: State, action: Action) -> Due | None:
        """Returns what hooks have to be asked before this action is performed; None when it can be."""
        match action:
            case CallTools(calls=calls):
                return self._fresh(state, "before_tool", [each.call_id for each in calls if each.attempt == 1])
            case AskModel() | Compact() if PROGRAM not in state.spec.extra:
                return self._before_question(state, action)
            case End(terminal=RunSucceeded()) if PROGRAM not in state.spec.extra:
                return self._fresh(state, "after_message", [str(state.spent.steps)])
            case _:
                return None

    def unasked(self, state: State) -> list[HookDecided]:
        """Returns refusals of what was said to a run that is to end before its hooks were asked about it.

        Nobody is asked now: a stop waits for no hook. Whoever goes on after the run must not send to a model what no
        hook has seen.
        """
        names = self.chain.names("before_message")
        if not names or state.spent.steps or state.asks or PROGRAM in state.spec.extra:
            return []
        failed = dict.fromkeys(names, UNASKED)
        return [
            HookDecided("before_message", name, then="refuse", hooks=names, message=UNASKED, failed=failed)
            for name in _first_messages(state)
            if not was_asked(state, "before_message", name)
        ]

    def _before_question(self, state: State, action: AskModel | Compact) -> Due | None:
        said = [f"input:{given.input_id}" for given in inputs_due(state)]
        if not state.spent.steps and not state.asks and state.created is not None:
            if (run := self._fresh(state, "before_run", ["run"])) is not None:
                return run
            said = [*_first_messages(state), *said]
        if (messages := self._fresh(state, "before_message", said)) is not None:
            return messages
        point: HookPoint = "before_model" if isinstance(action, AskModel) else "before_compaction"
        return self._fresh(state, point, [str(state.spent.steps + 1)])

    def _fresh(self, state: State, point: HookPoint, names: Sequence[str]) -> Due | None:
        if not self.chain.has(point):
            return None
        fresh = [name for name in names if not was_asked(state, point, name)]
        return (point, fresh) if fresh else None

    async def before(self, state: State, action: Action, due: Due) -> list[HookDecided]:
        """Ask about what is due, calls of one step side by side. Raises nothing, but when it goes round in circles."""
        point, names = due
        for name in names:
            # Arguments that a person edits are another thing to decide about, as often as they are edited.
            about = call.arguments if (call := state.call(name)) is not None else ""
            self._asked[point, name, about] += 1
            if self._asked[point, name, about] > MOST_ASKED:
                raise RuntimeError(f"what hooks decided about {point} {name!r} cannot be recorded")
        acts = [self._act(state, action, point, name) for name in names]
        made = await asyncio.gather(*(self.chain.decide(act) for act in acts))
        return [each.event(name) for name, each in zip(names, made, strict=True)]

    def _act(self, state: State, action: Action, point: HookPoint, name: str) -> HookAct:
        match action:
            case CallTools(calls=calls):
                intent = next(each for each in calls if each.call_id == name)
                return call_act(state, point, intent)
            case AskModel(request=request) if point == "before_model":
                tools = tuple(tool.name for tool in request.tools)
                return act_of(
                    state, point, model=request.model, system=request.system, tools=tools, said=request.messages
                )
            case Compact(messages=messages) if point == "before_compaction":
                return act_of(state, point, said=messages)
            case End(terminal=RunSucceeded(output=output)):
                return act_of(state, point, step=state.spent.steps, text=output)
            case _ if point == "before_message":
                return act_of(state, point, text=_said(state, name).text)
            case _:
                model, system, tools = question_of(state)
                return act_of(state, point, model=model, system=system, tools=tuple(each.name for each in tools))

    # --- after ---------------------------------------------------------------------------------------------------

    async def after_tool(self, state: State, intent: CallIntent, fact: ToolFinished | ToolUnknown) -> list[Event]:
        """The result as the hooks leave it, and that the run ends if one of them says so."""
        if not self.chain.has("after_tool"):
            return [fact]
        made = await self.chain.decide(_result_act(state, intent, fact))
        facts: list[Event] = [fact]
        if isinstance(fact, ToolFinished) and made.hooks:
            facts = [replaced(fact, result=_result(fact.result, made), hooks=tuple(made.hooks))]
        return [*facts, made.event(f"{intent.call_id}/{intent.attempt}")] if made.ended is not None else facts

    async def after_model(self, state: State, fact: Event, step: int, model: str) -> HookDecided | None:
        """Tell of an answer, or that there was none. Returns a fact when a hook ends the run for its own failure."""
        if not self.chain.has("after_model") or PROGRAM in state.spec.extra:
            return None
        if isinstance(fact, ModelResponded):
            said = fact.response
            act = act_of(
                state,
                "after_model",
                step=step,
                model=said.model or model,
                text=said.message.text,
                stop=said.stop,
                usage=said.usage,
                seconds=fact.seconds,
            )
        else:
            act = act_of(state, "after_model", step=step, model=model, error=getattr(fact, "message", "not asked"))
        made = await self.chain.decide(act)
        return made.event(f"{step}/{state.seq}") if made.ended is not None else None

    async def after_compaction(self, state: State, fact: Event) -> HookDecided | None:
        """Tell of a summary, or that there is none."""
        if not self.chain.has("after_compaction"):
            return None
        if isinstance(fact, SessionCompacted):
            act = act_of(state, "after_compaction", text=fact.summary.text, usage=fact.usage)
        else:
            act = act_of(state, "after_compaction", error=getattr(fact, "message", ""))
        made = await self.chain.decide(act)
        return made.event(f"{state.spent.steps + 1}/{state.seq}") if made.ended is not None else None

    async def after_run(self, state: State) -> None:
        """Tell of the end of a run, which is stored: nothing changes it any more."""
        if not self.chain.has("after_run") or state.ended is None or PROGRAM in state.spec.extra:
            return
        ended = state.ended
        text = ended.output if isinstance(ended, RunSucceeded) else ""
        error = "" if isinstance(ended, RunSucceeded) else getattr(ended, "message", "") or ended.reason or "cancelled"
        began = state.started_at if state.started_at is not None else state.now
        steps, usage, took = state.spent.steps, state.spent.usage(), max(0.0, state.now - began)
        await self.chain.decide(
            act_of(state, "after_run", step=steps, text=text, error=error, usage=usage, seconds=took)
        )


def _first_messages(state: State) -> list[str]:
    """The names of what people said to a run when it began."""
    said = () if state.created is None else state.created.input
    return [f"message:{number}" for number, each in enumerate(said) if each.role == "user"]


# --- acts ------------------------------------------------------------------------------------------------------------


def act_of(state: State, point: HookPoint, **fields: Any) -> HookAct:
    """An act of this run with what identifies it."""
    created, identity = state.created, state.identity
    fields.setdefault("step", state.step)
    return HookAct(
        point=point,
        run_id=state.run_id,
        namespace=state.spec.namespace,
        agent=state.spec.agent,
        user=identity.user,
        task=created.task if created is not None else "",
        session=created.session if created is not None else "",
        parent=created.parent if created is not None else "",
        **fields,
    )


def call_act(state: State, point: HookPoint, intent: CallIntent, **fields: Any) -> HookAct:
    arguments = parse_object(intent.arguments)[0] or {}
    return act_of(state, point, call_id=intent.call_id, tool=intent.name, arguments=arguments, **fields)


def _result_act(state: State, intent: CallIntent, fact: ToolFinished | ToolUnknown) -> HookAct:
    if isinstance(fact, ToolUnknown):
        return call_act(state, "after_tool", intent, error=fact.message or fact.reason, seconds=fact.seconds)
    error = fact.result.error.message if fact.result.error is not None else ""
    return call_act(
        state, "after_tool", intent, text=fact.result.text, error=error, seconds=fact.seconds, usage=fact.usage
    )


def _result(result: ToolResult, made: Decision) -> ToolResult:
    """The result with the text of the hooks in the place of its own; or why it is withheld."""
    if (why := made.refused or made.ended) is not None:
        message = f"{why}; the call was made, and its result is withheld"
        return failed(result.call_id, result.name, ToolFailure("blocked_by_hook", "tool_result_blocked", message))
    kept = tuple(part for part in result.content if not isinstance(part, Text))
    return replaced(result, content=(Text(made.act.text), *kept))


def _said(state: State, name: str) -> Message:
    kind, _, which = name.partition(":")
    if kind == "message":
        assert state.created is not None, "a run that is asked about was created"
        return state.created.input[int(which)]
    given: InputReceived = next(each for each in state.inputs if each.input_id == which)
    return given.message

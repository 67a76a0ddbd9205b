"""Decisions of hooks about the acts of a run: how they are folded, and what the next question becomes by them.

A hook is code outside the kernel. The shell asks the hooks before an act, records their decision as `HookDecided`, and
only then does the act as it was decided. So a run that is resumed, and a replay, read the decision and ask nobody.

    point               act                 what a decision may change
    before_run          run                 system prompt, tools and model of every step; a refusal ends the run
    before_message      message:N, input:ID the text that a person said; a refusal ends the run, or drops the input
    before_model        step number         system prompt, tools and model of this step; a refusal ends the run
    before_tool         id of the call      its arguments; a refusal is its result
    before_compaction   step number         nothing; a refusal leaves the transcript as it is
    after_message       step number         the text of the answer; a refusal ends the run
    other after points  step or call        nothing: recorded only when a hook ends the run

Tools only become fewer: what the run was not pinned to is left out, whatever a hook says.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from foliot.kernel.arguments import parse_object
from foliot.kernel.messages import Message, Part, Text, ToolSpec
from foliot.kernel.run import feedback
from foliot.kernel.run.calls import hold_repeat
from foliot.kernel.run.contract import release_twins
from foliot.kernel.run.events import HookDecided
from foliot.kernel.run.state import State

# The codes of runs that a hook ended: it refused what they are about, or failed where its failure must end them.
BLOCKED = "blocked_by_hook"
FAILED = "hook_failed"


def was_asked(state: State, point: str, act: str) -> bool:
    """Whether the hooks have decided about this act."""
    return f"{point}/{act}" in state.hooked


def was_refused(state: State, point: str, act: str) -> bool:
    return state.hooked.get(f"{point}/{act}") == "refuse"


def refusal_of(state: State, event: HookDecided) -> str | None:
    """Says why a decision has no place: the act is not about to be done, or was decided before."""
    if was_asked(state, event.point, event.act):
        return f"hooks have decided about {event.point} {event.act!r} already"
    if event.point == "before_tool":
        call = state.call(event.act)
        if call is None or call.phase != "requested" or call.attempts or call.verdict is not None:
            return f"the call {event.act!r} is not about to be started"
        if event.arguments is not None and parse_object(event.arguments)[0] is None:
            return "arguments of a hook that are not a JSON object"
    elif event.point in ("before_run", "before_model", "before_compaction") and state.phase != "ready":
        return "the model is not about to be asked"
    elif event.point == "before_message" and event.act.startswith("message:") and _place(state, event.act) is None:
        return f"the run has no {event.act!r} that is not said yet"
    elif event.point == "after_message" and state.answer is None:
        return "there is no answer"
    return None


def fold_decision(state: State, event: HookDecided) -> None:
    state.hooked[f"{event.point}/{event.act}"] = event.then
    if event.then == "end":
        return state.end(FAILED, event.hooks[-1] if event.hooks else "hook", event.message)
    match event.point:
        case "before_tool":
            _decide_call(state, event)
        case "before_message":
            _decide_message(state, event)
        case "after_message":
            _decide_answer(state, event)
        case "before_run" | "before_model":
            _decide_question(state, event)
        case _:
            pass
    return None


def _block(state: State, event: HookDecided) -> None:
    state.end(BLOCKED, event.hooks[-1] if event.hooks else "hook", event.message)


def _decide_question(state: State, event: HookDecided) -> None:
    if event.then == "refuse":
        return _block(state, event)
    if event.point == "before_model":
        state.step_change = event
        return None
    state.run_change = event
    if event.tools is not None:
        state.rules = {name: rule for name, rule in state.rules.items() if name in event.tools}
        state.tools = tuple(rule.spec for rule in state.rules.values())
    return None


def _decide_call(state: State, event: HookDecided) -> None:
    call = state.call(event.act)
    assert call is not None, "checked by refusal_of"
    if event.then == "refuse":
        call.verdict = feedback.blocked(call.id, call.name, event.message)
        release_twins(state, call)
    elif event.arguments is not None:
        call.arguments = event.arguments
        release_twins(state, call)
        if state.unsettled:
            hold_repeat(state, call, parse_object(event.arguments)[0] or {})


def _decide_message(state: State, event: HookDecided) -> None:
    kind, _, name = event.act.partition(":")
    if kind == "message":
        if event.then == "refuse":
            return _block(state, event)
        place = _place(state, event.act)
        if event.text is not None and place is not None:
            state.transcript[place] = with_text(state.transcript[place], event.text)
        return None
    for index, given in enumerate(state.inputs):
        if given.input_id == name:
            if event.then == "refuse":
                del state.inputs[index]
                state.interrupted = any(each.mode == "interrupt" for each in state.inputs)
            elif event.text is not None:
                state.inputs[index] = replace(given, message=with_text(given.message, event.text))
            break
    return None


def _decide_answer(state: State, event: HookDecided) -> None:
    answer = state.answer
    assert answer is not None, "checked by refusal_of"
    if event.then == "refuse":
        return _block(state, event)
    if event.text is None:
        return None
    said, answer.text = answer.text, event.text
    answer.accepted, answer.value, answer.empty = False, None, not event.text.strip()
    # What went out is what the next turn knows of; an answer in several pieces stays as the model gave it.
    if state.transcript and (last := state.transcript[-1]).role == "assistant" and last.text == said:
        state.transcript[-1] = with_text(last, event.text)
    return None


def _place(state: State, act: str) -> int | None:
    """The place in the transcript of a message that the run began with, as long as no question was asked."""
    if state.created is None or state.spent.steps or state.asks:
        return None
    number = act.removeprefix("message:")
    count = len(state.created.input)
    if not number.isdecimal() or int(number) >= count or len(state.transcript) < count:
        return None
    return len(state.transcript) - count + int(number)


def with_text(message: Message, text: str) -> Message:
    """The message with this text in the place of its own; files, reasoning and calls stay where they are."""
    parts: list[Part] = []
    put = False
    for part in message.parts:
        if not isinstance(part, Text):
            parts.append(part)
        elif not put:
            parts.append(Text(text))
            put = True
    return Message(message.role, tuple(parts) if put else (Text(text), *parts))


# --- the next question -------------------------------------------------------------------------------------------


class Question(NamedTuple):
    """The question of one step as hooks left it."""

    model: str
    system: str
    tools: tuple[ToolSpec, ...]


def question_of(state: State) -> Question:
    """Returns model, system prompt and tools of the step that is next."""
    model, system, tools = state.spec.model, state.spec.system, state.tools
    for change in (state.run_change, _change_at(state, state.spent.steps + 1)):
        if change is not None:
            model = model if change.model is None else change.model
            system = system if change.system is None else change.system
            if change.tools is not None:
                tools = tuple(tool for tool in tools if tool.name in change.tools)
    return Question(model, system, tools)


def _change_at(state: State, step: int) -> HookDecided | None:
    change = state.step_change
    return change if change is not None and change.act == str(step) else None


def in_words(event: HookDecided) -> str:
    """Says for people what was decided; blank when nothing was changed and nothing went wrong."""
    who = ", ".join(event.hooks)
    broken = "; ".join(f"hook {name} failed: {why}" for name, why in event.failed.items())
    if event.then != "do":
        said = f"hook {event.hooks[-1] if event.hooks else '?'} {'ends the run' if event.then == 'end' else 'refuses'}"
        return f"{said} ({event.point}): {event.message}"
    fields = [name for name in ("system", "tools", "model", "arguments", "text") if getattr(event, name) is not None]
    changed = f"{event.point}: {who} changed {', '.join(fields)}" if fields else ""
    return "; ".join(part for part in (changed, broken) if part)

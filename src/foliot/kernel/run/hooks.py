"""Decisions of hooks about the acts of a run: how they are folded, and what the next question becomes by them.

A hook is code outside the kernel. The shell asks the hooks before an act, records their decision as `HookDecided`, and
only then does the act as it was decided. So a run that is resumed, and a replay, read the decision and ask nobody.

    point               act                 what a decision may change
    before_run          run                 system prompt, tools and model of every step; a refusal ends the run
    before_message      message:N, input:ID the text that a person said; a refusal ends the run, or drops the input
    before_model        step number         system prompt, tools and model of this step; a refusal ends the run
    before_tool         id of the call      its arguments; a refusal is its result. Asked again about edited ones
    before_compaction   step number         nothing; a refusal leaves the transcript as it is
    after_message       step number         the text of the answer; a refusal ends the run
    other after points  step or call        nothing: recorded only when a hook ends the run

What was refused is not read by a model later either: when the run ends by it, a notice takes its place in the
transcript, so in the conversation that goes on after the run, its summaries and its searches. The journal keeps it.

Tools only become fewer: what the run was not pinned to is left out, whatever a hook says.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from foliot.kernel.arguments import parse_object
from foliot.kernel.messages import Message, Part, Text, ToolResult, ToolSpec
from foliot.kernel.run import feedback
from foliot.kernel.run.calls import hold_repeat
from foliot.kernel.run.contract import release_twins
from foliot.kernel.run.events import HookDecided
from foliot.kernel.run.state import State

# The codes of runs that a hook ended: it refused what they are about, or failed where its failure must end them.
BLOCKED = "blocked_by_hook"
FAILED = "hook_failed"
CHANGED_AFTER_EDIT = "a hook would change arguments that a person has edited and approved"

T = TypeVar("T")


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
        state.withheld += (event,)
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
    state.withheld += (event,)
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
    elif event.arguments is not None and call.grant is not None and event.arguments != call.arguments:
        # Somebody has decided that these very arguments are used: a hook may refuse them, and not put others there.
        call.verdict = feedback.blocked(call.id, call.name, CHANGED_AFTER_EDIT)
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
            changed = with_text(state.transcript[place], event.text)
            state.transcript[place] = changed
            state.said = _replaced(state.said, _number(event.act), changed)
        return None
    for index, given in enumerate(state.inputs):
        if given.input_id == name:
            if event.then == "refuse":
                state.inputs = state.inputs[:index] + state.inputs[index + 1 :]
                state.taken += (name,)  # nobody has to say it to another turn, which would refuse it too
                state.interrupted = any(each.mode == "interrupt" for each in state.inputs)
            elif event.text is not None:
                changed = replace(given, message=with_text(given.message, event.text))
                state.inputs = _replaced(state.inputs, index, changed)
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
    # What went out is what the next turn knows of, also in the place of an answer in several pieces.
    pieces = _pieces(state)
    if pieces and "".join(piece.text for piece in pieces) == said:
        state.transcript[-len(pieces) :] = [with_text(pieces[-1], event.text)]
    return None


def _pieces(state: State) -> list[Message]:
    """The messages at the end of the transcript that the answer consists of: a model may pause within one."""
    first = len(state.transcript)
    while first > state.earlier and (piece := state.transcript[first - 1]).role == "assistant" and not piece.calls:
        first -= 1
    return state.transcript[first:]


# --- what is withheld --------------------------------------------------------------------------------------------


def forget_refusals(state: State) -> None:
    """Has another attempt ask again about what this one was to end by."""
    for event in state.withheld:
        state.hooked.pop(f"{event.point}/{event.act}", None)
    state.withheld = ()


def withhold(state: State) -> None:
    """Puts notices in the place of what hooks refused, at the end of the run: no model is sent it after that."""
    for event in state.withheld:
        who = event.hooks[-1] if event.hooks else "?"
        match event.point:
            case "before_message" if (place := _place(state, event.act)) is not None:
                _withhold_from(state, place, who, only_one=True)
            case "before_run":
                _withhold_from(state, len(state.transcript) - len(state.said), who)
            case "before_model":
                _withhold_question(state, who)
            case "after_message" if pieces := _pieces(state):
                notice = Message("assistant", (Text(f"[the answer was refused by hook {who}]"),))
                state.transcript[-len(pieces) :] = [notice]
            case _:
                pass
    state.withheld = ()


def _withhold_question(state: State, who: str) -> None:
    """Withholds what the model has not been sent yet: all that follows its last answer."""
    first = len(state.transcript)
    while first > state.earlier and state.transcript[first - 1].role != "assistant":
        first -= 1
    _withhold_from(state, first, who)


def _withhold_from(state: State, first: int, who: str, *, only_one: bool = False) -> None:
    begin = len(state.transcript) - len(state.said)
    for place in range(max(first, state.earlier), first + 1 if only_one else len(state.transcript)):
        notice = _notice(state.transcript[place], who)
        state.transcript[place] = notice
        if not state.spent.steps and 0 <= place - begin < len(state.said):
            state.said = _replaced(state.said, place - begin, notice)


def _replaced(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _notice(message: Message, who: str) -> Message:
    """The message without what was said in it. Results stay the results of their calls, or providers would refuse."""
    refused = Text(f"[a message was refused by hook {who}]")
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    if not results:
        return Message(message.role, (refused,))
    return Message(message.role, tuple(replace(each, content=(refused,), error=None) for each in results))


def _number(act: str) -> int:
    return int(act.removeprefix("message:"))


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

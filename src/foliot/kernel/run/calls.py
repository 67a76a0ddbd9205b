"""The calls of one step: from what a model wrote to results in its own order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from foliot.kernel.arguments import canonical, parse_object
from foliot.kernel.messages import Message, ModelResponse, Part, ToolCall, ToolResult, Usage
from foliot.kernel.run import feedback
from foliot.kernel.run.actions import CallIntent
from foliot.kernel.run.contract import examine, settle_twins, signature_of
from foliot.kernel.run.events import (
    ApprovalDecided,
    Event,
    HookDecided,
    ModelResponded,
    ToolFinished,
    ToolUnknown,
    Unsettled,
)
from foliot.kernel.run.past import CallIds
from foliot.kernel.run.state import Call, FinalAnswer, State, names_file, with_name
from foliot.kernel.tokens import estimate_message, image_rule

# A model that makes one of these mistakes is told, a bounded number of times.
# A call that may be repeated is started again by itself this often when nobody knows how it ended. After a crash it is
# started again whatever the number: there the attempts of the run are counted.
MOST_REPEATS: Final = 2

MISTAKES: Final = frozenset({"invalid_arguments", "unknown_tool"})


def open_calls(state: State, response: ModelResponse) -> Message:
    """Take up the calls of an answer; the message as it goes into the transcript, with ids that are unique in the run.

    A call that cannot be run as written gets the kernel's own answer at once. It is never run with other arguments
    than the model's: nothing is guessed from broken JSON.
    """
    message = response.message
    parts: list[Part] | None = None
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolCall):
            call = _named(part, index, state.spent.steps, state.call_ids)
            if call is not part:
                parts = parts if parts is not None else list(message.parts)
                parts[index] = call
            state.calls.append(_opened(state, call, cut=response.stop == "length"))
    state.open_calls = len(state.calls)
    return message if parts is None else Message(message.role, tuple(parts))


def named_calls(message: Message, step: int, taken: CallIds) -> Iterator[tuple[int, ToolCall]]:
    """Yields the calls of an answer with their places in it, and with ids that are unique in the run.

    Every reader of a journal names calls by this, because answers are stored as the model gave them. `taken` are the
    ids of earlier calls; those of these calls are added.
    """
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolCall):
            yield index, _named(part, index, step, taken)


class JournalCall(Struct, gc=False):
    """One call as a journal tells it. `arguments` are those that it is made with, `written` those of the model.

    They differ when a person or hooks, `changed_by`, put others in their place. `approved_by` are the people who
    approved it, the first one first.
    """

    id: str
    name: str
    written: str
    arguments: str
    changed_by: str = ""
    approved_by: tuple[str, ...] = ()


class JournalCalls:
    """Folds events into the calls of a run: whatever shows a call reads here which arguments it is made with."""

    def __init__(self) -> None:
        self._ids = CallIds()
        self._calls: dict[str, JournalCall] = {}

    def add(self, call_id: str, name: str, arguments: str) -> None:
        """Takes up a call whose answer was recorded before the events that follow."""
        self._ids.add(call_id)
        self._calls[call_id] = JournalCall(call_id, name, arguments, arguments)

    def take(self, event: Event) -> list[JournalCall]:
        """Folds one event; returns the calls that it opened, or the one whose arguments it changed."""
        match event:
            case ModelResponded(step=step, response=response):
                named = [call for _, call in named_calls(response.message, step, self._ids)]
                opened = [JournalCall(call.id, call.name, call.arguments, call.arguments) for call in named]
                self._calls |= {call.id: call for call in opened}
                return opened
            case ApprovalDecided(call_id=call_id, decision="approve" | "edit") if call := self.find(call_id):
                call.approved_by += (event.by,)
                return [] if event.arguments is None else [_changed(call, event.arguments, event.by)]
            case HookDecided(point="before_tool", act=call_id, then="do", arguments=str(arguments)):
                call = self.find(call_id)
                # Hooks do not change what a person has approved: see hooks.py.
                return [] if call is None or call.approved_by else [_changed(call, arguments, ", ".join(event.hooks))]
            case _:
                return []

    def find(self, call_id: str, name: str = "") -> JournalCall | None:
        """Returns a call; None when nothing was read of it.

        Where an earlier turn of the conversation had a call of its id, the run knows it by a number after it.
        """
        if (call := self._calls.get(call_id)) is not None:
            return call
        call = self._calls.get(_NUMBERED.sub("", call_id))
        if call is None or (name and call.name != name):
            return None
        self._ids.add(call_id)
        self._calls[call_id] = call
        return call


_NUMBERED: Final = re.compile(r"-[0-9]+$")


def _changed(call: JournalCall, arguments: str, by: str) -> JournalCall:
    call.arguments, call.changed_by = arguments, by
    return call


def _named(call: ToolCall, index: int, step: int, taken: CallIds) -> ToolCall:
    call_id = taken.take(call.id or f"call_{step}_{index}")
    return call if call_id == call.id else replace(call, id=call_id)


def _opened(state: State, written: ToolCall, *, cut: bool) -> Call:
    offered = state.step_change is None or state.offers(written.name)
    rule = state.rules.get(written.name) if offered else None
    call = Call(written.id, written.name, written.arguments, rule)
    if written.name not in state.called:
        state.called = with_name(state.called, written.name)
    if state.final:
        call.verdict = feedback.not_run(call.id, call.name, "budget", started=False)
        return call
    if call.rule is None:
        call.bad = True
        call.verdict = feedback.unknown_tool(call.id, call.name, [name for name in state.rules if state.offers(name)])
        return call
    if not call.arguments.strip() and not cut:
        call.arguments = "{}"  # some providers write nothing at all when a tool takes no arguments
    arguments, problem = parse_object(call.arguments)
    if arguments is None:
        call.bad = True
        problem += "; the answer was cut off at the output limit" if cut else ""
        call.verdict = feedback.bad_arguments(call.id, call.name, problem)
    else:
        examine(state, call, arguments)
        if state.unsettled:
            hold_repeat(state, call, arguments)
    return call


def hold_repeat(state: State, call: Call, arguments: dict[str, Any]) -> None:
    """Keep a call from being made beside one with the same arguments that may have acted.

    It stands for that one: it goes by its key, and when it must not happen twice, a person is asked first.
    """
    earlier = state.unsettled.get(signature_of(state, call.name, arguments))
    if earlier is not None and call.effect != "read" and call.verdict is None:
        hold_call(state, call, earlier)


def hold_call(state: State, call: Call, earlier: Unsettled) -> None:
    """Let a call stand for an earlier one that may have acted, in this run or in another of its family."""
    call.earlier = earlier
    if is_repeatable(call):
        return
    call.phase = "unknown"
    state.doubts += 1
    assert call.rule is not None, "a call without a rule only reads"
    if call.rule.on_unknown == "fail":
        message = f"{call.name} was called again, and nobody knows whether the same call took effect before"
        state.end("unknown_effect", "tool_effect_unknown", message)


def blocked_calls(state: State) -> frozenset[str]:
    """The ids of calls that must wait, because the same call of this step may have acted.

    Of several calls that stand for the same earlier one, and go by its key, one is made at a time.
    """
    unknown = {_signature(state, call.name, call.arguments) for call in state.calls if call.phase == "unknown"}
    blocked, keys = set[str](), {call.earlier.key for call in state.calls if call.earlier and call.phase == "running"}
    for call in state.calls:
        if call.phase == "requested" and call.twin is None:
            key = call.earlier.key if call.earlier is not None and call.verdict is None else ""
            if key in keys or (unknown and _signature(state, call.name, call.arguments) in unknown):
                blocked.add(call.id)
            elif key:
                keys.add(key)
    return frozenset(blocked)


def _signature(state: State, name: str, arguments: str) -> bytes:
    return signature_of(state, name, parse_object(arguments)[0] or {})


def intent(state: State, call: Call) -> CallIntent:
    assert call.rule is not None, "a call without a rule has a verdict"
    return CallIntent(call.id, call.name, call.arguments, key_of(state, call), call.rule, call.attempts + 1, call.grant)


def key_of(state: State, call: Call) -> str:
    """The idempotency key of a call: its own, or that of the earlier call which it stands for."""
    return f"{state.run_id}/{call.id}" if call.earlier is None else call.earlier.key


def is_repeatable(call: Call) -> bool:
    return call.rule is None or call.rule.effect != "once" or call.rule.on_unknown == "retry"


def lose_running(state: State) -> None:
    """A new attempt begins: what the last one had started is of unknown outcome. What follows is each tool's rule."""
    for call in state.calls:
        if call.phase != "running":
            continue
        if call.effect != "read":
            call.doubt = "process_died"
        if is_repeatable(call):
            call.phase = "requested"
        else:
            _is_unknown(state, call)


def lose_call(state: State, event: ToolUnknown) -> None:
    """A call came to no result. What follows is its tool's rule, unless the run ends anyway."""
    call = state.call(event.call_id)
    assert call is not None, "checked by rules.refusal"
    if event.usage is not None:
        _pay(state, event.usage, event.runs)
    call.unknown = event
    call.doubt = event.reason
    state.doubts += 1
    if call.phase == "unknown":  # the claim said so already, and this says why
        return
    state.fruitless = 0
    state.effects += 1
    if state.ending is not None or not is_repeatable(call):
        _is_unknown(state, call)
        return
    call.phase = "requested"
    call.repeats += 1
    if call.repeats > MOST_REPEATS:
        call.verdict = feedback.never_known(call.id, call.name, event, call.repeats, key_of(state, call))


def _is_unknown(state: State, call: Call) -> None:
    call.phase = "unknown"
    state.doubts += 1
    if call.rule is not None and call.rule.effect == "once" and call.rule.on_unknown == "fail":
        message = f"{feedback.lost(call.name, call.unknown)}, and nobody knows whether it took effect"
        state.end("unknown_effect", "tool_effect_unknown", message)


def unsettled_of(state: State) -> tuple[Unsettled, ...]:
    """Every call of a run that may have acted and was not settled: what another run of the same work must know."""
    found = dict(state.unsettled)
    for call in state.calls:
        if doubt := doubt_of(call):
            _remember(state, found, call.name, call.arguments, key_of(state, call), doubt)
    return tuple(found.values())


def doubt_of(call: Call) -> str:
    """Why an open call may have acted; blank when it certainly has not, or only reads."""
    if call.effect == "read" or call.phase == "done":
        return ""
    return call.doubt or ("process_died" if call.phase == "running" else "")


def remember_outcomes(state: State, outcomes: Iterable[tuple[ToolCall, ToolResult]]) -> None:
    """Take over what the messages that a run begins with say of calls that may have acted."""
    found = dict(state.unsettled)
    for call, result in outcomes:
        error = result.error
        if error is None:
            found.pop(_signature(state, call.name, call.arguments), None)
        elif error.unknown:
            _remember(state, found, call.name, call.arguments, error.key, error.unknown)
    if found or state.unsettled:
        state.unsettled = found


def remember_unsettled(state: State, told: Sequence[Unsettled]) -> None:
    """Take over what a run begins with of calls that may have acted."""
    if told:
        more = {_signature(state, each.tool, each.arguments): each for each in told}
        state.unsettled = {**state.unsettled, **more}


def _remember(
    state: State, unsettled: dict[bytes, Unsettled], name: str, arguments: str, key: str, reason: str
) -> None:
    text = canonical(parse_object(arguments)[0] or {})
    unsettled[_signature(state, name, arguments)] = Unsettled(name, text.decode(), key, reason)


def _doubt(state: State, call: Call, reason: str) -> None:
    found = dict(state.unsettled)  # another one each time: most runs have none, and share it
    _remember(state, found, call.name, call.arguments, key_of(state, call), reason)
    state.unsettled = found


def close_call(state: State, call: Call, event: ToolFinished) -> None:
    """Fold the one result of a call; with the last one, the step is complete."""
    result, settled = event.result, _is_settled(call, event)
    if call.unknown is not None and not settled and result.error is not None and not result.error.unknown:
        result = feedback.doubted(result, call.unknown, key_of(state, call))
    call.phase = "done"
    call.verdict = None
    if call.edited and event.synthetic is None:
        ran = call.attempts > 0 and not (result.error is not None and result.error.before_effect)
        result = feedback.edited(result, call.arguments, ran=ran)
    call.result = result
    call.ends_run = event.ends_run
    if event.usage is not None:
        _pay(state, event.usage, event.runs)
    if result.error is None:
        if call.name not in state.tools_done:
            state.tools_done = with_name(state.tools_done, call.name)
    else:
        call.bad = call.bad or result.error.kind in MISTAKES
        if result.error.kind == "denied" and _ends_run(state, result.error.code):
            state.end("denied", result.error.reason, f"{call.name}: {result.error.message}")
    if call.attempts and call.effect != "read":  # whoever says how it ended: once started, it may have acted
        state.effects += 1
        if result.error is not None and result.error.unknown:
            _doubt(state, call, result.error.unknown)
        elif call.doubt and not settled:
            _doubt(state, call, call.doubt)
    if state.unsettled and settled:
        settled_one = _signature(state, call.name, call.arguments)
        state.unsettled = {name: each for name, each in state.unsettled.items() if name != settled_one}
    if call.signature is not None:
        settle_twins(state, call, event)
    state.open_calls -= 1
    if state.open_calls == 0:
        _close_step(state)


def _is_settled(call: Call, event: ToolFinished) -> bool:
    """Whether a result tells how the call ended: the tool's own word, or a person's."""
    error = event.result.error
    if error is not None and error.unknown:
        return False
    if call.cleared or event.synthetic == "decided":
        return True
    return event.synthetic is None and call.phase == "running" and not (error is not None and error.before_effect)


def _ends_run(state: State, code: str) -> bool:
    """Whether a call that was not permitted ends the run. Without a word on expiry, it is a denial like another."""
    expiry = state.spec.on_expiry if code == "approval_expired" else None
    return (expiry or state.spec.on_denied) == "fail"


def _pay(state: State, usage: Usage, runs: dict[str, Usage]) -> None:
    if not runs:
        state.spent.add(usage)
    for run_id, part in runs.items():
        if run_id not in state.paid:
            state.paid |= {run_id}
            state.spent.add(part)


def _close_step(state: State) -> None:
    results: list[ToolResult] = []
    first = state.spec.tool_use_behavior == "stop_on_first_tool"
    bad = False
    for call in state.calls:  # in the order the model asked, whichever finished first
        assert call.result is not None
        results.append(call.result)
        bad = bad or call.bad
        if state.answer is None and (first or call.ends_run) and call.result.error is None:
            state.answer = FinalAnswer(call.result.text, tool=True)
    state.calls = []
    add_message(state, Message("tool", tuple(results)))
    if bad:
        state.bad_steps += 1
        if state.bad_steps > state.spec.repairs.calls:
            message = f"{state.bad_steps} steps in a row held tool calls that could not be run as written"
            state.end("invalid_tool_calls", "repairs_exhausted", message)
    else:
        state.bad_steps = 0


def add_message(state: State, message: Message) -> None:
    """The transcript only grows at its end, so a provider's cache of it stays good."""
    state.transcript.append(message)
    if names_file(message):
        state.files = True
    if state.counts_tokens:
        size = estimate_message(message, image_rule(state.spec.model))
        state.new_tokens += size
        state.request_tokens += size

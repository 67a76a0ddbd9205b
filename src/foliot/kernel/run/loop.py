"""One agent: the fold of its journal, and what to do next.

    state = fold(spec, run_id, facts)      resume: all that is known of the run
    action = decide(state)                 what to do; changes nothing, and says the same when asked again
    apply(state, event, at)                one more fact

`decide` reads from top to bottom as the order of what matters: an end that was decided, the calls under way, the answer
under examination, the next question. All rules about which fact may come when are in rules.py, what a fact does is in
folds.py, and how a shell performs an action is in actions.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.messages import Message, ModelRequest, ToolSpec, Usage
from foliot.kernel.run import budget, compaction, feedback
from foliot.kernel.run.actions import Action, AskModel, Await, CallTools, CheckOutput, Compact, End, Note, Stop, Wait
from foliot.kernel.run.calls import blocked_calls, doubt_of, intent, key_of
from foliot.kernel.run.contract import judge, violations
from foliot.kernel.run.events import (
    ApprovalDecided,
    ApprovalRequested,
    BudgetExceeded,
    CompactionCause,
    Event,
    QuestionAnswered,
    QuestionAsked,
    RunCancelled,
    RunFailed,
    RunResumed,
    RunSucceeded,
    RunWaiting,
    StepStarted,
    Terminal,
    ToolFinished,
    WaitReason,
)
from foliot.kernel.run.folds import FOLDS, collected_until, inputs_due, turns_apart
from foliot.kernel.run.hooks import question_of
from foliot.kernel.run.past import Past
from foliot.kernel.run.rules import GUARDS, LEGAL, refusal
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import Call, FinalAnswer, State

# The rules and the fold of each type side by side, so that a fact needs one look-up and not three.
MOST_PAUSES: Final = 20
"""So often a model may pause in one answer, however many steps there are: each time all of the question is paid."""
_TABLE: Final = {kind: (LEGAL[kind], GUARDS.get(kind), FOLDS[kind]) for kind in FOLDS}


def fold(
    spec: RunSpec,
    run_id: str,
    facts: Iterable[tuple[float, Event]],
    history: Iterable[Message] = (),
    *,
    past: Past | None = None,
) -> State:
    """The state after these facts, each with the time it was recorded. Raises `IllegalEvent`.

    With a `past` instead of a `history` the transcript holds only what the run itself added.
    """
    state = State(spec, run_id, history)
    state.past = past
    for at, event in facts:
        apply(state, event, at)
    return state


def apply(state: State, event: Event, at: float) -> State:
    """Fold one fact: changes `state`, and returns it. A refused fact changes nothing.

    It may run ahead of the disk; acting on it may not. Raises `IllegalEvent`.
    """
    phases, guard, fold_in = _TABLE[type(event)]
    if state.phase not in phases or (guard is not None and guard(state, event) is not None):
        raise IllegalEvent(f"run {state.run_id}, fact {state.seq + 1}: {refusal(state, event)}")
    if at > state.now:  # a clock that was set back does not turn time back in here
        state.now = at
    state.seq += 1
    fold_in(state, event)
    return state


def take_back_end(state: State, waiting: RunWaiting | None) -> None:
    """Undoes the fold of a success that was not stored, because something was said before it could be.

    `waiting` is what the state had before it.
    """
    assert isinstance(state.ended, RunSucceeded), "nothing else is taken back"
    state.ended = None
    state.waiting = waiting
    state.seq -= 1


def decide(state: State) -> Action:
    """Returns the next action. It depends on nothing but the state."""
    if state.ended is not None:
        return Stop(state.ended)
    if state.ending is not None:
        return _settle(state)
    action = _advance(state)
    if state.waiting is None or not state.held:
        return action
    if isinstance(action, Wait) and action.waiting == state.waiting:
        return Wait(state.waiting)
    return Note((RunResumed(state.waiting.reason),))


def _advance(state: State) -> Action:
    phase = state.phase
    if phase == "acting":
        return _act(state)
    if phase == "ready":
        return _continue(state)
    if phase == "thinking":
        return Await(model=True, deadline=state.deadline)
    # Nobody holds it. That is not a wait of the run itself, so nothing is recorded.
    return Wait(RunWaiting("capacity", "capacity", until=state.retried.due if state.retried else None))


# --- ending ------------------------------------------------------------------------------------------------------


def _settle(state: State) -> Action:
    """The run will end: give every open call its one result first.

    A running call that only reads is dropped. One that may change something is asked to stop and waited for, because
    its outcome is worth knowing; unless nobody holds the run, and so nobody runs the call.
    """
    assert state.ending is not None
    held = state.phase != "queued"
    given: list[Event] = []
    running: list[str] = []
    why = "cancelled" if state.ending.cancelled is not None else "ended"
    for call in state.calls:
        if call.phase == "done":
            continue
        if call.phase == "running" and held and call.effect != "read":
            running.append(call.id)
        else:
            given.append(call.verdict or _dropped(state, call, why))
    if running:
        return Await(calls=tuple(running), stop=True, events=tuple(given))
    terminal = _terminal(state)
    return End(terminal, (*given, terminal))


def _dropped(state: State, call: Call, why: Literal["cancelled", "ended", "interrupted"]) -> ToolFinished:
    """The result of a call that the run does not wait for. One that was started and changes something may have."""
    started, reads = call.attempts > 0, call.effect == "read"
    doubt, key = doubt_of(call), key_of(state, call)
    return feedback.not_run(call.id, call.name, why, started=started, reads=reads, unknown=doubt, key=key)


def _terminal(state: State) -> Terminal:
    ending, spent = state.ending, state.spent
    assert ending is not None
    steps, calls, usage = spent.steps, spent.tool_calls, spent.usage()
    if (cancel := ending.cancelled) is not None:
        return RunCancelled(cancel.by, cancel.reason, steps, calls, usage)
    if ending.notice:
        return RunSucceeded(ending.notice, None, steps, calls, usage)
    return RunFailed(ending.code, ending.reason, ending.message, steps, calls, usage)


# --- the calls of a step -----------------------------------------------------------------------------------------


def _act(state: State) -> Action:
    if state.spec.contract is not None and (broken := violations(state)):
        return Note(broken)
    given: list[Event] = []  # what the kernel answers itself
    ready: list[Call] = []
    held: list[Call] = []
    running: list[str] = []
    stands = False  # whether one that is ready stands for an earlier call
    for call in state.calls:
        phase = call.phase
        if phase == "done":
            continue
        if phase == "running" and not (call.effect == "read" and is_interrupted(state)):
            running.append(call.id)
        elif phase == "running":
            given.append(_dropped(state, call, "interrupted"))
        elif call.verdict is not None:
            given.append(call.verdict)
        elif state.interrupted and (call.attempts == 0 or _is_stopped(state, call)):
            given.append(_dropped(state, call, "interrupted"))
        elif phase != "requested":
            held.append(call)
        elif call.twin is None:
            ready.append(call)
            stands = stands or call.earlier is not None
    if (held or stands) and (blocked := blocked_calls(state)):
        ready = [call for call in ready if call.id not in blocked]
    if held:
        if expired := _expired(state, held):
            return Note(expired)
        # A run whose time is up does not wait for a person: that a call of it may have acted is in its record.
        if state.waiting is None and (late := _too_late(state, held)) is not None:
            return Note((_exceeded(late),))
    if given:  # before anything starts: what the kernel answers may end the run
        return Note(tuple(given))
    if ready and state.paused is None and (room := max(1, state.spec.limits.parallel_tools) - len(running)) > 0:
        start = ready[:room]
        if (refused := _refuse_calls(state, start)) is not None:
            return refused
        if len(start) == 1:
            return CallTools((intent(state, start[0]),), (), state.deadline)
        return CallTools(tuple([intent(state, call) for call in start]), (), state.deadline)
    if running:
        return Await(calls=tuple(running), deadline=state.deadline, stop=is_interrupted(state))
    waiting = _wait_for_person(held) if state.paused is None else _wait_for_room(state.paused)
    return Wait(waiting, (waiting,))


def is_interrupted(state: State) -> bool:
    """Whether what is under way is to end at once, because of what someone said."""
    return state.interrupted and turns_apart(state)


def _is_stopped(state: State, call: Call) -> bool:
    """Whether a call was told to stop by the interrupt, and not lost before it."""
    return turns_apart(state) and call.unknown is not None and call.unknown.reason == "interrupted"


def _too_late(state: State, held: list[Call]) -> budget.Breach | None:
    if all(call.phase != "unknown" for call in held):
        return None
    return budget.check_time(state.spec.limits, now=state.now, deadline=state.deadline)


def _expired(state: State, held: list[Call]) -> tuple[Event, ...]:
    return tuple(
        _unanswered(call.id, asked)
        for call in held
        if (asked := call.awaited) is not None and asked.expires_at is not None and asked.expires_at <= state.now
    )


def _unanswered(call_id: str, asked: ApprovalRequested | QuestionAsked) -> Event:
    if isinstance(asked, ApprovalRequested):
        return ApprovalDecided(call_id, "expired", by="timer", approval_id=asked.approval_id)
    return QuestionAnswered(call_id, asked.default, by="timer", late=True)


def _refuse_calls(state: State, ready: list[Call]) -> Action | None:
    """The limits on time and on calls, before anything starts."""
    limits, spent = state.spec.limits, state.spent
    if limits.max_seconds is None and limits.max_tool_calls is None:
        return None
    if (late := budget.check_time(limits, now=state.now, deadline=state.deadline)) is not None:
        return Note((_exceeded(late),))
    fresh = [call for call in ready if call.attempts == 0]
    if (breach := budget.check_calls(limits, spent, len(fresh))) is None:
        return None
    if state.spec.on_limit == "fail":
        return Note((_exceeded(breach),))
    assert limits.max_tool_calls is not None
    over = fresh[limits.max_tool_calls - spent.tool_calls :]
    refused: list[Event] = [feedback.not_run(call.id, call.name, "budget", started=False) for call in over]
    if not state.final:
        refused.insert(0, _exceeded(breach, finish=True))
    return Note(tuple(refused))


def _exceeded(breach: budget.Breach, *, finish: bool = False) -> BudgetExceeded:
    told = feedback.LAST_ANSWER if finish else ""
    then = "finish" if finish else "fail"
    return BudgetExceeded(breach.limit, breach.used, breach.allowed, breach.message, then, told)


def _wait_for_room(short: BudgetExceeded) -> RunWaiting:
    return RunWaiting("budget", "budget", (short.call_id,) if short.call_id else (), short.until, short.message)


def _wait_for_person(held: list[Call]) -> RunWaiting:
    asked = [each for call in held if (each := call.question or call.approval) is not None]
    until = [each.expires_at for each in asked if each.expires_at is not None]
    reason, message = _what_is_asked(held)
    return RunWaiting(reason, "person", tuple(call.id for call in held), min(until) if until else None, message)


def _what_is_asked(held: list[Call]) -> tuple[WaitReason, str]:
    """The gravest of it: what nobody knows, then consent, then an answer."""
    for call in held:
        if call.phase == "unknown":
            if call.earlier is not None and not call.attempts:
                return "unknown_effect", f"{call.name} was called before with these arguments: did that take effect?"
            return "unknown_effect", f"{feedback.lost(call.name, call.unknown)}: did it take effect?"
    for call in held:
        if call.question is None:
            return "approval", f"{call.name} needs an approval"
    question = held[0].question
    assert question is not None, "what waits for a person has no result, asks for consent, or asks"
    return "input", question.question


# --- the next question, or the end -------------------------------------------------------------------------------


def _continue(state: State) -> Action:
    breach = budget.check_step(
        state.spec.limits, state.spent, now=state.now, deadline=state.deadline, estimate=_estimate(state)
    )
    # Something was said before the run could finish: it is answered, as long as the budget allows another step.
    if state.answer is not None and (breach is not None or not state.inputs):
        if breach is None and state.compact_asked and not state.compacted:
            return _compact(state, "asked")  # it was asked for during the last question
        return _conclude(state, state.answer, may_ask=breach is None)
    if breach is None and state.pauses >= MOST_PAUSES:
        message = f"the model paused in one answer {state.pauses} times, and did not end it"
        breach = budget.Breach("steps", state.pauses, MOST_PAUSES, message)
    if breach is not None:
        return Note((_exceeded(breach),))
    if state.paused is not None:
        waiting = _wait_for_room(state.paused)
        return Wait(waiting, (waiting,))
    if state.delayed is not None and state.now < state.delayed.until:
        # A turn that comes late ends no run: this wait does not use up its time.
        waiting = RunWaiting("model_limit", "timer", until=state.delayed.until, message=state.delayed.message)
        return Wait(waiting, (waiting,))
    if state.retry_at is not None and state.now < state.retry_at:
        message = f"the model failed {state.model_failures} times; it is asked again later"
        # A provider may name any time: nobody waits past the end of the run's own.
        until = state.retry_at if state.deadline is None else min(state.retry_at, state.deadline)
        waiting = RunWaiting("model_retry", "timer", until=until, message=message)
        return Wait(waiting, (waiting,))
    if state.inputs and (until := collected_until(state)) is not None and state.now < until:
        waiting = RunWaiting("collecting", "timer", until=until, message="more may be said before it answers")
        return Wait(waiting, (waiting,))
    if (cause := compaction.due(state)) is not None:
        return _compact(state, cause)
    return _last_answer(state) or _ask(state)


def _compact(state: State, cause: CompactionCause) -> Compact:
    return Compact(state.step, tuple(state.transcript), (), compaction.cut(state, cause), cause, state.deadline)


def _conclude(state: State, answer: FinalAnswer, *, may_ask: bool) -> Action:
    only_compacts = state.created is not None and state.created.compacts
    if not only_compacts and (objection := judge(state, answer, may_ask=may_ask)) is not None:
        return Note((objection,))
    if state.spec.output_schema is not None and not answer.accepted:
        return CheckOutput(answer.text, state.spec.output_schema)
    spent = state.spent
    done = RunSucceeded(answer.text, answer.value, spent.steps, spent.tool_calls, spent.usage())
    return End(done, (done,))


def _last_answer(state: State) -> Action | None:
    """Asks for the last allowed step without tools under `on_limit: finish`, so that it can be an answer."""
    limit = state.spec.limits.max_steps
    if state.spec.on_limit != "finish" or state.final or limit is None or not state.tools:
        return None
    if state.spent.steps < limit - 1:
        return None
    breach = budget.Breach("steps", state.spent.steps + 1, limit, f"the next step is the last of {limit}")
    return Note((_exceeded(breach, finish=True),))


def _ask(state: State) -> AskModel:
    spec = state.spec
    model, system, tools = spec.model, spec.system, state.tools
    if state.run_change is not None or state.step_change is not None:
        model, system, tools = question_of(state)
    messages = tuple(state.transcript)
    if state.notes or state.inputs:
        messages = (*messages, *state.notes, *(given.message for given in inputs_due(state)))
    note = ""
    # Asked again, it has been told; and a model that paused goes on without a word from anybody.
    if spec.budget_notes and spec.limits.max_steps and state.asks == 0 and not state.pauses:
        note = feedback.budget_note(state.step, spec.limits.max_steps)
        messages = (*messages, feedback.user_message(note))
    settings = spec.settings
    if state.final and tools:
        settings = replace(settings, tool_choice="none")  # the tools stay in the request: its prefix must not change
    elif settings.tool_choice not in ("auto", "none") and _was_called(state, settings.tool_choice, tools):
        settings = replace(settings, tool_choice="auto")
    if spec.limits.max_tokens is not None and settings.max_output_tokens is not None:
        left = room_left(state).tokens or 1
        settings = replace(settings, max_output_tokens=min(settings.max_output_tokens, left))
    request = ModelRequest(model, messages, system, tools, spec.output_schema, settings, spec.agent)
    step = state.step
    return AskModel(step, request, (StepStarted(step, state.asks + 1, note),), state.deadline)


def may_ask_again(state: State, wasted: Usage) -> bool:
    """Whether the limits leave room for the question that is under way once more, after attempts that used so much."""
    limits = state.spec.limits
    if limits.max_tokens is None and limits.max_cost_usd is None:
        return True
    spent = replace(state.spent)
    spent.add(wasted)
    return budget.check_step(limits, spent, estimate=_estimate(state)) is None


class Room(NamedTuple):
    """The room that the limits of a run leave for the answer that it asks for now: tokens, USD; None: no limit."""

    tokens: int | None
    cost_usd: float | None


def room_left(state: State) -> Room:
    limits, spent = state.spec.limits, state.spent
    tokens = None if limits.max_tokens is None else max(1, limits.max_tokens - spent.tokens - _estimate(state))
    cost = None if limits.max_cost_usd is None else max(0.0, limits.max_cost_usd - spent.cost_usd)
    return Room(tokens, cost)


def _was_called(state: State, wanted: str, tools: tuple[ToolSpec, ...]) -> bool:
    """Whether a call is no longer to be forced: it was asked for, or is of a tool that the model is not shown."""
    if wanted == "required":
        return not tools or not state.called.isdisjoint(state.rules)
    return wanted in state.called or all(tool.name != wanted for tool in tools)


def _estimate(state: State) -> int:
    """Tokens of the next request, where a limit depends on them."""
    return 0 if state.spec.limits.max_tokens is None else state.tokens

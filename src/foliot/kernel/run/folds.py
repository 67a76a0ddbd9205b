"""The folds of a run: one small function per fact type, in one table. `loop.apply` has checked the fact before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from msgspec.structs import replace

from foliot.kernel.arguments import parse_object
from foliot.kernel.graph.retry import is_busy
from foliot.kernel.inbox import end_of_silence
from foliot.kernel.messages import Media, Message, Text, ToolResult, Usage
from foliot.kernel.run import events as e
from foliot.kernel.run import feedback
from foliot.kernel.run.calls import (
    add_message,
    close_call,
    hold_call,
    hold_repeat,
    lose_call,
    lose_running,
    open_calls,
    remember_outcomes,
    remember_unsettled,
)
from foliot.kernel.run.compaction import raw_among
from foliot.kernel.run.contract import fold_violation, release_twins
from foliot.kernel.run.hooks import fold_decision, forget_refusals, withhold
from foliot.kernel.run.past import Past
from foliot.kernel.run.rules import TAKEN_AT_BOUNDARY
from foliot.kernel.run.state import Call, FinalAnswer, RunEnding, State, names_file
from foliot.kernel.tokens import estimate_messages, estimate_text, estimate_tools, image_rule

# A provider may ask for any time. After a day it is asked again, whatever it said.
LONGEST_RETRY_AFTER: Final = 86_400.0


def _created(state: State, event: e.RunCreated) -> None:
    past, state.past = state.past, None
    if past is None and state.transcript:
        past = Past(state.transcript)
    if past is not None:
        state.call_ids = past.call_ids  # its calls were made, their ids are taken
        if event.fork is not None:
            parts = [part for message in past.messages for part in message.parts]
            state.tools_done |= {part.name for part in parts if isinstance(part, ToolResult) and part.error is None}
    state.summarised, state.base = event.summarised, event.base
    state.compact_asked = event.compacts
    if event.sized:
        # Nobody has to estimate what a provider has counted; how far estimates are off is not known then.
        state.known_tokens, state.new_tokens, state.request_tokens = event.sized, 0, 0
    elif state.counts_tokens and past is not None:
        _count(state, past.tokens(image_rule(state.spec.model)))
    state.created = event
    state.said, state.earlier = event.input, len(state.transcript)
    state.workspace = event.workspace
    if past is not None:
        remember_outcomes(state, past.outcomes)
    remember_unsettled(state, event.unsettled)
    for message in event.input:
        add_message(state, message)


def _claimed(state: State, event: e.RunClaimed) -> None:
    # Counted here and not taken from the event: journals of earlier versions count every claim as an attempt.
    state.attempt = state.next_attempt
    state.fruitless += 1
    state.held = True
    state.worker, state.epoch = event.worker, event.epoch
    state.worker_name = event.name or state.worker_name
    if state.retried is not None:
        state.retried = None
        # Each attempt has its own time. What it still waits for is counted when that is over, from here on.
        state.began_at, state.waited, state.waiting_since = state.now, 0.0, state.now
    state.lost_asks += 1 if state.asking else 0
    state.asking = False
    if state.started_at is None:
        state.started_at = state.began_at = state.now
    if state.calls:
        lose_running(state)


def _waiting(state: State, event: e.RunWaiting) -> None:
    state.fruitless = 0
    state.waiting = event
    state.waiting_since = state.now


def _resumed(state: State, event: e.RunResumed) -> None:
    assert state.waiting is not None
    if state.waiting.reason == "model_limit":
        state.delayed = None
    if state.waiting.reason == "model_retry":
        state.retry_at = None
    else:
        state.waited += state.now - state.waiting_since
    if state.waiting.reason == "budget":
        state.paused = None
    state.waiting = None


def _retried(state: State, event: e.RunRetried) -> None:
    """A new attempt begins with a clean slate: what the last one stumbled over is forgotten, what was said is not."""
    state.held = False
    state.asking = False
    state.fruitless = 0
    state.retried = event
    state.busy = 0 if event.counted else state.busy + 1
    forget_refusals(state)
    if state.ending is not None and state.ending.cancelled is None:
        state.ending = None
    answer = state.answer
    if answer is not None and not answer.empty and state.transcript and state.transcript[-1].role == "assistant":
        state.transcript.pop()  # an answer that was not accepted is asked for again
    state.answer = None
    state.retry_at = None
    state.paused = None
    state.delayed = None
    state.overflow = False
    state.cut = None
    state.model_failures = state.output_repairs = state.bad_steps = 0


def _ended(state: State, event: e.Terminal) -> None:
    _withhold(state)
    _keep_cut(state)
    state.ended = event
    state.waiting = None


def _succeeded(state: State, event: e.RunSucceeded) -> None:
    if (
        state.ending is not None
    ):  # not an answer of the model: whoever goes on with the conversation has it all the same
        _withhold(state)
        _keep_cut(state)
        add_message(state, Message("assistant", (Text(event.output),)))
    _ended(state, event)


def _withhold(state: State) -> None:
    """Withholds what hooks refused; with a question, also the inputs to it: no later turn has to hear them."""
    if any(event.point == "before_model" for event in state.withheld):
        for given in inputs_due(state):
            _take_input(state, given)
            state.taken += (given.input_id,)
    withhold(state)


def _keep_cut(state: State) -> None:
    """Keeps what people saw of an answer that does not come any more: it is part of the conversation."""
    if state.cut is not None and not state.calls:
        state.transcript.append(feedback.cut_off(state.cut))
    state.cut = None


def _cancelling(state: State, event: e.CancelRequested) -> None:
    state.ending = RunEnding(event)


def _step_started(state: State, event: e.StepStarted) -> None:
    state.asking = True
    state.asks += 1
    state.cut = None  # it is asked for again, and shown again
    for message in state.notes:
        add_message(state, message)
    state.notes = ()
    if state.inputs:
        for given in inputs_due(state):
            add_message(state, given.message)
            _take_input(state, given)
            if given.mode == "steer-backlog" and turns_apart(state):
                state.inputs += (replace(given, mode="followup"),)  # and it has a turn of its own
            else:
                state.taken += (given.input_id,)
        state.interrupted = False
    if event.note:
        add_message(state, feedback.user_message(event.note))
    state.answer = None


def _take_input(state: State, given: e.InputReceived) -> None:
    state.inputs = tuple(each for each in state.inputs if each is not given)


def inputs_due(state: State) -> list[e.InputReceived]:
    """Returns the inputs that enter the transcript before the next question.

    Where the run would otherwise finish, those that waited for that have a turn each, and what was collected one.
    """
    steering = [given for given in state.inputs if given.mode in TAKEN_AT_BOUNDARY]
    if state.answer is None:
        return steering
    if not turns_apart(state):
        return list(state.inputs)
    if steering or not state.inputs:
        return steering
    ordered = sorted(state.inputs, key=_arrival)
    return [given for given in ordered if given.mode == "collect"] if ordered[0].mode == "collect" else ordered[:1]


def collected_until(state: State) -> float | None:
    """Returns until when more may be said that is answered with what was collected; None unless that is waited for.

    Nothing else waits for this silence: what is of another mode ends it, and so does a time limit that would.
    """
    if state.answer is None or not state.inputs or any(given.mode != "collect" for given in state.inputs):
        return None
    first, last = min(state.inputs, key=_arrival), max(state.inputs, key=_arrival)
    until = end_of_silence(first.said_at, last.said_at, last.debounce)
    return until if state.deadline is None or until < state.deadline else None


def _arrival(given: e.InputReceived) -> int:
    return given.arrival


def turns_apart(state: State) -> bool:
    """Whether inputs that wait for the end of a turn have one each, and an interrupt ends what is under way."""
    return state.created is not None and state.created.equality > 2


def _model_responded(state: State, event: e.ModelResponded) -> None:
    response = event.response
    if event.workspace is not None:
        _keep_workspace(state, event.workspace)
    state.fruitless = 0
    state.was_delayed = False
    state.asking, state.lost_asks = False, 0
    state.asks = 0
    state.model_failures = 0
    state.busy_since, state.busy = None, 0
    state.compacted = False
    state.spent.steps += 1
    state.spent.add(response.usage)
    if event.wasted.total_tokens:
        state.spent.add(event.wasted)
    state.cut = None
    if tokens := response.usage.total_tokens:
        _calibrate(state, response.usage)
        state.known_tokens, state.new_tokens = tokens, 0
        state.transcript.append(open_calls(state, response))
        if names_file(response.message):
            state.files = True
    else:
        add_message(state, open_calls(state, response))
    if response.stop == "refusal":
        # Half an answer that a filter cut is no reason: what the provider says of it is.
        said = response.detail or response.message.text or "the model refused to answer"
        state.end("refused", "model_refusal", said)
    if response.stop == "pause" and not state.calls:
        # Nothing is said to it: it goes on from where it was.
        state.begun += response.message.text
        state.pauses += 1
        if not response.message.parts:
            state.transcript.pop()
        return
    before, state.begun, state.pauses = state.begun, "", 0
    if not state.calls:
        text = before + response.message.text
        empty = not text.strip() and not any(isinstance(part, Media) for part in response.message.parts)
        state.answer = FinalAnswer(text, cut=response.stop == "length", empty=empty)
        if empty:
            state.transcript.pop()  # providers refuse a conversation that holds an empty answer
    elif state.final:
        state.end("budget_exceeded", "tool_calls", "the last answer asked for tools, though none may be used any more")


# Estimates are off by more only where a proxy counts wrongly: one absurd count must not switch a limit off.
_RATIOS: Final = (0.25, 4.0)


def _calibrate(state: State, usage: Usage) -> None:
    """Learn from the provider's count how far the estimate of the question was off."""
    if state.request_tokens and usage.source == "provider" and usage.input_tokens:
        low, high = _RATIOS
        state.ratio = min(high, max(low, usage.input_tokens / state.request_tokens))
    if state.request_tokens:
        state.request_tokens += usage.output_tokens


def _count(state: State, size: int) -> None:
    state.new_tokens += size
    state.request_tokens += size


# An answer was cut, or a question not asked, because no more tokens or money are left for it.
_SPENT: Final = frozenset({"tokens", "cost_usd"})


def _model_failed(state: State, event: e.ModelFailed) -> None:
    state.asking, state.lost_asks = False, 0
    state.spent.add(event.usage)
    if event.kind == "interrupted":
        return
    policy = state.spec.repairs.model_policy
    if event.kind in _SPENT:
        state.end("budget_exceeded", event.kind, event.message)
        return
    if event.kind == "context_overflow" and state.spec.compaction and not (state.compacted or state.overflow):
        state.overflow = True
        return
    state.overflow = False
    if not is_busy(event):
        state.busy_since = None
    elif state.busy_since is None:
        state.busy_since = state.now
    if state.deadline is not None and state.now >= state.deadline:
        return  # cut off by the time limit, which `decide` will find passed
    if not event.retryable or state.model_failures + 1 >= policy.max_attempts:
        state.end("model_failed", event.kind, event.message)
        return
    state.model_failures += 1
    delay = policy.wait(state.model_failures)
    asked = event.retry_after
    # JSON has no infinity: read back, it would be nothing. So it is nothing here too.
    state.retry_at = state.now + (delay if asked is None or not isfinite(asked) else min(asked, LONGEST_RETRY_AFTER))


def _model_delayed(state: State, event: e.ModelDelayed) -> None:
    state.asking, state.lost_asks = False, 0
    state.spent.add(event.usage)
    if event.failed and state.model_failures >= state.spec.repairs.model:
        state.end("model_failed", event.failed, event.message)
        return
    state.model_failures += 1 if event.failed else 0
    state.delayed = event
    state.was_delayed = True


REJECTED: Final[Mapping[e.Rejection, tuple[str, str]]] = {
    "empty": ("empty_answer", "the model gave no answer"),
    "truncated": ("truncated", "the answer was cut off at the output limit"),
    "schema": ("schema_mismatch", "the answer does not fit the output schema"),
    "required_tools": ("contract_violation", "required tools were not used"),
    "markers": ("contract_violation", "the answer lacks what the contract asks for"),
}


def _output_rejected(state: State, event: e.OutputRejected) -> None:
    if state.output_repairs >= state.spec.repairs.outputs:
        code, what = REJECTED[event.reason]
        problems = f": {'; '.join(event.problems)}" if event.problems else ""
        state.end(code, "repairs_exhausted", f"{what}{problems}")
        return  # the answer stays: another attempt takes it out of the transcript
    state.answer = None
    state.output_repairs += 1
    state.notes += (feedback.user_message(event.feedback),)


def _output_accepted(state: State, event: e.OutputAccepted) -> None:
    assert state.answer is not None
    state.answer.accepted = True
    state.answer.value = event.value


def _tool_started(state: State, event: e.ToolStarted) -> None:
    call = _call(state, event.call_id)
    if call.attempts == 0:
        state.spent.tool_calls += 1
    call.attempts += 1
    call.phase = "running"
    call.effects_before = state.effects


def _tool_finished(state: State, event: e.ToolFinished) -> None:
    state.fruitless = 0
    if event.workspace is not None:
        _keep_workspace(state, event.workspace)
    close_call(state, _call(state, event.result.call_id), event)


def _tool_unknown(state: State, event: e.ToolUnknown) -> None:
    if event.workspace is not None:
        _keep_workspace(state, event.workspace)
    lose_call(state, event)


def _keep_workspace(state: State, snapshot: e.WorkspaceSnapshot) -> None:
    """Take the newest snapshot: results of calls that ran side by side come in any order."""
    if state.workspace is None or snapshot.number > state.workspace.number:
        state.workspace = snapshot


def _tool_held(state: State, event: e.ToolHeld) -> None:
    hold_call(state, _call(state, event.call_id), event.earlier)
    state.stood_for |= {event.earlier.key}


def _approval_requested(state: State, event: e.ApprovalRequested) -> None:
    call = _call(state, event.call_id)
    call.approval = event
    call.phase = "parked"


def _approval_decided(state: State, event: e.ApprovalDecided) -> None:
    call = _call(state, event.call_id)
    call.phase = "requested"
    if event.decision in ("deny", "expired"):
        expired = event.decision == "expired"
        call.verdict = feedback.denied(call.id, call.name, event.by, event.reason, expired=expired)
        return
    call.grant = event
    if event.decision == "edit" and event.arguments is not None:
        call.arguments = event.arguments
        call.edited = True
        state.told_by |= {*event.by.split(", ")}
        state.hooked.pop(f"before_tool/{call.id}", None)  # hooks have decided about other arguments
        release_twins(state, call)
        if state.unsettled:
            hold_repeat(state, call, parse_object(event.arguments)[0] or {})


def _question_asked(state: State, event: e.QuestionAsked) -> None:
    call = _call(state, event.call_id)
    call.question = event
    call.phase = "parked"
    state.spent.tool_calls += 1  # asking is what the tool does: it is never started


def _question_answered(state: State, event: e.QuestionAnswered) -> None:
    call = _call(state, event.call_id)
    call.phase = "requested"
    call.verdict = feedback.answered(call.id, call.name, event.answer, late=event.late, files=event.files)
    if event.answer is None and call.question is not None and call.question.client:
        # Whoever would hear the answer of the model is gone: it is not asked.
        state.end("client_left", "client_left", f"the client that was to call {call.name} never sent its result")
    if not event.late:
        state.told_by |= {event.by}


def _unknown_decided(state: State, event: e.UnknownDecided) -> None:
    state.told_by |= {event.by}
    call = _call(state, event.call_id)
    call.phase = "requested"
    call.doubt, call.cleared = "", event.decision == "run"
    if event.decision == "happened":
        call.verdict = feedback.happened(call.id, call.name, event.by, event.result)
    elif event.decision == "fail":
        call.doubt = "process_died" if call.unknown is None else call.unknown.reason
        message = f"{event.by or 'a person'} ended the run: nobody knows whether {call.name} took effect"
        state.end("unknown_effect", "decided", event.reason or message)


def _input_received(state: State, event: e.InputReceived) -> None:
    if event.said_at > state.now:  # the clock of whoever said it is ahead
        event = replace(event, said_at=state.now)
    state.inputs += (event,)
    if names_file(event.message):
        state.files = True
    state.told_by |= {event.by, *event.ordered_by}
    state.interrupted = state.interrupted or event.mode == "interrupt"


def _model_cut(state: State, event: e.ModelCut) -> None:
    if event.reason == "interrupted":  # what was said instead follows it
        add_message(state, feedback.cut_off(event))
    else:
        state.cut = event


def _compacted(state: State, event: e.SessionCompacted) -> None:
    state.summarised += raw_among(state, event.replaced)
    state.transcript[: event.replaced] = [event.summary]
    if names_file(event.summary):
        state.files = True
    state.earlier = max(1, state.earlier - event.replaced + 1)
    state.base = event.kept_from or state.base
    state.overflow = state.compact_asked = False
    state.compacted = True
    state.spent.add(event.usage)
    state.known_tokens = 0
    state.new_tokens = state.request_tokens = estimate_text(state.spec.system) + estimate_tools(state.tools)
    _count(state, estimate_messages(state.transcript, image_rule(state.spec.model)))
    if state.created is not None and state.created.compacts:
        state.answer = FinalAnswer(feedback.compacted(event), accepted=True)


def _not_compacted(state: State, event: e.SessionNotCompacted) -> None:
    state.compacted = True  # it would come out the same before this step
    state.compact_asked = False
    state.spent.add(event.usage)
    if state.created is not None and state.created.compacts:
        state.answer = FinalAnswer(event.reason, accepted=True)


def _compaction_requested(state: State, event: e.CompactionRequested) -> None:
    state.compact_asked = True
    state.told_by |= {event.by}


def _budget_exceeded(state: State, event: e.BudgetExceeded) -> None:
    state.asking = False  # what was about to be asked is not
    if event.then == "pause":
        state.paused = state.paused or event
        return
    if event.then == "fail":
        notice = state.spec.time_notice if event.limit == "seconds" and not event.budget else ""
        state.end("budget_exceeded", event.limit, event.message, notice=notice)
        return
    state.final = True
    state.notes += (feedback.user_message(event.feedback),)


def _folder_kept(state: State, event: e.FolderKept) -> None:
    if event.refused:
        state.folder_refused = event.now  # another try would come out the same, until the run changes something again
    else:
        state.folder_kept = event.now
        state.folder_life = event.life


def _nothing(state: State, event: e.Event) -> None:
    """A fact for readers; the loop does not depend on it."""


def _call(state: State, call_id: str) -> Call:
    call = state.call(call_id)
    assert call is not None, "checked by rules.refusal"
    return call


FOLDS: Final[Mapping[type[e.Fact], Callable[[State, Any], None]]] = {
    e.RunCreated: _created,
    e.RunClaimed: _claimed,
    e.RunWaiting: _waiting,
    e.RunResumed: _resumed,
    e.RunRetried: _retried,
    e.RunSucceeded: _succeeded,
    e.RunFailed: _ended,
    e.RunCancelled: _ended,
    e.RunDeadLettered: _ended,
    e.CancelRequested: _cancelling,
    e.StepStarted: _step_started,
    e.ModelResponded: _model_responded,
    e.ModelFailed: _model_failed,
    e.ModelDelayed: _model_delayed,
    e.ModelCut: _model_cut,
    e.OutputRejected: _output_rejected,
    e.OutputAccepted: _output_accepted,
    e.ToolStarted: _tool_started,
    e.ToolFinished: _tool_finished,
    e.ToolUnknown: _tool_unknown,
    e.ToolHeld: _tool_held,
    e.ApprovalRequested: _approval_requested,
    e.ApprovalDecided: _approval_decided,
    e.QuestionAsked: _question_asked,
    e.QuestionAnswered: _question_answered,
    e.UnknownDecided: _unknown_decided,
    e.InputReceived: _input_received,
    e.MemoryWritten: _nothing,
    e.SessionCompacted: _compacted,
    e.SessionNotCompacted: _not_compacted,
    e.CompactionRequested: _compaction_requested,
    e.BudgetExceeded: _budget_exceeded,
    e.ContractViolated: fold_violation,
    e.HookDecided: fold_decision,
    e.FolderKept: _folder_kept,
}

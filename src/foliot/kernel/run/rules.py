"""Which fact may follow which: the rules of a run as tables.

The theory. A run is in exactly one phase (state.py). Facts of the work itself (a step, an answer, a call) belong to one
phase and come from the worker that holds the run. Facts from outside (an input, a cancellation, a decision) may come in
any phase in which the run lives, because nobody outside can know it; what they *do* is decided at the next boundary.
A call has phases of its own, and a fact about a call must also fit those.

Beyond the tables a few facts must fit the details of the state: `GUARDS`. All of it is checked before anything is
changed, so a refused fact leaves no trace.

             ┌── run.created ──> QUEUED ── run.claimed ──> READY <───────────────────────────────┐
    run.retried ──────────────────^                          │ step.started                      │ last tool.finished
                                                             v                                   │
                                            READY <── THINKING ── model.responded (calls) ──> ACTING
                                       model.responded (text), model.failed
    QUEUED | READY | THINKING | ACTING ── run.succeeded | failed | cancelled | dead_lettered ──> ENDED
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foliot.kernel.arguments import parse_object
from foliot.kernel.run import events as e
from foliot.kernel.run.compaction import raw_among
from foliot.kernel.run.hooks import refusal_of
from foliot.kernel.run.state import Call, CallPhase, Phase, State

_LIVE: Final[frozenset[Phase]] = frozenset({"queued", "ready", "thinking", "acting"})
_HELD: Final[frozenset[Phase]] = _LIVE - {"queued"}
_SETTLED: Final[frozenset[Phase]] = _LIVE - {"acting"}

LEGAL: Final[Mapping[type[e.Fact], frozenset[Phase]]] = {
    e.RunCreated: frozenset({"new"}),
    e.RunClaimed: _LIVE,
    e.RunWaiting: frozenset({"ready", "acting"}),
    e.RunResumed: _LIVE,
    e.RunRetried: _LIVE,
    e.RunSucceeded: frozenset({"ready"}),
    e.RunFailed: _SETTLED,
    e.RunCancelled: _SETTLED,
    e.RunDeadLettered: _LIVE,
    e.CancelRequested: _LIVE,
    e.StepStarted: frozenset({"ready"}),
    e.ModelResponded: frozenset({"thinking"}),
    e.ModelFailed: frozenset({"thinking", "ready"}),
    e.ModelDelayed: frozenset({"thinking"}),
    e.ModelCut: frozenset({"thinking"}),
    e.OutputRejected: frozenset({"ready"}),
    e.OutputAccepted: frozenset({"ready"}),
    e.ToolStarted: frozenset({"acting"}),
    # Without a holder only the kernel's own results: the run is being ended from outside.
    e.ToolFinished: frozenset({"acting", "queued"}),
    e.ToolUnknown: frozenset({"acting"}),
    e.ToolHeld: frozenset({"acting"}),
    e.ApprovalRequested: frozenset({"acting"}),
    e.ApprovalDecided: _LIVE,
    e.QuestionAsked: frozenset({"acting"}),
    e.QuestionAnswered: _LIVE,
    e.UnknownDecided: _LIVE,
    e.InputReceived: _LIVE,
    e.MemoryWritten: _HELD,
    e.SessionCompacted: frozenset({"ready"}),
    e.SessionNotCompacted: frozenset({"ready"}),
    e.CompactionRequested: _LIVE,
    e.BudgetExceeded: _HELD,
    e.ContractViolated: frozenset({"ready", "acting"}),
    e.HookDecided: _HELD,
    e.FolderKept: _HELD,
}

# A fact about a call, and where that call must be. A result that the kernel gives itself fits any open call.
CALL_LEGAL: Final[Mapping[type[e.Fact], frozenset[CallPhase]]] = {
    e.ToolStarted: frozenset({"requested"}),
    e.ToolFinished: frozenset({"requested", "running"}),
    e.ToolUnknown: frozenset({"running", "unknown"}),
    e.ToolHeld: frozenset({"requested"}),
    e.ApprovalRequested: frozenset({"requested"}),
    e.ApprovalDecided: frozenset({"parked"}),
    e.QuestionAsked: frozenset({"requested"}),
    e.QuestionAnswered: frozenset({"parked"}),
    e.UnknownDecided: frozenset({"unknown"}),
}

# When something said to a live run is taken into its transcript: before the next question to the model, or when the run
# would otherwise finish. An interrupt also ends the answer and the calls under way.
TAKEN_AT_BOUNDARY: Final[frozenset[e.InputMode]] = frozenset({"steer", "steer-backlog", "interrupt"})


def refusal(state: State, event: e.Event) -> str | None:
    """Why this fact cannot follow, or None when it can. For facts from outside: ask before recording one."""
    kind = type(event)
    phase = state.phase
    if phase not in LEGAL[kind]:
        return f"{kind.__name__} while the run is {phase}"
    guard = GUARDS.get(kind)
    return None if guard is None else guard(state, event)


def _misplaced(call: Call | None, call_id: str, kind: type[e.Fact]) -> str | None:
    if call is None:
        return f"{kind.__name__} for the call {call_id!r}, which is not one of the current step"
    if call.phase not in CALL_LEGAL[kind]:
        return f"{kind.__name__} while the call {call_id!r} is {call.phase}"
    return None


def _tool_started(state: State, event: e.ToolStarted) -> str | None:
    call = state.call(event.call_id)
    if call is None or call.phase != "requested":
        return _misplaced(call, event.call_id, e.ToolStarted)
    if call.verdict is not None or call.violation is not None or call.twin is not None:
        return f"the call {call.id!r} must not be run as it stands"
    if state.ending is not None:
        return "the run is ending"
    if event.attempt != call.attempts + 1:
        return f"start {event.attempt} of a call that was started {call.attempts} times"
    return None


def _tool_finished(state: State, event: e.ToolFinished) -> str | None:
    call_id = event.result.call_id
    call = state.call(call_id)
    if event.synthetic is not None and call is not None:
        return f"the call {call_id!r} has its result" if call.phase == "done" else None
    if not state.held:
        return "a tool's result while nobody holds the run"
    return _misplaced(call, call_id, e.ToolFinished)


def _tool_unknown(state: State, event: e.ToolUnknown) -> str | None:
    call = state.call(event.call_id)
    if call is not None and call.effect == "read":
        return f"the call {call.id!r} only reads, so there is nothing to be known of it"
    return _misplaced(call, event.call_id, e.ToolUnknown)


def _tool_held(state: State, event: e.ToolHeld) -> str | None:
    call = state.call(event.call_id)
    if call is not None and (call.effect != "once" or call.verdict is not None or call.cleared):
        return f"the call {call.id!r} needs nobody's word before it is made"
    return _misplaced(call, event.call_id, e.ToolHeld)


def _approval_requested(state: State, event: e.ApprovalRequested) -> str | None:
    call = state.call(event.call_id)
    if call is not None and call.grant is not None:
        return f"the call {call.id!r} has been approved already"
    return _misplaced(call, event.call_id, e.ApprovalRequested)


def _approval_decided(state: State, event: e.ApprovalDecided) -> str | None:
    call = state.call(event.call_id)
    if call is None or call.phase != "parked" or call.approval is None:
        return _misplaced(call, event.call_id, e.ApprovalDecided)
    if call.question is not None:
        return f"the call {call.id!r} has been approved already, and waits for an answer"
    if event.approval_id and event.approval_id != call.approval.approval_id:
        return f"the decision is about another approval, {event.approval_id!r}"
    if event.decision == "edit" and (event.arguments is None or parse_object(event.arguments)[0] is None):
        return "edited arguments that are not a JSON object"
    return None


def _question_asked(state: State, event: e.QuestionAsked) -> str | None:
    call = state.call(event.call_id)
    if call is not None and call.question is not None:
        return f"the call {call.id!r} has asked already"
    return _misplaced(call, event.call_id, e.QuestionAsked)


def _question_answered(state: State, event: e.QuestionAnswered) -> str | None:
    call = state.call(event.call_id)
    if call is None or call.phase != "parked":
        return _misplaced(call, event.call_id, e.QuestionAnswered)
    if call.question is None:
        return f"the call {call.id!r} asks for an approval, not for an answer"
    choices = call.question.choices
    if choices and event.answer is not None and event.answer not in choices:
        return f"the answer to {call.id!r} is not one of its choices"
    return None


def _unknown_decided(state: State, event: e.UnknownDecided) -> str | None:
    return _misplaced(state.call(event.call_id), event.call_id, e.UnknownDecided)


def _created(state: State, event: e.RunCreated) -> str | None:
    given = state.transcript or state.past is not None
    return "the history that the run starts from was not given" if event.history and not given else None


def _claimed(state: State, event: e.RunClaimed) -> str | None:
    return None if event.attempt >= state.attempt else f"attempt {event.attempt} after attempt {state.attempt}"


def _waiting(state: State, event: e.RunWaiting) -> str | None:
    return "the run is waiting already" if state.waiting is not None else None


def _resumed(state: State, event: e.RunResumed) -> str | None:
    return None if state.waiting is not None else "the run is not waiting"


def _succeeded(state: State, event: e.RunSucceeded) -> str | None:
    if (ending := state.ending) is not None and ending.notice:
        return _settled(state, event)
    return None if state.answer is not None and ending is None else "there is no answer to succeed with"


def _settled(state: State, event: e.RunFailed | e.RunCancelled | e.RunSucceeded) -> str | None:
    return f"{state.open_calls} calls have no result yet" if state.open_calls else None


def _cancelling(state: State, event: e.CancelRequested) -> str | None:
    return "the run is ending already" if state.ending is not None else None


def _step(
    state: State, event: e.StepStarted | e.ModelResponded | e.ModelFailed | e.ModelDelayed | e.ModelCut
) -> str | None:
    return None if event.step == state.spent.steps + 1 else f"step {event.step} instead of {state.spent.steps + 1}"


def _started(state: State, event: e.StepStarted) -> str | None:
    return "the run is ending" if state.ending is not None else _step(state, event)


def _failed(state: State, event: e.ModelFailed) -> str | None:
    return _step(state, event) if state.asking or state.overflow else "the model was not asked"


def _examined(state: State, event: e.OutputRejected | e.OutputAccepted) -> str | None:
    return None if state.answer is not None else "there is no answer to examine"


def _compacted(state: State, event: e.SessionCompacted) -> str | None:
    transcript = state.transcript
    if not 0 < event.replaced <= len(transcript):
        return f"{event.replaced} of {len(transcript)} messages cannot be replaced"
    if event.replaced < len(transcript) and transcript[event.replaced].role == "tool":
        return "the cut would part results from their calls"
    if event.last and event.last != state.summarised + raw_among(state, event.replaced):
        return f"a summary up to message {event.last} does not replace these {event.replaced} messages"
    return None


def _exceeded(state: State, event: e.BudgetExceeded) -> str | None:
    if not event.budget:
        if event.then == "pause":
            return "a limit of the run itself does not pause it"
        return "the model is being asked" if state.asking else None
    if event.call_id is None:
        return None if state.asking else "the model was not asked"
    call = state.call(event.call_id)
    if call is None or call.phase != "requested":
        return f"the call {event.call_id!r} is not about to be started"
    return None


GUARDS: Final[Mapping[type[e.Fact], Callable[[State, Any], str | None]]] = {
    e.RunCreated: _created,
    e.RunClaimed: _claimed,
    e.RunWaiting: _waiting,
    e.RunResumed: _resumed,
    e.RunSucceeded: _succeeded,
    e.RunFailed: _settled,
    e.RunCancelled: _settled,
    e.CancelRequested: _cancelling,
    e.StepStarted: _started,
    e.ModelResponded: _step,
    e.ModelFailed: _failed,
    e.ModelDelayed: _step,
    e.ModelCut: _step,
    e.OutputRejected: _examined,
    e.OutputAccepted: _examined,
    e.ToolStarted: _tool_started,
    e.ToolFinished: _tool_finished,
    e.ToolUnknown: _tool_unknown,
    e.ToolHeld: _tool_held,
    e.ApprovalRequested: _approval_requested,
    e.ApprovalDecided: _approval_decided,
    e.QuestionAsked: _question_asked,
    e.QuestionAnswered: _question_answered,
    e.UnknownDecided: _unknown_decided,
    e.SessionCompacted: _compacted,
    e.BudgetExceeded: _exceeded,
    e.HookDecided: refusal_of,
}

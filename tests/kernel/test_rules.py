"""Facts that cannot follow are refused, by the kernel's own error, and leave no trace."""

from __future__ import annotations

import pytest

from foliot.kernel.errors import IllegalEvent
from foliot.kernel.run import events as e
from foliot.kernel.run.actions import CallTools
from foliot.kernel.run.codec import EVENT_TYPES, type_of
from foliot.kernel.run.loop import apply, fold
from foliot.kernel.run.rules import LEGAL, refusal
from foliot.kernel.run.state import State, owner_of
from tests.kernel.play import Play, asks, result, rule, says, spec, user
from tests.kernel.samples import SAMPLES

RUNNING = e.ToolStarted("a", "pay", "r1/a")


def at(phase: str) -> Play:
    """A run in this phase; while acting, call `a` is requested."""
    play = Play(spec())
    match phase:
        case "queued":
            play.record(e.RunRetried(1, "lost"))
        case "thinking":
            play.record(e.StepStarted(1))
        case "acting":
            play.record(e.StepStarted(1), e.ModelResponded(1, asks(("a", "pay"), ("b", "look"))))
        case "ended":
            play.record(e.RunDeadLettered("x"))
        case _:
            assert phase == "ready"
    assert play.state.phase == phase
    return play


@pytest.mark.parametrize("phase", ["queued", "ready", "thinking", "acting", "ended"])
@pytest.mark.parametrize("event", SAMPLES, ids=type_of)
def test_a_fact_in_a_phase_it_does_not_belong_to_is_refused(phase: str, event: e.Event):
    play = at(phase)
    if phase in LEGAL[type(event)]:
        return
    with pytest.raises(IllegalEvent, match=f"while the run is {phase}"):
        apply(play.state, event, 5000.0)


@pytest.mark.parametrize("event", SAMPLES, ids=type_of)
def test_nothing_but_its_creation_can_be_the_first_fact(event: e.Event):
    if isinstance(event, e.RunCreated):
        return
    with pytest.raises(IllegalEvent, match="while the run is new"):
        fold(spec(), "r1", [(1.0, event)])


def test_nothing_can_follow_the_end():
    assert all("ended" not in LEGAL[kind] for kind in EVENT_TYPES)


def requested() -> Play:
    return at("acting")


def parked() -> Play:
    play = at("acting")
    play.record(e.ApprovalRequested("a", "ap", "pay", "d"))
    return play


def approved() -> Play:
    play = parked()
    play.record(e.ApprovalDecided("a", "approve"))
    return play


def asking() -> Play:
    play = approved()
    play.record(e.QuestionAsked("a", "pay", "which?", ("x", "y")))
    return play


def running() -> Play:
    play = at("acting")
    play.record(RUNNING)
    return play


def unknown() -> Play:
    play = running()
    play.crash()
    return play


def done() -> Play:
    play = running()
    play.record(e.ToolFinished(result("a", name="pay")))
    return play


FINISHED = e.ToolFinished(result("a", name="pay"))
APPROVE = e.ApprovalDecided("a", "approve")
HAPPENED = e.UnknownDecided("a", "happened")


@pytest.mark.parametrize(
    ("make", "event"),
    [
        (running, RUNNING),
        (parked, RUNNING),
        (unknown, e.ToolStarted("a", "pay", "r1/a", 2)),
        (done, e.ToolStarted("a", "pay", "r1/a", 2)),
        (requested, e.ToolStarted("zzz", "pay", "r1/zzz")),
        (requested, e.ToolStarted("a", "pay", "r1/a", 2)),
        (parked, FINISHED),
        (unknown, FINISHED),
        (done, FINISHED),
        (done, e.ToolFinished(result("a", name="pay"), synthetic="cancelled")),
        (requested, e.ToolFinished(result("zzz", name="pay"), synthetic="cancelled")),
        (running, e.ApprovalRequested("a", "ap", "pay", "d")),
        (parked, e.ApprovalRequested("a", "ap", "pay", "d")),
        (approved, e.ApprovalRequested("a", "ap", "pay", "d")),
        (requested, APPROVE),
        (approved, APPROVE),
        (running, APPROVE),
        (done, APPROVE),
        (parked, e.ApprovalDecided("a", "approve", approval_id="another")),
        (parked, e.ApprovalDecided("a", "edit")),
        (parked, e.ApprovalDecided("a", "edit", arguments="{")),
        (asking, APPROVE),
        (asking, RUNNING),
        (asking, FINISHED),
        (asking, e.QuestionAsked("a", "pay", "which?")),
        (asking, e.QuestionAnswered("a", "z")),
        (parked, e.QuestionAsked("a", "pay", "which?")),
        (running, e.QuestionAsked("a", "pay", "which?")),
        (done, e.QuestionAsked("a", "pay", "which?")),
        (requested, e.QuestionAsked("zzz", "pay", "which?")),
        (requested, e.QuestionAnswered("a", "x")),
        (parked, e.QuestionAnswered("a", "x")),
        (running, e.QuestionAnswered("a", "x")),
        (done, e.QuestionAnswered("a", "x")),
        (requested, HAPPENED),
        (running, HAPPENED),
        (done, HAPPENED),
        (requested, e.RunFailed("x", "x", "x")),
        (requested, e.RunCancelled()),
    ],
)
def test_a_fact_about_a_call_must_fit_where_the_call_is(make, event: e.Event):
    play = make()
    before = play.state.seq, play.state.now
    assert refusal(play.state, event) is not None
    with pytest.raises(IllegalEvent, match="r1, fact"):
        apply(play.state, event, 9999.0)
    assert (play.state.seq, play.state.now) == before
    assert play.decide() is not None, "the state is as the journal says"


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        ("ready", e.RunClaimed(0)),
        ("ready", e.RunResumed()),
        ("ready", e.RunSucceeded("x")),
        ("ready", e.StepStarted(2)),
        ("thinking", e.ModelResponded(2, says("x"))),
        ("thinking", e.ModelFailed(2, "auth", "x")),
        ("ready", e.ModelFailed(1, "auth", "x")),
        ("ready", e.OutputRejected("schema", "x")),
        ("ready", e.OutputAccepted(1)),
        ("ready", e.SessionCompacted(0, user("x"))),
        ("ready", e.SessionCompacted(2, user("x"))),
    ],
)
def test_a_fact_must_fit_the_details(phase: str, event: e.Event):
    with pytest.raises(IllegalEvent):
        apply(at(phase).state, event, 5000.0)


def test_a_run_cannot_wait_twice():
    play = at("ready")
    play.record(e.RunWaiting("capacity", "capacity"))
    assert refusal(play.state, e.RunWaiting("capacity", "capacity")) == "the run is waiting already"


def test_a_run_that_is_ending_starts_nothing_and_is_not_cancelled_again():
    play = requested()
    play.record(e.CancelRequested())
    assert refusal(play.state, RUNNING) == "the run is ending"
    assert refusal(play.state, e.CancelRequested()) == "the run is ending already"
    ready = at("ready")
    ready.record(e.CancelRequested())
    assert refusal(ready.state, e.StepStarted(1)) == "the run is ending"


def test_a_run_that_is_ending_cannot_succeed():
    play = Play(spec())
    play.record(e.StepStarted(1), e.ModelResponded(1, says("x")), e.CancelRequested())
    assert refusal(play.state, e.RunSucceeded("x")) is not None


def test_a_call_that_the_kernel_answers_itself_cannot_be_started():
    play = Play(spec(duplicates="short_circuit"))
    play.record(e.StepStarted(1), e.ModelResponded(1, asks(("a", "pay", "{"), ("b", "pay"), ("c", "pay"))))
    assert refusal(play.state, e.ToolStarted("a", "pay", "r1/a")) is not None
    assert refusal(play.state, e.ToolStarted("b", "pay", "r1/b")) is None
    assert refusal(play.state, e.ToolStarted("c", "pay", "r1/c")) is not None


def test_a_tools_result_needs_a_holder():
    play = running()
    play.record(e.RunRetried(1, "lost"))
    assert refusal(play.state, FINISHED) == "a tool's result while nobody holds the run"


def test_a_compaction_does_not_part_results_from_their_calls():
    play = Play(spec(), [asks(("a", "look"))])
    play.ask(play.next())
    action = play.next()
    assert isinstance(action, CallTools)
    play.call(action)
    assert refusal(play.state, e.SessionCompacted(2, user("x"))) == "the cut would part results from their calls"
    assert refusal(play.state, e.SessionCompacted(1, user("x"))) is None
    assert refusal(play.state, e.SessionCompacted(3, user("x"))) is None


def test_a_run_with_a_history_is_not_started_without_it():
    with pytest.raises(IllegalEvent, match="history"):
        fold(spec(), "r1", [(1.0, e.RunCreated("a", "s", history="sha256:1"))])


def test_time_does_not_go_back():
    state = State(spec(), "r1")
    apply(state, e.RunCreated("a", "s"), 100.0)
    apply(state, e.RunClaimed(1), 50.0)
    assert state.now == 100.0


def test_a_run_that_was_not_created_belongs_to_nobody():
    assert owner_of(State(spec(tools=(rule("x"),)), "r1")).kind == "nobody"

"""What holds whatever happens, in whatever order: checked on journals of a hostile world."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.kernel.messages import Message, ModelResponse, ToolResult
from foliot.kernel.run import events as e
from foliot.kernel.run.actions import AskModel, CallTools, End, Stop
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.calls import JournalCalls
from foliot.kernel.run.loop import apply, decide, fold
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from tests.kernel.play import Play, asks, result, says, spec
from tests.kernel.world import World


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_hostile_world_breaks_no_promise(chance: Random):
    world = World(chance)
    world.play()
    check_journal(world)


@pytest.mark.parametrize("hundred", range(10))
def test_a_seeded_world_breaks_no_promise(hundred: int):
    """The same with longer runs: hypothesis likes small numbers, and so its worlds are short."""
    for seed in range(hundred * 100, hundred * 100 + 100):
        world = World(Random(seed))
        try:
            world.play()
            check_journal(world)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def check_journal(world: World) -> None:
    events = [event for _, event in world.durable]
    one_end(events)
    one_result_per_call(world.state, events)
    nothing_starts_before_it_was_asked_for(events)
    once_means_once(world, events)
    within_limits(world.spec, world.state, events)
    transcript_is_whole(world.state.transcript)
    shown_arguments_are_the_sent_ones(world)


def shown_arguments_are_the_sent_ones(world: World) -> None:
    """What a view of the journal folds of a call is what the kernel hands to its tool, after every event."""
    state, journal = State(world.spec, "r1"), JournalCalls()
    for at, event in world.durable:
        apply(state, event, at)
        journal.take(event)
        for call in state.calls:
            shown = journal.find(call.id, call.name)
            assert shown is not None
            assert (shown.arguments or "{}") == (call.arguments or "{}")
            assert bool(shown.changed_by) == call.edited


def one_end(events: list[e.Event]) -> None:
    terminal = (e.RunSucceeded, e.RunFailed, e.RunCancelled, e.RunDeadLettered)
    assert [isinstance(event, terminal) for event in events].count(True) == 1
    assert isinstance(events[-1], terminal)


def one_result_per_call(state: State, events: list[e.Event]) -> None:
    asked = sum(len(event.response.message.calls) for event in events if isinstance(event, e.ModelResponded))
    finished = [event.result.call_id for event in events if isinstance(event, e.ToolFinished)]
    assert len(finished) == len(set(finished)) == asked


def nothing_starts_before_it_was_asked_for(events: list[e.Event]) -> None:
    asked, started, finished = 0, set[str](), set[str]()
    for event in events:
        match event:
            case e.ModelResponded(response=response):
                assert len(finished) == asked, "the model answers when every earlier call has its result"
                asked += len(response.message.calls)
            case e.ToolStarted(call_id=call_id):
                assert call_id not in finished
                started.add(call_id)
                assert len(started | finished) <= asked
            case e.ToolFinished(result=ToolResult(call_id=call_id)):
                finished.add(call_id)
            case _:
                pass


def once_means_once(world: World, events: list[e.Event]) -> None:
    starts = Counter(event.call_id for event in events if isinstance(event, e.ToolStarted))
    names = {event.call_id: event.name for event in events if isinstance(event, e.ToolStarted)}
    again = Counter(event.call_id for event in events if isinstance(event, e.UnknownDecided) if event.decision == "run")
    keys = dict[str, str]()
    for event in events:
        if isinstance(event, e.ToolStarted):
            own = f"r1/{event.call_id}"
            assert keys.setdefault(event.call_id, event.key) == event.key, "one key for all attempts of a call"
            earlier = {
                key for call_id, key in keys.items() if call_id != event.call_id and names[call_id] == event.name
            }
            assert event.key == own or event.key in earlier, "its own, or that of an earlier call which may have acted"
    for call_id, count in starts.items():
        if names[call_id].startswith("pay"):
            stands_for_another = keys[call_id] != f"r1/{call_id}"
            assert count + stands_for_another <= 1 + again[call_id], "a second start needs a decision"
            assert world.acts[keys[call_id]] <= 1, "it took effect once"


def within_limits(run_spec: RunSpec, state: State, events: list[e.Event]) -> None:
    limits, steps, tokens, cost = run_spec.limits, 0, 0, 0.0
    for event in events:
        if isinstance(event, e.StepStarted):
            assert limits.max_steps is None or steps < limits.max_steps
            assert limits.max_tokens is None or tokens < limits.max_tokens
            assert limits.max_cost_usd is None or cost < limits.max_cost_usd
        elif isinstance(event, e.ModelResponded):
            steps += 1
            tokens += event.response.usage.total_tokens
            cost += event.response.usage.cost_usd or 0.0
    started = {event.call_id for event in events if isinstance(event, e.ToolStarted | e.QuestionAsked)}
    assert limits.max_tool_calls is None or len(started) <= limits.max_tool_calls
    assert state.spent.tool_calls == len(started)
    assert state.spent.steps == steps


def transcript_is_whole(transcript: list[Message]) -> None:
    """Each answer with calls is followed by their results, in order; the ids are unique."""
    ids: list[str] = []
    for index, message in enumerate(transcript):
        if message.calls:
            answered = transcript[index + 1]
            assert answered.role == "tool"
            assert [part.call_id for part in answered.parts] == [call.id for call in message.calls]
            ids += [call.id for call in message.calls]
        elif message.role == "tool":
            assert transcript[index - 1].calls
    assert len(ids) == len(set(ids))


# --- a crash anywhere changes nothing

SCRIPT: tuple[ModelResponse, ...] = (
    asks(("a", "look"), ("b", "save")),
    asks(("c", "look", "{")),
    asks(("d", "missing"), ("e", "save")),
    says("done"),
)


def straight() -> Play:
    play = Play(spec(), SCRIPT)
    play.run()
    return play


@pytest.mark.parametrize("length", range(2, len(straight().facts)))
def test_a_run_that_crashed_anywhere_ends_as_if_it_had_not(length: int):
    whole = straight()
    play = Play(spec(), ())
    play.facts = whole.facts[:length]
    play.crash()
    play.answers = iter(SCRIPT[play.state.spent.steps :])
    play.run()
    assert play.state.transcript == whole.state.transcript
    assert play.state.ended == whole.state.ended


def test_the_fold_of_a_prefix_and_of_the_rest_is_the_fold_of_all():
    facts = straight().facts
    for length in range(len(facts)):
        state = fold(spec(), "r1", facts[:length])
        for at, event in facts[length:]:
            apply(state, event, at)
        assert decide(state) == Stop(facts[-1][1])


def test_the_kernel_scales_with_the_length_of_a_run():
    """Three hundred steps: nothing is copied per fact, so this is quick, and the request only grows at its end."""
    play_spec = spec(limits=Limits(max_steps=None))
    state = fold(play_spec, "r1", [(1.0, e.RunCreated("clerk", "s")), (1.0, e.RunClaimed(1))])
    before: tuple[Message, ...] = ()
    for n in range(300):
        action = decide(state)
        assert isinstance(action, AskModel)
        assert action.request.messages[: len(before)] == before
        before = action.request.messages
        apply(state, action.events[0], 1.0)
        apply(state, e.ModelResponded(n + 1, asks((f"c{n}", "look"))), 1.0)
        calls = decide(state)
        assert isinstance(calls, CallTools)
        apply(state, calls.calls[0].started(), 1.0)
        apply(state, e.ToolFinished(result(calls.calls[0])), 1.0)
    assert not isinstance(decide(state), End)
    assert len(state.transcript) == 600

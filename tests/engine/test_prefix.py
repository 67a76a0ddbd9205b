"""What was read from a prompt cache, and what moved the prefix: told from the journal alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from foliot.cli.show.trace import tree_of
from foliot.engine.explain.prompt_cache import misses
from foliot.engine.explain.trace import Trace, trace_of
from foliot.engine.explain.why import cost_of
from foliot.kernel.messages import Message, ModelResponse, Text, ToolCall, ToolResult, Usage
from foliot.kernel.run import events as e


def answer(
    step: int, given: int, read: int = 0, wrote: int = 0, *, call: str = "look", **more: Any
) -> e.ModelResponded:
    usage = Usage(given, 50, read, wrote)
    message = Message("assistant", (ToolCall(f"c{step}", call),))
    return e.ModelResponded(step, ModelResponse(message, usage, "tool_calls", **{"model": "m", **more}), 1.0)


def called(step: int, name: str = "look") -> list[e.Event]:
    return [e.ToolStarted(f"c{step}", name, f"k{step}"), e.ToolFinished(ToolResult(f"c{step}", name, (Text("ok"),)))]


def traced(*facts: e.Event | float | Iterable[e.Event]) -> Trace:
    """The trace of these facts, a second apart; a number lets so many seconds pass."""
    at = 1000.0
    told: list[tuple[float, e.Event]] = []
    for fact in (e.RunCreated("clerk", "sha256:00"), *facts):
        if isinstance(fact, (int, float)):
            at += fact
            continue
        for each in fact if isinstance(fact, list) else [fact]:
            at += 1
            told.append((at, each))  # pyright: ignore[reportArgumentType]
    return trace_of("r1", told)


FIRST = [e.StepStarted(1), answer(1, 12_000, 0, 12_000), *called(1)]


def test_steps_that_read_what_they_can_are_no_misses() -> None:
    trace = traced(FIRST, e.StepStarted(2), answer(2, 12_500, 11_900, 600))
    assert misses(trace) == []
    assert "11,900 of the 24,500 sent (48 %) were read from the prompt cache" in cost_of(trace)


CAUSES = {
    "endpoint": ([e.StepStarted(2), answer(2, 12_500, 0, 12_500, endpoint="backup")], "answered by endpoint backup"),
    "model": ([e.StepStarted(2), answer(2, 12_500, 0, 12_500, model="m-2")], "answered by m-2, not m"),
    "compacted": (
        [e.SessionCompacted("short", 3), e.StepStarted(2), answer(2, 4_000, 0, 4_000)],
        "compacted before step 2",
    ),
    "pause": ([600.0, e.StepStarted(2), answer(2, 12_500, 0, 12_500)], "10m03s passed before step 2"),
    "last": (
        [
            e.BudgetExceeded("steps", 2, 2, "the next step is the last of 2", "finish"),
            e.StepStarted(2),
            answer(2, 12_500, 0, 12_500),
        ],
        "asked for without tools",
    ),
    "nothing": ([e.StepStarted(2), answer(2, 12_500, 0, 12_500)], "which the provider did not keep"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_moved_the_prefix_is_named(cause: str) -> None:
    facts, words = CAUSES[cause]
    (miss,) = misses(traced(FIRST, *facts))
    assert miss.step == 2
    assert words in miss.text
    assert miss.missed == (4_000 if cause == "compacted" else 12_000)


@pytest.mark.parametrize(("pause", "words"), [(600.0, "did not keep"), (3700.0, "caches are kept for an hour")])
def test_a_cache_for_an_hour_outlives_a_short_pause(pause: float, words: str) -> None:
    wrote = answer(1, 12_000, 0, 12_000)
    usage = replace(wrote.response.usage, cache_write_1h_tokens=12_000)
    first = [e.StepStarted(1), replace(wrote, response=replace(wrote.response, usage=usage)), *called(1)]
    (miss,) = misses(traced(first, pause, e.StepStarted(2), answer(2, 12_500, 0, 12_500)))
    assert words in miss.text


def test_a_search_for_tools_moves_the_prefix_and_trace_and_why_say_so() -> None:
    first = [e.StepStarted(1), answer(1, 12_000, 0, 12_000, call="tool_search"), *called(1, "tool_search")]
    trace = traced(first, e.StepStarted(2), answer(2, 12_500, 0, 12_500))
    said = "step 2 changed the tools list (tool_search found more), so 12,000 tokens were not read from the cache"
    assert said in cost_of(trace)
    shown = "\n".join(tree_of(trace, "succeeded", full=False, width=200).lines())
    assert said in shown
    assert "0 % cached" in shown


def test_nothing_is_said_of_providers_without_a_cache_and_of_short_prompts() -> None:
    assert misses(traced([e.StepStarted(1), answer(1, 12_000), *called(1)], e.StepStarted(2), answer(2, 12_500))) == []
    short = [e.StepStarted(1), answer(1, 500, 0, 500), *called(1)]
    assert misses(traced(short, e.StepStarted(2), answer(2, 900, 0, 900))) == []

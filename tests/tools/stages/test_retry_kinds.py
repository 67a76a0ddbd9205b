"""Which kinds of failure are worth another attempt, and which effects a tool may declare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foliot.errors import InvalidInput
from foliot.kernel.backoff import RetryPolicy
from foliot.tools.base import Invocation, OnOutput, ToolDefinition, ToolRateLimited, ToolTimeout
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.registry import ToolRegistry


class Failing:
    def __init__(self, definition: ToolDefinition, error: type[Exception]) -> None:
        self.definition = definition
        self._error = error
        self.calls = 0

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        self.calls += 1
        raise self._error("not now")


@pytest.mark.parametrize(
    ("kinds", "error", "calls"),
    [
        (None, ToolTimeout, 3),
        (frozenset[str](), ToolTimeout, 1),
        (frozenset({"rate_limited"}), ToolTimeout, 1),
        (frozenset({"rate_limited"}), ToolRateLimited, 3),
    ],
)
async def test_only_the_kinds_that_are_named_are_tried_again(kinds: Any, error: Any, calls: int) -> None:
    tool = Failing(ToolDefinition("f", effect="idempotent", retry=RetryPolicy(3, on_kinds=kinds)), error)
    await Pipeline([tool]).call(Invocation("r1", "c1", "f", {}, "r1/c1"))
    assert tool.calls == calls


@pytest.mark.parametrize(("field", "value"), [("effect", "twice"), ("on_unknown", "guess")])
def test_a_tool_with_an_effect_that_nobody_knows_is_refused_when_it_is_registered(field: str, value: str) -> None:
    tool = Failing(replace(ToolDefinition("f"), **{field: value}), ToolTimeout)
    for register in (ToolRegistry().register, Pipeline().add):
        with pytest.raises(InvalidInput, match=f'declares unknown {field} "{value}"'):
            register(tool)

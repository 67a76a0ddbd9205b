"""Limits, and what was spent of them. Asked before a model or a tool is used, never after.

A limit of None is no limit. Tokens and money can be passed by at most one answer, because its size is only known when
it is there; steps, calls and time are never passed. Children get `remaining(…)` of their parent, narrowed by their own.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from foliot.kernel.messages import Usage

LimitName: TypeAlias = Literal["steps", "tokens", "cost_usd", "seconds", "tool_calls"]


class Limits(Struct, frozen=True, omit_defaults=True):
    """What one run may use. `parallel_tools` is how many calls of one step may be under way at a time."""

    max_steps: int | None = 10
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_seconds: float | None = None
    max_tool_calls: int | None = None
    parallel_tools: int = 8


class Spent(Struct):
    """What a run has used. `unpriced` counts answers whose price nobody knows."""

    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    tool_calls: int = 0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def add(self, usage: Usage) -> None:
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cache_read_tokens += usage.cache_read_tokens
        self.cache_write_tokens += usage.cache_write_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        if usage.cost_usd is not None:
            self.cost_usd += usage.cost_usd
        elif usage.input_tokens or usage.output_tokens:
            self.unpriced += 1
        if usage.source == "estimated":
            self.estimated = True

    def usage(self) -> Usage:
        """The sum as a `Usage`. The cost is None when any part of it is not known."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_read_tokens=self.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens,
            cost_usd=None if self.unpriced else self.cost_usd,
            source="estimated" if self.estimated else "provider",
        )


class Breach(Struct, frozen=True):
    """The limit that the next act would pass: `used` so far, and `allowed`. `message` is for people."""

    limit: LimitName
    used: float
    allowed: float
    message: str

"""Limits, and what was spent of them. Asked before a model or a tool is used, never after.

A limit of None is no limit. An answer is asked for with no more than tokens and money leave (`loop.room_left`), so they
can be passed by what the size of a question was estimated wrongly; steps, calls and time are never passed. Children get
`remaining(…)` of their parent, narrowed by their own.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct

from foliot.kernel.messages import Number, Usage

N = TypeVar("N", int, float)
LimitName: TypeAlias = Literal["steps", "tokens", "cost_usd", "seconds", "tool_calls"]


class Limits(Struct, frozen=True, omit_defaults=True):
    """The limits of one run. `parallel_tools` is how many calls of one step may be in progress at a time."""

    max_steps: int | None = 10
    max_tokens: int | None = None
    max_cost_usd: Number | None = None
    max_seconds: Number | None = None
    max_tool_calls: int | None = None
    parallel_tools: int = 8


class Spent(Struct):
    """The usage of a run so far. `unpriced` counts answers whose price is not known."""

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
    cache_write_1h_tokens: int = 0
    web_searches: int = 0
    file_searches: int = 0

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
        if usage.cache_write_1h_tokens or usage.web_searches or usage.file_searches:
            self.cache_write_1h_tokens += usage.cache_write_1h_tokens
            self.web_searches += usage.web_searches
            self.file_searches += usage.file_searches

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
            cache_write_1h_tokens=self.cache_write_1h_tokens,
            web_searches=self.web_searches,
            file_searches=self.file_searches,
        )


class Breach(Struct, frozen=True):
    """The limit that the next act would pass: `used` so far, and `allowed`. `message` is for people."""

    limit: LimitName
    used: Number
    allowed: Number
    message: str


def check_step(
    limits: Limits, spent: Spent, *, now: float = 0.0, deadline: float | None = None, estimate: int = 0
) -> Breach | None:
    """Which limit the next question to a model would pass, if any. `estimate` is the size of that question in tokens.

    A limit on money cannot be kept when an answer had no known price, so that is a breach too.
    """
    if limits.max_steps is not None and spent.steps >= limits.max_steps:
        return Breach("steps", spent.steps, limits.max_steps, f"the limit of {limits.max_steps} steps is reached")
    if limits.max_tokens is not None and spent.tokens + estimate >= limits.max_tokens:
        about = f", and the next request takes about {estimate}" if estimate else ""
        message = f"{spent.tokens} of {limits.max_tokens} tokens are used{about}"
        return Breach("tokens", spent.tokens + estimate, limits.max_tokens, message)
    if limits.max_cost_usd is not None:
        if spent.unpriced:
            message = f"the limit of {limits.max_cost_usd} USD cannot be kept: the price of an answer is not known"
            return Breach("cost_usd", spent.cost_usd, limits.max_cost_usd, message)
        if spent.cost_usd >= limits.max_cost_usd:
            message = f"{spent.cost_usd:.6f} of {limits.max_cost_usd} USD are spent"
            return Breach("cost_usd", spent.cost_usd, limits.max_cost_usd, message)
    return check_time(limits, now=now, deadline=deadline)


def check_time(limits: Limits, *, now: float, deadline: float | None) -> Breach | None:
    if deadline is None or limits.max_seconds is None or now < deadline:
        return None
    used = limits.max_seconds + now - deadline
    return Breach("seconds", used, limits.max_seconds, f"the time limit of {limits.max_seconds:g} seconds is over")


def check_calls(limits: Limits, spent: Spent, starting: int) -> Breach | None:
    """Whether `starting` more tool calls would pass the limit."""
    if limits.max_tool_calls is None or spent.tool_calls + starting <= limits.max_tool_calls:
        return None
    message = f"{spent.tool_calls} of {limits.max_tool_calls} tool calls are used, and {starting} more were asked for"
    return Breach("tool_calls", spent.tool_calls + starting, limits.max_tool_calls, message)


def remaining(limits: Limits, spent: Spent, *, now: float = 0.0, deadline: float | None = None) -> Limits:
    """Returns the rest of the limits, for a child run. Never below zero, and zero allows nothing."""

    def left(limit: int | None, used: int) -> int | None:
        return None if limit is None else max(0, limit - used)

    cost = limits.max_cost_usd
    return Limits(
        max_steps=left(limits.max_steps, spent.steps),
        max_tokens=left(limits.max_tokens, spent.tokens),
        max_cost_usd=None if cost is None else max(0.0, cost - spent.cost_usd) if not spent.unpriced else 0.0,
        max_seconds=limits.max_seconds if deadline is None else max(0.0, deadline - now),
        max_tool_calls=left(limits.max_tool_calls, spent.tool_calls),
        parallel_tools=limits.parallel_tools,
    )


def narrow(outer: Limits, inner: Limits) -> Limits:
    """The tighter of both, limit by limit: nobody widens what was given from outside."""

    def tighter(a: N | None, b: N | None) -> N | None:
        return b if a is None else a if b is None else min(a, b)

    return Limits(
        max_steps=tighter(outer.max_steps, inner.max_steps),
        max_tokens=tighter(outer.max_tokens, inner.max_tokens),
        max_cost_usd=tighter(outer.max_cost_usd, inner.max_cost_usd),
        max_seconds=tighter(outer.max_seconds, inner.max_seconds),
        max_tool_calls=tighter(outer.max_tool_calls, inner.max_tool_calls),
        parallel_tools=min(outer.parallel_tools, inner.parallel_tools),
    )

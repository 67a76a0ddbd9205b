"""Usage of attempts that give no answer: tokens and money of retries and fallbacks, of cut and of cancelled streams.

A provider bills what it has read and written, whatever becomes of the answer. Whoever asks for one answer opens an
account around it (`count`); the router books each failed attempt to it, with its price, and asks before the next one
whether there is room. So nothing that was used is lost, whether the answer comes late, never, or to nobody.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from math import inf
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from foliot.kernel.messages import ModelRequest, ModelResponse, Usage
from foliot.kernel.run.budget import Spent
from foliot.models.base import ModelCostExceeded, ModelError, ModelTokensExceeded

# Providers refuse to be asked for less.
LEAST_OUTPUT: Final = 16
# So long an answer may be asked for of a model that nobody knows.
ANY_MODEL_TAKES: Final = 16_384


class BoundedRequest(NamedTuple):
    """A request, and the bound that a limit put on its answer; 0: none but its own."""

    request: ModelRequest
    most: int = 0
    whose: str = ""
    kind: type[ModelError] = ModelTokensExceeded

    def whole(self, response: ModelResponse) -> ModelResponse:
        """The answer, if it was not cut by the bound; otherwise raises what says so, with what it took."""
        if not self.most or response.stop != "length":
            return response
        error = self.kind(
            f"the answer was cut at {self.most:,} tokens: no more is left of {self.whose}",
            provider=response.provider,
            hint="raise it, or set max_output_tokens to what answers need",
        )
        error.usage, error.spent_out = response.usage, True
        raise error


class UsageQuote(Usage, frozen=True):
    """The expected usage of a question; `unpriced` names an endpoint that may answer it at an unknown price."""

    unpriced: str = ""


HasRoom: TypeAlias = Callable[[Usage], Awaitable[bool]]
"""Given what one attempt has used for nothing: is there room for another one?"""


class AnswerUsage:
    """The usage for one answer besides the answer itself. `checks` are all asked before another attempt.

    What an answer may come to is known before it is asked for (`bound`): a gateway is asked for no more.
    """

    __slots__ = ("_bounds", "_lowered", "_sum", "checks", "lost", "max_cost")

    def __init__(self) -> None:
        self._sum: Spent | None = None
        self.checks: tuple[HasRoom, ...] = ()
        self._bounds: dict[str, int] | None = None
        self._lowered = False
        self.max_cost: float | None = None
        self.lost: tuple[Usage, ...] = ()

    def lose(self, attempts: int, each: Usage) -> None:
        """Count attempts of processes that ended before anybody knew what they took: `each`, about."""
        self.lost = (each,) * attempts
        for usage in self.lost:
            self.add(usage)

    @property
    def is_bound(self) -> bool:
        return bool(self._bounds) or self.max_cost is not None

    def bound(self, whose: str, output: int, *, lowered: bool = False) -> None:
        """Let an answer have so many tokens at most; `whose` limit it is, for people. The last word of each counts.

        `lowered`: the request bounds it so already, where it would have asked for more.
        """
        self._bounds = {**(self._bounds or {}), whose: output}
        self._lowered = self._lowered or lowered

    def within(self, request: ModelRequest, own: int | None, most: int | None, cost: int | None) -> BoundedRequest:
        """The request, bounded. `own` is what it asks for, `most` what its model can, `cost` what money leaves.

        Where nobody knows what a model can, only a bound is sent that any model takes.
        """
        bounds = dict(self._bounds or {})
        if cost is not None:
            bounds["the money that is left"] = cost
        if not bounds:
            return BoundedRequest(request)
        whose, bound = min(bounds.items(), key=lambda each: each[1])
        if own is not None and (own < bound or (own == bound and not self._lowered)):
            return BoundedRequest(request)
        if own is None and (bound > ANY_MODEL_TAKES if most is None else bound >= most):
            return BoundedRequest(request)
        bound = max(LEAST_OUTPUT, bound)
        settings = replace(request.settings, max_output_tokens=bound)
        kind = ModelCostExceeded if whose == "the money that is left" else ModelTokensExceeded
        return BoundedRequest(replace(request, settings=settings), bound, whose, kind)

    @property
    def usage(self) -> Usage:
        return _NOTHING if self._sum is None else self._sum.usage()

    def add(self, usage: Usage) -> None:
        if usage.total_tokens or usage.cost_usd:
            self._sum = self._sum or Spent()
            self._sum.add(usage)

    async def book(self, error: ModelError) -> None:
        """Count what the failed attempt used, once; `spent_out` says afterwards whether it was the last."""
        usage = error.usage
        if not usage.total_tokens and not usage.cost_usd:
            return
        self.add(usage)
        for check in self.checks:
            if not await check(usage):
                error.spent_out = True


def possible(usage: Usage) -> Usage:
    """The usage without what cannot be: less than nothing, or more from a cache than was sent. The same if all can."""
    kept = {name: max(0, getattr(usage, name)) for name in _COUNTS}
    given = kept["input_tokens"]
    kept["cache_read_tokens"] = min(kept["cache_read_tokens"], given)
    kept["cache_write_tokens"] = min(kept["cache_write_tokens"], given - kept["cache_read_tokens"])
    kept["cache_write_1h_tokens"] = min(kept["cache_write_1h_tokens"], kept["cache_write_tokens"])
    kept["reasoning_tokens"] = min(kept["reasoning_tokens"], kept["output_tokens"])
    cost = usage.cost_usd
    found = replace(usage, **kept, cost_usd=None if cost is not None and not 0 <= cost < inf else cost)
    return usage if found == usage else found


_COUNTS: Final = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens"),
    *("cache_write_1h_tokens", "web_searches", "file_searches"),
)
_NOTHING = Usage()
_current: ContextVar[AnswerUsage | None] = ContextVar("foliot_model_account", default=None)


def count() -> AnswerUsage:
    """Open the account of the answer that this task asks for, and those that it starts."""
    account = AnswerUsage()
    _current.set(account)
    return account


def account() -> AnswerUsage | None:
    return _current.get()


def mark_cut(cut: CancelledError, usage: Usage) -> None:
    """Have a cancellation carry what was used up to it, for whoever passes it on."""
    cut.usage = usage  # pyright: ignore[reportAttributeAccessIssue]  # an exception takes what it is given


def cut_usage(cut: CancelledError) -> Usage:
    return getattr(cut, "usage", _NOTHING)

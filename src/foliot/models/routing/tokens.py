"""The token estimate of a request, corrected by what providers really count.

The estimate itself is pure and stands in `kernel/tokens.py`. Every answer brings the provider's own count, and
`TokenCounter` keeps the ratio between the two for each model, newer answers weighing more. After a few answers the
estimate follows the model at hand, its language mix and its hidden overhead for tools.

Read by:  the budget check before a call, the rate limiter (tokens per minute).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from foliot.kernel.messages import ModelRequest
from foliot.kernel.tokens import estimate_request


@dataclass(slots=True)
class _Ratio:
    value: float = 1.0
    seen: int = 0


class TokenCounter:
    """Estimates corrected by what providers really counted, one ratio per model, kept in memory only.

    A new process starts at 1.0 and is close after a handful of answers. Ratios are kept within `_BOUNDS`, so that one
    absurd count (a proxy that reports zero, a cached prompt left out) cannot switch a budget off.
    """

    _BOUNDS: Final = (0.25, 4.0)
    _WEIGHT: Final = 0.2
    _MODELS: Final = 1024

    def __init__(self) -> None:
        self._ratios: OrderedDict[str, _Ratio] = OrderedDict()

    def ratio(self, model: str) -> float:
        """Real tokens per estimated token of `model`; 1.0 while nothing was counted."""
        known = self._ratios.get(model)
        return known.value if known else 1.0

    def estimate(self, request: ModelRequest, *, model: str | None = None) -> int:
        """Input tokens that the provider will count for `request`, as well as is known now."""
        return self.correct(estimate_request(request), model=model or request.model)

    def correct(self, estimated: int, *, model: str) -> int:
        return round(estimated * self.ratio(model))

    def observe(self, model: str, *, estimated: int, counted: int) -> None:
        """Learn from one answer: `estimated` was the uncorrected guess, `counted` the provider's number."""
        if estimated <= 0 or counted <= 0:
            return
        low, high = self._BOUNDS
        ratio = min(high, max(low, counted / estimated))
        known = self._ratios.setdefault(model, _Ratio())
        self._ratios.move_to_end(model)
        known.seen += 1
        weight = max(self._WEIGHT, 1 / known.seen)  # the first answers count fully, or learning would take dozens
        known.value += (ratio - known.value) * weight
        if len(self._ratios) > self._MODELS:
            self._ratios.popitem(last=False)

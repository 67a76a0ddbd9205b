"""What an answer cost, in US dollars.

Prices come from the tables that ship with `genai-prices`, or from the endpoint's own `pricing`. Nothing is fetched: a
price is a fact of the installed version. When no price is known the cost is None, never zero, because a budget in
money must not mistake "unknown" for "free".

The library takes a quarter of a second to import and 0.1 ms to compute, so it is loaded off the event loop when the
first answer has to be priced, and a model with plain prices is then priced by multiplication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

from foliot.errors import InvalidInput
from foliot.kernel.messages import Usage
from foliot.threads import on_thread

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_MILLION: Final = 1_000_000
_PRICED_BY_TOKENS: Final = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")

# Names that differ in the price tables. None: nobody sells it, so it has no price of its own.
_SELLERS: Final[Mapping[str, str | None]] = {
    "openai-responses": "openai",
    "azure-openai": "azure",
    "gemini": "google",
    "openai-compatible": None,
    "vllm": None,
    "ollama": None,
    "scripted": None,
}
# These speak a protocol that many servers speak, so at another address the name says nothing about the price.
_SPOKEN_BY_MANY: Final = frozenset({"openai", "openai-responses", "openai-compatible", "vllm", "ollama"})


@dataclass(frozen=True, slots=True)
class Pricing:
    """Dollars per million tokens. Cached tokens cost as much as other input unless they have a price of their own."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    request: float = 0.0

    def cost(self, usage: Usage) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
        tokens = (
            fresh * self.input
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
            + usage.output_tokens * self.output
        )
        return tokens / _MILLION + self.request

    @classmethod
    def read(cls, value: Mapping[str, Any], place: str = "pricing") -> Pricing:
        """The `pricing` of an endpoint. Raises `InvalidInput` for an unknown key or a price that is not a number."""
        known = ("input", "output", "cache_read", "cache_write", "request")
        prices: dict[str, float] = {}
        for key, price in value.items():
            if key not in known:
                raise InvalidInput(f"{place}.{key} is not known", hint=f"known: {', '.join(known)}")
            if price is None:
                continue
            try:
                prices[key] = float(price)
            except (TypeError, ValueError):
                prices[key] = -1.0
            if not 0 <= prices[key] < float("inf"):
                raise InvalidInput(f"{place}.{key} must be dollars per million tokens, 0 or more, not {price!r}")
        for key in ("input", "output"):
            if key not in prices:
                raise InvalidInput(f"{place}.{key} is missing", hint="give both input and output; 0 means free")
        return cls(**prices)


def _now() -> datetime:
    return datetime.now(UTC)


class PriceBook:
    """The price tables, looked up once per model. `now` decides which of several dated prices holds."""

    def __init__(self, *, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._known: dict[tuple[str, str, str], Pricing | tuple[Provider, ModelInfo] | None] = {}
        self._loaded = False

    async def load(self) -> None:
        """Import the tables without holding up the event loop. Cheap when done before."""
        if not self._loaded:
            await on_thread(_import_tables)
            self._loaded = True

    def cost(self, provider: str, model: str, usage: Usage, *, base_url: str = "") -> float | None:
        """What `usage` cost at `provider`, or None when no price is known. Loads the tables when need be."""
        if _SELLERS.get(provider, "") is None and not base_url:
            return None
        key = (provider, model, base_url)
        if key not in self._known:
            if len(self._known) > 4096:
                self._known.clear()
            self._known[key] = _look_up(provider, model, base_url)
        known = self._known[key]
        if known is None:
            return None
        if isinstance(known, Pricing):
            return known.cost(usage)
        return self._compute(known[0], known[1], usage)

    def _compute(self, seller: Provider, info: ModelInfo, usage: Usage) -> float | None:
        """Prices with tiers or dates: the library does the sum."""
        from genai_prices import Usage as PricedUsage

        counts = PricedUsage(
            input_tokens=max(usage.input_tokens, usage.cache_read_tokens + usage.cache_write_tokens),
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
        )
        try:
            return float(info.calc_price(counts, seller, genai_request_timestamp=self._now()).total_price)
        except (LookupError, ValueError):  # priced by something else than tokens
            return None


def _import_tables() -> None:
    import genai_prices.data as tables

    assert tables.providers


def _look_up(provider: str, model: str, base_url: str) -> Pricing | tuple[Provider, ModelInfo] | None:
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    seller: Provider | None = None
    if base_url:
        try:
            seller = snapshot.find_provider(None, None, base_url)
        except LookupError:
            if provider in _SPOKEN_BY_MANY:
                return None
    try:
        name = _SELLERS.get(provider, provider)
        seller = seller or snapshot.find_provider(None, name, None)
        _, info = snapshot.find_provider_model(model, seller, None, None)
    except LookupError:
        return None
    return _plain(info) or (seller, info)


def _plain(info: ModelInfo) -> Pricing | None:
    """The prices as four plain numbers, or None when they depend on the date, on the size or on other things."""
    from genai_prices.types import ModelPrice

    if not isinstance(info.prices, ModelPrice):
        return None
    prices = {key: cast("object", getattr(info.prices, key)) for key in _PRICED_BY_TOKENS}
    if not all(price is None or isinstance(price, Decimal) for price in prices.values()):
        return None
    numbers = {key: None if price is None else float(cast("Decimal", price)) for key, price in prices.items()}
    if numbers["input_mtok"] is None or numbers["output_mtok"] is None:
        return None
    thousand_requests = cast("object", info.prices.requests_kcount)
    return Pricing(
        input=numbers["input_mtok"],
        output=numbers["output_mtok"],
        cache_read=numbers["cache_read_mtok"],
        cache_write=numbers["cache_write_mtok"],
        request=float(thousand_requests) / 1000 if isinstance(thousand_requests, Decimal) else 0.0,
    )

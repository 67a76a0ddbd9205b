"""Prices: the cost of an answer in US dollars.

Prices come from the endpoint's own `pricing`, from the tables that ship with `genai-prices`, or from the provider's own
file beside `profiles`, in this order. Nothing is fetched: a price is a fact of the installed version. When no price is
known the cost is None, never zero, because a budget in money must not mistake "unknown" for "free".

The library takes a quarter of a second to import and 0.1 ms to compute, so it is loaded off the event loop when the
first answer has to be priced, and a model with plain prices is then priced by multiplication.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

from foliot.common.threads import on_thread
from foliot.errors import InvalidInput
from foliot.kernel.messages import Usage
from foliot.models.profiles import provider_facts, sections_for

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_MILLION: Final = 1_000_000
# Google names a model also by the place where it stands.
_RESOURCE: Final = re.compile(r"^(publishers/[^/]+/)?models/")
_PRICED_BY_TOKENS: Final = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")

# What a tier costs where the tables do not say so of the model: batch and flex are sold at half the price by all who
# have them. Gemini asks 75 to 100 % more for priority; Anthropic's priority is paid for in advance, not by the answer.
_FACTORS: Final[Mapping[tuple[str, str], float]] = {
    ("anthropic", "batch"): 0.5,
    ("google", "batch"): 0.5,
    ("google", "flex"): 0.5,
    ("google", "priority"): 2.0,
    ("openai", "batch"): 0.5,
    ("openai", "flex"): 0.5,
    ("openai", "priority"): 2.0,
    ("azure", "batch"): 0.5,
}


class Sold(NamedTuple):
    """The part of an answer that is not sold by tokens, or not at the price of others."""

    audio_seconds: float = 0.0
    audio_tokens: int = 0
    searches: int = 0


TOKENS_ALONE: Final = Sold()


@dataclass(frozen=True, slots=True)
class Pricing:
    """Dollars per million tokens. Cached tokens cost as much as other input unless they have a price of their own.

    `request`, `web_search`, `file_search` and `search` (Cohere's unit of ranking) are dollars for each, `audio_hour`
    for an hour of a recording. `tiers` are factors on the price of tokens, by the name of the tier ("flex": 0.5).
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    request: float = 0.0
    cache_write_1h: float | None = None
    web_search: float = 0.0
    file_search: float = 0.0
    search: float = 0.0
    audio_hour: float = 0.0
    tiers: Mapping[str, float] = field(default_factory=dict[str, float])

    def cost(self, usage: Usage, sold: Sold = TOKENS_ALONE) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        hour = write if self.cache_write_1h is None else self.cache_write_1h
        kept = min(usage.cache_write_tokens, usage.cache_write_1h_tokens)
        fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
        tokens = (
            fresh * self.input
            + usage.cache_read_tokens * read
            + (usage.cache_write_tokens - kept) * write
            + kept * hour
            + usage.output_tokens * self.output
        )
        calls = usage.web_searches * self.web_search + usage.file_searches * self.file_search
        calls += sold.searches * self.search + sold.audio_seconds / 3600 * self.audio_hour
        return tokens * self.tiers.get(usage.tier, 1.0) / _MILLION + self.request + calls

    @classmethod
    def read(cls, value: Mapping[str, Any], place: str = "pricing") -> Pricing:
        """The `pricing` of an endpoint. Raises `InvalidInput` for an unknown key or a price that is not a number."""
        known = [each.name for each in fields(cls)]
        prices: dict[str, Any] = {}
        for key, price in value.items():
            if key not in known:
                raise InvalidInput(f"{place}.{key} is not known", hint=f"known: {', '.join(known)}")
            if price is None:
                continue
            if key == "tiers":
                factors = cast("Mapping[str, Any]", price) if isinstance(price, Mapping) else {"": price}
                prices[key] = {name: _number(given, f"{place}.tiers") for name, given in factors.items()}
            else:
                prices[key] = _number(price, f"{place}.{key}")
        for key in ("input", "output"):
            if key not in prices:
                raise InvalidInput(f"{place}.{key} is missing", hint="give both input and output; 0 means free")
        return cls(**prices)


def _number(value: Any, place: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf"):
        what = "a factor on the usual price" if place.endswith("tiers") else "dollars per million tokens"
        raise InvalidInput(f"{place} must be {what}, 0 or more, not {value!r}")
    return number


def _now() -> datetime:
    return datetime.now(UTC)


class PriceBook:
    """The price tables, looked up once per model. `now` decides which of several dated prices holds."""

    def __init__(self, *, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._known: dict[tuple[str, str, str], _Entry | Pricing | None] = {}
        self._loaded = False

    @property
    def loaded(self) -> bool:
        return self._loaded

    async def load(self) -> None:
        """Import the tables without holding up the event loop. Cheap when done before."""
        if not self._loaded:
            await on_thread(_import_tables)
            self._loaded = True

    def cost(
        self, provider: str, model: str, usage: Usage, *, base_url: str = "", sold: Sold = TOKENS_ALONE
    ) -> float | None:
        """Returns the cost of `usage` at `provider`, or None when no price is known.

        Loads the price tables on first need.
        """
        if not _seller(provider) and not base_url:
            return None
        model = _RESOURCE.sub("", model)
        key = (provider, model, base_url)
        if key not in self._known:
            if len(self._known) > 4096:
                self._known.clear()
            self._known[key] = _look_up(provider, model, base_url) or _in_file(provider, model, base_url)
        known = self._known[key]
        if known is None:
            return None
        if isinstance(known, Pricing):
            return known.cost(usage, sold)
        special = usage.tier or usage.cache_write_1h_tokens or usage.web_searches or usage.file_searches
        if known.plain is not None and not special and sold == TOKENS_ALONE:
            return known.plain.cost(usage)
        cost = self._compute(known.seller, known.info, usage, sold)
        if cost is None and (filed := _in_file(provider, model, base_url)) is not None:
            return filed.cost(usage, sold)  # the tables have the model, but no price that fits
        return cost

    def _compute(self, seller: Provider, info: ModelInfo, usage: Usage, sold: Sold) -> float | None:
        """Prices with tiers or dates, and what is sold beside tokens: the library does the sum."""
        from genai_prices import Usage as PricedUsage

        context = {"processing": "batch"} if usage.tier == "batch" else {"service_tier": usage.tier}
        variants: Sequence[Any] = getattr(info, "price_variants", None) or ()
        listed = any(variant.when == context for variant in variants)
        factor = 1.0 if listed else _FACTORS.get((seller.id, usage.tier), 1.0)

        counts = PricedUsage(
            input_tokens=max(usage.input_tokens, usage.cache_read_tokens + usage.cache_write_tokens),
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
            cache_write_1h_tokens=usage.cache_write_1h_tokens or None,
            web_searches=usage.web_searches or None,
            storage_searches=usage.file_searches or None,
            input_audio_tokens=min(sold.audio_tokens, usage.input_tokens) or None,
            audio_seconds=sold.audio_seconds or None,
            input_audio_seconds=sold.audio_seconds or None,
        )
        try:
            price = info.calc_price(
                counts, seller, genai_request_timestamp=self._now(), price_context=context if listed else {}
            )
            return float(price.total_price) * factor
        except (LookupError, ValueError):  # priced by something else than tokens
            return None


def _import_tables() -> None:
    import genai_prices.data as tables

    assert tables.providers


class _Entry(NamedTuple):
    """One model in the tables; `plain` where a question for text alone is priced by multiplication."""

    seller: Provider
    info: ModelInfo
    plain: Pricing | None


def _look_up(provider: str, model: str, base_url: str) -> _Entry | None:
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    seller: Provider | None = None
    if base_url:
        with contextlib.suppress(LookupError):
            seller = snapshot.find_provider(None, None, base_url)
        if seller is not None and not _is_host_of(seller, base_url):
            seller = None
        if seller is None and not _is_own(provider, base_url):
            return None  # a proxy, or a server that speaks the same protocol: what it asks, nobody has said
    try:
        seller = seller or snapshot.find_provider(None, _seller(provider), None)
        _, info = snapshot.find_provider_model(model, seller, None, None)
    except LookupError:
        return None
    return _Entry(seller, info, _plain(info))


def _in_file(provider: str, model: str, base_url: str) -> Pricing | None:
    """The price in the provider's own file; none at an address of somebody else."""
    if base_url and not _is_own(provider, base_url):
        return None
    given = sections_for(provider, "prices", model)
    return Pricing.read(given, f"prices in {provider}.toml") if given else None


def _is_host_of(seller: Provider, base_url: str) -> bool:
    """Whether the pattern of a seller matches a whole host: many patterns say only how an address begins."""
    found = re.match(seller.api_pattern, base_url)
    if found is None:
        return False
    parts = urlsplit(base_url)
    rest = f"{parts.scheme}://{parts.netloc}"[found.end() :]
    return not rest or rest.startswith(":") or (found[0].endswith(".") and "." not in rest)


def _is_own(provider: str, base_url: str) -> bool:
    """Whether an address is of the domain at which the provider itself is asked."""
    facts = provider_facts(provider)
    own, asked = (
        (urlsplit(str(address)).hostname or "").split(".")[-2:]
        for address in (facts.get("address") or facts.get("address_template", ""), base_url)
    )
    return len(own) == 2 and own == asked


def _seller(provider: str) -> str:
    """The name of a provider in the price tables; "" when nobody sells it, so it has no price of its own."""
    return "" if provider in ("scripted", "mock") else provider_facts(provider).get("seller", provider)


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

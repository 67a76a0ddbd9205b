"""From the name of a model endpoint to an answer, by way of all that makes it dependable.

    fallback chain ( retry ( rate limit of the key ( gateway ) ) )   then: cost, and what can be learned from the count

Each layer is its own module; this one puts them in order. The router knows no store: `resolve` turns a reference into
an `EndpointConfig` and is asked at every call, so a changed endpoint or a rotated key is used from the next call on.

About streams: pieces are for show, the finished message is what counts. When an answer breaks off after pieces were
shown and is asked for again, at the same or at another endpoint, a `RestartDelta` is sent first, and whoever shows the
pieces starts with an empty screen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from random import Random
from typing import Final, TypeAlias

from msgspec.structs import replace

from foliot.errors import FoliotError
from foliot.kernel.messages import ModelRequest, ModelResponse, Usage
from foliot.models.base import Gateway, ModelError, ModelGarbage, ModelOverloaded, ModelRequestError, OnDelta
from foliot.models.endpoints import EndpointConfig, GatewayCache, OpenGateway
from foliot.models.limits import LimiterPool
from foliot.models.pieces import Pieces
from foliot.models.pricing import PriceBook
from foliot.models.registry import Registry, default_registry
from foliot.models.retry import Attempt, Clock, Sleep, with_retry
from foliot.models.spending import account, cut_usage
from foliot.models.tokens import TokenCounter, estimate_request
from foliot.models.wire.counts import tier_of

Resolve: TypeAlias = Callable[[str], EndpointConfig | Awaitable[EndpointConfig]]
MayFallBack: TypeAlias = Callable[[str, str], Awaitable[None]]
"""From one endpoint to another, by their names; raises a `FoliotError` when the first may not name the second."""
_LONGEST_PAUSE: Final = 3600.0  # a header that says more is more likely wrong than meant
# What an answer without a limit of its own is expected to take at most; few are longer.
UNBOUNDED_OUTPUT: Final = 4096
# And what thinking adds to it where nothing bounds that either, by effort.
_THOUGHT: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 49152}
_REFUSED: Final = frozenset(
    {"rate_limit", "quota", "auth", "request", "context_overflow", "request_too_large", "content_filter"}
)
_UNPRICED: Final = frozenset({"scripted"})
_GO_BETWEENS: Final = frozenset({"pydantic-ai"})  # their answers name the provider that was asked in the end


@dataclass(frozen=True, slots=True)
class RoutedAttempt:
    """One try at one endpoint, for the journal. `next_endpoint` is set when the chain goes on there."""

    endpoint: str
    provider: str
    attempt: Attempt
    next_endpoint: str | None = None


OnRoutedAttempt: TypeAlias = Callable[[RoutedAttempt], None]


class Router:
    """Answers through whatever endpoint a reference names. Safe for any number of concurrent runs of one event loop."""

    def __init__(
        self,
        resolve: Resolve,
        *,
        may_fall_back: MayFallBack | None = None,
        registry: Registry | None = None,
        limiters: LimiterPool | None = None,
        prices: PriceBook | None = None,
        tokens: TokenCounter | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        random: Random | None = None,
    ) -> None:
        self._resolve = resolve
        self._may_fall_back = may_fall_back
        self._registry = registry or default_registry()
        self._limiters = limiters or LimiterPool(clock=clock, sleep=sleep)
        self._prices = prices or PriceBook()
        self.tokens = tokens or TokenCounter()
        self._clock = clock
        self._sleep = sleep
        self._random = random or Random()
        self._gateways = GatewayCache(self._open, on_unused=self._forget)

    def gateway(self, ref: str, *, on_attempt: OnRoutedAttempt | None = None) -> Gateway:
        """The endpoint `ref` as a plain `Gateway`. Closing it does nothing: the router keeps the connections."""
        return _Bound(self, ref, on_attempt)

    async def respond(
        self,
        ref: str,
        request: ModelRequest,
        *,
        on_delta: OnDelta | None = None,
        on_attempt: OnRoutedAttempt | None = None,
    ) -> ModelResponse:
        """Ask the endpoint `ref`, then its fallbacks. The answer carries its cost and the endpoint that gave it.

        A fallback is asked for its own default model. When nobody answered, the last `ModelError` is raised, or the
        first that may pass when the last one may not: a broken fallback must not end a run that only has to wait. Its
        `details["tried"]` lists them all. An endpoint that cannot be found or built counts as a request error.
        """
        first = await self._find(ref)
        chain = list(dict.fromkeys((first.name, *first.fallbacks)))
        pieces = None if on_delta is None else Pieces(on_delta)
        failures: list[tuple[str, ModelError]] = []
        for position, name in enumerate(chain):
            after = chain[position + 1] if position + 1 < len(chain) else None
            try:
                endpoint = first if position == 0 else await self._find(name, first.name)
                asked = _named(request, endpoint) if position == 0 else _for_fallback(request, endpoint)
                return await self._ask(endpoint, asked, pieces, on_attempt, first.fall_back_on, after)
            except ModelError as error:
                failures.append((name, error))
                # A broken fallback must not hide that the next one may work; a broken first one follows its own rule.
                over = after is None or error.spent_out
                if over or (position == 0 and error.kind not in first.fall_back_on):
                    raise most_hopeful(failures)  # noqa: B904  # one of the failures, each with a cause of its own
                if pieces is not None:
                    pieces.restart(f"{name} failed ({error.kind}); asking {after}")
        raise AssertionError("a chain is never empty")

    async def quote(self, ref: str, request: ModelRequest) -> list[Usage]:
        """What the request is expected to take at most, at the endpoint and at each of its fallbacks.

        An endpoint that cannot be found, or whose provider is unknown, is left out: it will not answer either. The
        cost is None where no price is known. Raises `ModelError` when the first one cannot be found.
        """
        first = await self._find(ref)
        quotes = [await self._quote(first, request)]
        for name in dict.fromkeys(first.fallbacks):
            try:
                endpoint = await self._find(name, first.name)
                quotes.append(await self._quote(endpoint, _for_fallback(request, endpoint)))
            except ModelError:
                continue
        return quotes

    async def _quote(self, endpoint: EndpointConfig, request: ModelRequest) -> Usage:
        try:
            provider = self._registry.find(endpoint.gateway.provider).name
        except FoliotError as error:
            raise _as_model_error(error) from error
        model = request.model or endpoint.gateway.model
        tokens = self.tokens.estimate(request, model=f"{provider}:{model}")
        usage = _tiered(Usage(tokens, self._most_output(endpoint, request), source="estimated"), request)
        return replace(usage, cost_usd=await self._cost(endpoint, provider, provider, model, usage))

    def _most_output(self, endpoint: EndpointConfig, request: ModelRequest) -> int:
        """The most that an answer may have: as the request bounds it when it is sent, or what is expected without."""
        bounded = request.settings.max_output_tokens
        if bounded is not None and not request.settings.extra:
            return bounded  # every format counts thoughts within it
        try:
            entry = self._gateways.enter(endpoint)
        except FoliotError:
            return bounded or UNBOUNDED_OUTPUT  # it cannot be opened now; by the time it is asked it may be repaired
        try:
            told = getattr(entry.gateway, "most_output", None)
            found = bounded if told is None else told(request)
            if found is not None:
                return found
            profile = getattr(entry.gateway, "profile", None)
            known = None if profile is None else profile(request.model or endpoint.gateway.model)
            effort = request.settings.reasoning_effort
            if known is None or not known.is_reasoning(effort):
                return UNBOUNDED_OUTPUT
            expected = UNBOUNDED_OUTPUT + _THOUGHT.get(effort or "medium", 0)
            return min(expected, known.max_output or expected)
        finally:
            self._gateways.leave(entry)

    async def close(self) -> None:
        """Close every gateway. Calls still in progress fail."""
        await self._gateways.close()

    async def _find(self, ref: str, origin: str = "") -> EndpointConfig:
        """The endpoint; `origin` is the one that names it as its fallback."""
        try:
            if origin and self._may_fall_back is not None:
                await self._may_fall_back(origin, ref)
            found = self._resolve(ref)
            return await found if isawaitable(found) else found
        except ModelError:
            raise
        except FoliotError as error:
            raise _as_model_error(error) from error

    def _open(self, endpoint: EndpointConfig) -> OpenGateway:
        provider = self._registry.find(endpoint.gateway.provider)
        address = endpoint.gateway.base_url or provider.base_url
        return OpenGateway(endpoint, self._registry.build(endpoint.gateway), provider.name, address)

    def _forget(self, entry: OpenGateway) -> None:
        self._limiters.forget(entry.limiter_key, entry.endpoint.name)

    async def _ask(
        self,
        endpoint: EndpointConfig,
        request: ModelRequest,
        pieces: Pieces | None,
        on_attempt: OnRoutedAttempt | None,
        fall_back_on: frozenset[str],
        after: str | None,
    ) -> ModelResponse:
        """One endpoint, with retries."""
        try:
            entry = self._gateways.enter(endpoint)
        except FoliotError as error:
            raise _as_model_error(error) from error

        def report(attempt: Attempt) -> None:
            if pieces is not None and attempt.wait is not None and attempt.error is not None:
                pieces.restart(f"{endpoint.name} failed ({attempt.error.kind}); asking again")
            if on_attempt is not None:
                goes_on = attempt.error is not None and attempt.wait is None and attempt.error.kind in fall_back_on
                on_attempt(RoutedAttempt(endpoint.name, entry.provider, attempt, after if goes_on else None))

        try:
            response = await with_retry(
                lambda: self._call(entry, endpoint, request, pieces),
                endpoint.retry,
                on_attempt=report,
                clock=self._clock,
                sleep=self._sleep,
                random=self._random,
            )
            return await self._finish(entry, endpoint, request, response)
        finally:
            self._gateways.leave(entry)

    async def _call(
        self, entry: OpenGateway, endpoint: EndpointConfig, request: ModelRequest, pieces: Pieces | None
    ) -> ModelResponse:
        """One call, in its turn."""
        limiter = self._limiters.limiter(entry.limiter_key, endpoint.name, endpoint.limits)
        expected = 0
        if endpoint.limits.tokens_per_minute is not None:
            expected = self.tokens.estimate(request, model=_counted_as(entry, request.model or endpoint.gateway.model))
            expected += request.settings.max_output_tokens or 0
        permit = await limiter.acquire(expected, max_wait=endpoint.retry.patience)
        used: int | None = None
        try:
            response = await entry.gateway.respond(request, on_delta=pieces)
            used = response.usage.total_tokens
            if response.stop == "other":  # nobody knows whether this is all of it
                raise ModelGarbage(f"model provider {entry.provider!r}: its answer broke off", provider=entry.provider)
            return response
        except asyncio.CancelledError as cut:
            if (paying := account()) is not None:
                # No price is waited for here: the tables are there, or the endpoint has its own.
                paying.add(self._priced_now(entry, endpoint, request, cut_usage(cut)))
            raise
        except ModelError as error:
            used = error.usage.total_tokens or (0 if error.kind in _REFUSED else None)  # or nothing was counted
            if error.usage.total_tokens:
                await self._book(entry, endpoint, request, error)
            if error.kind == "rate_limit" and error.retry_after is not None:
                limiter.pause(min(error.retry_after, _LONGEST_PAUSE))
            raise
        finally:
            permit.release(used)

    async def _book(
        self, entry: OpenGateway, endpoint: EndpointConfig, request: ModelRequest, error: ModelError
    ) -> None:
        """Price what the attempt used, and put it on the account of whoever asked."""
        if endpoint.pricing is None and entry.provider not in _UNPRICED:
            await self._prices.load()
        error.usage = self._priced_now(entry, endpoint, request, error.usage)
        if (paying := account()) is not None:
            await paying.book(error)

    def _priced_now(self, entry: OpenGateway, endpoint: EndpointConfig, request: ModelRequest, usage: Usage) -> Usage:
        """The usage with its price, as far as that is known without waiting."""
        if usage.cost_usd is not None or not usage.total_tokens:
            return usage
        usage = _tiered(usage, request)
        if endpoint.pricing is not None:
            return replace(usage, cost_usd=endpoint.pricing.cost(usage))
        if entry.provider in _UNPRICED or not self._prices.loaded:
            return usage
        model = request.model or endpoint.gateway.model
        cost = self._prices.cost(entry.provider, model, usage, base_url=endpoint.gateway.base_url)
        return replace(usage, cost_usd=cost)

    async def _finish(
        self, entry: OpenGateway, endpoint: EndpointConfig, request: ModelRequest, response: ModelResponse
    ) -> ModelResponse:
        usage = response.usage
        model = response.model or request.model or endpoint.gateway.model
        if usage.source == "provider" and usage.input_tokens:
            key = _counted_as(entry, request.model or endpoint.gateway.model)
            self.tokens.observe(key, estimated=estimate_request(request), counted=usage.input_tokens)
        if usage.cost_usd is None:
            usage = _tiered(usage, request)
            seller = response.provider if entry.provider in _GO_BETWEENS else entry.provider
            cost = await self._cost(endpoint, entry.provider, seller, model, usage)
            if cost is not None:
                usage = replace(usage, cost_usd=cost)
        return replace(
            response,
            usage=usage,
            model=model,
            provider=response.provider or entry.provider,
            endpoint=endpoint.name,
        )

    async def _cost(
        self, endpoint: EndpointConfig, provider: str, seller: str, model: str, usage: Usage
    ) -> float | None:
        if endpoint.pricing is not None:
            return endpoint.pricing.cost(usage)
        if provider in _UNPRICED:
            return None
        await self._prices.load()
        return self._prices.cost(seller, model, usage, base_url=endpoint.gateway.base_url)


class _Bound:
    """One endpoint of a router, as a gateway."""

    def __init__(self, router: Router, ref: str, on_attempt: OnRoutedAttempt | None) -> None:
        self._router = router
        self._ref = ref
        self._on_attempt = on_attempt

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        return await self._router.respond(self._ref, request, on_delta=on_delta, on_attempt=self._on_attempt)

    async def close(self) -> None:
        return None


def most_hopeful(failures: list[tuple[str, ModelError]]) -> ModelError:
    """The one of these failures, by endpoint, to end with: the last, unless only an earlier one may pass."""
    last = failures[-1][1]
    chosen = last if last.retryable else next((error for _, error in failures if error.retryable), last)
    chosen.details["tried"] = [
        {"endpoint": name, "kind": error.kind, "message": error.message} for name, error in failures
    ]
    return chosen


def _named(request: ModelRequest, endpoint: EndpointConfig) -> ModelRequest:
    return request if request.model else replace(request, model=endpoint.gateway.model)


def _for_fallback(request: ModelRequest, endpoint: EndpointConfig) -> ModelRequest:
    """The model's name means something at the first endpoint only."""
    return replace(request, model=endpoint.gateway.model or request.model)


def _tiered(usage: Usage, request: ModelRequest) -> Usage:
    """The usage at the tier that was asked for, where the provider does not say at which one it served."""
    asked = request.settings.extra.get("service_tier") or request.settings.extra.get("serviceTier")
    if not asked or usage.tier or not isinstance(asked, str):
        return usage
    return replace(usage, tier=tier_of(asked))


def _counted_as(entry: OpenGateway, model: str) -> str:
    return f"{entry.provider}:{model}"


def _as_model_error(error: FoliotError) -> ModelError:
    """Gateways raise nothing but model errors; what cannot be set up is refused, what does not answer may recover."""
    if isinstance(error, ModelError):
        return error
    kind = ModelOverloaded if error.retryable else ModelRequestError
    return kind(error.message, hint=error.hint)

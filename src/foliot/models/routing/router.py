"""From the name of a model endpoint to an answer, by way of all that makes it dependable.

    fallback chain ( circuit of the endpoint ( turn at key and model ( gateway ) ) )   then: cost, and what is learned

Each layer is its own module; this one puts them in order. The router knows no store: `resolve` turns a reference into
an `EndpointConfig` and is asked at every call, so a changed endpoint or a rotated key is used from the next call on.

Each endpoint of the chain is asked once: whatever it fails with, the next one is asked at once. How often a step is
tried in all is counted in one place, by the run (`Repairs.model` in the kernel), which waits without holding anything.

About streams: pieces are for show, the finished message is what counts. When an answer breaks off after pieces were
shown and is asked for again, at the same or at another endpoint, a `RestartDelta` is sent first, and whoever shows the
pieces starts with an empty screen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from secrets import token_hex
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from foliot.errors import FoliotError
from foliot.kernel.messages import Delta, ModelRequest, ModelResponse, RestartDelta, Usage
from foliot.kernel.tokens import estimate_request, estimate_text
from foliot.models.base import (
    Embedder,
    Embeddings,
    Gateway,
    ModelAuthError,
    ModelCostExceeded,
    ModelDelayed,
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRequestError,
    OnDelta,
    Reranked,
    Reranker,
    StandInLine,
    Transcriber,
    Transcript,
    lacking,
)
from foliot.models.registry import ProviderRegistry, default_registry
from foliot.models.routing.endpoints import EndpointConfig, GatewayCache, OpenGateway
from foliot.models.routing.limits import ASKER, PASS, Clock, LocalTurns, ModelTurn, Turns, counted
from foliot.models.routing.pricing import TOKENS_ALONE, PriceBook, Sold
from foliot.models.routing.tokens import TokenCounter
from foliot.models.routing.usage import BoundedRequest, UsageQuote, account, cut_usage, possible
from foliot.models.wire.values import tier_of
from foliot.resources.rates import Declarer

# --- pieces ----------------------------------------------------------------------------------------------------------

# The pieces of an answer on their way to whoever shows them, across retries and fallbacks.


class Pieces:
    """Passes pieces on, and remembers whether any were shown, so that a new start can be announced."""

    __slots__ = ("_on_delta", "_shown")

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._shown = False

    def __call__(self, delta: Delta) -> None:
        self._shown = type(delta) is not RestartDelta
        self._on_delta(delta)

    def restart(self, reason: str) -> None:
        """Say that the answer begins anew, if any of it was shown."""
        if self._shown:
            self._shown = False
            self._on_delta(RestartDelta(reason))


# --- router ----------------------------------------------------------------------------------------------------------

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Resolve: TypeAlias = Callable[[str], EndpointConfig | Awaitable[EndpointConfig]]
LookAnew: TypeAlias = Callable[[str], Awaitable[EndpointConfig | None]]
MayFallBack: TypeAlias = Callable[[str, str], Awaitable[None]]
"""From one endpoint to another, by their names; raises a `FoliotError` when the first may not name the second."""
_LONGEST_PAUSE: Final = 3600.0  # a header that says more is more likely wrong than meant
# A run whose turn comes within a moment stays for it; for longer ones it is let go, and holds nothing.
MOMENT: Final = 1.0
# Whoever asks outside a run cannot be let go with a place in the line, and waits for so long.
_PATIENCE: Final = 60.0
# What an answer without a limit of its own is expected to take at most; few are longer.
UNBOUNDED_OUTPUT: Final = 4096
# And what thinking adds to it where nothing bounds that either, by effort.
_THOUGHT: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 49152}
_REFUSED: Final = frozenset(
    {"rate_limit", "quota", "auth", "request", "context_overflow", "request_too_large", "content_filter"}
)
# Failures that say something about an endpoint's health. A refusal is an answer like any other.
_UNHEALTHY: Final = frozenset({"overloaded", "timeout", "garbage"})
_TROUBLES_MOST: Final = 256
_UNPRICED: Final = frozenset({"scripted", "mock"})
_GO_BETWEENS: Final = frozenset({"pydantic-ai"})  # their answers name the provider that was asked in the end


class EndpointCircuit(Protocol):
    """The health of one endpoint. A healthy one costs a call nothing but a look at `calm`."""

    @property
    def calm(self) -> bool: ...

    async def enter(self) -> bool:
        """Whether this call is the one that tries an endpoint that was left alone. Raises a `FoliotError`."""
        ...

    async def failed(self) -> None: ...

    async def well(self) -> None: ...

    def broken_off(self) -> None: ...


Circuits: TypeAlias = Callable[[str], EndpointCircuit]
"""The circuit of a key; one and the same for all who share it."""


class HasUsage(Protocol):
    """A result of an endpoint, with its usage."""

    @property
    def usage(self) -> Usage: ...


Got = TypeVar("Got", bound=HasUsage)


class _Question(NamedTuple, Generic[Got]):
    """One thing that is asked of an endpoint. `size` says how many tokens that takes, about.

    `request` is the whole question, where it is one that a model answers.
    """

    model: str
    size: Callable[[str], int]
    ask: Callable[[OpenGateway], Awaitable[Got]]
    finish: Callable[[OpenGateway, EndpointConfig, Got], Awaitable[Got]]
    request: ModelRequest | None = None


class Router:
    """Answers through whatever endpoint a reference names. Safe for any number of concurrent runs of one event loop."""

    def __init__(
        self,
        resolve: Resolve,
        *,
        look_anew: LookAnew | None = None,
        may_fall_back: MayFallBack | None = None,
        registry: ProviderRegistry | None = None,
        turns: Turns | None = None,
        circuits: Circuits | None = None,
        prices: PriceBook | None = None,
        tokens: TokenCounter | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`look_anew` looks an endpoint up past everything that is remembered of it, its key above all."""
        self._resolve = resolve
        self._look_anew = look_anew
        self._may_fall_back = may_fall_back
        self._registry = registry or default_registry()
        self.turns = turns or LocalTurns(clock)
        self.circuits = circuits
        self._prices = prices or PriceBook()
        self.tokens = tokens or TokenCounter()
        self._sleep = sleep
        self._trouble: dict[str, str] = {}  # what an endpoint failed with last, for whoever finds its circuit open
        self._gateways = GatewayCache(self._open)

    async def respond(
        self, ref: str, request: ModelRequest, *, on_delta: OnDelta | None = None, last: bool = True
    ) -> ModelResponse:
        """Ask the endpoint `ref`, then its fallbacks. The answer carries its cost and the endpoint that gave it.

        A fallback is asked for its own default model. When nobody answered, the last `ModelError` is raised, or the
        first that may pass when the last one may not: a broken fallback must not end a run that only has to wait. Its
        `details["tried"]` lists them all. An endpoint that cannot be found or built counts as a request error.
        Raises `ModelDelayed` when one of them only has no room now. `last`: there is nobody else to ask after these,
        so a place is taken in the line whose turn comes first.
        """
        first = await self._find(ref)
        chain = dict.fromkeys((first.name, *first.fallbacks))
        alone = last and len(chain) == 1

        async def prepare(name: str) -> EndpointRequest:
            if name == first.name:
                endpoint, asked = first, _named(request, first)
            else:
                endpoint = await self._find(name, first.name)
                keeps_extra = self._is_same_provider(first, endpoint)
                asked = _for_fallback(request, endpoint, keeps_extra=keeps_extra)

            async def ask(pieces: Pieces | None) -> ModelResponse:
                return await self._ask(endpoint, self._question(asked, pieces), queue=alone)

            return EndpointRequest(asked, ask)

        return await first_answer(
            tuple(chain), prepare, request, on_delta=on_delta, fall_back_on=first.fall_back_on, last=last
        )

    async def embed(
        self, ref: str, texts: Sequence[str], *, model: str = "", dimensions: int | None = None
    ) -> Embeddings:
        """Turn texts into vectors at the endpoint `ref`, with what it cost.

        One attempt, within the limits of its key and model; no fallback is asked, whose vectors could not be compared.
        Raises a `ModelError`.
        """

        async def act(gateway: Gateway) -> Embeddings:
            return await cast("Embedder", gateway).embed(texts, model=model, dimensions=dimensions)

        return await self._serve(ref, model, "embed", sum(map(estimate_text, texts)), act)

    async def rerank(
        self, ref: str, query: str, documents: Sequence[str], *, model: str = "", top_n: int | None = None
    ) -> Reranked:
        """Rank documents at the endpoint `ref`, with what it cost; no fallback is asked. Raises a `ModelError`."""

        async def act(gateway: Gateway) -> Reranked:
            return await cast("Reranker", gateway).rerank(query, documents, model=model, top_n=top_n)

        return await self._serve(ref, model, "rerank", sum(map(estimate_text, (query, *documents))), act)

    async def transcribe(
        self, ref: str, audio: bytes, *, media_type: str = "", model: str = "", language: str = "", prompt: str = ""
    ) -> Transcript:
        """Write a recording down at the endpoint `ref`, with what it cost; no fallback is asked.

        Raises a `ModelError`.
        """

        async def act(gateway: Gateway) -> Transcript:
            return await cast("Transcriber", gateway).transcribe(
                audio, media_type=media_type, model=model, language=language, prompt=prompt
            )

        return await self._serve(ref, model, "transcribe", estimate_text(prompt), act)

    async def _serve(
        self,
        ref: str,
        model: str,
        method: Literal["embed", "rerank", "transcribe"],
        expected: int,
        act: Callable[[Gateway], Awaitable[_Service]],
    ) -> _Service:
        """One of the services beside answers, asked once: in its turn, if the endpoint is well, and priced.

        `expected` is about what it takes, in tokens.
        """

        async def ask(entry: OpenGateway) -> _Service:
            if not hasattr(entry.gateway, method):
                raise lacking(entry.provider, method)
            return await act(entry.gateway)

        async def finished(entry: OpenGateway, endpoint: EndpointConfig, got: _Service) -> _Service:
            if got.usage.cost_usd is not None:
                return got
            cost = await self._cost(endpoint, entry.provider, entry.provider, got.model, got.usage, _sold(got))
            return dataclasses.replace(got, usage=replace(got.usage, cost_usd=cost))

        def size(_: str) -> int:
            return expected

        return await self._ask(await self._find(ref), _Question(model, size, ask, finished), queue=True)

    async def quote(self, ref: str, request: ModelRequest) -> list[UsageQuote]:
        """Estimates the highest usage of the request, at the endpoint and at each of its fallbacks.

        An endpoint that cannot be found, or whose provider is unknown, is left out: it will not answer either. The
        cost is None where no price is known. Raises `ModelError` when the first one cannot be found.
        """
        first = await self._find(ref)
        quotes = [await self._quote(first, request)]
        for name in dict.fromkeys(first.fallbacks):
            try:
                endpoint = await self._find(name, first.name)
                keeps = self._is_same_provider(first, endpoint)
                quotes.append(await self._quote(endpoint, _for_fallback(request, endpoint, keeps_extra=keeps)))
            except ModelError:
                continue
        return quotes

    async def provider_of(self, ref: str) -> str | None:
        """The provider of the endpoint, whatever alias names it; None when there is no such endpoint."""
        try:
            return self._registry.find((await self._find(ref)).gateway.provider).name
        except FoliotError:
            return None

    def _is_same_provider(self, one: EndpointConfig, other: EndpointConfig) -> bool:
        try:
            names = {self._registry.find(each.gateway.provider).name for each in (one, other)}
        except FoliotError:
            return False  # one of them will not answer
        return len(names) == 1

    async def _quote(self, endpoint: EndpointConfig, request: ModelRequest) -> UsageQuote:
        try:
            provider = self._registry.find(endpoint.gateway.provider).name
        except FoliotError as error:
            raise _as_model_error(error) from error
        model = request.model or endpoint.gateway.model
        tokens = self.tokens.estimate(request, model=f"{provider}:{model}")
        most = self._most_output(endpoint, request) * _answers(request, endpoint)
        usage = _tiered(Usage(tokens, most, source="estimated"), request, endpoint)
        cost = await self._cost(endpoint, provider, provider, model, usage)
        return UsageQuote(usage.input_tokens, most, cost_usd=cost, source="estimated", tier=usage.tier,
                      unpriced=endpoint.name if cost is None else "")  # fmt: skip

    def _most_output(self, endpoint: EndpointConfig, request: ModelRequest) -> int:
        """The most that an answer may have: as the request bounds it when it is sent, or what is expected without."""
        bounded = request.settings.max_output_tokens
        if bounded is not None and not request.settings.extra and not endpoint.gateway.options.get("extra"):
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

    def _question(self, request: ModelRequest, pieces: Pieces | None) -> _Question[ModelResponse]:
        async def ask(entry: OpenGateway) -> ModelResponse:
            bounded = await self._bounded(entry, request)
            response = await entry.gateway.respond(bounded.request, on_delta=pieces)
            if (usage := possible(response.usage)) is not response.usage:
                notes = (*response.notes, "the provider's counts contradict each other: what cannot be is not counted")
                response = replace(response, usage=usage, notes=notes)
            response = bounded.whole(response)
            if response.stop == "other":  # nobody knows whether this is all of it
                broken = ModelGarbage("the answer of the model broke off", provider=response.provider)
                broken.usage = response.usage
                raise broken
            return response

        def size(counted_as: str) -> int:
            most = request.settings.max_output_tokens or 0
            return self.tokens.estimate(request, model=counted_as) + most

        return _Question(request.model, size, ask, partial(self._finish, request=request), request)

    async def _bounded(self, entry: OpenGateway, request: ModelRequest) -> BoundedRequest:
        """The request with the bound that limits and Budgets put on its answer. Raises `ModelCostExceeded`."""
        paying = account()
        if paying is None or not paying.is_bound:
            return BoundedRequest(request)
        endpoint, model = entry.endpoint, request.model or entry.endpoint.gateway.model
        told, profile = getattr(entry.gateway, "most_output", None), getattr(entry.gateway, "profile", None)
        own = request.settings.max_output_tokens if told is None else told(request)
        known = None if profile is None else profile(model)
        cost = None
        if (left := paying.max_cost) is not None:
            tokens = self.tokens.estimate(request, model=_counted_as(entry, model))
            million = _tiered(Usage(tokens, 1_000_000), request, endpoint)
            asked = await self._cost(endpoint, entry.provider, entry.provider, model, replace(million, output_tokens=0))
            answered = await self._cost(endpoint, entry.provider, entry.provider, model, million)
            if asked is not None and asked >= left:
                message = f"the question alone costs about {asked:.4f} USD, and {left:.4f} USD are left"
                raise ModelCostExceeded(message, provider=entry.provider)
            if asked is not None and answered is not None and answered > asked:
                cost = int((left - asked) / (answered - asked) * 1_000_000)
        return paying.within(request, own, None if known is None else known.max_output, cost)

    async def _ask(self, endpoint: EndpointConfig, question: _Question[Got], *, queue: bool) -> Got:
        """One endpoint, once; and once more when its key is refused and has been replaced meanwhile."""
        try:
            return await self._ask_once(endpoint, question, queue=queue)
        except ModelAuthError:
            anew = None if self._look_anew is None else await self._look_anew(endpoint.name)
            if anew is None or anew.gateway.api_key == endpoint.gateway.api_key:
                raise
            endpoint = anew
        return await self._ask_once(endpoint, question, queue=queue)

    async def _ask_once(self, endpoint: EndpointConfig, question: _Question[Got], *, queue: bool) -> Got:
        try:
            entry = self._gateways.enter(endpoint)
        except FoliotError as error:
            raise _as_model_error(error) from error
        try:
            model = question.model or endpoint.gateway.model
            key = endpoint.circuit_key(model)
            circuit = None if self.circuits is None else self.circuits(key)
            probe = False if circuit is None or circuit.calm else await self._entered(circuit, key, endpoint.name)
            try:
                got = await self._in_turn(entry, endpoint, question, model, queue=queue)
            except ModelError as error:
                if circuit is not None:
                    if error.kind in _UNHEALTHY:
                        self._note_trouble(key, error)
                        await circuit.failed()
                    elif isinstance(error, ModelDelayed) or error.kind == "rate_limit":
                        if probe:
                            circuit.broken_off()
                    elif probe or not circuit.calm:
                        await circuit.well()
                raise
            except BaseException:
                if circuit is not None and probe:
                    circuit.broken_off()
                raise
            if circuit is not None and (probe or not circuit.calm):
                await circuit.well()
            return await question.finish(entry, endpoint, got)
        finally:
            self._gateways.leave(entry)

    def _note_trouble(self, key: str, error: ModelError) -> None:
        self._trouble.pop(key, None)
        self._trouble[key] = error.message
        if len(self._trouble) > _TROUBLES_MOST:
            del self._trouble[next(iter(self._trouble))]

    async def _entered(self, circuit: EndpointCircuit, key: str, name: str) -> bool:
        try:
            return await circuit.enter()
        except FoliotError as error:
            wait = getattr(error, "retry_after", None)
            last = f"; the last time: {self._trouble[key]}" if key in self._trouble else ""
            raise ModelOverloaded(
                f"model endpoint {name!r} failed many times in a row and is not asked for a while{last}",
                retry_after=wait if isinstance(wait, float) else None,
                hint="add a fallback, or change the endpoint: then it is asked at once",
            ) from error

    async def _in_turn(
        self, entry: OpenGateway, endpoint: EndpointConfig, question: _Question[Got], model: str, *, queue: bool
    ) -> Got:
        """One call, in its turn. Raises `ModelDelayed` when that does not come within a moment."""
        limits, key = endpoint.limits, f"{entry.limiter_key} {model}"
        run_id, may_have_a_place = ASKER.get()
        asker = run_id or token_hex(8)
        expected, turn = 0, PASS
        if not limits.none or not self.turns.is_free(key):
            expected = question.size(_counted_as(entry, model))
            turn = await self._turn(endpoint, question, model, key, asker, expected, queue=queue)
        more = 0
        try:
            if may_have_a_place:
                await self.turns.leave(asker)  # in another line, or in that of a limit that is gone
            got = await question.ask(entry)
            more = counted(entry.provider, got.usage) - expected
            return got
        except asyncio.CancelledError as cut:
            if (paying := account()) is not None:
                # No price is waited for here: the tables are there, or the endpoint has its own.
                paying.add(self._priced_now(entry, endpoint, question, cut_usage(cut)))
            raise
        except ModelError as error:
            error.usage = possible(error.usage)
            if error.usage.total_tokens:
                more = counted(entry.provider, error.usage) - expected
                await self._book(entry, endpoint, question, error)
            elif error.kind in _REFUSED:
                more = -expected  # nothing was counted
            if error.kind == "rate_limit" and error.retryable and error.retry_after is not None:
                await self.turns.pause(key, min(error.retry_after, _LONGEST_PAUSE))
            raise
        finally:
            if turn is not PASS:
                await self.turns.settle(key, asker, turn, more)

    async def _turn(
        self,
        endpoint: EndpointConfig,
        question: _Question[Any],
        model: str,
        key: str,
        asker: str,
        expected: int,
        *,
        queue: bool,
    ) -> ModelTurn:
        """Wait for a turn that comes within a moment. Raises `ModelDelayed` for a later one."""
        by, stayed = Declarer(endpoint.name, model, endpoint.version), 0.0
        run_id, _ = ASKER.get()
        moment = MOMENT if run_id else _PATIENCE
        while True:
            turn = await self.turns.take(key, asker, endpoint.limits, expected, queue=queue, by=by)
            if turn.wait <= 0:
                return turn
            if not queue or turn.wait > moment or stayed > 2 * moment:
                if queue and not run_id:
                    await self.turns.leave(asker)  # nobody comes back under this name
                again = partial(self._ask, endpoint, question, queue=True)
                raise _delayed(endpoint, turn, None if queue else again)
            stayed += turn.wait
            await self._sleep(turn.wait)

    async def _book(
        self, entry: OpenGateway, endpoint: EndpointConfig, question: _Question[Any], error: ModelError
    ) -> None:
        """Price what the attempt used, and put it on the account of whoever asked."""
        if endpoint.pricing is None and entry.provider not in _UNPRICED:
            await self._prices.load()
        error.usage = self._priced_now(entry, endpoint, question, error.usage)
        if (paying := account()) is not None:
            await paying.book(error)

    def _priced_now(
        self, entry: OpenGateway, endpoint: EndpointConfig, question: _Question[Any], usage: Usage
    ) -> Usage:
        """The usage with its price, as far as that is known without waiting."""
        if usage.cost_usd is not None or not usage.total_tokens:
            return usage
        usage = _tiered(usage, question.request, endpoint)
        if endpoint.pricing is not None:
            return replace(usage, cost_usd=endpoint.pricing.cost(usage))
        if entry.provider in _UNPRICED or not self._prices.loaded:
            return usage
        model = question.model or endpoint.gateway.model
        cost = self._prices.cost(entry.provider, model, usage, base_url=endpoint.gateway.base_url)
        return replace(usage, cost_usd=cost)

    async def _finish(
        self, entry: OpenGateway, endpoint: EndpointConfig, response: ModelResponse, *, request: ModelRequest
    ) -> ModelResponse:
        usage = response.usage
        model = response.model or request.model or endpoint.gateway.model
        if usage.source == "provider" and usage.input_tokens:
            key = _counted_as(entry, request.model or endpoint.gateway.model)
            self.tokens.observe(key, estimated=estimate_request(request), counted=usage.input_tokens)
        if usage.cost_usd is None:
            usage = _tiered(usage, request, endpoint)
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
        self,
        endpoint: EndpointConfig,
        provider: str,
        seller: str,
        model: str,
        usage: Usage,
        sold: Sold = TOKENS_ALONE,
    ) -> float | None:
        if endpoint.pricing is not None:
            return endpoint.pricing.cost(usage, sold)
        if provider in _UNPRICED:
            return None
        await self._prices.load()
        return self._prices.cost(seller, model, usage, base_url=endpoint.gateway.base_url, sold=sold)


_Service = TypeVar("_Service", Embeddings, Reranked, Transcript)


def _sold(got: Embeddings | Reranked | Transcript) -> Sold:
    if isinstance(got, Transcript):
        return Sold(audio_seconds=got.seconds, audio_tokens=got.audio_tokens)
    return Sold(searches=got.searches) if isinstance(got, Reranked) else TOKENS_ALONE


def _delayed(endpoint: EndpointConfig, turn: ModelTurn, again: StandInLine | None) -> ModelDelayed:
    if turn.bound == "the provider":
        why = f"the provider of model endpoint {endpoint.name!r} asked to be left alone"
    elif not turn.bound:
        why = f"the limits on model endpoint {endpoint.name!r} cannot be checked now"
    elif turn.limits == endpoint.limits:
        why = f"model endpoint {endpoint.name!r} allows {endpoint.limits.in_words()}; {turn.ahead:,} are in front"
    else:
        allowed = turn.limits.in_words()
        same = f"another endpoint with the key and model of {endpoint.name!r}"
        why = f"{same} allows {allowed}; {turn.ahead:,} are in front"
    message = f"{why}; its turn comes in about {max(1, round(turn.wait)):,} s"
    return ModelDelayed(message, wait=turn.wait, endpoint=endpoint.name, stand_in_line=again)


class EndpointRequest(NamedTuple):
    """A request in the words of one endpoint, and how to ask it there."""

    request: ModelRequest
    ask: Callable[[Pieces | None], Awaitable[ModelResponse]]


async def first_answer(
    names: Sequence[str],
    prepare: Callable[[str], Awaitable[EndpointRequest]],
    request: ModelRequest,
    *,
    on_delta: OnDelta | None,
    fall_back_on: Collection[str],
    last: bool = True,
) -> ModelResponse:
    """Ask endpoints in order until one answers: the chain of an endpoint and that of an agent alike.

    The first one is left for the second when it has no room now, or fails with a kind in `fall_back_on`. A fallback is
    left for the next whatever it fails with: a broken one must not hide that the next may work. `last` as for
    `Router.respond`. Raises the `ModelError` that `most_hopeful` chooses.
    """
    pieces = None if on_delta is None else Pieces(on_delta)
    failures: list[tuple[str, ModelError]] = []
    for position, name in enumerate(names):
        asked = request
        try:
            asked, ask = await prepare(name)
            response = await ask(pieces)
            if position == 0:
                return response
            return told_of_fallback(told_of_extra(response, request, asked, names[0], name), name, failures)
        except ModelError as error:
            delayed = isinstance(error, ModelDelayed)
            if delayed and position > 0:
                error.in_line_for(partial(told_of_extra, wanted=request, asked=asked, first=names[0], fallback=name))
            failures.append((name, error))
            falls = position > 0 or delayed or error.kind in fall_back_on
            if position + 1 == len(names) or error.spent_out or not falls:
                break
            if pieces is not None and not delayed:
                pieces.restart(f"{name} failed ({error.kind}); asking {names[position + 1]}")
    return await _in_line(failures, last=last)


async def _in_line(failures: list[tuple[str, ModelError]], *, last: bool) -> ModelResponse:
    """End a question that nobody answered: by the error to raise, or in a line, where there is nobody else to ask."""
    chosen = most_hopeful(failures)
    failed = next((error for _, error in reversed(failures) if not isinstance(error, ModelDelayed)), None)
    try:
        if last and isinstance(chosen, ModelDelayed) and chosen.stand_in_line is not None:
            return told_of_fallback(await chosen.stand_in_line(), chosen.endpoint, failures)
        raise chosen
    except ModelDelayed as delayed:
        if failed is not None:
            delayed.after = delayed.after or failed
        raise


def told_of_fallback(response: ModelResponse, asked: str, failures: Sequence[tuple[str, ModelError]]) -> ModelResponse:
    """The answer of the endpoint that was asked, with a note for each one that was to give it and did not."""
    others = [(name, error) for name, error in failures if name != asked]
    if not others:
        return response
    notes = (f"{response.endpoint or asked} answered in place of {name} ({_why(error)})" for name, error in others)
    return replace(response, notes=(*response.notes, *notes))


def _why(error: ModelError) -> str:
    # How long it would have waited is another number at every step: a trace tells each note once.
    return "no room in its limits" if isinstance(error, ModelDelayed) else f"{error.kind}: {error.message}"


def most_hopeful(failures: list[tuple[str, ModelError]]) -> ModelError:
    """The one of these failures, by endpoint, to end with: the last, unless only an earlier one may pass.

    Where one only has no room now, none has failed for good: the one whose turn comes first.
    """
    delayed = [error for _, error in failures if isinstance(error, ModelDelayed)]
    if delayed:
        return min(delayed, key=lambda error: error.wait)
    last = failures[-1][1]
    chosen = last if last.retryable else next((error for _, error in failures if error.retryable), last)
    chosen.details["tried"] = [
        {"endpoint": name, "kind": error.kind, "message": error.message} for name, error in failures
    ]
    return chosen


def _named(request: ModelRequest, endpoint: EndpointConfig) -> ModelRequest:
    return request if request.model else replace(request, model=endpoint.gateway.model)


def _for_fallback(request: ModelRequest, endpoint: EndpointConfig, *, keeps_extra: bool) -> ModelRequest:
    """The model's name means something at the first endpoint only."""
    request = request if keeps_extra else without_extra(request)
    return replace(request, model=endpoint.gateway.model or request.model)


def without_extra(request: ModelRequest) -> ModelRequest:
    """The request without the fields that are meant for one provider."""
    return replace(request, settings=replace(request.settings, extra={})) if request.settings.extra else request


def told_of_extra(
    response: ModelResponse, wanted: ModelRequest, asked: ModelRequest, first: str, fallback: str
) -> ModelResponse:
    """The answer of a fallback, with a note if it was asked without the fields that are meant for the first one."""
    if not wanted.settings.extra or asked.settings.extra:
        return response
    note = f"extra is not sent: {fallback} is of another provider than {first}"
    return replace(response, notes=(*response.notes, note))


def _tiered(usage: Usage, request: ModelRequest | None, endpoint: EndpointConfig) -> Usage:
    """The usage at the tier that was asked for, where the provider does not say at which one it served."""
    if usage.tier:
        return usage
    given = endpoint.gateway.options.get("extra")
    of_endpoint: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    for extra in (of_endpoint if request is None else request.settings.extra, of_endpoint):
        asked: Any = extra.get("service_tier") or extra.get("serviceTier")
        if isinstance(asked, str) and asked:
            return replace(usage, tier=tier_of(asked))
    return usage


def _answers(request: ModelRequest, endpoint: EndpointConfig) -> int:
    """How many answers are asked for at once: each is paid for, though only one is taken."""
    of_endpoint = endpoint.gateway.options.get("extra")
    given: dict[str, Any] = {**(of_endpoint if isinstance(of_endpoint, Mapping) else {}), **request.settings.extra}
    config = given.get("generationConfig")
    wanted = [given.get("n"), given.get("best_of"), given.get("candidateCount")]
    wanted += [cast("Mapping[str, Any]", config).get("candidateCount")] if isinstance(config, Mapping) else []
    return max((each for each in wanted if isinstance(each, int)), default=1)


def _counted_as(entry: OpenGateway, model: str) -> str:
    return f"{entry.provider}:{model}"


def _as_model_error(error: FoliotError) -> ModelError:
    """Gateways raise nothing but model errors; what cannot be set up is refused, what does not answer may recover."""
    if isinstance(error, ModelError):
        return error
    kind = ModelOverloaded if error.retryable else ModelRequestError
    return kind(error.message, hint=error.hint)

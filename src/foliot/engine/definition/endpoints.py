"""The models of a run: ModelEndpoints from the store, `provider:model` names, or gateways in Python."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from foliot.common.suggestions import did_you_mean
from foliot.common.waits import Waits
from foliot.engine.definition.freeze import ENDPOINT
from foliot.engine.definition.grants import addresses, check_provider, chosen_address, own_address
from foliot.engine.definition.references import References
from foliot.engine.python_endpoints import ModelEndpoint as PythonEndpoint
from foliot.errors import Denied, FoliotError, InvalidInput, NotFound, SecretError, SecretMissing, Unavailable
from foliot.kernel.messages import ModelRequest, ModelResponse, Usage
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.tokens import estimate_request
from foliot.models.base import (
    Embeddings,
    Gateway,
    ModelCostExceeded,
    ModelDelayed,
    ModelError,
    ModelRequestError,
    OnDelta,
    Reranked,
    Transcript,
)
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.profiles import ModelProfile, profile_of
from foliot.models.registry import default_registry
from foliot.models.routing.endpoints import FALL_BACK_ON, EndpointConfig, endpoint_config, limits_in_file
from foliot.models.routing.limits import Turns
from foliot.models.routing.pricing import Pricing
from foliot.models.routing.router import (
    UNBOUNDED_OUTPUT,
    Circuits,
    EndpointCircuit,
    EndpointRequest,
    Pieces,
    Router,
    first_answer,
    without_extra,
)
from foliot.models.routing.usage import AnswerUsage, UsageQuote, account, cut_usage
from foliot.resources.digest import definition_digest
from foliot.resources.powers import declared_by_operator, secret_targets
from foliot.resources.references import Origin, foreign, qualified, target_of
from foliot.store.base import Document, Key, ResourceStore, Revealed
from foliot.tools.base import ToolSecretMissing
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.outbound.guard import Guard, Outbound
from foliot.tools.pipeline.breaker import Circuits as LocalCircuits
from foliot.tools.secrets.masking import Masker
from foliot.tools.secrets.secrets import EnvironmentSecrets, SecretChain, SecretRef, Secrets, StoreSecrets

# How long an endpoint that was looked up is used without looking again.
FRESH_FOR = 1.0
# Fields of a provider's own that name models to ask: OpenRouter, LiteLLM and others take several.
_NAMING_MODELS: Final = ("model", "models", "fallbacks", "fallback_models")


class RunModels:
    """The engine's `Models`: by the endpoint that the run is pinned to, then by the agent's own fallbacks."""

    def __init__(
        self,
        store: ResourceStore | None,
        *,
        clock: Callable[[], float],
        environ: Mapping[str, str],
        secrets: Secrets | None = None,
        outbound: Callable[[], OutboundClient] | None = None,
        references: References | None = None,
        waits: Waits | None = None,
        turns: Turns | None = None,
        circuits: Circuits | None = None,
    ) -> None:
        """`turns` and `circuits` are those that all processes of a store share; without them, of this one alone.

        `outbound` is the way to addresses that somebody else than the operator chose; none lets nobody inside.
        """
        self._waits = waits or Waits()
        self._outbound = outbound or self._to_the_public
        self._own: OutboundClient | None = None
        self._store = store
        self._references = references or References(store)
        self._clock = clock
        self._environ = environ
        self._secrets = secrets or stored_secrets(store, environ)
        self._router = Router(
            self._resolve,
            look_anew=self._key_looked_up_anew,
            may_fall_back=self._may_fall_back,
            turns=turns,
            circuits=circuits or partial(_local_circuit, LocalCircuits(), clock),
            clock=clock,
        )
        self._direct: dict[str, Gateway] = {}
        self._reserved: set[str] = set()
        self._declared: dict[str, PythonEndpoint] = {}
        self._found: dict[str, tuple[float, EndpointConfig]] = {}
        self._revision = -1

    def serve(self, ref: str, gateway: Gateway) -> None:
        """Answer requests for `ref` with this gateway."""
        self._direct[ref] = gateway

    def reserve(self, ref: str, gateway: Gateway) -> None:
        """Answer requests of runs that Foliot itself pins to `ref`; no agent can name it.

        A gateway with a method `quote` says itself what a question is expected to take; else it takes nothing.
        """
        self._direct[ref] = gateway
        self._reserved.add(ref)

    def declare(self, endpoint: PythonEndpoint) -> str:
        """Know an endpoint of Python from now on; return the reference that it is asked by."""
        ref = endpoint.ref
        if self._declared.get(ref) is not endpoint:
            self._declared[ref] = endpoint
            self._found.pop(ref, None)
        return ref

    def is_fixed(self, ref: str) -> bool:
        """Whether `ref` means the same model for as long as this process lives: it is looked up nowhere."""
        return ref in self._direct or ":" in ref

    async def model_of(self, ref: str, namespace: str) -> str:
        """The model that the endpoint asks when nobody names one, for an agent of this namespace.

        Raises `NotFound`, `Denied`, `InvalidInput`.
        """
        await self.allow(ref, namespace)
        return self._direct_model(ref) if ref in self._direct else (await self._resolve(ref)).gateway.model

    def _direct_model(self, ref: str) -> str:
        """The model that a gateway in Python was made for; its own reference where it names none."""
        config = getattr(self._direct[ref], "config", None)
        return (config.model if isinstance(config, GatewayConfig) else "") or ref

    async def window_of(self, ref: str, model: str) -> int | None:
        """The tokens that a model of this endpoint reads at most; None where nobody knows."""
        if ref in self._direct:
            config = getattr(self._direct[ref], "config", None)
        else:
            config = (await self._resolve(ref)).gateway
        if not isinstance(config, GatewayConfig):
            return None
        try:
            provider = default_registry().find(config.provider).name
            return profile_of(provider, model, config.options.get("profile")).context
        except InvalidInput:
            return None  # asking it says what is wrong with it

    async def endpoint(self, ref: str, namespace: str) -> EndpointConfig:
        """Find where `ref` leads for an agent of this namespace, with its key.

        Raises `NotFound`, `Denied`, `InvalidInput`.
        """
        await self.allow(ref, namespace)
        return await self._resolve(ref)

    async def models_of(self, spec: RunSpec) -> tuple[str, ...]:
        """Every model that a question of this run may reach: its own, those of its fallbacks and of theirs.

        An endpoint that cannot be found is left out: it will not answer either.
        """
        return await models_reached(spec, self._reaches)

    async def unread(self, spec: RunSpec, media_types: Sequence[str]) -> list[str]:
        """Returns those of these media types that the model of a run does not read, as far as its profile knows."""
        if not media_types:
            return []
        ref = refs_of(spec)[0]
        gateway = self._direct.get(ref)
        if gateway is not None:
            profiles = getattr(gateway, "profile", None)
        else:
            await self.allow(ref, spec.namespace)
            profiles = (await self._resolve(ref)).gateway.profiles("")
        profile = profiles(spec.model) if callable(profiles) else None
        if not isinstance(profile, ModelProfile):
            return []
        return [kind for kind in dict.fromkeys(media_types) if not profile.reads(kind)]

    async def _reaches(self, ref: str, origin: Origin) -> tuple[str, Sequence[str]] | None:
        if ref in self._direct:
            return self._direct_model(ref), ()
        try:
            await self._allow(origin, ref)
            found = await self._resolve(ref)
        except Unavailable:
            raise
        except FoliotError:
            return None
        return found.gateway.model, found.fallbacks

    async def ask(self, spec: RunSpec, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        """Ask the run's endpoint, then the agent's fallbacks, each of these for its own default model.

        Raises a `ModelError` when nobody answered; which one, see `Router.respond`.
        """
        if not spec.fallbacks:
            ref = str(spec.extra.get(ENDPOINT, spec.model))
            gateway = self._direct.get(ref)
            if gateway is not None and ref not in self._reserved:
                return await _of_object(gateway, request, on_delta)
        refs = tuple(dict.fromkeys(refs_of(spec)))
        if refs[0] in self._reserved:  # such a spec is made here, and has no fallbacks
            return await _of_reserved(self._direct[refs[0]], request, on_delta)
        if len(refs) == 1:
            return await self._ask(spec.namespace, refs[0], request, on_delta)

        async def prepare(ref: str) -> EndpointRequest:
            asked = request if ref == refs[0] else await self._for_fallback(refs[0], ref, request)

            async def ask(pieces: Pieces | None) -> ModelResponse:
                return await self._ask(spec.namespace, ref, asked, pieces, last=False)

            return EndpointRequest(asked, ask)

        return await first_answer(refs, prepare, request, on_delta=on_delta, fall_back_on=FALL_BACK_ON)

    async def _ask(
        self, namespace: str, ref: str, request: ModelRequest, on_delta: OnDelta | None, *, last: bool = True
    ) -> ModelResponse:
        gateway = self._direct.get(ref)
        if gateway is not None and ref not in self._reserved:
            return await _of_object(gateway, request, on_delta)
        await self._allow_asking(namespace, ref)
        before = self._found.get(ref)
        pieces = None if on_delta is None else Pieces(on_delta)
        try:
            return await self._router.respond(ref, request, on_delta=pieces, last=last)
        except ModelError as error:
            # Nobody fails, or waits, by an endpoint that was repaired while it was asked, or a moment before.
            used = before or self._found.get(ref)
            if error.spent_out or used is None or await self._looked_up_anew(ref) in (used[1], None):
                raise
            if pieces is not None and not isinstance(error, ModelDelayed):
                pieces.restart(f"{ref} failed ({error.kind}) and has changed; asking again")
        return await self._router.respond(ref, request, on_delta=pieces, last=last)

    # --- beside answers --------------------------------------------------------------------------------------------

    async def embed(
        self,
        ref: str | PythonEndpoint,
        texts: Sequence[str],
        *,
        namespace: str = "default",
        model: str = "",
        dimensions: int | None = None,
    ) -> Embeddings:
        """Turn texts into vectors. `ref` is an endpoint of this namespace or of Python, or `provider:model`.

        Raises a `ModelError`.
        """
        name = await self._to_serve(namespace, ref)
        return await self._router.embed(name, texts, model=model, dimensions=dimensions)

    async def rerank(
        self,
        ref: str | PythonEndpoint,
        query: str,
        documents: Sequence[str],
        *,
        namespace: str = "default",
        model: str = "",
        top_n: int | None = None,
    ) -> Reranked:
        """Rank documents by how well they answer the query, the best first. Raises a `ModelError`."""
        name = await self._to_serve(namespace, ref)
        return await self._router.rerank(name, query, documents, model=model, top_n=top_n)

    async def transcribe(
        self,
        ref: str | PythonEndpoint,
        audio: bytes,
        *,
        namespace: str = "default",
        media_type: str = "",
        model: str = "",
        language: str = "",
        prompt: str = "",
    ) -> Transcript:
        """Write down what is said in a recording. Raises a `ModelError`."""
        name = await self._to_serve(namespace, ref)
        return await self._router.transcribe(
            name, audio, media_type=media_type, model=model, language=language, prompt=prompt
        )

    async def _to_serve(self, namespace: str, ref: str | PythonEndpoint) -> str:
        ref = qualified(ref, namespace) if isinstance(ref, str) else self.declare(ref)
        await self._allow_asking(namespace, ref)
        return ref

    async def _key_looked_up_anew(self, name: str) -> EndpointConfig | None:
        """The endpoint past all that is remembered: its key may have been replaced where no write tells of it."""
        try:
            self._found.pop(name, None)
            return await self._resolve(name)
        except FoliotError:
            return None

    async def _looked_up_anew(self, ref: str) -> EndpointConfig | None:
        try:
            await self.look_again()
            return await self._resolve(ref)
        except FoliotError:
            return None

    async def allow(self, ref: str, namespace: str) -> None:
        """Raises `Denied`, `InvalidInput` for a reference that an agent of this namespace may not follow now."""
        if ref in self._reserved:
            raise InvalidInput(f"{ref!r} is not a model that an agent can have", hint="name a ModelEndpoint")
        await self._allow(Origin("Agent", namespace), ref)

    async def _allow(self, origin: Origin, ref: str) -> None:
        # A gateway in Python and `provider:model` are no resources, and in no namespace.
        if ref not in self._direct and ":" not in ref and not ref.startswith(f"{origin.namespace}/"):
            try:
                await self._references.resolve(origin, "ModelEndpoint", ref)
            except Denied as error:
                if (meant := _meant(ref)) is None:
                    raise
                raise Denied(error.message, hint=f"{meant}; {error.hint}") from None

    async def _allow_asking(self, namespace: str, ref: str) -> None:
        """Checks that the run may use the endpoint now; raises `ModelRequestError` if not."""
        try:
            await self.allow(ref, namespace)
        except (Denied, InvalidInput) as error:
            raise ModelRequestError(error.message, hint=error.hint) from None

    async def _may_fall_back(self, origin: str, ref: str) -> None:
        await self._allow(Origin("ModelEndpoint", origin.rpartition("/")[0]), ref)

    async def _for_fallback(self, first: str, ref: str, request: ModelRequest) -> ModelRequest:
        """The model is a name of the first endpoint only; asked for none, an endpoint answers with its own."""
        if request.settings.extra and not await self._is_same_provider(first, ref):
            request = without_extra(request)
        return replace(request, model=self._direct_model(ref) if ref in self._direct else "")

    async def _is_same_provider(self, one: str, other: str) -> bool:
        if one in self._direct or other in self._direct:
            return one == other  # nobody knows what a gateway in Python speaks
        provider = await self._router.provider_of(one)
        return provider is not None and provider == await self._router.provider_of(other)

    async def leave(self, run_id: str) -> None:
        """Give up the place of a run that asks no more. Never raises."""
        await self._router.turns.leave(run_id)

    async def quote(self, spec: RunSpec, request: ModelRequest) -> UsageQuote:
        """Estimates a question for the budgets.

        A gateway object has the prices of its attribute `pricing`, if it has one.
        """
        if (first := refs_of(spec)[0]) in self._reserved:
            return _reserved_quote(self._direct[first], spec, request)
        await self.look_again()  # a price that was declared this moment makes room this moment
        most = Usage(source="estimated")
        costs: list[float | None] = []
        unpriced = ""
        refs = refs_of(spec)
        for position, ref in enumerate(refs):
            gateway = self._direct.get(ref)
            asked = request if position == 0 else await self._for_fallback(refs[0], ref, request)
            try:
                if gateway is None:
                    await self._allow_asking(spec.namespace, ref)
                quotes = [_quoted(gateway, asked)] if gateway is not None else await self._router.quote(ref, asked)
            except ModelError:
                if position == 0:
                    raise
                continue  # it will not answer either
            most = max((most, *quotes), key=lambda usage: usage.total_tokens)
            costs += [usage.cost_usd for usage in quotes]
            unpriced = unpriced or next((each.unpriced or ref for each in quotes if each.cost_usd is None), "")
        known = [cost for cost in costs if cost is not None]
        cost = max(known) if len(known) == len(costs) and known else None
        return UsageQuote(most.input_tokens, most.output_tokens, cost_usd=cost, source="estimated", unpriced=unpriced)

    async def question(self, spec: RunSpec, request: ModelRequest) -> Usage:
        """The tokens of a request, and their price if it is known, at the first endpoint that is asked."""
        alone = replace(request, settings=replace(request.settings, max_output_tokens=1))
        first = refs_of(spec)[0]
        if first in self._reserved:
            return _reserved_quote(self._direct[first], spec, alone)
        gateway = self._direct.get(first)
        if gateway is not None:
            return _quoted(gateway, alone)
        try:
            return (await self._router.quote(first, alone))[0]
        except FoliotError:
            return Usage(estimate_request(request), source="estimated")

    async def close(self) -> None:
        await self._router.close()
        if self._own is not None:
            await self._own.close()
        for gateway in self._direct.values():
            await gateway.close()

    def forget(self) -> None:
        """Drops what is known of endpoints: each is looked up, with its key, before it is asked again."""
        self._found.clear()

    async def look_again(self) -> None:
        """Forget how fresh the endpoints of the store are, if anything in it has changed since the last look."""
        if self._store is None or (revision := await self._store.revision()) == self._revision:
            return
        self._revision = revision
        self._found = {ref: (until if ":" in ref else 0.0, found) for ref, (until, found) in self._found.items()}

    async def _resolve(self, ref: str) -> EndpointConfig:
        now = self._clock()
        kept = self._found.get(ref)
        if kept is not None and now < kept[0]:
            return kept[1]
        fresh_for = FRESH_FOR
        if ref in self._declared:
            found = await self._of_python(self._declared[ref])
        elif ":" in ref:
            found = self._by_provider(ref)
        else:
            found, fresh_for = await self._from_store(ref)
        if kept is not None and kept[1] == found:
            found = kept[1]  # the same object, so that the open gateway is known to fit without comparing keys
        self._found[ref] = (now + fresh_for, found)
        return found

    def _by_provider(self, ref: str) -> EndpointConfig:
        """Builds an endpoint with the key and address that the provider's own tools would find in the environment."""
        name, _, model = ref.partition(":")
        key = url = ""
        with contextlib.suppress(InvalidInput):  # whoever asks it is told
            provider = default_registry().find(name)
            key = provider.key_in(self._environ)
            url = provider.address_in(self._environ)
        gateway = GatewayConfig(
            name,
            base_url=url,
            api_key=key,
            model=model.strip(),
            timeouts=Timeouts(connect=self._waits.answer),
            waits=self._waits,
        )
        return EndpointConfig(name=ref, gateway=gateway, limits=limits_in_file(name, gateway.model))

    async def _of_python(self, endpoint: PythonEndpoint) -> EndpointConfig:
        """Builds an endpoint with its own key, or as for a manifest; else as the provider's own tools would."""
        document = endpoint.document
        key = endpoint.api_key or await self._api_key(document, document["metadata"]["namespace"])
        provider = default_registry().find(document["spec"]["provider"])
        config = endpoint_config(document, api_key=key or provider.key_in(self._environ), waits=self._waits)
        if own := own_address(document, self._environ):
            config = dataclasses.replace(config, gateway=dataclasses.replace(config.gateway, base_url=own))
        return dataclasses.replace(config, name=endpoint.ref, version=definition_digest(document))

    async def _from_store(self, ref: str) -> tuple[EndpointConfig, float]:
        """The endpoint, and for how long it is good."""
        key = Key(*target_of("ModelEndpoint", ref, "default"))
        if self._store is None:
            hint = _meant(ref) or "name one as provider:model, give a ModelEndpoint of Python, or open a store"
            raise NotFound(f"there is no model endpoint {ref!r}", hint=hint)
        try:
            document = await self._store.get(key)
        except NotFound as error:
            hint = (
                _meant(ref)
                or error.hint
                or "apply a ModelEndpoint of that name; in Python, `provider:model` needs none"
            )
            raise NotFound(error.message, hint=hint) from None
        check_provider(document)
        api_key = await self._api_key(document, key.namespace)
        # The key of another namespace is good for one use: leave for it may be taken back before the next.
        fresh_for = 0.0 if foreign(document) else FRESH_FOR
        config = endpoint_config(document, api_key=api_key, waits=self._waits)
        if own := own_address(document, self._environ):
            return dataclasses.replace(config, gateway=dataclasses.replace(config.gateway, base_url=own)), fresh_for
        if declared_by_operator(document) or not chosen_address(document, self._environ):
            return config, fresh_for
        guarded = dataclasses.replace(config.gateway, way_out=self._outbound())
        return dataclasses.replace(config, gateway=guarded), fresh_for

    def _to_the_public(self) -> OutboundClient:
        if self._own is None:
            self._own = OutboundClient(Guard(Outbound()), waits=self._waits)
        return self._own

    async def _api_key(self, document: Document, namespace: str) -> str:
        ref = document["spec"].get("auth", {}).get("secretRef")
        if not ref:
            return ""
        try:
            hosts = secret_targets(document, addresses(document, self._environ))
            return await self._secrets.value(ref, namespace=namespace, hosts=hosts, by="ModelEndpoint")
        except ToolSecretMissing as error:
            name = document["metadata"]["name"]
            kind = SecretError if error.details.get("cause") == "failed" else SecretMissing
            raise kind(f"model endpoint {name!r}: {error.message}", hint=error.hint) from None


def _meant(ref: str) -> str | None:
    """A hint for a model that is written as others write it: `provider/model`."""
    name, _, model = ref.partition("/")
    try:
        provider = default_registry().find(name)
    except InvalidInput:
        return None
    meant = did_you_mean(f"{provider.name}:{model}")
    return f"{meant} `{ref}` is the endpoint {model!r} of the namespace {name!r}"


def _local_circuit(circuits: LocalCircuits, clock: Callable[[], float], key: str) -> EndpointCircuit:
    return circuits.named(key, key, clock)


def refs_of(spec: RunSpec) -> tuple[str, ...]:
    """The endpoint that a run asks, and its own fallbacks."""
    first = str(spec.extra.get(ENDPOINT, spec.model))
    if not spec.fallbacks:
        return (first,)
    return (first, *(qualified(ref, spec.namespace) for ref in spec.fallbacks))


async def models_reached(
    spec: RunSpec, find: Callable[[str, Origin], Awaitable[tuple[str, Sequence[str]] | None]]
) -> tuple[str, ...]:
    """Every model that a question of a run may reach: its own, those of its fallbacks and of their endpoints.

    `find` gives the default model and the fallbacks of an endpoint to whoever names it; what it does not find will not
    answer either.
    """
    models = [spec.model]
    for name in _NAMING_MODELS:  # they go into the request as they are
        named: Any = spec.settings.extra.get(name, ())
        models += map(str, cast("list[Any]", named) if isinstance(named, (list, tuple)) else (named,))
    for position, ref in enumerate(refs_of(spec)):
        if (found := await find(ref, Origin("Agent", spec.namespace))) is None:
            continue
        own, others = found
        if position:
            models.append(own)
        for other in dict.fromkeys(others):
            if (fallback := await find(other, Origin("ModelEndpoint", ref.partition("/")[0]))) is not None:
                models.append(fallback[0])
    return tuple(dict.fromkeys(models))


async def _of_reserved(gateway: Gateway, request: ModelRequest, on_delta: OnDelta | None) -> ModelResponse:
    """The answer of a gateway of Foliot's own; what it used without giving one is counted."""
    try:
        return await gateway.respond(request, on_delta=on_delta)
    except ModelError as error:
        if (paying := account()) is not None:
            await paying.book(error)
        raise
    except asyncio.CancelledError as cut:
        if (paying := account()) is not None:
            paying.add(cut_usage(cut))
        raise


def _reserved_quote(gateway: Gateway, spec: RunSpec, request: ModelRequest) -> UsageQuote:
    quote = getattr(gateway, "quote", None)
    return UsageQuote(cost_usd=0.0, source="estimated") if quote is None else quote(spec, request)


async def _of_object(gateway: Gateway, request: ModelRequest, on_delta: OnDelta | None) -> ModelResponse:
    """The answer of a gateway in Python; what it used without giving one is counted as a router counts it."""
    try:
        paying = account()
        if paying is None or not paying.is_bound:
            return await gateway.respond(request, on_delta=on_delta)
        bounded = paying.within(request, request.settings.max_output_tokens, None, _left(gateway, request, paying))
        return bounded.whole(await gateway.respond(bounded.request, on_delta=on_delta))
    except ModelError as error:
        error.usage = _priced(gateway, error.usage)
        if (paying := account()) is not None:
            await paying.book(error)
        raise
    except asyncio.CancelledError as cut:
        if (paying := account()) is not None:
            paying.add(_priced(gateway, cut_usage(cut)))
        raise


def _left(gateway: Gateway, request: ModelRequest, paying: AnswerUsage) -> int | None:
    """The tokens of an answer that what is left of the money pays for."""
    pricing = getattr(gateway, "pricing", None)
    if paying.max_cost is None or not isinstance(pricing, Pricing):
        return None
    asked, answered = (pricing.cost(Usage(estimate_request(request), each)) for each in (0, 1_000_000))
    if asked >= paying.max_cost:
        message = f"the question alone costs about {asked:.4f} USD, and {paying.max_cost:.4f} USD are left"
        raise ModelCostExceeded(message)
    return int((paying.max_cost - asked) / (answered - asked) * 1_000_000) if answered > asked else None


def _priced(gateway: Gateway, usage: Usage) -> Usage:
    pricing = getattr(gateway, "pricing", None)
    if usage.cost_usd is not None or not usage.total_tokens or not isinstance(pricing, Pricing):
        return usage
    return replace(usage, cost_usd=pricing.cost(usage))


def _quoted(gateway: Gateway, request: ModelRequest) -> UsageQuote:
    most = request.settings.max_output_tokens or UNBOUNDED_OUTPUT
    usage = _priced(gateway, Usage(estimate_request(request), most, source="estimated"))
    return UsageQuote(usage.input_tokens, most, cost_usd=usage.cost_usd, source="estimated")


def stored_secrets(
    store: ResourceStore | None, environ: Mapping[str, str], references: References | None = None
) -> Secrets:
    """Secrets of the store, then of the environment; each value that was looked up is hidden from then on."""
    references = references or References(store)

    async def reveal(namespace: str, name: str) -> Revealed:
        if store is None:
            raise NotFound(f"there is no secret {name!r} without a store")
        return await store.reveal(Key("Secret", namespace, name))

    resolvers = SecretChain([StoreSecrets(reveal), EnvironmentSecrets(environ)])
    return Secrets(resolvers, Masker(), may=references.allow)


async def bound_hosts(store: ResourceStore, reference: str, namespace: str) -> Sequence[str] | None:
    """The hosts that a Secret of the store is bound to; None for one that is not declared, as `undeclared_hosts`."""
    ref = SecretRef.parse(reference, namespace)
    try:
        secret = await store.get(Key("Secret", ref.namespace, ref.name))
    except NotFound:
        return undeclared_hosts(ref)
    return secret["spec"].get("hosts", ())


def undeclared_hosts(ref: SecretRef, environ: Mapping[str, str] = os.environ) -> Sequence[str] | None:
    """Nowhere for a secret of the environment, which nobody has bound to a host; None when it is not there either.

    That is not what an empty list says: a webhook may be signed with a declared Secret that names no hosts.
    """
    return None if EnvironmentSecrets(environ).variable_of(ref) is None else ("nowhere.invalid",)

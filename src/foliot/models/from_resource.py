"""From a declared `ModelEndpoint` and its opened key to what the router needs. The only place that knows both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foliot.errors import InvalidInput
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.endpoints import EndpointConfig
from foliot.models.pricing import Pricing
from foliot.models.profiles import sections_for
from foliot.models.registry import default_registry
from foliot.resources.durations import seconds
from foliot.resources.rates import NO_LIMITS, Limits
from foliot.resources.references import qualified
from foliot.waits import Waits

if TYPE_CHECKING:  # loading the kinds takes longer than everything here together
    from foliot.resources.definitions.model_endpoint import ModelEndpoint, ModelRateLimit, ModelTimeouts


def endpoint_config(
    endpoint: ModelEndpoint, *, api_key: str = "", secret_version: str = "", waits: Waits | None = None
) -> EndpointConfig:
    """The endpoint, named `namespace/name`; fallbacks without a namespace are taken from its own.

    A gateway is replaced when the definition changes (its generation), not when its status does. `waits` say how
    long connecting may take where it does not. Raises `InvalidInput` for a key or an address that cannot be used.
    """
    meta, spec = endpoint.metadata, endpoint.spec
    waits = waits or Waits()
    options: dict[str, Any] = dict(spec.options)
    if spec.script is not None:
        options["script"] = spec.script
    return EndpointConfig(
        name=f"{meta.namespace}/{meta.name}",
        version=f"{meta.uid}.{meta.resource_version if meta.generation is None else meta.generation}",
        secret_version=secret_version,
        gateway=GatewayConfig(
            provider=spec.provider,
            base_url=spec.base_url,
            api_key=api_key,
            model=spec.default_model,
            options=options,
            timeouts=_timeouts(spec.timeouts, waits),
            waits=waits,
        ),
        limits=limits_in_file(spec.provider, spec.default_model)
        if spec.rate_limit is None
        else _limits(spec.rate_limit),
        pricing=None if spec.pricing is None else Pricing.read(spec.pricing.model_dump()),
        fallbacks=tuple(qualified(ref, meta.namespace) for ref in spec.fallbacks),
    )


def _limits(declared: ModelRateLimit) -> Limits:
    return Limits(declared.requests, declared.tokens, seconds(declared.per), declared.concurrency, declared.burst)


def limits_in_file(provider: str, model: str) -> Limits:
    """The limits that the provider's file has for a model, which hold where an endpoint declares none."""
    try:
        name = default_registry().find(provider).name
    except InvalidInput:
        return NO_LIMITS  # whoever asks it is told
    given = sections_for(name, "limits", model)
    return Limits(**given) if given else NO_LIMITS


def _timeouts(declared: ModelTimeouts, waits: Waits) -> Timeouts:
    given = {"connect": declared.connect, "idle": declared.idle, "total": declared.total}
    declared_ones = {name: seconds(value) for name, value in given.items() if value is not None}
    return Timeouts(**{"connect": waits.answer, **declared_ones})

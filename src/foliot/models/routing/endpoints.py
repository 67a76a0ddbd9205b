"""Endpoints as the router knows them, and the gateways it keeps open for them.

A gateway holds connections, so it is built once per endpoint and used until the endpoint changes: its definition, its
key, or the version of the secret the key came from. The old one is then closed as soon as the last call through it
has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlsplit

from foliot.common.durations import seconds
from foliot.common.waits import Waits
from foliot.errors import InvalidInput
from foliot.models.base import Gateway
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.profiles import sections_for
from foliot.models.registry import default_registry
from foliot.models.routing.pricing import Pricing
from foliot.resources.rates import NO_LIMITS, RateLimits
from foliot.resources.references import qualified

_log: Final = logging.getLogger(__name__)
FALL_BACK_ON: Final = frozenset({"rate_limit", "quota", "overloaded", "timeout", "garbage"})
_OPEN_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """One endpoint, ready to use. `name` is its identity, with the namespace; `version` changes with its definition.

    `fallbacks` are references of other endpoints, tried in order when this one fails with a kind in `fall_back_on`.
    Kinds are those of `ModelError`; add "auth" or "request" to fall back on these too.
    """

    name: str
    gateway: GatewayConfig
    version: str = ""
    secret_version: str = ""
    limits: RateLimits = NO_LIMITS
    pricing: Pricing | None = None
    fallbacks: tuple[str, ...] = ()
    fall_back_on: frozenset[str] = FALL_BACK_ON

    @property
    def key_fingerprint(self) -> str:
        """Stands for the key where all processes count together. So short that many keys share it, it tells none."""
        return blake2b(self.gateway.api_key.encode(), digest_size=3, person=b"foliot-limit").hexdigest()

    def circuit_key(self, model: str) -> str:
        """Give the key of the endpoint's health. One that was changed begins without failures."""
        basis = f"{self.version} {self.secret_version} {self.gateway.base_url} {self.key_fingerprint}"
        return f"model/{self.name}/{model}#{blake2b(basis.encode(), digest_size=6).hexdigest()}"

    def same_gateway(self, other: EndpointConfig) -> bool:
        """Whether a gateway opened for `other` can serve this one too."""
        return (
            self.version == other.version
            and self.secret_version == other.secret_version
            and self.gateway == other.gateway
        )


class OpenGateway:
    """A gateway in use. `retired` when another took its place: it is closed after its last call.

    `address` is where it asks, also when the endpoint leaves that to the provider.
    """

    __slots__ = ("calls", "endpoint", "gateway", "limiter_key", "provider", "retired")

    def __init__(self, endpoint: EndpointConfig, gateway: Gateway, provider: str, address: str = "") -> None:
        self.endpoint = endpoint
        self.gateway = gateway
        self.provider = provider
        self.calls = 0
        self.retired = False
        # A provider counts by key, whatever is spoken there: chat completions and responses stand in one line.
        # Without a key it counts by address or not at all, so such endpoints do not share a line.
        owner = endpoint.key_fingerprint if endpoint.gateway.api_key else endpoint.name
        where = urlsplit(address)
        self.limiter_key = f"{where.hostname or provider}:{where.port} {owner}"


class GatewayCache:
    """Open gateways by endpoint name. Belongs to one event loop."""

    def __init__(self, open_gateway: Callable[[EndpointConfig], OpenGateway], *, most: int = _OPEN_MOST) -> None:
        self._open_gateway = open_gateway
        self._most = most
        self._open: OrderedDict[str, OpenGateway] = OrderedDict()
        self._retired: set[OpenGateway] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def enter(self, endpoint: EndpointConfig) -> OpenGateway:
        """The gateway of `endpoint`, opened or replaced if need be, and counted as in use until `leave`."""
        entry = self._open.get(endpoint.name)
        if entry is None or (entry.endpoint is not endpoint and not endpoint.same_gateway(entry.endpoint)):
            fresh = self._open[endpoint.name] = self._open_gateway(endpoint)  # may raise: then the old one stays
            if entry is not None:
                self._retire(entry)
            entry = fresh
            if len(self._open) > self._most:
                self._retire(self._open.popitem(last=False)[1])
        elif entry.endpoint is not endpoint:
            entry.endpoint = endpoint  # limits, prices and fallbacks may differ without a new gateway
        self._open.move_to_end(endpoint.name)
        entry.calls += 1
        return entry

    def leave(self, entry: OpenGateway) -> None:
        entry.calls -= 1
        if entry.retired and entry.calls == 0:
            self._close_soon(entry)

    async def close(self) -> None:
        """Close every gateway, whether in use or not, and wait until all are closed."""
        entries = [*self._open.values(), *self._retired]
        self._open.clear()
        self._retired.clear()
        waiting = list(self._closing)
        results = await asyncio.gather(*(entry.gateway.close() for entry in entries), *waiting, return_exceptions=True)
        for failure in (each for each in results if isinstance(each, BaseException)):
            raise failure

    def _retire(self, entry: OpenGateway) -> None:
        entry.retired = True
        if entry.calls == 0:
            self._close_soon(entry)
        else:
            self._retired.add(entry)

    def _close_soon(self, entry: OpenGateway) -> None:
        self._retired.discard(entry)
        task = asyncio.get_running_loop().create_task(_close(entry))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(entry: OpenGateway) -> None:
    try:
        await entry.gateway.close()
    except Exception:  # nobody waits for it: the answers are in, and the next gateway is open
        _log.warning("closing the old gateway of model endpoint %s failed", entry.endpoint.name, exc_info=True)


# --- from resource ---------------------------------------------------------------------------------------------------

# From a declared `ModelEndpoint` and its opened key to what the router needs. The only place that knows both.


def endpoint_config(
    document: Mapping[str, Any], *, api_key: str = "", secret_version: str = "", waits: Waits | None = None
) -> EndpointConfig:
    """The endpoint of a ModelEndpoint in normal form, named `namespace/name`.

    Documents were checked when they were stored, so their fields are only looked up here. Fallbacks without a namespace
    are taken from its own. A gateway is replaced when the definition changes (its generation), not when its status
    does. `waits` say how long connecting may take where it does not. Raises `InvalidInput` for a key or an address that
    cannot be used.
    """
    meta, spec = document["metadata"], document["spec"]
    waits = waits or Waits()
    namespace, provider, model = meta.get("namespace", "default"), spec["provider"], spec.get("default_model", "")
    options: dict[str, Any] = dict(spec.get("options", {}))
    if (script := spec.get("script")) is not None:
        options["script"] = script
    limits, pricing = spec.get("rate_limit"), spec.get("pricing")
    return EndpointConfig(
        name=f"{namespace}/{meta['name']}",
        version=f"{meta.get('uid')}.{meta.get('generation', meta.get('resourceVersion'))}",
        secret_version=secret_version,
        gateway=GatewayConfig(
            provider=provider,
            base_url=spec.get("base_url", ""),
            api_key=api_key,
            model=model,
            options=options,
            timeouts=_timeouts(spec.get("timeouts", {}), waits),
            waits=waits,
        ),
        limits=limits_in_file(provider, model) if limits is None else _limits(limits),
        pricing=None if pricing is None else Pricing.read(pricing),
        fallbacks=tuple(qualified(ref, namespace) for ref in spec.get("fallbacks", ())),
    )


def _limits(declared: Mapping[str, Any]) -> RateLimits:
    requests, tokens, concurrency, burst = map(declared.get, ("requests", "tokens", "concurrency", "burst"))
    return RateLimits(requests, tokens, seconds(declared["per"]), concurrency, burst)


def limits_in_file(provider: str, model: str) -> RateLimits:
    """The limits that the provider's file has for a model, which hold where an endpoint declares none."""
    try:
        name = default_registry().find(provider).name
    except InvalidInput:
        return NO_LIMITS  # whoever asks it is told
    given = sections_for(name, "limits", model)
    return RateLimits(**given) if given else NO_LIMITS


def _timeouts(declared: Mapping[str, str], waits: Waits) -> Timeouts:
    return Timeouts(**{"connect": waits.answer, **{name: seconds(value) for name, value in declared.items()}})

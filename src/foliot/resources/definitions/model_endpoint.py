"""ModelEndpoint: where a model is asked, with which key, how often and at what price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from foliot.resources.base import Model, Resource, Status, given, implies, present, problem, says
from foliot.resources.definitions.shapes import RateLimit, SecretAuth
from foliot.resources.fields import LooseText, Positive, RefList, Timeout, Url
from foliot.resources.problems import Problem

BASE_URLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "openai": "https://api.openai.com/v1",
        "openai-responses": "https://api.openai.com/v1",
        "anthropic": "https://api.anthropic.com/v1",
        "gemini": "https://generativelanguage.googleapis.com/v1beta",
        "ollama": "http://127.0.0.1:11434",
    }
)
_NEED_A_URL: Final = ("azure-openai", "azure_openai", "azure", "openai-compatible", "openai_compatible")
_OFFLINE: Final = ("scripted", "mock")
MAPPINGS: Final = ("profile", "extra")
"""The options that are no words: what a model refuses, and what is added to every request."""


def _provider(value: Any) -> Any:
    """Names are in lower case; a model behind a colon (`pydantic-ai:Some/Model`) keeps its own."""
    if not isinstance(value, str):
        return value
    name, colon, model = value.strip().partition(":")
    return name.lower() + colon + model


def _options(values: dict[str, Any]) -> dict[str, Any]:
    return {key.strip().lower(): value.strip() if isinstance(value, str) else value for key, value in values.items()}


class ModelRateLimit(RateLimit):
    """How often a model may be asked."""

    tokens: Positive | None = Field(default=None, description="Tokens in and out in each period.")


class ModelTimeouts(Model):
    """How long an answer may take."""

    connect: Timeout | None = Field(default=None, description="Until the connection stands.")
    idle: Timeout | None = Field(default=None, description="The longest silence inside a stream.")
    total: Timeout | None = Field(
        default=None, description="The whole answer; in a stream, the longest time without any of it."
    )


class ModelPricing(Model):
    """Prices in US dollars per million tokens, where they differ from the built-in tables; 0 means free."""

    required: ClassVar = {"input": " (0 means free)", "output": " (0 means free)"}

    input: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Tokens sent.")
    output: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Tokens received.")
    cache_read: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Tokens read from a cache.")
    cache_write: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Tokens put into a cache.")
    request: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Each question, in dollars.")
    cache_write_1h: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Tokens put into a cache for an hour; else as `cache_write`."
    )
    web_search: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Each web search of the provider's own, in dollars."
    )
    file_search: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Each file search of the provider's own, in dollars."
    )
    search: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Each search that a ranking is billed by, in dollars."
    )
    audio_hour: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="An hour of a recording that is written down, in dollars."
    )
    tiers: dict[str, Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="Factors on the price of tokens by tier, such as flex: 0.5."
    )


class ModelEndpointSpec(Model):
    """The provider, model and access of an endpoint."""

    required: ClassVar = {"default_model": ""}
    excused: ClassVar = {"default_model": says("provider", *_OFFLINE)}
    rules: ClassVar = (
        implies(says("provider", *_NEED_A_URL), given("base_url")),
        implies(present("script"), says("provider", *_OFFLINE)),
        implies(says("provider", "scripted"), present("script")),
    )

    provider: Annotated[str, BeforeValidator(_provider)] = Field(
        default="openai",
        description="The protocol that the endpoint speaks: openai, anthropic, gemini, ollama, scripted and others.",
    )
    base_url: Url = Field(default="", description="Where it is; known for the large providers.")
    default_model: str = Field(default="", description="The model that is asked unless an agent names another.")
    options: Annotated[dict[str, LooseText | dict[str, Any]], AfterValidator(_options)] = Field(
        default_factory=dict[str, Any],
        description="The provider's own switches, such as api_version; profile and extra are mappings.",
    )
    auth: SecretAuth = Field(default_factory=SecretAuth, description="The key to show.")
    fallbacks: RefList = Field(
        default_factory=list[str], description="ModelEndpoints to ask, in this order, when this one fails."
    )
    rate_limit: ModelRateLimit | None = Field(default=None, description="How often it may be asked.")
    timeouts: ModelTimeouts = Field(default_factory=ModelTimeouts, description="How long an answer may take.")
    pricing: ModelPricing | None = Field(default=None, description="Prices, where they are special.")
    script: Annotated[Any, WithJsonSchema({"type": ["string", "array", "object"]})] = Field(
        default=None, description="What a `scripted` model answers: turns, or the name of a built-in script."
    )

    def complete(self) -> None:
        if not self.base_url:
            self.base_url = BASE_URLS.get(self.provider, "")
        if not self.default_model and self.provider in _OFFLINE:
            self.default_model = self.provider

    def problems(self) -> Iterator[Problem]:
        for name, value in self.options.items():
            if isinstance(value, dict) != (name in MAPPINGS):
                wanted = "a mapping" if name in MAPPINGS else "text, a number or a boolean"
                yield problem("options", message=f"{{field}}.{name} must be {wanted}")
        if self.provider in _NEED_A_URL and not self.base_url:
            yield problem("base_url", message=f"{{field}} is required when spec.provider is {self.provider}")
        if self.script is not None and self.provider not in _OFFLINE:
            yield problem("script", message="{field} is only for spec.provider scripted")
        if self.script is None and self.provider == "scripted":
            yield problem("script", message="{field} is required when spec.provider is scripted")
        if self.script is not None and not isinstance(self.script, (str, list, dict)):
            yield problem("script", message="{field} must be a list of turns, a mapping, or a name")


class ModelEndpoint(Resource[ModelEndpointSpec, Status]):
    """A model endpoint: a provider's API that agents ask."""

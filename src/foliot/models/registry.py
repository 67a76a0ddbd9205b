"""Which model providers there are, by name and alias. Built-in ones and strangers' come in by the same door.

A provider is a name and a factory from `GatewayConfig` to `Gateway`. The built-in ones are data: the table `[provider]`
in the files beside `profiles`, over the few formats there are. A package offers its own by an entry point:

    [project.entry-points."foliot.models"]
    acme = "acme_models:provider"        # a Provider, a list of them, or a function that returns either

A plug-in is loaded when the operator has named it in the setting `plugins`, and a name is asked for that is not built
in; so a start without plug-ins costs nothing. One that does not load takes nothing else down with it, and its trouble
is in the error for that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from foliot.common.plugins import ENABLED
from foliot.common.suggestions import suggestion
from foliot.errors import Conflict, FoliotError, InvalidInput
from foliot.models.base import Gateway
from foliot.models.config import GatewayConfig
from foliot.models.credentials import found as found_credentials
from foliot.models.profiles import profile_document, provider_facts, providers_with_files

Factory: TypeAlias = Callable[[GatewayConfig], Gateway]
ENTRY_POINTS: Final = "foliot.models"


@dataclass(frozen=True, slots=True)
class Provider:
    """`factory` is a function or class, or the text "module:attribute", imported when first needed.

    `base_url` is the address when the endpoint gives none; `options` are defaults under the endpoint's own.
    A provider with `takes_model` may be written `name:model` in an endpoint. `key_variables` are where its own tools
    look for the key in the environment, the first that is set: for a model that an agent names as `provider:model`.
    `url_variable` is where they look for another address; `url_path` is what they put behind it. `url_template` is an
    address with variables of the environment in it, for providers that have one per region or project. `credentials` is
    the kind that is taken for a key too (see `credentials.py`).
    """

    name: str
    factory: Factory | str
    aliases: tuple[str, ...] = ()
    requires_api_key: bool = True
    requires_base_url: bool = False
    base_url: str = ""
    options: Mapping[str, Any] | None = None
    takes_model: bool = False
    key_variables: tuple[str, ...] = ()
    url_variable: str = ""
    url_path: str = ""
    url_template: str = ""
    credentials: str = ""

    def key_in(self, environ: Mapping[str, str]) -> str:
        """The key that the provider's own tools would find in the environment, or in their files; "" for none."""
        key = next((key for each in self.key_variables if (key := environ.get(each, ""))), "")
        return key or (found_credentials(self.credentials, environ) if self.credentials else "")

    def address_in(self, environ: Mapping[str, str]) -> str:
        """The base URL that the environment names, read as the provider's own SDK reads it; "" when it names none."""
        said = environ.get(self.url_variable, "").strip() if self.url_variable else ""
        if said and self.name == "ollama":
            return _ollama_address(said)
        return said.rstrip("/") + self.url_path if said else _filled(self.url_template, environ)

    def address(self, said: str) -> str:
        """Return the address to ask when an endpoint names `said`: as it is, or as the provider's own SDK completes it.

        People copy addresses from where they are used: the bare host, the SDK's base URL, or the whole path of a call.
        """
        said = said.rstrip("/")
        if not said or not self.base_url:
            return said or self.base_url
        said = _CALLS.sub("", said)
        path = urlsplit(said).path
        if self.name == "ollama":
            return re.sub(r"/(api|v1)$", "", said)
        if not path.strip("/"):
            return said + urlsplit(self.base_url).path
        # These SDKs put the version behind whatever they are given.
        return said + self.url_path if self.name in _VERSIONED and not _VERSION.search(path) else said


_CALLS: Final = re.compile(
    r"/(chat/completions|completions|responses|messages|models(/[^/]+:\w+)?|api/chat|api/generate"
    r"|embeddings|rerank|audio/transcriptions)$"
)
_VERSIONED: Final = frozenset({"anthropic", "gemini"})
_VERSION: Final = re.compile(r"/v\d+[a-z]*\d*(/|$)")


def _filled(template: str, environ: Mapping[str, str]) -> str:
    """The template with each `{NAME|OTHER}` replaced by the first of them that is set; "" when none of one is."""
    found = {names: next((v for name in names.split("|") if (v := environ.get(name, "").strip())), "")
             for names in _VARIABLES.findall(template)}  # fmt: skip
    # A value that is more than one label would lead, with the key, to another host.
    if not all(_LABEL.fullmatch(value) for value in found.values()):
        return ""
    return _VARIABLES.sub(lambda match: found[match[1]], template)


_VARIABLES: Final = re.compile(r"\{([A-Z_|]+)\}")
_LABEL: Final = re.compile(r"[A-Za-z0-9-]+")


def _ollama_address(host: str) -> str:
    """OLLAMA_HOST is a host, with or without scheme, port and path; without a scheme the port is 11434."""
    scheme, separator, rest = host.partition("://")
    if not separator:
        scheme, rest = "http", host
    parts = urlsplit(f"{scheme}://{rest}")
    try:
        port = parts.port or ({"http": 80, "https": 443}.get(scheme, 11434) if separator else 11434)
    except ValueError:
        return f"{scheme}://{rest}"  # whoever uses it is told that it is no address
    name = parts.hostname or "127.0.0.1"
    name = f"[{name}]" if ":" in name else name
    return f"{scheme}://{name}:{port}{parts.path.rstrip('/')}"


_FORMATS: Final[Mapping[str, str]] = {
    "openai-chat": "foliot.models.gateways.openai:OpenAIChatGateway",
    "openai-responses": "foliot.models.gateways.openai:OpenAIResponsesGateway",
    "azure-openai": "foliot.models.gateways.openai:AzureOpenAIGateway",
    "anthropic": "foliot.models.gateways.anthropic:AnthropicGateway",
    "gemini": "foliot.models.gateways.gemini:GeminiGateway",
    "ollama": "foliot.models.gateways.ollama:OllamaGateway",
}
"""The gateways that the files of providers can name as their `wire`."""
_OTHERS: Final = (
    Provider("scripted", "foliot.models.scripted.model:build", requires_api_key=False),
    Provider("mock", "foliot.models.scripted.model:build", requires_api_key=False, options={"script": "mock"}),
    Provider(
        "pydantic-ai",
        "foliot.models.gateways.pydantic_ai:build",
        ("pydantic_ai",),
        requires_api_key=False,
        takes_model=True,
    ),
)


@cache
def built_in() -> tuple[Provider, ...]:
    """The providers that come with Foliot: one for each file of profiles, and those that are no addresses."""
    return (*(_provider(name) for name in providers_with_files()), *_OTHERS)


def _provider(name: str) -> Provider:
    document = profile_document(name)
    facts = provider_facts(name)
    keys = tuple(facts.get("keys", ()))
    return Provider(
        name,
        _FORMATS[facts["wire"]],
        tuple(facts.get("aliases", ())),
        facts.get("needs_key", bool(keys)),
        facts.get("needs_address", False),
        facts.get("address", ""),
        document.get("options"),
        key_variables=keys,
        url_variable=facts.get("address_variable", ""),
        url_path=facts.get("address_path", ""),
        url_template=facts.get("address_template", ""),
        credentials=facts.get("credentials", ""),
    )


def normal(name: str) -> str:
    return name.strip().lower()


class ProviderRegistry:
    """Providers by name. `plugins` brings further ones in when a name is not found; see `load_entry_points`."""

    def __init__(
        self,
        providers: Iterable[Provider] | None = None,
        *,
        plugins: Callable[[ProviderRegistry], list[str]] | None = None,
    ) -> None:
        """`providers` are the built-in ones when none are given."""
        self._by_name: dict[str, Provider] = {}
        self._plugins = plugins
        self._troubles: list[str] = []
        self._brought: dict[str, tuple[Provider, ...]] = {}
        for provider in built_in() if providers is None else providers:
            self.register(provider)

    def register(self, *providers: Provider) -> None:
        """Add providers, all or none. Raises `Conflict` for a name or alias that is taken."""
        added: dict[str, Provider] = {}
        for provider in providers:
            for name in dict.fromkeys(normal(each) for each in (provider.name, *provider.aliases)):
                if not name or ":" in name:
                    raise InvalidInput(f"{name!r} cannot name a model provider", hint="use letters, digits and dashes")
                taken = self._by_name.get(name) or added.get(name)
                if taken is not None:
                    raise Conflict(f"the model provider name {name!r} is taken by {taken.name!r}")
                added[name] = replace(provider, name=normal(provider.name))
        self._by_name.update(added)

    def bring(self, owner: str, providers: Iterable[Provider]) -> None:
        """Add the providers of a plug-in, in the place of those that it brought before. Raises as `register`."""
        self.drop(owner)
        given = tuple(providers)
        self.register(*given)
        self._brought[owner] = given

    def drop(self, owner: str) -> None:
        """Take out what a plug-in brought, if it did."""
        for provider in self._brought.pop(owner, ()):
            for name in (provider.name, *provider.aliases):
                self._by_name.pop(normal(name), None)

    def has(self, owner: str) -> bool:
        return owner in self._brought

    def names(self) -> list[str]:
        """The names of all providers, without aliases, sorted; plug-ins are loaded for it."""
        self._load_plugins()
        return sorted({provider.name for provider in self._by_name.values()})

    def find(self, name: str) -> Provider:
        """The provider of a name, an alias or `name:model`. Raises `InvalidInput` with the nearest known name."""
        wanted = normal(name)
        found = self._match(wanted)
        if found is None:
            self._load_plugins()
            found = self._match(wanted)
        if found is None:
            raise self._unknown(name, wanted)
        return found

    def build(self, config: GatewayConfig) -> Gateway:
        """A gateway for `config`. Raises `InvalidInput` when it lacks something or names what is not there.

        It is built under the provider's own name, whatever alias names it there: profiles, prices and errors go by it.
        """
        provider = self.find(config.provider)
        if provider.requires_api_key and not config.api_key:
            hint = "put the key in a Secret and name it in the endpoint's auth.secretRef"
            if provider.key_variables:
                hint += f"; for a model named {provider.name}:<model>, set {provider.key_variables[0]}"
            raise InvalidInput(f"model provider {provider.name!r} needs an API key", hint=hint)
        base_url = provider.address(config.base_url)
        if provider.requires_base_url and not base_url:
            raise InvalidInput(f"model provider {provider.name!r} needs a base URL", hint=_where_from(provider))
        options = {**(provider.options or {}), **config.options}
        return _factory(provider)(_named(config, provider, base_url=base_url, options=options))

    def unknown_options(self, config: GatewayConfig) -> dict[str, str]:
        """Options that the provider's gateway does not read, each with what helps; none where it does not say.

        Raises `InvalidInput` for an unknown provider, and for an option whose value cannot be used.
        """
        provider = self.find(config.provider)
        factory = _factory(provider)
        known = cast("frozenset[str] | None", getattr(factory, "OPTIONS", None))
        if known is None:
            return {}
        base_url = provider.address(config.base_url)
        if base_url or not provider.requires_base_url:
            factory(_named(config, provider, base_url=base_url))  # nothing is asked: it only reads its options
        unknown = sorted(set(config.options) - known)
        every = f"known: {', '.join(sorted(known))}"
        return {name: suggestion(name, sorted(known)) or every for name in unknown}

    def _match(self, wanted: str) -> Provider | None:
        found = self._by_name.get(wanted)
        if found is None and ":" in wanted:
            found = self._by_name.get(wanted.partition(":")[0].strip())
            return found if found is not None and found.takes_model else None
        return found

    def _load_plugins(self) -> None:
        plugins, self._plugins = self._plugins, None
        if plugins is not None:
            self._troubles = plugins(self)

    def _unknown(self, name: str, wanted: str) -> InvalidInput:
        if not wanted:
            return InvalidInput("the model endpoint names no provider", hint=f"known: {', '.join(self.names())}")
        hint = suggestion(wanted, self._by_name) or f"known: {', '.join(self.names())}"
        if package := _not_enabled(wanted):
            hint = f"the package {package} offers it: add {wanted} to the setting plugins (FOLIOT_PLUGINS)"
        if self._troubles:
            hint += "; plug-ins that did not load: " + "; ".join(self._troubles)
        return InvalidInput(f"unknown model provider {name!r}", hint=hint)


def _named(config: GatewayConfig, provider: Provider, **changes: Any) -> GatewayConfig:
    """The configuration with the provider's own name; a model behind a colon stays."""
    _, colon, model = config.provider.partition(":")
    return replace(config, provider=provider.name + colon + model, **changes)


def _where_from(provider: Provider) -> str:
    hint = "set base_url on the endpoint"
    variables = [names.partition("|")[0] for names in _VARIABLES.findall(provider.url_template)]
    return f"{hint}, or {' and '.join(dict.fromkeys(variables))} in the environment" if variables else hint


def _factory(provider: Provider) -> Factory:
    if not isinstance(provider.factory, str):
        return provider.factory
    module, _, attribute = provider.factory.partition(":")
    try:
        return cast("Factory", getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"model provider {provider.name!r} cannot be loaded: {error}") from error


def _not_enabled(name: str) -> str:
    """The package that offers a plug-in of this name which nobody has enabled; blank when there is none."""
    found = [each for each in entry_points(group=ENTRY_POINTS) if normal(each.name) == name.partition(":")[0]]
    return found[0].dist.name if found and found[0].name not in ENABLED and found[0].dist is not None else ""


def offered_providers(given: Any) -> list[Provider]:
    """The providers that an entry point names: one, several, or what a function returns. Raises `InvalidInput`."""
    if callable(given):
        given = given()
    providers = [given] if isinstance(given, Provider) else list(cast("Iterable[Any]", given))
    if not all(isinstance(each, Provider) for each in providers):
        raise InvalidInput("it does not give a Provider")
    return cast("list[Provider]", providers)


def load_entry_points(registry: ProviderRegistry) -> list[str]:
    """Register what enabled plug-ins offer; return one line for each that could not be."""
    troubles: list[str] = []
    for entry in entry_points(group=ENTRY_POINTS):
        owner = f"plugin:{entry.name}"
        if entry.name not in ENABLED or registry.has(owner):
            continue
        try:
            registry.bring(owner, offered_providers(entry.load()))
        except FoliotError as error:
            troubles.append(f"{entry.name}: {error.message}")
        except Exception as error:  # a stranger's code may raise anything, and must not stop the others
            troubles.append(f"{entry.name}: {type(error).__name__}: {error}")
    return troubles


@cache
def default_registry() -> ProviderRegistry:
    """The registry of this process: the built-in providers, and enabled plug-ins when they are needed."""
    return ProviderRegistry(plugins=load_entry_points)

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from foliot.errors import Conflict, InvalidInput
from foliot.models import registry as registry_module
from foliot.models.config import GatewayConfig
from foliot.models.registry import Provider, ProviderRegistry, _factory, built_in, default_registry, load_entry_points
from foliot.models.scripted.model import ScriptedModel


def build(config: GatewayConfig) -> ScriptedModel:
    return ScriptedModel("echo", model=config.model or "acme")


acme = Provider("acme", build, ("ac-me",), requires_api_key=False)


def two_providers() -> list[Provider]:
    return [Provider("one", build), Provider("two", build)]


def broken() -> Provider:
    raise RuntimeError("no licence")


def test_a_name_an_alias_and_any_spelling_of_case_find_the_same_provider():
    registry = ProviderRegistry()
    assert registry.find(" Azure_OpenAI ").name == "azure-openai"
    assert registry.find("Xai").name == "x-ai"
    assert registry.find("google").name == "gemini"
    assert registry.find("pydantic-ai:openai:gpt-4o").name == "pydantic-ai"


def test_an_unknown_provider_gets_the_nearest_name():
    with pytest.raises(InvalidInput, match="unknown model provider 'antropic'") as caught:
        ProviderRegistry().find("antropic")
    assert caught.value.hint == "did you mean anthropic?"
    with pytest.raises(InvalidInput) as caught:
        ProviderRegistry().find("zzzz")
    assert "ollama" in (caught.value.hint or "")
    with pytest.raises(InvalidInput, match="names no provider"):
        ProviderRegistry().find("  ")
    with pytest.raises(InvalidInput):
        ProviderRegistry().find("openai:gpt-4o")  # only some take a model behind the colon


def test_registration_is_all_or_nothing():
    registry = ProviderRegistry()
    with pytest.raises(Conflict, match="'kimi' is taken by 'moonshot'"):
        registry.register(Provider("fresh", build, ("Kimi ",)))
    with pytest.raises(InvalidInput):
        registry.find("fresh")
    with pytest.raises(Conflict, match="'b' is taken by 'a'"):
        registry.register(Provider("a", build, ("b",)), Provider("b", build))
    with pytest.raises(InvalidInput):
        registry.register(Provider(" ", build))


def test_a_missing_key_or_address_is_told_before_any_call():
    with pytest.raises(InvalidInput, match="'openai' needs an API key") as caught:
        ProviderRegistry().build(GatewayConfig("openai"))
    assert "secretRef" in (caught.value.hint or "")
    with pytest.raises(InvalidInput, match="needs a base URL"):
        ProviderRegistry().build(GatewayConfig("openai-compatible"))


@pytest.mark.parametrize(
    ("alias", "name"), [(alias, each.name) for each in built_in() for alias in (*each.aliases, each.name.upper())]
)
async def test_an_alias_leads_to_all_that_the_name_leads_to(alias: str, name: str):
    """The profile of its models, the options of its file and the name in errors and records, not only the address."""
    if name == "pydantic-ai":
        return  # built of a package of others, which names its providers itself

    def built(called: str) -> Any:
        options = {"script": "echo"} if name == "scripted" else {}
        given = GatewayConfig(called, base_url="http://127.0.0.1:9", api_key="k", model="kimi-k3", options=options)
        return ProviderRegistry().build(given)

    by_alias, by_name = built(alias), built(name)
    if name not in ("scripted", "mock"):
        assert by_alias.config == by_name.config
        assert by_alias.profile("kimi-k3") == by_name.profile("kimi-k3")
    await by_alias.close()
    await by_name.close()


async def test_defaults_of_the_provider_stand_under_those_of_the_endpoint():
    seen: list[GatewayConfig] = []

    def factory(config: GatewayConfig) -> ScriptedModel:
        seen.append(config)
        return build(config)

    registry = ProviderRegistry([Provider("x", factory, base_url="http://x.example", options={"a": 1, "b": 1})])
    registry.build(GatewayConfig("X", api_key="k", options={"b": 2}))
    registry.build(GatewayConfig("x", api_key="k", base_url="http://mine.example"))

    assert (seen[0].base_url, seen[0].options) == ("http://x.example", {"a": 1, "b": 2})
    assert seen[1].base_url == "http://mine.example"


@pytest.mark.parametrize("name", [p.name for p in built_in() if p.name != "pydantic-ai"])
async def test_every_built_in_provider_can_be_built(name: str):
    config = GatewayConfig(
        name, base_url="http://127.0.0.1:9" if default_registry().find(name).requires_base_url else "", api_key="k"
    )
    if name == "scripted":
        config = GatewayConfig(name, options={"script": ["hi"]})
    gateway = ProviderRegistry().build(config)
    await gateway.close()


def offer(monkeypatch: pytest.MonkeyPatch, **entries: str) -> None:
    points = [EntryPoint(name, f"{__name__}:{attr}", "foliot.models") for name, attr in entries.items()]
    here = {"acme": acme, "two_providers": two_providers, "broken": broken, "clash": built_in()[0], "nonsense": [42]}

    def load(self: EntryPoint) -> Any:
        return here[self.attr]

    monkeypatch.setattr(EntryPoint, "load", load)
    monkeypatch.setattr(registry_module, "entry_points", lambda group: points)
    monkeypatch.setattr(registry_module, "ENABLED", {each.name for each in points})


async def test_an_installed_package_brings_its_providers(monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, acme="acme", more="two_providers")
    registry = ProviderRegistry(plugins=load_entry_points)

    gateway = registry.build(GatewayConfig("AC-ME"))

    assert isinstance(gateway, ScriptedModel)
    assert {"acme", "one", "two"} <= set(registry.names())


def test_a_plug_in_that_does_not_load_takes_nothing_down_and_is_named(monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, bad="broken", taken="clash", odd="nonsense", acme="acme")
    registry = ProviderRegistry(plugins=load_entry_points)

    assert registry.find("acme").name == "acme"
    with pytest.raises(InvalidInput) as caught:
        registry.find("bad-one")
    for word in ("no licence", "is taken", "does not give a Provider"):
        assert word in (caught.value.hint or "")


def test_plug_ins_are_not_read_for_a_built_in_name():
    def never(_: ProviderRegistry) -> list[str]:
        raise AssertionError("read too early")

    assert ProviderRegistry(plugins=never).find("openai").name == "openai"


def test_a_factory_that_cannot_be_imported_is_explained():
    registry = ProviderRegistry([Provider("x", "foliot.models.nowhere:build", requires_api_key=False)])
    with pytest.raises(InvalidInput, match="'x' cannot be loaded"):
        registry.build(GatewayConfig("x"))


class _Read(dict[str, Any]):
    """Options that remember which of them were looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return default


@pytest.mark.parametrize(
    "name", ["openai", "openai-responses", "azure-openai", "anthropic", "gemini", "ollama", "groq", "openai-compatible"]
)
def test_the_options_of_a_provider_are_those_that_it_reads(name: str):
    config = GatewayConfig(name, base_url="http://127.0.0.1:9/v1", api_key="k")
    object.__setattr__(config, "options", read := _Read())
    factory = _factory(default_registry().find(name))
    factory(config)
    known: Any = factory
    assert read.names == known.OPTIONS


@pytest.mark.parametrize(
    ("provider", "said", "asked"),
    [
        ("gemini", "https://g.example/v1beta/models/gemini-3:generateContent", "https://g.example/v1beta"),
        ("gemini", "https://g.example/v1beta/models/gemini-3:streamGenerateContent", "https://g.example/v1beta"),
        ("gemini", "https://g.example", "https://g.example/v1beta"),
        ("openai", "https://o.example/v1/embeddings", "https://o.example/v1"),
        ("together", "https://t.example/v1/rerank", "https://t.example/v1"),
        ("groq", "https://q.example/openai/v1/audio/transcriptions", "https://q.example/openai/v1"),
    ],
)
def test_an_address_that_was_copied_from_a_call_is_cut(provider: str, said: str, asked: str) -> None:
    assert default_registry().find(provider).address(said) == asked

"""Profiles of models: the bundled files, and what an endpoint adds to them."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from foliot.errors import InvalidInput
from foliot.kernel.messages import Usage
from foliot.models import profiles
from foliot.models.config import GatewayConfig
from foliot.models.profiles import EFFORTS, ModelProfile, profile_document, profile_of, providers_with_files
from foliot.models.routing.endpoints import limits_in_file
from foliot.models.routing.pricing import PriceBook, Pricing, Sold
from foliot.resources.rates import NO_LIMITS, RateLimits

BUNDLED = sorted(each.name[:-5] for each in files("foliot.models.profiles").iterdir() if each.name.endswith(".toml"))


@pytest.mark.parametrize("provider", BUNDLED)
def test_every_bundled_file_can_be_read(provider: str) -> None:
    document = profile_document(provider)
    names = [section["match"] for section in document.get("models", ())]
    assert len(names) == len(set(names))
    for section in ({}, document.get("default", {}), *document.get("models", ())):
        given = {name: value for name, value in section.items() if name != "match"}
        profile = profile_of(provider, "anything", given)
        assert profile.efforts is None or tuple(sorted(profile.efforts, key=EFFORTS.index)) == profile.efforts


def test_the_profiles_stand_in_the_wheel() -> None:
    assert {"anthropic", "openai", "openai-responses", "azure-openai", "gemini", "ollama"} <= set(BUNDLED)


@pytest.mark.parametrize(
    ("provider", "model", "field", "value"),
    [
        ("anthropic", "claude-opus-4-8", "refuses", {"temperature", "top_p", "seed"}),
        ("anthropic", "claude-sonnet-4-5-20250929", "thinking", "budget"),
        ("anthropic", "claude-sonnet-4-6", "thinking", "adaptive"),
        ("anthropic", "claude-opus-4-20250514", "answers", "tool"),
        ("anthropic", "claude-3-5-haiku-latest", "efforts", ()),
        ("anthropic", "claude-opus-5-5", "reasons", "always"),
        ("anthropic", "claude-fable-5", "refuses", {"temperature", "top_p", "seed"}),
        ("anthropic", "claude-fable-5-2", "refuses", {"temperature", "top_p", "seed", "tool_choice"}),
        ("anthropic", "somebody-elses", "refuses", {"seed"}),
        ("openai", "gpt-4o", "efforts", ()),
        ("openai", "gpt-5-mini", "efforts", ("minimal", "low", "medium", "high")),
        ("openai", "gpt-5.1", "efforts", ("none", "low", "medium", "high")),
        ("openai", "gpt-5-chat-latest", "reasons", "never"),
        ("openai", "gpt-5.6-luna", "efforts", ("none", "low", "medium", "high", "xhigh")),
        ("openai-responses", "gpt-5.6-luna", "efforts", ("none", "low", "medium", "high", "xhigh", "max")),
        ("openai-responses", "gpt-4.1", "refuses", {"stop", "seed"}),
        ("openai", "o3", "refuses_reasoning", {"temperature", "top_p", "stop", "parallel_tool_calls"}),
        ("openai", "a-model-of-ours", "efforts", None),
        ("gemini", "gemini-2.5-flash", "answers_beside_tools", False),
        ("gemini", "gemini-3.1-pro-preview", "efforts", ("low", "medium", "high")),
        ("gemini", "gemini-2.0-flash", "efforts", ()),
    ],
)
def test_what_is_known_of_a_model(provider: str, model: str, field: str, value: Any) -> None:
    assert getattr(profile_of(provider, model), field) == value


def test_a_provider_without_a_file_takes_everything() -> None:
    assert profile_of("unheard-of", "m") == ModelProfile()
    assert profile_of("../openai", "gpt-5") == ModelProfile()


@pytest.mark.parametrize(
    ("efforts", "wanted", "asked"),
    [
        (None, "xhigh", "xhigh"),
        (("low", "medium", "high"), "minimal", "low"),
        (("low", "medium", "high"), "max", "high"),
        (("low", "high"), "medium", "high"),
        (("low", "high"), "none", "low"),
        (("none", "low"), "none", "none"),
        ((), "high", None),
        (("low",), None, None),
    ],
)
def test_an_effort_that_a_model_does_not_know_becomes_the_nearest(
    efforts: tuple[str, ...] | None, wanted: str | None, asked: str | None
) -> None:
    assert ModelProfile(efforts=efforts).effort(wanted) == asked


@pytest.mark.parametrize(
    ("reasons", "effort", "does"),
    [
        ("never", "high", False),
        ("always", "none", True),
        ("asked", None, False),
        ("asked", "low", True),
        ("asked", "none", False),
        ("default", None, True),
        ("default", "none", False),
    ],
)
def test_when_a_model_reasons(reasons: Any, effort: str | None, does: bool) -> None:
    profile = ModelProfile(refuses=frozenset({"seed"}), refuses_reasoning=frozenset({"top_p"}), reasons=reasons)
    assert profile.is_reasoning(effort) is does
    assert profile.refused(effort) == ({"seed", "top_p"} if does else {"seed"})


def test_an_endpoint_adds_to_the_profile_of_its_models() -> None:
    added = {"refuses": ["stop"], "efforts": ["high", "low"], "max_output": 512}
    profile = GatewayConfig("claude", options={"profile": added}).profiles("anthropic")("claude-opus-4-8")
    assert profile.refuses == {"stop"}
    assert profile.efforts == ("low", "high")
    assert (profile.max_output, profile.thinking) == (512, "adaptive")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"refuse": ["stop"]}, "there is no 'refuse'"),
        ({"refuses": ["heat"]}, "refuses cannot hold heat"),
        ({"efforts": ["huge"]}, "efforts cannot hold huge"),
        ({"answers": "poem"}, "answers must be one of"),
        ({"max_output": "many"}, "max_output must be a whole number"),
        ({"phase": 1}, "phase must be true or false"),
        ("words", "must be a mapping"),
    ],
)
def test_a_mistake_in_a_profile_is_named(given: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        GatewayConfig("openai", model="m", options={"profile": given}).profiles("openai")


# --- prices and limits in the files --------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", providers_with_files())
def test_prices_and_limits_in_a_file_can_be_used_and_say_where_they_were_read(provider: str) -> None:
    document = profile_document(provider)
    for section in document.get("prices", ()):
        assert section["source"]
        assert re.compile(section["match"])
        Pricing.read({name: value for name, value in section.items() if name not in ("match", "source")})
    for section in document.get("limits", ()):
        assert section["source"]
        RateLimits(**{name: value for name, value in section.items() if name not in ("match", "source")})


def test_a_price_in_the_file_counts_where_the_tables_have_none() -> None:
    book = PriceBook()
    hour = Sold(audio_seconds=3600)
    assert book.cost("openai", "whisper-1", Usage(0, 5), sold=hour) == pytest.approx(0.36)
    assert book.cost("openai-responses", "whisper-1", Usage(0, 5), sold=hour) == pytest.approx(0.36)
    assert book.cost("voyage", "rerank-2.5-lite", Usage(1_000_000)) == pytest.approx(0.02)
    own, other = "https://api.voyageai.com/v1", "https://reseller.example/v1"
    assert book.cost("voyage", "rerank-2.5", Usage(1_000_000), base_url=own) == pytest.approx(0.05)
    assert book.cost("voyage", "rerank-2.5", Usage(1_000_000), base_url=other) is None
    assert book.cost("voyage", "no-such-model", Usage(1_000_000)) is None


def test_a_limit_in_the_file_holds_where_the_endpoint_declares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, table = profiles.profile_document, {"limits": [{"match": "-free$", "requests": 20, "per": 60, "source": "a"}]}
    with monkeypatch.context() as patch:
        patch.setattr(profiles, "profile_document", lambda name: real(name) | (table if name == "moonshot" else {}))
        assert limits_in_file("kimi", "some-free") == RateLimits(requests=20, per=60)
        assert limits_in_file("kimi", "some-paid") == NO_LIMITS
        assert limits_in_file("no such provider", "some-free") == NO_LIMITS

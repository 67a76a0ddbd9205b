"""Pairs of features that are right alone and may exclude each other: asked of servers that keep the provider's rule."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from foliot import Agent, Runtime, tool
from foliot.models.cells import CELLS, CellSubject, CellVerdict, judge
from foliot.models.config import GatewayConfig
from foliot.models.profiles import profile_of, provider_facts
from foliot.models.registry import default_registry
from tests.models.obeying import CONSTRAIN, Obeying
from tests.tools.web_service import serving

pytest.importorskip("openai")
pytest.importorskip("anthropic")


async def asked(provider: str, model: str, cell: str, **options: Any) -> CellVerdict:
    wire = str(provider_facts(provider)["wire"])
    async with serving(Obeying(provider, wire)) as service:
        path = "" if wire == "ollama" else "/v1"
        gateway = default_registry().build(
            GatewayConfig(provider, service.url + path, "k", model=model, options=options)
        )
        try:
            subject = CellSubject.of(gateway, provider, model, profile_of(provider, model, options.get("profile")))
            found = await judge(subject, [each for each in CELLS if each.name == cell])
        finally:
            await gateway.close()
    return found[cell]


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-opus-4-7", "claude-sonnet-4-5", "claude-sonnet-5"])
async def test_claude_is_not_asked_to_think_before_a_forced_call(model: str) -> None:
    found = await asked("anthropic", model, "thinking with a forced call")
    assert found == CellVerdict("by design", "it does not think before a call that is forced; left out, and said so")


class Report(BaseModel):
    city: str
    degrees: int


@pytest.mark.parametrize("provider", sorted(CONSTRAIN))
async def test_a_tool_is_called_before_an_answer_that_has_a_schema(provider: str) -> None:
    """These servers let no call be written where a schema holds the answer: an invented one would succeed."""
    called: list[str] = []

    @tool(effect="read")
    def weather(city: str) -> str:
        """The weather of one city."""
        called.append(city)
        return "17 degrees"

    async with serving(Obeying(provider, str(provider_facts(provider)["wire"]))) as service:
        path = "" if provider == "ollama" else "/v1"
        gateway = default_registry().build(GatewayConfig(provider, service.url + path, "k", model="m"))
        async with Runtime("memory:") as runtime:
            clerk = Agent("clerk", model=gateway, output=Report, tools=[weather])
            result = await runtime.run(clerk, "How is the weather in Oslo? Use the tool. Report it as JSON.")
    assert called == ["Oslo"]
    assert result.value == Report(city="Oslo", degrees=17)


@pytest.mark.parametrize("provider", sorted(CONSTRAIN))
async def test_the_cell_finds_a_schema_that_lets_no_tool_be_called(provider: str) -> None:
    found = await asked(provider, "m", "schema with tools", profile={"answers_beside_tools": True})
    assert found == CellVerdict("wrong", "a call was wanted, 0 came")

"""An agent made in Python that names what is not there is not run, as a manifest that does is not taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, parse_manifests
from foliot.kernel.run.events import RunCreated
from foliot.resources.problems import ManifestError
from foliot.resources.references import FIELDS
from foliot.settings.settings import load_settings


def refund(amount: float) -> str:
    """Pay it back."""
    return f"paid {amount}"


PRESET = {"name": "x", "description": "d"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"category": {}}, "required": ["categry"]}
# By the field of the kind: what an agent says in Python, where the error is, and what it offers.
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "roles": ({"roles": ["nobody"]}, "spec.roles[0]", 'missing role "nobody"'),
    "allowed_tools": ({"allowed_tools": ["refnd"]}, "spec.allowed_tools[0]", "did you mean refund?"),
    "memory.ref": ({"memory": {"ref": "notes"}}, "spec.memory.ref", 'missing memory "notes"'),
    "fallbacks": ({"fallbacks": ["other"]}, "spec.fallbacks[0]", "other"),
    "delegation.models": ({"delegation": {"models": ["fast"]}}, "spec.delegation.models[0]", "fast"),
    "delegation.presets.model": (
        {"delegation": {"presets": [{**PRESET, "model": "fast"}]}},
        "spec.delegation.presets[0].model",
        "fast",
    ),
    "delegation.presets.tools": (
        {"delegation": {"presets": [{**PRESET, "tools": ["refnd"]}]}},
        "spec.delegation.presets[0].tools[0]",
        "did you mean refund?",
    ),
    "execution.tool_sequence": (
        {"execution": {"profile": "contract", "tool_sequence": ["refnd"]}},
        "spec.execution.tool_sequence[0]",
        "did you mean refund?",
    ),
    "output": ({"output": SCHEMA}, "spec.output_schema.required[0]", "did you mean category?"),
}
# What has an error of its own, which comes first, or is looked at where it is used.
SECRETS = {"sandbox.secrets.secretRef", "runner.sandbox.secrets.secretRef", "hooks.http.secretRef"}
OTHERS = {"model_ref", "tools", "skills", "compaction.model", *SECRETS}


def test_every_field_of_an_agent_that_names_something_is_tried_here() -> None:
    assert {field for field, _, _ in FIELDS["Agent"]} - OTHERS == set(WRONG) - {"output"}


@pytest.fixture(params=["memory:", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param if request.param == "memory:" else str(tmp_path / "foliot.db")


def agent(name: str = "solo", **spec: Any) -> Agent[Any]:
    return Agent(name, model=ScriptedModel("echo"), tools=spec.pop("tools", [refund]), **spec)


async def _missing(runtime: Runtime, solo: Agent[Any]) -> tuple[str, ...]:
    """What the run of an agent that was taken says."""
    run = await runtime.run(solo, "go")
    created = (await runtime.runs.events(run.run_id))[0][1]
    assert isinstance(created, RunCreated)
    return created.missing


@pytest.mark.parametrize("field", WRONG)
async def test_an_agent_that_names_what_is_not_there_is_not_run(store: str, field: str) -> None:
    spec, place, said = WRONG[field]
    async with Runtime(store) as runtime:
        for wrong in (agent(**spec), agent("boss", tools=[refund, agent("aide", **spec)])):
            with pytest.raises(ManifestError) as told:
                await runtime.run(wrong, "go")
            assert [each.field for each in told.value.findings] == [place]
            assert said in str(told.value)
            assert "allow_missing=True" in (told.value.hint or "")


async def test_a_helper_without_its_tool_stops_its_caller(store: str) -> None:
    async with Runtime(store) as runtime:
        with pytest.raises(ManifestError, match="did you mean refund") as told:
            await runtime.run(agent("boss", tools=[refund, agent("aide", tools=["refnd"])]), "go")
        assert "Agent('aide')" in str(told.value)


async def test_a_runtime_that_takes_it_tells_of_it(store: str) -> None:
    async with Runtime(store, allow_missing=True) as runtime:
        (text,) = await _missing(runtime, agent(roles=["nobody"]))
        assert 'Agent/solo: spec.roles[0]: agent "solo" references missing role "nobody"' in text
        (text,) = await _missing(runtime, agent("boss", tools=[agent("aide", allowed_tools=["refnd"])]))
        assert "Agent/aide" in text


async def test_what_is_told_is_of_this_agent_and_not_of_its_name(store: str) -> None:
    async with Runtime(store, allow_missing=True) as runtime:
        for _ in range(2):
            assert len(await _missing(runtime, agent(roles=["nobody"]))) == 1
            assert await _missing(runtime, agent()) == ()
            for helper, missing in ((agent("aide", roles=["nobody"]), 1), (agent("aide"), 0)):
                assert len(await _missing(runtime, agent("boss", tools=[helper]))) == missing
    async with Runtime(store) as runtime:
        for _ in range(2):
            assert await _missing(runtime, agent()) == ()
            with pytest.raises(ManifestError):
                await runtime.run(agent(roles=["nobody"]), "go")


def web_search(query: str) -> str:
    """Look it up."""
    return query


async def test_rules_know_the_tools_of_python_however_they_are_spelt(store: str) -> None:
    async with Runtime(store, tools=[web_search], allow_missing=store == "memory:") as runtime:
        assert (await runtime.run(agent(allowed_tools=["Web-Search", "REFUND"]), "go")).phase == "succeeded"
        if store != "memory:":
            spec: dict[str, Any] = {"tool_ref": "Web-Search"}
            rule = {"kind": "ToolPermission", "metadata": {"name": "it"}, "spec": spec}
            await runtime.resources.apply([rule])
            spec["conditions"] = [{"when": "tool == 'Web-Search'", "verdict": "deny"}]
            with pytest.raises(ManifestError, match="did you mean web_search"):
                await runtime.resources.apply([rule])


async def test_what_python_and_the_store_have_is_there(tmp_path: Path) -> None:
    async with Runtime(settings=load_settings({"home": str(tmp_path)}, {})) as runtime:
        solo = agent(roles=["clerk"], allowed_tools=["refund", "agent:aide"], tools=[refund, agent("aide")])
        with pytest.raises(ManifestError):
            await runtime.run(solo, "go")
        await runtime.resources.apply(
            parse_manifests("kind: AgentRole\nmetadata: {name: clerk}\nspec: {permissions: []}\n")
        )
        assert (await runtime.run(solo, "go")).phase == "succeeded"
        await runtime.resources.delete("AgentRole", "clerk")
        with pytest.raises(ManifestError):
            await runtime.run(solo, "go")

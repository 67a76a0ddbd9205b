"""The reference pages are complete: each kind has an example, each word of a script and each error code has a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foliot.engine.definition.edge_conditions import VARIABLES as ON_EDGES
from foliot.kernel.run.folds import REJECTED
from foliot.kernel.run.spec import Repairs
from foliot.models.scripted import script as script_conditions
from foliot.models.scripted import script as script_reader
from foliot.resources.event_filters import VARIABLES as ON_DELIVERIES
from foliot.resources.kinds import KINDS
from foliot.resources.reader import parse_text
from foliot.tools.base import ToolError
from foliot.tools.builtin.catalogue import NAMES
from foliot.tools.contract import ToolRequest
from foliot.tools.governance.cel import VARIABLES as ON_CALLS

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def classes(top: type[ToolError]) -> set[type[ToolError]]:
    below = {each for each in top.__subclasses__() if each.__module__ == top.__module__}
    return {top}.union(*(classes(each) for each in below))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_an_example_under_its_heading(kind: str) -> None:
    section = page("kinds.md").split(f"\n## {kind}\n")[1].split("\n## ")[0]
    examples = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert kind in {item.key[0] for text in examples for item in parse_text(text, "example.yaml").items}


def test_the_codes_of_tools_and_runs_are_listed() -> None:
    listed = set(re.findall(r"`([a-z_]+)`", page("error-codes.md")))
    assert {each.code for each in classes(ToolError)} <= listed
    assert {each.reason for each in classes(ToolError)} <= listed
    assert {each.kind for each in classes(ToolError)} <= listed
    assert {code for code, _ in REJECTED.values()} <= listed


def test_the_numbers_of_repairs_are_those_of_the_kernel() -> None:
    numbers = Repairs()
    assert f"in {numbers.calls} steps in a row" in page("error-codes.md")
    assert f"{numbers.outputs} times in a run" in page("error-codes.md")
    assert f"{numbers.model} times, after {numbers.model_backoff:g} s" in page("error-codes.md")


def test_every_word_of_a_script_is_explained() -> None:
    words = {*script_reader._TURN, *script_reader._SCENE, *script_conditions._WORDS, *script_conditions._OTHER}
    explained = set(re.findall(r"`(\w+)", page("scripts.md")))
    assert words - explained == set()
    assert all(f"`{failure}`" in page("scripts.md") for failure in script_reader.FAILURES)


def test_every_field_of_a_request_of_contract_v1_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)", page("tool-services.md")))
    assert set(ToolRequest.__struct_fields__) <= explained


def test_the_variables_of_cel_are_listed_by_place() -> None:
    rows = [line for line in page("rules.md").splitlines() if line.startswith("|")]
    for names in (ON_CALLS, tuple(name for name, _ in ON_EDGES), ON_DELIVERIES):
        assert any(all(f"`{name}`" in row for name in names) for row in rows)


def test_every_built_in_tool_is_named() -> None:
    assert [name for name in NAMES if f"`{name}`" not in page("tools.md")] == []

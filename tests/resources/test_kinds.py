from __future__ import annotations

import subprocess
import sys

import pytest

from foliot.errors import UsageError
from foliot.resources.base import Resource
from foliot.resources.kinds import KINDS, find_kind, kind_of

PLURALS = {
    "Agent": "agents",
    "AgentSystem": "agent-systems",
    "ModelEndpoint": "model-endpoints",
    "Tool": "tools",
    "Secret": "secrets",
    "Memory": "memories",
    "Skill": "skills",
    "AgentPolicy": "agent-policies",
    "AgentRole": "agent-roles",
    "ToolPermission": "tool-permissions",
    "ToolApproval": "tool-approvals",
    "Task": "tasks",
    "TaskSchedule": "task-schedules",
    "TaskWebhook": "task-webhooks",
    "TaskHook": "task-hooks",
    "Channel": "channels",
    "Worker": "workers",
    "McpServer": "mcp-servers",
    "Budget": "budgets",
    "ReferenceGrant": "reference-grants",
}


def test_every_kind_has_its_path() -> None:
    assert {name: kind.plural for name, kind in KINDS.items()} == PLURALS


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_a_model_of_its_name(name: str) -> None:
    model = KINDS[name].model()
    assert issubclass(model, Resource)
    assert model.__name__ == name


@pytest.mark.parametrize("name", KINDS)
def test_every_table_begins_with_the_name_and_ends_wide_with_labels(name: str) -> None:
    assert KINDS[name].columns[0] == ("NAME", "metadata.name")
    assert ("LABELS", "metadata.labels") in KINDS[name].wide


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Agent", "Agent"),
        ("AGENTS", "Agent"),
        ("agent-system", "AgentSystem"),
        ("agentsystems", "AgentSystem"),
        ("Agent_Systems", "AgentSystem"),
        ("policy", "AgentPolicy"),
        ("role", "AgentRole"),
        ("memories", "Memory"),
        ("memory", "Memory"),
        ("mcpservers", "McpServer"),
        ("approval", "ToolApproval"),
        ("webhooks", "TaskWebhook"),
        ("model-endpoint", "ModelEndpoint"),
    ],
)
def test_a_kind_is_found_by_any_of_its_words(word: str, name: str) -> None:
    assert find_kind(word).name == name


def test_an_unknown_word_names_the_nearest_kind() -> None:
    with pytest.raises(UsageError, match="there is no kind 'agnets'") as caught:
        find_kind("agnets")
    assert caught.value.hint == "did you mean agents?"


def test_a_word_near_to_nothing_lists_the_kinds() -> None:
    with pytest.raises(UsageError) as caught:
        find_kind("zzzzzz")
    assert caught.value.hint is not None
    assert "task-webhooks" in caught.value.hint


def test_a_manifest_names_its_kind_in_any_case_but_not_by_plural() -> None:
    assert kind_of("agentsystem") is KINDS["AgentSystem"]
    assert kind_of("agents") is None


def test_the_table_of_kinds_does_not_load_the_models() -> None:
    code = "import sys, foliot.resources.kinds; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

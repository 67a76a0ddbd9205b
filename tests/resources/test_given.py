"""What of a resource its manifest says, as opposed to what was filled in."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.resources.reader import parse_text, read_manifests
from foliot.resources.validate import validate_document

EXAMPLES = Path(__file__).parents[2] / "examples"


def given(text: str) -> dict[str, object]:
    (loaded,) = parse_text(text, "m.yaml").items
    return loaded.given["spec"]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (
            "{kind: Agent, metadata: {name: a}, spec: {modelRef: m, limits: {maxSteps: 10}, prompt: '', roles: r}}",
            {"model_ref": "m", "limits": {"max_steps": 10}, "roles": ["r"]},
        ),
        (
            "{kind: Task, metadata: {name: t}, spec: {agent: a, messageRetry: {jitter: none}, retry: {maxAttempts: 3}}}",  # noqa: E501
            {"agent": "a", "retry": {"max_attempts": 3}, "message_retry": {"jitter": "none"}},
        ),
        (
            "{kind: ModelEndpoint, metadata: {name: m}, spec: {provider: openai, defaultModel: x}}",
            {"provider": "openai", "default_model": "x"},
        ),
        ("{kind: ToolPermission, metadata: {name: t}, spec: {action: invoke}}", {"action": "invoke"}),
        ("{kind: Secret, metadata: {name: s}, spec: {stringData: {a: b}}}", {"data": {"a": "Yg=="}}),
        (
            "{kind: AgentSystem, metadata: {name: s}, spec: {agents: [a, b], graph: {a: {edges: [b]}}}}",
            {"agents": ["a", "b"], "graph": {"a": {"edges": [{"to": "b"}]}}},
        ),
    ],
)
def test_defaults_are_not_given_even_where_they_depend_on_other_fields(text, spec):
    assert given(text) == spec


def test_what_is_given_becomes_the_same_resource_again():
    loaded = read_manifests([EXAMPLES]).items

    assert len(loaded) > 10
    for each in loaded:
        document, problems = validate_document(each.given)
        assert not problems
        assert document == each.document, each.file

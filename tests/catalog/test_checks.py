"""Checks that only the models can make: does the provider exist, what are its options, can the script be played."""

from __future__ import annotations

import pytest

from foliot.catalog.checks import check_documents
from foliot.resources.validate import validate_document


def endpoint(**spec) -> dict:
    document, problems = validate_document({"kind": "ModelEndpoint", "metadata": {"name": "m"}, "spec": spec})
    assert document is not None, problems
    return document


def findings(**spec) -> list[tuple[str, str, str]]:
    found = check_documents([endpoint(**spec)], None)
    return [(problem.severity, problem.field, str(problem)) for _, problem in found]


@pytest.mark.parametrize("provider", ["openai", "Google", "azure", "groq", "pydantic-ai:test"])
def test_providers_that_exist_by_name_or_alias_pass(provider: str) -> None:
    assert findings(provider=provider, default_model="m", base_url="https://models.example.com/v1") == []


def test_an_unknown_provider_is_an_error_with_what_was_probably_meant() -> None:
    ((severity, field, text),) = findings(provider="opnai", default_model="m")
    assert (severity, field) == ("error", "spec.provider")
    assert "openai" in text


def test_a_misspelt_option_is_a_warning_with_what_was_probably_meant() -> None:
    options = {"api_verison": "2024-10-21", "deployment": "d"}
    ((severity, field, text),) = findings(
        provider="azure", default_model="m", base_url="https://r.openai.azure.com", options=options
    )
    assert (severity, field) == ("warning", "spec.options.api_verison")
    assert "did you mean api_version?" in text


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"provider": "anthropic", "options": {"cache": "7m"}}, "spec.options"),
        ({"provider": "gemini", "options": {"auth": "none"}}, "spec.options"),
        ({"provider": "azure", "base_url": "https://r.openai.azure.com/?api-version=1"}, "spec.base_url"),
    ],
)
def test_what_would_fail_every_call_is_an_error_when_it_is_applied(spec: dict, place: str) -> None:
    ((severity, field, _),) = findings(default_model="m", **spec)
    assert (severity, field) == ("error", place)


def test_options_of_a_plug_in_are_its_own_business() -> None:
    assert findings(provider="pydantic-ai:test", default_model="m", options={"anything": "goes"}) == []


def test_a_script_that_cannot_be_played_is_an_error_at_its_place() -> None:
    found = findings(provider="scripted", script=[{"say": "hi"}, {"sey": "ho"}])
    assert [(severity, field) for severity, field, _ in found] == [
        ("error", "spec.script[1].sey"),
        ("error", "spec.script[1]"),
    ]


def test_a_named_script_must_exist() -> None:
    assert findings(provider="scripted", script="echo") == []
    assert findings(provider="scripted", script="nonesuch")[0][0] == "error"


def test_an_edge_whose_expression_cannot_be_compiled_is_an_error_at_its_place() -> None:
    graph = {
        "a": {
            "edges": [
                {"to": "b", "when": "value.score > 3.0 && output.contains('x')"},
                {"to": "c", "when": "score > 3"},
                {"to": "d", "when": "otherwise"},
                {"to": "e", "when": {"route": "not > an expression"}},
            ]
        }
    }
    raw = {"kind": "AgentSystem", "metadata": {"name": "s"}, "spec": {"agents": list("abcde"), "graph": graph}}
    document, problems = validate_document(raw)
    assert document is not None, problems
    found = [(problem.severity, problem.field, problem.message) for _, problem in check_documents([document], None)]
    assert [each for each in found if each[0] == "error"] == [
        (
            "error",
            "spec.graph.a.edges[1].when",
            "not a CEL expression: column 1: undeclared reference to 'score'",
        )
    ]


# --- runners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runner", "field", "message"),
    [
        ({"type": "Codex"}, "spec.runner.type", 'runner "codex" is not supported'),
        ({"provider": "acme"}, "spec.runner.provider", 'provider "acme" is not supported'),
        ({"type": "claude_code", "provider": "acme"}, "spec.runner.provider", 'provider "acme" is not supported'),
    ],
)
def test_a_runner_that_is_not_here_is_an_error_at_its_place(runner: dict, field: str, message: str) -> None:
    document, problems = validate_document({"kind": "Agent", "metadata": {"name": "a"}, "spec": {"runner": runner}})
    assert document is not None, problems

    ((_, problem),) = check_documents([document], None)

    assert (problem.severity, problem.field, problem.message) == ("error", field, message)


@pytest.mark.parametrize("runner", [{}, {"provider": "claude"}, {"timeout": "5m"}, {"command": ["cat"]}])
def test_a_runner_that_is_here_is_no_problem(runner: dict) -> None:
    document, problems = validate_document({"kind": "Agent", "metadata": {"name": "a"}, "spec": {"runner": runner}})
    assert document is not None, problems

    assert check_documents([document], None) == []

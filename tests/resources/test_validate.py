from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest

from foliot.resources.base import API_VERSION
from foliot.resources.definitions.agent import Agent
from foliot.resources.kinds import KINDS
from foliot.resources.validate import MAX_DEPTH, validate_document

NAME_RULE = "1 to 253 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"
DURATION = "expected a duration such as 30s or 1h30m"
UNITS = "ns, us, ms, s, m, h or d"


def agent(**spec: Any) -> dict[str, Any]:
    return {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"model_ref": "m", **spec}}


def said(raw: Any) -> list[str]:
    document, problems = validate_document(raw)
    assert document is None
    return [str(problem) for problem in problems]


def normal(raw: dict[str, Any]) -> dict[str, Any]:
    document, problems = validate_document(raw)
    assert problems == []
    assert document is not None
    return document


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_document_of_each_kind_is_its_own_normal_form(kind: str, specimens: dict[str, dict[str, Any]]) -> None:
    assert validate_document(specimens[kind]) == (specimens[kind], [])


@pytest.mark.parametrize("given", [None, "", "foliot.dev/v1", "orloj.dev/v1"])
def test_the_version_may_be_missing_or_that_of_a_relative(given: str | None) -> None:
    assert normal({**agent(), "apiVersion": given})["apiVersion"] == API_VERSION


def test_an_unknown_version_is_refused_beside_other_problems() -> None:
    assert said({"apiVersion": "v2", "kind": "Agent"}) == [
        'unsupported apiVersion "v2" (expected foliot.dev/v1)',
        "metadata.name is required",
        "spec.model_ref is required",
    ]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "a resource must be a mapping, not a list (expected a mapping with kind, metadata and spec)"),
        ("x", "a resource must be a mapping, not text (expected a mapping with kind, metadata and spec)"),
        ({"kind": "Agnet"}, 'unsupported kind "Agnet" (did you mean Agent?)'),
        ({"kind": "agents"}, 'unsupported kind "agents" (did you mean Agent?)'),
    ],
)
def test_what_is_no_resource_is_refused(raw: Any, message: str) -> None:
    assert said(raw) == [message]


@pytest.mark.parametrize(
    ("kind", "spec", "wrong"),
    [
        ("Agent", {"runner": 5}, "spec.runner"),
        ("Agent", {"runner": {"command": 5, "timeout": []}}, "spec.runner."),
        ("Tool", {"type": "cli", "cli": {"command": 5}}, "spec.cli.command"),
        ("Tool", {"type": "cli", "cli": 5}, "spec.cli"),
    ],
)
def test_what_was_given_wrongly_is_not_called_missing_and_excuses_what_it_excuses(
    kind: str, spec: dict[str, Any], wrong: str
) -> None:
    messages = said({"kind": kind, "metadata": {"name": "a"}, "spec": spec})

    assert all(message.startswith(wrong) and "is required" not in message for message in messages)


def test_what_is_missing_is_told_beside_what_is_wrong() -> None:
    messages = said({"kind": "Agent", "metadata": {"name": "a"}, "spec": {"limits": 5}})

    assert sorted(messages) == ["spec.limits must be a mapping, not a number", "spec.model_ref is required"]


def test_a_missing_kind_lists_the_kinds() -> None:
    (message,) = said({"metadata": {"name": "a"}})
    assert message.startswith("kind is required (expected one of Agent, AgentSystem,")


def test_the_kind_is_written_in_any_case() -> None:
    assert normal({**agent(), "kind": "aGENT"})["kind"] == "Agent"


def test_every_problem_is_reported_at_once() -> None:
    raw = {
        "kind": "Agent",
        "metadata": {"name": "a b", "lables": {}},
        "spec": {
            "model": "gpt",
            "timeout": "5s",
            "toolz": [],
            "limits": {"max_steps": "3", "timeout": "5"},
            "memory": {"allow": ["read"]},
            "execution": {"profile": "contarct"},
        },
    }
    assert sorted(said(raw)) == sorted(
        [
            f'invalid metadata.name "a b": expected {NAME_RULE}',
            'metadata.lables: unknown field "lables" (did you mean labels?)',
            "spec.model has been removed; use spec.model_ref",
            'spec.timeout: unknown field "timeout" (did you mean spec.limits.timeout?)',
            'spec.toolz: unknown field "toolz" (did you mean tools?)',
            "spec.limits.max_steps must be a whole number, not text (remove the quotes)",
            f'invalid spec.limits.timeout "5": a duration needs a unit: {UNITS} ({DURATION})',
            "spec.memory.ref is required when spec.memory.allow is set",
            'invalid spec.execution.profile "contarct": expected dynamic or contract (did you mean contract?)',
            "spec.model_ref is required",
        ]
    )


def test_a_wrong_value_does_not_also_count_as_missing() -> None:
    assert said({"kind": "Agent", "metadata": {"name": "a"}, "spec": {"model_ref": 5}}) == [
        "spec.model_ref must be a string, not a number (put it in quotes)"
    ]


def test_a_rule_is_not_judged_by_a_value_that_was_refused() -> None:
    """With the wrong `timeout` taken out, the default of 30s would make `attempt` look too long."""
    raw = {
        "kind": "Tool",
        "metadata": {"name": "t"},
        "spec": {"runtime": {"timeout": "1 hour", "timeouts": {"attempt": "2m"}}},
    }
    (message,) = said(raw)
    assert message.startswith('invalid spec.runtime.timeout "1 hour"')


def test_paths_are_in_the_spelling_of_the_input() -> None:
    _, problems = validate_document(agent(outputSchema={"type": 3}, executions={}, limits={"maxSteps": -1}))
    assert {problem.field for problem in problems} == {
        "spec.outputSchema.type",
        "spec.executions",
        "spec.limits.maxSteps",
    }


def test_both_spellings_at_once_are_refused() -> None:
    assert said(agent(modelRef="n")) == [
        "spec.modelRef: given twice: as model_ref and as modelRef (keep one of the two)"
    ]


def test_both_spellings_of_the_version_at_once_are_refused() -> None:
    assert said({**agent(), "apiVersion": API_VERSION, "api_version": API_VERSION}) == [
        "given twice: as apiVersion and as api_version"
    ]


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ({**agent(), "name": "a"}, "did you mean metadata.name?"),
        ({**agent(), "model_ref": "a"}, "did you mean spec.model_ref?"),
        (agent(max_steps=3), "did you mean spec.limits.max_steps?"),
        (agent(maxStep=3), "did you mean spec.limits.max_steps?"),
        (agent(memory={"reff": "x"}), "did you mean ref?"),
        (agent(zzz=3), None),
    ],
)
def test_an_unknown_field_is_answered_with_what_was_meant(raw: dict[str, Any], hint: str | None) -> None:
    _, (problem,) = validate_document(raw)
    assert problem.message.startswith("unknown field")
    assert problem.hint == hint


def test_null_and_blank_mean_not_given() -> None:
    raw = agent(tools=None, prompt="  ", limits=None, execution={"profile": ""})
    assert normal({**raw, "status": None}) == normal(agent())


def test_an_unknown_field_is_refused_even_when_it_is_null() -> None:
    assert said(agent(toolz=None)) == ['spec.toolz: unknown field "toolz" (did you mean tools?)']


def test_status_is_kept_with_fields_that_only_the_system_knows() -> None:
    status = {"phase": "Ready", "last_error": "x", "madeUp": [1]}
    assert normal({**agent(), "status": status})["status"] == {"phase": "Ready", "lastError": "x", "madeUp": [1]}


def test_what_the_store_wrote_passes_through() -> None:
    metadata = {"name": "a", "uid": "u", "resource_version": "7", "generation": 2, "created_at": "2026-01-01T00:00:00Z"}
    assert normal({**agent(), "metadata": metadata})["metadata"] == {
        "name": "a",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "7",
        "generation": 2,
        "createdAt": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("name", ["", None, "a/b", "-a", "a-", "a b", ".", "ä", "x" * 254])
def test_a_name_that_cannot_be_one_is_refused(name: str | None) -> None:
    assert len(said({**agent(), "metadata": {"name": name}})) == 1


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "x" * 253, " trimmed "])
def test_names_of_one_to_253_characters_are_accepted(name: str) -> None:
    assert normal({**agent(), "metadata": {"name": name}})["metadata"]["name"] == name.strip()


@pytest.mark.parametrize(
    ("labels", "good"),
    [
        ({"tier": "gold"}, True),
        ({"example.com/tier": ""}, True),
        ({"port": 8080, "on": True}, True),
        ({"tier": "has space"}, False),
        ({"tier": "x" * 64}, False),
        ({"-tier": "x"}, False),
        ({"Example.com/tier": "x"}, False),
        ({"a/b/c": "x"}, False),
        ({"": "x"}, False),
        ({"tier": ["x"]}, False),
    ],
)
def test_labels_follow_the_rules_of_kubernetes(labels: dict[str, Any], good: bool) -> None:
    document, problems = validate_document({**agent(), "metadata": {"name": "a", "labels": labels}})
    assert (document is not None) is good
    assert all(problem.path[:2] == ("metadata", "labels") for problem in problems)


def test_numbers_in_maps_of_text_become_text() -> None:
    document = normal({**agent(), "metadata": {"name": "a", "labels": {"port": 8080, "on": True}}})
    assert document["metadata"]["labels"] == {"port": "8080", "on": "true"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a\0b", "the text holds a NUL character, which cannot be stored"),
        ("a\ud800b", "the text holds half of a surrogate pair, which is not Unicode"),
        (float("nan"), "a number must be finite"),
        (float("inf"), "a number must be finite"),
        (datetime.date(2026, 1, 1), "a value of type date cannot be stored"),
        (b"bytes", "a value of type bytes cannot be stored"),
        ({1: 2}, "a key must be text, not a number"),
        ({"a\0": 2}, "a key holds a NUL character, which cannot be stored"),
        ({None: 2}, "a key must be text, not nothing"),
    ],
)
def test_what_cannot_be_stored_is_refused_wherever_it_is(value: Any, message: str) -> None:
    _, (problem,) = validate_document(agent(output_schema={"x": [value]}))
    assert problem.message == message
    assert problem.field == "spec.output_schema.x[0]"


def test_nesting_has_a_limit_even_without_an_end() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    _, (problem,) = validate_document(agent(output_schema=endless))
    assert problem.message == f"nested more than {MAX_DEPTH} levels deep"


def test_a_rule_holds_for_models_built_in_python_too() -> None:
    with pytest.raises(ValueError, match="model_ref is required"):
        Agent.model_validate({"metadata": {"name": "a"}, "spec": {}})
    with pytest.raises(ValueError, match='unsupported kind "Tool" for Agent'):
        Agent.model_validate({"kind": "Tool", "metadata": {"name": "a"}, "spec": {"model_ref": "m"}})


def test_the_input_is_left_as_it_was(specimens: dict[str, dict[str, Any]]) -> None:
    for document in specimens.values():
        before = copy.deepcopy(document)
        validate_document(document)
        document["spec"]["surely_unknown"] = 1
        validate_document(document)
        del document["spec"]["surely_unknown"]
        assert document == before

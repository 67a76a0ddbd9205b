from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import pytest

from foliot.errors import UsageError
from foliot.resources.kinds import KINDS
from foliot.resources.names import camel
from foliot.resources.schema import bundle_schema, json_schema, preferred_schema
from foliot.resources.validate import validate_document


@pytest.fixture(scope="module")
def bundle() -> Any:
    return jsonschema_rs.validator_for(bundle_schema())


def errors(validator: Any, document: Any) -> list[str]:
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_each_kind_accepts_a_full_document(
    kind: str, specimens: dict[str, dict[str, Any]], bundle: Any
) -> None:
    schema = json_schema(kind)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert errors(jsonschema_rs.validator_for(schema), specimens[kind]) == []
    assert errors(bundle, specimens[kind]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_accepts_the_other_spelling_but_not_both(kind: str, specimens: dict[str, dict[str, Any]]) -> None:
    validator = jsonschema_rs.validator_for(json_schema(kind))
    document = specimens[kind]
    for key in [key for key in document["spec"] if camel(key) != key]:
        other = copy.deepcopy(document)
        other["spec"][camel(key)] = other["spec"][key]
        assert errors(validator, other), f"{key} and {camel(key)} at once"
        del other["spec"][key]
        assert errors(validator, other) == []
        assert validate_document(other)[0] is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_refuses_what_the_reader_refuses(
    kind: str, specimens: dict[str, dict[str, Any]], bundle: Any
) -> None:
    validator = jsonschema_rs.validator_for(json_schema(kind))
    good = specimens[kind]
    metadata = good["metadata"]
    broken: list[dict[str, Any]] = [
        {**good, "spec": {**good["spec"], "unheard_of": 1}},
        {**good, "unheard_of": 1},
        {**good, "apiVersion": "v2"},
        {**good, "kind": "Nothing"},
        {**good, "metadata": {**metadata, "name": "a b"}},
        {**good, "metadata": {**metadata, "labels": {"a": []}}},
        {**good, "metadata": {}},
        {**good, "spec": []},
        {key: value for key, value in good.items() if key != "kind"},
    ]
    for document in broken:
        assert validate_document(document)[0] is None, document
        assert errors(validator, document), document
        assert errors(bundle, document), document


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Agent", {}),
        ("Agent", {"model_ref": "a/b/c"}),
        ("Agent", {"model_ref": "m", "limits": {"timeout": "5"}}),
        ("Agent", {"model_ref": "m", "limits": {"max_steps": -1}}),
        ("Agent", {"model_ref": "m", "execution": {"profile": "x"}}),
        ("Tool", {"type": "x"}),
        ("Tool", {"auth": {"secretRef": "a b"}}),
        ("ModelEndpoint", {"default_model": "m", "base_url": "ftp://x"}),
        ("AgentSystem", {"graph": {"a": {"join": {"quorum_percent": 101}}}}),
        ("AgentSystem", {"graph": {"a": {"edges": [{"to": "b", "when": 3}]}}}),
        ("McpServer", {}),
        ("TaskSchedule", {"schedule": "@daily"}),
    ],
)
def test_values_out_of_range_are_refused_by_schema_and_reader(kind: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": "it"}, "spec": spec}
    assert validate_document(document)[0] is None
    assert errors(jsonschema_rs.validator_for(json_schema(kind)), document)


def test_short_forms_of_edges_are_accepted() -> None:
    document = {
        "kind": "AgentSystem",
        "metadata": {"name": "it"},
        "spec": {"agents": ["a", "b"], "graph": {"a": {"edges": ["b", {"next": "b"}, {"to": "b"}]}}},
    }
    assert validate_document(document)[0] is not None
    assert errors(jsonschema_rs.validator_for(json_schema("AgentSystem")), document) == []


def undescribed(schema: Any) -> list[str]:
    """Properties of any object in a schema that have no description."""
    if isinstance(schema, list):
        return [name for item in schema for name in undescribed(item)]
    if not isinstance(schema, dict):
        return []
    fields = schema.get("properties", {}).items()  # a reference is described where it leads
    bare = [name for name, field in fields if field and not field.keys() & {"description", "$ref"}]
    return bare + [name for key, item in schema.items() if key != "dependentSchemas" for name in undescribed(item)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described_for_editors(kind: str) -> None:
    assert undescribed(preferred_schema(kind)) == []


def test_the_schema_is_found_by_any_word_for_the_kind() -> None:
    assert json_schema("agent-systems")["title"] == "AgentSystem"
    with pytest.raises(UsageError):
        json_schema("nothing-like-it")


def test_a_schema_that_was_changed_by_its_reader_is_whole_for_the_next() -> None:
    json_schema("Agent").clear()
    assert json_schema("Agent")["title"] == "Agent"

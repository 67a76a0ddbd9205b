"""The description of the API says all there is, and nothing else. Whether it is true: see test_schemathesis.py."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import msgspec
import pytest

import foliot
from foliot.client import remote_operations
from foliot.resources.kinds import KINDS
from foliot.runtime import answers
from foliot.server.app import described
from foliot.server.auth.rules import RouteRule
from foliot.server.openapi import events, kinds, shapes, work_shapes
from foliot.server.openapi.document import ROWS, forms
from foliot.server.routes.resources import WITHOUT_STATUS
from foliot.store.audit import log

DESCRIPTION = described()
PLURALS = {kind.plural for kind in KINDS.values()}
UNTOLD = {"/openapi.json", "/mcp"}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation) for path, item in DESCRIPTION["paths"].items() for method, operation in item.items()
    ]


def rule_of(method: str, path: str) -> RouteRule:
    if (row := ROWS.get((method.upper(), path))) is not None:
        return row.rule
    return ROWS[method.upper(), re.sub(r"^/v1/[^/]+", "/v1/{kind}", path)].rule


def every(value: Any, key: str) -> list[Any]:
    """What stands under this key, wherever it is."""
    if isinstance(value, dict):
        return [*([value[key]] if key in value else ()), *(x for each in value.values() for x in every(each, key))]
    return [x for each in value for x in every(each, key)] if isinstance(value, list) else []


async def test_the_server_gives_the_same_description_as_the_command_line(http: httpx.AsyncClient) -> None:
    assert (await http.get("/openapi.json")).json() == DESCRIPTION


def test_it_is_openapi_3_1_and_names_every_route_of_the_table() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1")
    told = {(method.upper(), path) for method, path, _ in operations()}
    for method, path in ROWS:
        if method == "*" or path in UNTOLD:
            continue
        paths = [path.replace("{kind}", plural) for plural in PLURALS] if "{kind}" in path else [path]
        assert any((method, each) in told for each in paths), (method, path)


def test_every_operation_says_who_may_call_it_how_it_fails_and_what_it_is() -> None:
    for method, path, operation in operations():
        rule = rule_of(method, path)
        responses = operation["responses"]
        assert operation["description"], (method, path)
        assert operation["tags"], (method, path)
        assert (operation["security"] == []) == (rule.where == "public")
        assert {"400", "413", "429", "500", "503"} <= responses.keys()
        assert {"401", "403"} <= responses.keys() or rule.where == "public", (method, path)
        assert any(code.startswith("2") or code in ("303", "304") for code in responses), (method, path)


def test_operations_have_names_that_differ_and_do_not_come_from_the_code() -> None:
    names = [operation["operationId"] for *_, operation in operations()]

    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z][A-Za-z0-9_]*", name) for name in names)
    assert {"listAgents", "getAgent", "createTask", "approveToolCall", "watchEvents"} <= set(names)


def test_every_row_but_those_of_other_protocols_says_what_is_told_of_it() -> None:
    for (method, path), row in ROWS.items():
        assert (row.operation is None) == (path in UNTOLD), (method, path)
        assert callable(row.operation) == path.startswith("/v1/{kind}"), (method, path)


def test_every_reference_leads_somewhere_and_nothing_is_told_for_nobody() -> None:
    components = DESCRIPTION["components"]
    references = {each for each in every(DESCRIPTION, "$ref") if isinstance(each, str)}

    for each in references:
        _, _, sort, name = each.split("/")
        assert name in components[sort], each
    schemas = {each.rpartition("/")[2] for each in references if "/schemas/" in each}
    assert components["schemas"].keys() <= schemas


def test_no_two_shapes_have_one_name() -> None:
    parts = [shapes.ACCESS_SHAPES, shapes.OPERATIONS_SHAPES, shapes.SHAPES, shapes.OPENAI]
    parts += [work_shapes.SHAPES, events.SHAPES]
    names = [name for part in [*parts, kinds.schemas(), work_shapes.derived(*forms())] for name in part]

    assert sorted(names) == sorted(set(names))


# Shapes that have another name than the type they stand for, with what is shown instead of a field.
STANDS_FOR: dict[str, tuple[type, dict[str, str]]] = {
    "RunState": (answers.RunStanding, {"info": "run"}),
    "AuditRecords": (remote_operations.Records, {}),
    "AuditVerified": (log.Verified, {}),
}
# Names of types that are about something else, or that read a part of what is answered.
OTHERS = {"Health", "Me"}


def types_by_name() -> dict[str, list[type]]:
    """The types of all rooms that have the name of a schema. Files are searched, as what is imported may differ."""
    found: dict[str, list[type]] = {}
    root = Path(foliot.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for name in re.findall(r"^class (\w+)\((?:msgspec\.)?Struct\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            if name in DESCRIPTION["components"]["schemas"]:
                module = ".".join(("foliot", *path.relative_to(root).with_suffix("").parts))
                found.setdefault(name, []).append(getattr(import_module(module), name))
    return found


def test_a_shape_that_stands_for_a_type_has_its_fields() -> None:
    types = types_by_name()
    assert {"Trace", "StepTrace", "AuditRecord", "Budgets", "TaskInfo"} <= types.keys()
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        kind, instead = STANDS_FOR.get(name, (None, {}))
        candidates = types.get(name, []) if kind is None else [kind]
        if candidates and name not in OTHERS:
            fields = [{instead.get(field, field) for field in fields_of(each)} for each in candidates]
            assert set(schema["properties"]) in fields, name


def fields_of(kind: type) -> list[str]:
    """The members that a type has when it is written, with the one that says which type it is."""
    if not issubclass(kind, msgspec.Struct):
        return [each.name for each in dataclasses.fields(kind)]
    tag = kind.__struct_config__.tag_field
    return [*kind.__struct_encode_fields__, *([tag] if tag is not None else ())]


def test_every_schema_is_one() -> None:
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}), name


def test_answers_have_shapes_and_are_not_just_objects() -> None:
    for method, path, operation in operations():
        for code, response in operation["responses"].items():
            if not code.startswith("2") or code == "204":
                continue
            for media in response["content"].values():
                schema = media["schema"]
                assert schema, (method, path, code)
                assert schema != {"type": "object", "additionalProperties": True}, (method, path, code)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_kind_has_operations_of_its_own(kind: Any) -> None:
    paths = DESCRIPTION["paths"]
    named = paths[f"/v1/{kind.plural}/{{name}}"]

    assert named["get"]["operationId"] == f"get{kind.name}"
    schema = named["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": f"#/components/schemas/Stored{kind.name}"}
    assert ("put" in named) == (kind.name != "ToolApproval")
    assert not any(parameter["name"] == "kind" for parameter in named["get"]["parameters"])
    # Tasks have routes of their own.
    assert (f"/v1/{kind.plural}/{{name}}/status" in paths) == (kind.name not in WITHOUT_STATUS - {"Task"})
    assert f"/v1/{kind.plural}/watch" in paths


@pytest.mark.parametrize("method", ["post", "put", "patch"])
def test_what_takes_a_body_says_which(method: str) -> None:
    own = (*(f"/v1/{plural}" for plural in PLURALS), "/v1/runs", "/v1/apply", "/v1/chat")
    bare = {
        "/v1/tasks/{name}/archive",
        "/v1/tasks/{name}/delete",
        "/v1/runs/{run_id}/resume",
        "/v1/channels/{name}/deliveries/{key}/retry",
    }
    for verb, path, operation in operations():
        if verb == method and path.startswith(own) and path not in bare:
            assert "requestBody" in operation, path


def test_parameters_are_told_as_they_are_sent() -> None:
    for _, path, operation in operations():
        for parameter in operation["parameters"]:
            assert {"type": "null"} not in parameter["schema"].get("anyOf", ()), (path, parameter["name"])
            assert parameter["in"] != "header" or parameter["name"][:1].isupper(), (path, parameter["name"])
            assert parameter["in"] != "path" or "{" + parameter["name"] + "}" in path


def test_streams_tell_the_shape_of_each_event() -> None:
    found = 0
    for _, path, operation in operations():
        media = operation["responses"].get("200", {}).get("content", {}).get("text/event-stream")
        if media is None:
            continue
        found += 1
        assert media["schema"]["oneOf"], path
        assert every(media, "contentSchema"), path
        assert any(each["name"] == "Last-Event-ID" for each in operation["parameters"]), path

    assert found >= len(KINDS) + 4


def test_the_table_of_permissions_and_the_description_say_the_same_roles() -> None:
    assert DESCRIPTION["paths"]["/v1/mcp-servers"]["post"]["x-foliot-role"] == "admin"
    assert DESCRIPTION["paths"]["/v1/agents"]["post"]["x-foliot-role"] == "author"
    assert DESCRIPTION["paths"]["/v1/tasks/{name}/cancel"]["post"]["x-foliot-role"] == "operator"
    assert len(ROWS) > 80

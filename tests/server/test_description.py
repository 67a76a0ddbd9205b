from __future__ import annotations

from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest

from foliot.server.app import described
from foliot.server.description import PLAIN_RULES

DESCRIPTION = described()


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation) for path, item in DESCRIPTION["paths"].items() for method, operation in item.items()
    ]


async def test_the_server_gives_the_same_description_as_the_command_line(http: httpx.AsyncClient) -> None:
    assert (await http.get("/openapi.json")).json() == DESCRIPTION


def test_it_is_openapi_3_1_and_names_every_route_of_the_table() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1")
    told = {(method.upper(), path) for method, path, _ in operations()}
    missing = {each for each in PLAIN_RULES if each not in told and each[0] != "*" and each[1] != "/openapi.json"}
    assert {path for _, path in missing} <= {"/mcp"}


def test_every_operation_says_who_may_call_it_how_it_fails_and_what_it_is() -> None:
    for method, path, operation in operations():
        assert operation["description"], (method, path)
        assert "default" in operation["responses"]
        assert (operation["security"] == []) == (PLAIN_RULES[method.upper(), path].where == "public")
    names = [operation["operationId"] for *_, operation in operations()]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere() -> None:
    schemas = DESCRIPTION["components"]["schemas"]

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
            return own.union(*map(references, value.values()))
        return set[str]().union(*map(references, value)) if isinstance(value, list) else set()

    assert {each.rpartition("/")[2] for each in references(DESCRIPTION)} <= schemas.keys()


@pytest.mark.parametrize("method", ["post", "put", "patch"])
def test_what_takes_a_body_says_which(method: str) -> None:
    own = ("/v1/{kind}", "/v1/tasks", "/v1/runs", "/v1/tool-approvals", "/v1/apply")
    bare = {"/v1/tasks/{name}/archive"}
    for verb, path, operation in operations():
        if verb == method and path.startswith(own) and path not in bare:
            assert "requestBody" in operation, path


async def test_answers_are_what_the_description_says(http: httpx.AsyncClient) -> None:
    body = {"kind": "ModelEndpoint", "metadata": {"name": "x"}, "spec": {"provider": "mock"}}
    told = [
        ("post", "/v1/{kind}", await http.post("/v1/model-endpoints", json=body)),
        ("get", "/v1/{kind}", await http.get("/v1/model-endpoints")),
        ("get", "/v1/{kind}/{name}", await http.get("/v1/model-endpoints/x")),
        ("get", "/v1/{kind}/{name}", await http.get("/v1/model-endpoints/y")),
        ("get", "/v1/tasks", await http.get("/v1/tasks")),
        ("delete", "/v1/{kind}/{name}", await http.delete("/v1/model-endpoints/x")),
    ]
    for method, path, answer in told:
        responses = DESCRIPTION["paths"][path][method]["responses"]
        response = responses.get(str(answer.status_code), responses["default"])
        if not response.get("content"):
            assert answer.content == b""
            continue
        schema = response["content"][answer.headers["content-type"]]["schema"]
        jsonschema_rs.validate({**schema, "components": DESCRIPTION["components"]}, answer.json())

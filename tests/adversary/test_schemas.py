"""A JSON Schema is input: whatever it names, nothing is read from this machine or any other for its sake.

Each way by which a schema comes in is tried with each kind of reference that leaves the schema. A listener counts who
connects, and a file holds a word that no answer may repeat. What was stored before such schemas were refused is used,
too. Whoever makes a validator past `foliot.resources.validators` fails the last test.
"""

from __future__ import annotations

import ast
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

import foliot
from foliot.resources.validate import validate_document
from foliot.resources.validators import DEEPEST, UnusableSchema, validator_of
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings, load_settings
from foliot.store.base import DeclaredBy, Put
from foliot.tools.mcp.pins import Announced
from foliot.tools.mcp.sync import plan_sync
from tests.tools.mcp.conftest import spec_of

CANARY = "LEAK-of-a-file"


class Listener:
    """Takes every connection, counts it, and closes it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.socket.close()


@pytest.fixture
def bad(tmp_path: Path, listener: Listener) -> dict[str, dict[str, Any]]:
    """Schemas that lead out of themselves, by name."""
    leak = tmp_path / "leak.json"
    leak.write_text(json.dumps({"e": {"enum": [CANARY]}, "type": "object"}))
    place = f"127.0.0.1:{listener.port}/schema"
    addresses = {
        "file": f"file://{leak}#/e",
        "http": f"http://{place}",
        "https": f"https://{place}",
        "urn": "urn:example:schema",
        "relative": "leak.json#/e",
        "absolute": f"{leak}",
        "own": "json-schema:///leak.json",
    }

    def holding(**part: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": part}}

    found = {f"ref-{name}": holding(**{"$ref": to}) for name, to in addresses.items()}
    found |= {f"dynamic-{name}": holding(**{"$dynamicRef": to}) for name, to in addresses.items()}
    found |= {f"draft-{name}": {"$schema": to, "type": "object"} for name, to in addresses.items()}
    for name, base in (("file", f"file://{tmp_path}/"), ("http", f"http://127.0.0.1:{listener.port}/")):
        found[f"base-{name}"] = {"$id": base, **holding(**{"$ref": "leak.json#/e"})}
        found[f"inner-base-{name}"] = holding(**{"$id": base, "properties": {"b": {"$ref": "leak.json#/e"}}})
        found[f"inner-draft-{name}"] = holding(**{"$id": "urn:x", "$schema": f"{base}leak.json", "type": "string"})
        draft4 = "http://json-schema.org/draft-04/schema#"
        found[f"draft4-{name}"] = {"$schema": draft4, "id": base, **holding(**{"$ref": "leak.json#/e"})}
    doubling = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    found["doubling"] = {"type": "object", "$defs": {**doubling, "d40": {}}, **holding(**{"$ref": "#/$defs/d0"})}
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(DEEPEST)}
    found["chain"] = {"$defs": {**chain, f"d{DEEPEST}": {}}, **holding(**{"$ref": "#/$defs/d0"})}
    found["pattern"] = holding(pattern="((a{1000}){1000}){1000}")
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path / "home")}, {})


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with Runtime(settings=settings) as runtime:
        documents = [
            manifest("ModelEndpoint", "m", provider="scripted", default_model="m", script=[{"say": '{"a": 1}'}] * 9),
            manifest("Agent", "plain", model_ref="m"),
        ]
        await runtime.inside.resources.write([Put(checked(each)) for each in documents])
        yield runtime


@pytest.fixture
async def http(runtime: Runtime, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(runtime, settings=settings, auth=Anonymous())
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def checked(document: dict[str, Any]) -> dict[str, Any]:
    made, problems = validate_document({key: value for key, value in document.items() if key != "apiVersion"})
    assert made is not None, problems
    return made


def tool(schema: dict[str, Any]) -> dict[str, Any]:
    return manifest("Tool", "bad", endpoint="https://tools.example/ok", effect="read", input_schema=schema)


def agent(schema: dict[str, Any]) -> dict[str, Any]:
    return manifest("Agent", "bad", model_ref="m", tools=["bad"], output_schema=schema)


def asked(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}


def requests(schema: dict[str, Any]) -> dict[str, tuple[str, str, Any]]:
    """Every way in, by name: method, path, body."""
    named = {"name": "x", "schema": schema}
    call = {"agent": "bad", "tool": "bad", "arguments": {"a": 1}}
    lenient = {**agent({}), "spec": {"model_ref": "m", "tools": ["bad"]}}
    return {
        "apply tool": ("POST", "/v1/apply", tool(schema)),
        "apply agent": ("POST", "/v1/apply", agent(schema)),
        "post tool": ("POST", "/v1/tools", tool(schema)),
        "put agent": ("PUT", "/v1/agents/bad", agent(schema)),
        "simulate": ("POST", "/v1/policies/simulate", {"manifests": [tool(schema), lenient], "calls": [call]}),
        "chat": (
            "POST",
            "/v1/chat/completions",
            asked("plain", response_format={"type": "json_schema", "json_schema": named}),
        ),
        "responses": (
            "POST",
            "/v1/responses",
            {"model": "plain", "input": "hi", "text": {"format": {"type": "json_schema", **named}}},
        ),
    }


async def test_no_way_in_fetches_what_a_schema_names(
    http: httpx.AsyncClient, bad: dict[str, dict[str, Any]], listener: Listener
) -> None:
    for name, schema in bad.items():
        for way, (method, path, body) in requests(schema).items():
            answer = await http.request(method, path, json=body)
            assert 400 <= answer.status_code < 500, (name, way, answer.status_code, answer.text[:300])
            assert CANARY not in answer.text, (name, way)
            if name.startswith("ref-") and way in ("apply tool", "apply agent", "chat"):
                assert "not in the schema itself" in answer.text, (name, way, answer.text[:300])
    assert listener.connections == 0


async def test_what_was_stored_before_is_refused_when_it_is_used(
    http: httpx.AsyncClient, runtime: Runtime, bad: dict[str, dict[str, Any]], listener: Listener
) -> None:
    plain = {"type": "object"}
    for name in ("ref-file", "ref-http", "dynamic-https", "draft-http", "base-file", "doubling", "pattern"):
        schema = bad[name]
        for made in (checked(tool(plain)), checked({**agent(plain), "spec": {**agent(plain)["spec"], "tools": []}})):
            field = "input_schema" if made["kind"] == "Tool" else "output_schema"
            kept = {**made, "spec": {**made["spec"], field: schema}}
            await runtime.inside.resources.write([Put(kept)], by=DeclaredBy("mallory", operator=False))
        for path, body in (
            ("/v1/tools/bad/call", {"arguments": {"a": 1}}),
            ("/v1/chat/completions", asked("bad")),
        ):
            answer = await http.post(path, json=body)
            assert CANARY not in answer.text, (name, path)
            # A run whose answer nothing can check has failed, and says so.
            said = "cannot be used" if "tools" in path else "the answer does not fit the output schema: nothing can"
            assert said in answer.text, (name, answer.status_code, answer.text[:300])
    assert listener.connections == 0


def test_what_an_mcp_server_announces_is_unusable_with_a_reason(
    bad: dict[str, dict[str, Any]], listener: Listener
) -> None:
    for name, schema in bad.items():
        plan = plan_sync(spec_of("sample", "stdio"), {"x": Announced("x", "does it", schema)}, [])
        assert plan.create == [], name
        assert [(each["state"], "JSON Schema" in each["problem"]) for each in plan.discovered] == [("invalid", True)]
        assert CANARY not in json.dumps(plan.discovered)
    assert listener.connections == 0


def test_what_stays_inside_a_schema_is_followed() -> None:
    inside = {
        "$id": "https://example.com/root",
        "$defs": {"a": {"$id": "part", "type": "integer"}, "b": {"$anchor": "here", "type": "string"}},
        "properties": {"a": {"$ref": "part"}, "b": {"$ref": "#here"}, "c": {"$ref": "#/$defs/a"}, "d": {"$ref": "#"}},
    }
    validator = validator_of(inside)
    assert validator.is_valid({"a": 1, "b": "x", "c": 2, "d": {"a": 3}})
    for wrong in ({"a": "x"}, {"b": 1}, {"c": "x"}, {"d": {"a": "x"}}):
        assert not validator.is_valid(wrong), wrong


def test_a_pattern_that_never_ends_counts_as_not_fitting() -> None:
    validator = validator_of({"pattern": r"^(a|a|aa)*\1(?=b)c$"})
    assert not validator.is_valid("a" * 5000)


def test_the_problems_of_a_schema_that_refers_to_itself_twice_do_not_double_with_each_level() -> None:
    itself = {"$ref": "#"}
    validator = validator_of(
        {"type": "object", "properties": {"a": {"allOf": [itself, itself]}, "z": False}, "required": ["b"]}
    )
    value: dict[str, Any] = {}
    for _ in range(60):  # two to the sixtieth problems
        value = {"a": value, "b": 1}

    assert len(validator.problems({**value, "z": 1})) == 1
    assert len(validator.problems({"a": {}})) == 3  # a shallow one is explained place by place


@pytest.mark.parametrize("schema", [{"\ud800": 1}, {"type": object()}, {1: 2}, {"type": 10**400}, {"$ref": "\ud800"}])
def test_what_is_no_json_is_a_typed_error(schema: Any) -> None:
    with pytest.raises(UnusableSchema):
        validator_of(schema)


def test_only_one_module_knows_the_library() -> None:
    root = Path(foliot.__file__).parent
    found: set[str] = set()
    for file in root.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "jsonschema" in text else ():
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] in ("jsonschema_rs", "jsonschema") for name in names):
                found.add(file.relative_to(root).as_posix())
    assert found == {"resources/validators.py"}

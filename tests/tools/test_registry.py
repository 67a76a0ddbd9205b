"""Tools by name and version, own ones before shared ones, resolved once and locked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.versions import parse_constraint, parse_version, split_request
from foliot.engine.explain.what_if import Declared
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.tools.base import ToolDefinition
from foliot.tools.registry import Locked, ToolRegistry, lock, read_only, schema_digest


def tool(name: str, version: str = "1.0.0", **fields: Any) -> Declared:
    return Declared(ToolDefinition(name, version=version, **fields))


def version_of(registry: ToolRegistry, request: str) -> str:
    return registry.resolve(request).definition.version


SEARCH = [tool("search", version) for version in ("1.0.0", "1.2.0", "1.10.0", "2.0.0", "2.1.0-rc.1", "0.3.1")]


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        ("search", "2.0.0"),
        ("search@1", "1.10.0"),
        ("search@1.2", "1.2.0"),
        ("search@^1.2", "1.10.0"),
        ("search@~1.2", "1.2.0"),
        ("search@1.2.0", "1.2.0"),
        ("search@=1.0.0", "1.0.0"),
        ("search@2.1.0-rc.1", "2.1.0-rc.1"),
        ("search@^2.1.0-rc.0", "2.1.0-rc.1"),
        ("search@^0.3", "0.3.1"),
    ],
)
def test_the_highest_version_that_was_asked_for(request_: str, version: str) -> None:
    assert version_of(ToolRegistry(SEARCH), request_) == version


@pytest.mark.parametrize("request_", ["search@3", "search@^0.4", "search@1.2.1", "search@^2.1"])
def test_a_version_that_is_not_there_is_an_error_with_those_that_are(request_: str) -> None:
    with pytest.raises(NotFound, match="is not available") as caught:
        ToolRegistry(SEARCH).resolve(request_)
    assert caught.value.details["available_versions"][-1] == "2.1.0-rc.1"


@pytest.mark.parametrize("request_", ["search@", "search"])
def test_an_empty_constraint_is_none(request_: str) -> None:
    assert split_request(request_)[1].text == ""


@pytest.mark.parametrize("request_", ["search@latest", "search@>1", "@1", "search@1.2.3.4", ""])
def test_what_says_no_version_is_refused(request_: str) -> None:
    with pytest.raises(InvalidInput):
        ToolRegistry(SEARCH).resolve(request_)


def test_a_plain_name_is_the_highest_version_that_is_not_deprecated() -> None:
    registry = ToolRegistry(
        [tool("f", "1.0.0"), tool("f", "1.5.0", deprecated_since="1.4.0"), tool("g", deprecated_since="1.0.0")]
    )

    assert version_of(registry, "f") == "1.0.0"
    assert version_of(registry, "f@^1.2") == "1.5.0", "who asks for it gets it"
    assert version_of(registry, "g") == "1.0.0", "there is no other"


def test_two_tools_of_one_name_and_version_collide_and_nothing_is_registered() -> None:
    registry = ToolRegistry([tool("a")])

    with pytest.raises(Conflict, match=r'tool "a" version "1\.0\.0" is already registered'):
        registry.register(tool("b"), tool("a"))
    with pytest.raises(Conflict):
        registry.register(tool("c"), tool("c"))
    assert [each.name for each in registry.definitions()] == ["a"]


def test_the_same_object_twice_is_no_collision() -> None:
    mine = tool("a")
    registry = ToolRegistry([mine])
    registry.register(mine)

    assert registry.resolve("a") is mine


def test_a_local_tool_hides_the_shared_one_for_its_own_registry_only() -> None:
    shared = ToolRegistry([tool("a", "1.0.0"), tool("b")])
    local = ToolRegistry([tool("a", "0.9.0"), tool("c")], parent=shared)

    assert version_of(local, "a") == "0.9.0"
    assert version_of(shared, "a") == "1.0.0"
    assert [each.name for each in local.definitions()] == ["a", "c", "b"]
    with pytest.raises(NotFound):
        local.resolve("a@1")  # its versions are those of the local one
    with pytest.raises(NotFound):
        shared.resolve("c")


def test_unregistering_brings_the_shared_one_back() -> None:
    local = ToolRegistry([tool("a", "0.9.0")], parent=ToolRegistry([tool("a", "1.0.0")]))
    local.unregister("a", "0.9.0")

    assert version_of(local, "a") == "1.0.0"
    with pytest.raises(NotFound):
        local.unregister("a", "0.9.0")


def test_lists_keep_the_order_of_registration() -> None:
    names = ["m", "a", "z", "b"]

    assert [each.name for each in ToolRegistry(map(tool, names)).definitions()] == names


def test_read_only_sets_leave_out_what_may_change_something_and_other_categories() -> None:
    registry = ToolRegistry(
        [
            tool("look", effect="read", category="core"),
            tool("write", category="core"),
            tool("fetch", effect="read", category="network"),
            tool("who_knows", effect="read"),
        ]
    )

    assert [each.name for each in registry.definitions(read_only(["core", "network"]))] == ["look", "fetch"]
    assert len(registry.definitions(read_only())) == 3


def test_a_run_is_locked_to_versions_and_schemas() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    turned = {"properties": {"b": {}, "a": {}}, "type": "object"}

    assert lock([ToolDefinition("f", schema=schema, version="1.2.3")]) == {"f": Locked("1.2.3", schema_digest(turned))}
    assert schema_digest(schema) != schema_digest({"type": "object"})


def test_two_versions_of_one_name_in_one_agent_need_another_name() -> None:
    with pytest.raises(Conflict, match="two versions"):
        lock([ToolDefinition("f", version="1.0.0"), ToolDefinition("f", version="2.0.0")])


VERSIONS = [
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0",
    "1.0.1",
    "1.1.0",
]


def test_versions_are_ordered_as_semantic_versioning_says() -> None:
    assert max(VERSIONS, key=parse_version) == VERSIONS[-1]
    parsed = [parse_version(text) for text in VERSIONS]
    assert all(low < high for at, low in enumerate(parsed) for high in parsed[at + 1 :])
    assert parse_version("1.0.0+build.5") == parse_version("1.0.0")


numbers = st.integers(0, 30)


@given(numbers, numbers, numbers, numbers, numbers, numbers)
def test_a_caret_never_crosses_a_breaking_change(a, b, c, x, y, z) -> None:
    allowed = parse_constraint(f"^{a}.{b}.{c}").allows(parse_version(f"{x}.{y}.{z}"))
    breaking = (a, b, c)[: 1 if a else 2 if b else 3]

    assert allowed == ((x, y, z) >= (a, b, c) and (x, y, z)[: len(breaking)] == breaking)

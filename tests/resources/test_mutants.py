"""The schema that `foliot schema` writes and the reader of manifests accept the same documents."""

from __future__ import annotations

import copy
import os
import random
import re
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
import pytest

from foliot.resources.kinds import KINDS
from foliot.resources.names import camel, snake
from foliot.resources.schema import bundle_schema, json_schema
from foliot.resources.validate import validate_document

# What JSON Schema has no words for, or none that hold everywhere: the reader alone refuses it. What the schema refuses,
# the reader refuses, without exception.
READER_ALONE: Final = re.compile(
    r"is given twice$"  # in a list of objects
    r"|unknown time zone|^invalid spec\.schedule|^invalid spec\.at |not a CEL expression"
    r"|which nothing fills$|a path into JSON|invalid path \"|nothing fills \{\{"
    r"|is longer than runtime\.timeout|says something else than runtime\.timeout|must be longer than 0s"
    r"|: longer than 3660d|differ only in case"
    r"|does not say what is required$|more than there are in spec\.approvers|cannot wait for itself"
    r"|is the grant's own namespace|anybody could sign|is no host|is not the name of a user|must be a URL"
    r"|is not the name of an HTTP header|is set by Foliot itself|one line of printable characters"
    r"|belongs to the sandbox$|lie in one another$"
    r"|is not a method to rule on|hosts that are named|Ki or more|Mi or more|must be 1 or more|must be 16 or more"
    r"|larger than anything can be|not the name of a variable, or|required when there are secrets|without '\.\.'"
    r"|is not a valid JSON Schema"  # references to elsewhere, sizes
    r"|^invalid \S+ \"x{50}"  # names beside a namespace have a length of their own
    r"|the text holds|a key holds"
    r"|a filter gives true or false"
    r"|^spec\.options\.\S+ must be (a mapping|text, a number or a boolean)$"  # by names that are folded and trimmed
)
MUTANTS: Final = 120
VALUES: Final[tuple[Any, ...]] = (
    None, "", "  ", 0, 1, -1, 3, 0.5, 1.0, 1e3, 2**53, 2**60, True, False,
    [], {}, [None], [""], ["a", "a"], ["A", "a"], [1], [[]],
    {"a": None}, {"a": 1}, {"a": "b"}, {"": "x"}, {"a b": "x"},
    "a", "A", "a b", "a/b", "a/b/c", "-a", "x" * 300, "ns/name:key",
    "30s", "30", "0", "0s", "1h30m", "-5s", " 5m ", "9999d", "1.5h",
    "1.2.3", "search@^1.2", "agent:x", "*", "http://x.example",
    "HTTPS://X.example/a", "ftp://x", "http://", "host:80", "5.00", "1e2",
    "true", "dGV4dA==", "***", "@daily", "0 9 * * 1", "UTC", "Europe/Berlin",
    "2027-01-31T09:00:00", "$.id", "a == 1", "ümlaut", "a\nb",
)  # fmt: skip


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document, the document itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths_of(item, (*path, key))


def mutant(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A copy with one or two changes."""
    changed = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2))):
        paths = list(paths_of(changed))
        if not paths:
            break
        path = chance.choice(paths)
        holder: Any = changed
        for step in path[:-1]:
            holder = holder[step]
        _change(holder, path[-1], chance)
    return changed


def _change(holder: Any, key: str | int, chance: random.Random) -> None:
    value = holder[key]
    match chance.choice(("value", "value", "value", "drop", "case", "spelling", "list", "pad", "unknown", "repeat")):
        case "value":
            holder[key] = copy.deepcopy(chance.choice(VALUES))
        case "drop":
            del holder[key]
        case "case" if isinstance(value, str):
            holder[key] = chance.choice((value.upper(), value.lower(), value.title()))
        case "spelling" if isinstance(key, str):
            other = chance.choice((camel(key), snake(key), key.upper()))
            holder[other] = value if chance.random() < 0.3 else holder.pop(key)
        case "list":
            holder[key] = value[0] if isinstance(value, list) and value else [value]
        case "pad" if isinstance(value, str):
            holder[key] = chance.choice((f" {value}", f"{value}\n", f"{value}x", value[:-1]))
        case "repeat" if isinstance(value, list) and value:
            value.append(copy.deepcopy(value[0]))
        case _ if isinstance(holder, dict):
            holder[chance.choice(("unheard_of", "x-note", "name", "type", "spec"))] = chance.choice(VALUES)
        case _:
            holder[key] = copy.deepcopy(chance.choice(VALUES))


def _seeds() -> list[int]:
    if os.environ.get("FOLIOT_CHAOS") != "1":
        return [1]
    start = int(os.environ.get("FOLIOT_CHAOS_SEED", random.randrange(10**9)))
    return list(range(start, start + 20))


@pytest.mark.parametrize("seed", _seeds())
@pytest.mark.parametrize("kind", KINDS)
def test_schema_and_reader_accept_the_same(kind: str, seed: int, specimens: dict[str, dict[str, Any]]) -> None:
    """FOLIOT_CHAOS=1 FOLIOT_CHAOS_SEED=<seed> plays a seed again."""
    validator = jsonschema_rs.validator_for(json_schema(kind))
    chance = random.Random(f"{seed}{kind}")
    for number in range(MUTANTS):
        document = mutant(specimens[kind], chance)
        read, problems = validate_document(document)
        said = [problem.message for problem in problems]
        told = f"seed {seed}, {kind} {number}: {document}"
        if read is not None:
            assert [error.message for error in validator.iter_errors(document)] == [], (
                f"only the reader accepts: {told}"
            )
        elif validator.is_valid(document):
            assert any(map(READER_ALONE.search, said)), f"only the schema accepts: {told}\n{said}"


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "modelendpoint", "metadata": {"name": "a"}, "spec": {"provider": "Mock"}},
        {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"modelRef": None, "model_ref": "m", "tools": "search"}},
        {"kind": "Agent", "apiVersion": "", "metadata": {"name": " a "}, "spec": {"model_ref": "m", "limits": None}},
        {"kind": "Task", "metadata": {"name": "a"}, "spec": {"agent": "b", "priority": "URGENT", "max_turns": 3.0}},
        {
            "kind": "ToolApproval",
            "metadata": {"name": "a"},
            "spec": {"task_ref": "t", "tool": "shell"},
            "status": {"phase": " Approved\n"},
        },
        {
            "kind": "Agent",
            "metadata": {"name": "a"},
            "spec": {"model_ref": "m", "memory": {"ref": "r", "allow": "Memory.Read"}},
        },
    ],
)
def test_what_the_reader_forgives_the_schema_does_too(document: dict[str, Any]) -> None:
    assert validate_document(document)[1] == []
    kind = next(kind for kind in KINDS if kind.lower() == document["kind"].lower())
    for schema in (json_schema(kind), bundle_schema()):
        assert [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(document)] == []


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Task", {}),
        ("Task", {"agent": "a", "system": "s"}),
        ("McpServer", {"transport": "STDIO"}),
        ("Tool", {"type": "mcp", "mcp_server_ref": "m"}),
        ("Tool", {"function": "a:b"}),
        ("Tool", {"auth": {"profile": "bearer"}}),
        ("ModelEndpoint", {"provider": "Azure-OpenAI", "default_model": "m"}),
        ("ModelEndpoint", {"provider": "scripted"}),
        ("Agent", {"model_ref": " "}),
        ("Agent", {"model_ref": "m", "modelRef": "n"}),
        ("Agent", {"model_ref": "m", "execution": {"profile": "contract", "toolSequence": [""]}}),
        ("Agent", {"model_ref": "m", "output_schema": {"type": "objekt"}}),
        ("Secret", {"data": {"k": "no base64!"}}),
        ("Budget", {"limit": {}}),
        ("ToolApproval", {"tool": "t"}),
        ("TaskSchedule", {"task_ref": "t"}),
        ("TaskWebhook", {"task_ref": "t"}),
    ],
)
def test_rules_between_fields_are_in_the_schema(kind: str, spec: dict[str, Any]) -> None:
    document = {"kind": kind, "metadata": {"name": "it"}, "spec": spec}
    assert validate_document(document)[0] is None
    assert not jsonschema_rs.validator_for(json_schema(kind)).is_valid(document)

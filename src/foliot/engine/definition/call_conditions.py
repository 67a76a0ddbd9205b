"""Conditions on calls, held against what a call can be: the arguments of its tool, and who may call.

An expression over an argument that the tool does not have is never true, so that the rule protects nothing. What
conditions name besides, agents and tools, is found with all other references (resources/references.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from foliot.resources.expressions import reads_of
from foliot.resources.names import tool_token
from foliot.resources.problems import Problem
from foliot.resources.references import call_conditions
from foliot.resources.schema_fields import impossible
from foliot.store.base import Document, Key

_AGENT = "agent:"


def check_call_fields(document: Document, look: Callable[[str, str, str], Document | None]) -> Iterator[Problem]:
    """Yields the arguments, and the fields of `caller`, in conditions of a rule that no call can have."""
    tool = _tool_of(document)
    for path, text in call_conditions(document):
        for read in reads_of(text):
            if not (read.steps or read.holding):
                continue
            if read.root == "caller":
                found = impossible(read, _caller_schema(), "a caller")
            elif read.root == "args":
                space: str = document["metadata"].get("namespace", "default")
                found = impossible(read, schema_of(tool, space, look), f"a call of tool {tool!r}")
            else:
                continue
            for message, hint in found:
                yield Problem(path, message, hint, missing=True)


def tools_meant(document: Document) -> Iterator[Key]:
    """Yields the Tools that a rule with conditions may be about: rules know a tool however it is spelt."""
    if any(True for _ in call_conditions(document)):
        space: str = document["metadata"].get("namespace", "default")
        yield from (Key("Tool", space, name) for name in _spellings(_tool_of(document)))


def _tool_of(document: Document) -> str:
    spec: Mapping[str, Any] = document.get("spec", {})
    named = spec.get("tool_ref" if document["kind"] == "ToolPermission" else "tool") or document["metadata"]["name"]
    return str(named).partition("@")[0]


def _spellings(tool: str) -> tuple[str, ...]:
    token = tool_token(tool)
    return tuple(dict.fromkeys((tool, token, token.replace("_", "-"))))


def schema_of(tool: str, namespace: str, look: Callable[[str, str, str], Document | None]) -> Any:
    """The JSON Schema of the arguments of a tool; None when it is not known."""
    if declared := next((found for name in _spellings(tool) if (found := look("Tool", namespace, name))), None):
        return declared.get("spec", {}).get("input_schema") or None
    if tool.startswith(_AGENT):
        from foliot.tools.backends.agent import INPUT_SCHEMA

        return INPUT_SCHEMA
    from foliot.tools.builtin.catalogue import NAMES, builtin_definition

    name = next((name for name in NAMES if tool_token(name) == tool_token(tool)), None)
    made = builtin_definition(name) if name is not None else None
    return None if made is None else made.schema or None


@cache
def _caller_schema() -> dict[str, Any]:
    from foliot.tools.base import Caller
    from foliot.tools.governance.cel import caller_record

    array: dict[str, Any] = {"type": "array", "items": {}}
    record = caller_record(Caller())
    fields: dict[str, Any] = {name: array if isinstance(value, list) else {} for name, value in record.items()}
    return {"type": "object", "properties": fields, "additionalProperties": False}

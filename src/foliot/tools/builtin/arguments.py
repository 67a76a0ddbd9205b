"""Arguments of built-in tools: their schemas and how they are read. An optional one may be null: not given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foliot.tools.base import Invocation, ToolArgumentsInvalid

Schema = dict[str, Any]


def object_schema(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def optional(kind: str, description: str, **more: Any) -> Schema:
    return {"type": [kind, "null"], "description": description, **more}


def given(call: Invocation, name: str, default: Any = None) -> Any:
    """The argument, or the default when it is missing or null."""
    value = call.arguments.get(name)
    return default if value is None else value


def required_text(call: Invocation, name: str) -> str:
    """Raises `ToolArgumentsInvalid` for what is missing, no text, or blank."""
    value = call.arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolArgumentsInvalid(f"{name} is required and must be a non-empty string", field=name)
    return value


def optional_text(call: Invocation, name: str) -> str | None:
    value = call.arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise ToolArgumentsInvalid(f"{name} must be a string", field=name)
    return value


def texts(call: Invocation, name: str) -> list[str]:
    """A list of strings; empty when not given. Raises `ToolArgumentsInvalid` naming the place that is none."""
    value = given(call, name, [])
    if not isinstance(value, list):
        raise ToolArgumentsInvalid(f"{name} must be an array of strings", field=name)
    found: list[str] = []
    for at, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
        if not isinstance(item, str):
            raise ToolArgumentsInvalid(f"{name}[{at}] must be a string", field=f"{name}/{at}")
        found.append(item)
    return found


def whole_number(call: Invocation, name: str, default: int, *, least: int, most: int) -> int:
    """Between `least` and `most`; the default for what is missing, no number or below `least`. 5.0 counts as 5."""
    value = call.arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < least:
        return default
    return int(min(value, most))

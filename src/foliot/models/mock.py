"""The built-in script `mock`: tries the tools it is offered, then answers. It makes whole pipelines run offline.

It says `model=<model> step=<n>`. Given tools, it looks for the words vector, search, web, db and echo, in this order:
when one is in the input and in the name of a tool that was not called yet, that tool is called; otherwise the first
tool is called in the first step. The input of the call is the user's text; other required arguments get the smallest
value their schema allows, so that the call is a valid one.
"""

from __future__ import annotations

from typing import Any, Final, cast

from foliot.kernel.messages import ModelRequest, ToolSpec

_WORDS: Final = ("vector", "search", "web", "db", "echo")
_DEPTH: Final = 4


def mock_turn(request: ModelRequest) -> dict[str, Any]:
    """The turn for this request, in the form of a script's turn."""
    step = sum(message.role == "assistant" for message in request.messages) + 1
    turn: dict[str, Any] = {"say": f"model={request.model} step={step}"}
    if request.output_schema is not None and not request.tools:
        turn["say"] = sample(request.output_schema, _input(request))
    elif (tool := _choose(request, step)) is not None:
        turn["call"] = {"tool": tool.name, "args": _arguments(tool, _input(request) or f"step={step}")}
    elif request.output_schema is not None:
        turn["say"] = sample(request.output_schema, _input(request))
    return turn


def _input(request: ModelRequest) -> str:
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


def _choose(request: ModelRequest, step: int) -> ToolSpec | None:
    signal = f"{request.system}\n{_input(request)}".lower()
    called = {call.name for message in request.messages for call in message.calls}
    for word in _WORDS:
        if word in signal:
            for tool in request.tools:
                if word in tool.name.lower() and tool.name not in called:
                    return tool
    return request.tools[0] if step == 1 and request.tools else None


def _arguments(tool: ToolSpec, text: str) -> dict[str, Any]:
    if tool.schema is None:
        return {"input": text}
    made = sample(tool.schema, text)
    arguments = cast("dict[str, Any]", made) if isinstance(made, dict) else {}
    if "input" in cast("dict[str, Any]", tool.schema.get("properties") or {}):
        arguments.setdefault("input", text)
    return arguments


def sample(schema: dict[str, Any], text: str, depth: int = _DEPTH) -> Any:
    """A small value that fits the common shapes of JSON Schema; texts are `text`, optional fields are left out."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key) and depth:
            return sample(schema[key][0], text, depth - 1)
    kind: Any = schema.get("type", "object" if "properties" in schema else "string")
    match str(cast("list[Any]", kind)[0] if isinstance(kind, list) else kind):
        case "object":
            fields = cast("dict[str, dict[str, Any]]", schema.get("properties") or {})
            required = cast("list[str]", schema.get("required") or [])
            return {name: sample(fields.get(name, {}), text, depth - 1) for name in required} if depth else {}
        case "array":
            least = int(schema.get("minItems", 0))
            return [sample(schema.get("items") or {}, text, depth - 1) for _ in range(least)] if depth else []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return text

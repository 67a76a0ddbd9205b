"""Tools that a client brings along: functions, which it calls itself when the agent asks for them.

Chat completions wrap each function in a member `function`, responses do not. Which of them are offered is what
`tool_choice` says; it has no say in the tools of the agent.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, cast

from foliot.kernel.messages import ToolSpec
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.server.openai.content import object_at
from foliot.server.openai.errors import BadRequest

MOST_TOOLS: Final = 128
LONGEST_DESCRIPTION: Final = 16_384
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# A function that is given no parameters takes none.
_NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class Offered(NamedTuple):
    """The tools that the agent may ask the client to call, and whether it must: auto, required, or which one."""

    tools: tuple[ToolSpec, ...] = ()
    choice: str = "auto"


def client_tools(given: list[Any] | None, choice: object, *, nested: bool) -> Offered:
    """Read `tools` and `tool_choice` of a request; `nested` in chat completions. Raises `BadRequest`."""
    if given is not None and len(given) > MOST_TOOLS:
        raise BadRequest(f"at most {MOST_TOOLS} tools can be given", param="tools")
    tools: dict[str, ToolSpec] = {}
    for index, each in enumerate(given or ()):
        tool = _function(each, f"tools[{index}]", nested=nested)
        if tool.name in tools:
            raise BadRequest(f"two tools are named {tool.name!r}", param=f"tools[{index}]")
        tools[tool.name] = tool
    return _chosen(tools, choice, nested=nested)


def _function(given: object, place: str, *, nested: bool) -> ToolSpec:
    tool = object_at(given, place)
    if (kind := tool.get("type")) != "function":
        raise BadRequest(
            f"tools of type {kind!r} cannot be given",
            param=f"{place}.type",
            hint="functions can, which you call yourself; others are declared with the agent",
            code="unsupported_value",
        )
    if nested:
        place = f"{place}.function"
        tool = object_at(tool.get("function"), place)
    name, description = tool.get("name"), tool.get("description") or ""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest("a name is up to 64 letters, digits, dashes and underscores", param=f"{place}.name")
    if not isinstance(description, str) or len(description) > LONGEST_DESCRIPTION:
        raise BadRequest(f"a text of at most {LONGEST_DESCRIPTION} characters", param=f"{place}.description")
    parameters = tool.get("parameters")
    schema = _NOTHING if parameters is None else object_at(parameters, f"{place}.parameters")
    try:
        # Arguments are held against the schema before the client hears of a call, whether `strict` is asked for or not.
        validator_of(schema)
    except UnusableSchema as error:
        raise BadRequest(f"this schema cannot be used: {error.message}", param=f"{place}.parameters") from None
    return ToolSpec(name, description, schema)


def _chosen(tools: dict[str, ToolSpec], choice: object, *, nested: bool) -> Offered:
    every = tuple(tools.values())
    match choice:
        case None | "auto":
            return Offered(every)
        case "none":
            return Offered()
        case "required":
            if not tools:
                raise BadRequest("there is no tool that could be called", param="tool_choice")
            return Offered(every, "required")
        case {"type": "function"}:
            named = cast("dict[str, Any]", choice)
            return Offered(every, _named(tools, named, "tool_choice", nested=nested).name)
        case {"type": "allowed_tools"}:
            allowed = cast("dict[str, Any]", choice)
            if nested:
                allowed = object_at(allowed.get("allowed_tools"), "tool_choice.allowed_tools")
            listed = allowed.get("tools")
            if not isinstance(listed, list) or not listed:
                raise BadRequest("a list of tools is expected here", param="tool_choice.tools")
            some = [
                _named(tools, object_at(each, "tool_choice.tools"), "tool_choice.tools", nested=nested)
                for each in cast("list[Any]", listed)
            ]
            return Offered(tuple(some), "required" if allowed.get("mode") == "required" else "auto")
        case _:
            raise BadRequest(
                "tool_choice is auto, none, required, a function, or allowed_tools",
                param="tool_choice",
                code="unsupported_value",
            )


def _named(tools: dict[str, ToolSpec], given: dict[str, Any], place: str, *, nested: bool) -> ToolSpec:
    inner = object_at(given.get("function"), f"{place}.function") if nested else given
    tool = tools.get(str(inner.get("name")))
    if tool is None:
        raise BadRequest(f"there is no tool {str(inner.get('name'))[:100]!r} among tools", param=place)
    return tool

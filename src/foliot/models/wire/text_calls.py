"""Tool calls that a model wrote as text, because whatever serves it knows no other way.

Read only where an endpoint says so (`options: {tool_calls: text}`), and only when the answer holds no proper call. Two
ways of writing are understood:

    JSON, alone or in one fenced block     {"tool": "search", "input": "clocks"}, or a list of such under `tools` or
                                           `tool_calls`; `name` and `arguments` will do as well
    a line that ends in a directive        tool: search input: clocks

A text is a call only if it names at least one tool that was offered. An honest answer that happens to be JSON with a
`name`, or to end in "tool: hammer", stays an answer; a wrong name beside a right one is told to the model as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from foliot.kernel.messages import Message, ModelResponse, Text, ToolCall, ToolSpec
from foliot.models.wire.values import CallIds, arguments_text

_DIRECTIVE: Final = re.compile(
    r"(?:^|\s)tool\s*[:=]\s*(?P<name>[A-Za-z0-9._/-]+)(?:[\s,;]+input\s*[:=]\s*(?P<input>.*))?\s*$", re.IGNORECASE
)
_FENCED: Final = re.compile(r"```[^\n]*\n(?P<inside>.*)\n\s*```", re.DOTALL)
_ARGUMENTS: Final = ("input", "arguments", "parameters")


def with_text_calls(response: ModelResponse, tools: Iterable[ToolSpec], ids: CallIds) -> ModelResponse:
    """The answer with what its text calls as calls; the very answer when it has some, or its text calls nothing.

    A text that is nothing but the calls is left out: it would be said twice.
    """
    message = response.message
    if message.calls or not (text := message.text).strip():
        return response
    found, whole = _calls_in(text)
    known: dict[str, str] = {}
    for tool in tools:
        known.setdefault(tool.name.strip().lower(), tool.name)
    if not any(name.lower() in known for name, _ in found):
        return response
    kept = tuple(part for part in message.parts if not (whole and isinstance(part, Text)))
    calls = (ToolCall(ids.claim(None), known.get(name.lower(), name), given) for name, given in found)
    return replace(response, message=Message(message.role, (*kept, *calls)), stop="tool_calls")


def _calls_in(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Names and arguments, and whether the text is nothing else."""
    stripped = text.strip()
    candidates = [stripped]
    if (fenced := _FENCED.fullmatch(stripped)) is not None:
        candidates.append(fenced["inside"])
    for candidate in candidates:
        try:
            value = msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(value, dict):
            return list(_in_object(cast("dict[str, Any]", value))), True
    for line in text.splitlines():
        if (told := _DIRECTIVE.search(line)) is not None:
            return [(told["name"], _arguments(told["input"] or ""))], False
    return [], False


def _in_object(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The call that an object is, then those that it lists."""
    inner: Any = value.get("function")
    called = cast("dict[str, Any]", inner) if isinstance(inner, dict) else value
    name: Any = called.get("name") or called.get("tool")
    given = next((called[key] for key in _ARGUMENTS if key in called), None)
    if isinstance(name, str) and name.strip() and isinstance(given, str | dict):
        yield name.strip(), _arguments(cast("str | dict[str, Any]", given))
    for key in ("tools", "tool_calls"):
        listed: Any = value.get(key)
        for item in cast("list[Any]", listed) if isinstance(listed, list) else ():
            if isinstance(item, dict):
                yield from _in_object({**cast("dict[str, Any]", item), "tools": None, "tool_calls": None})


def _arguments(given: str | dict[str, Any]) -> str:
    """A text that is no object becomes the one argument `input`."""
    return arguments_text(given) if isinstance(given, str) else msgspec.json.encode(given).decode()

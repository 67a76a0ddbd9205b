"""One line about a tool call for people who watch it: what goes in, and what came out.

Both are pure, take whatever a model wrote, and never raise. Nothing here is stored, and no model sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from foliot.common.text import one_line

LONGEST_INPUT: Final = 80
LONGEST_RESULT: Final = 80
LONGEST_ERROR: Final = 120
CUT: Final = "..."
# The argument that says the most about a call, by tool. Other names of a tool mean the same.
_SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("bash", "job"), ("command",)),
    **dict.fromkeys(("read", "write", "edit", "read_file", "write_file", "edit_file"), ("path",)),
    "skills": ("action", "name"),
    "draft_skill": ("action", "name"),
    "unpack_skill": ("name",),
    "memory": ("action",),
}
_DELEGATING: Final = frozenset({"agent", "delegate"})


def input_summary(tool: str, arguments: Mapping[str, Any] | str | bytes) -> str:
    """Returns what a call is about, in a few words; blank for tools of which nothing is known.

    `arguments` are those of the call, or the JSON text that the model wrote.
    """
    given = arguments if isinstance(arguments, Mapping) else _decoded(arguments)
    if tool in _DELEGATING:
        tasks = given.get("tasks")
        return f"{len(cast('list[Any]', tasks))} task(s)" if isinstance(tasks, list) else ""
    words = [given.get(name) for name in _SHOWN.get(tool, ())]
    if tool == "skills" and not words[-1]:
        words[-1] = given.get("source")
    line = " ".join(word for word in words if isinstance(word, str) and word.strip())
    return _cut(one_line(line), LONGEST_INPUT, LONGEST_INPUT)


def result_summary(text: str, *, failed: bool = False) -> str:
    """Returns what came out of a call, in a line: a short text itself, of a longer one how long it is."""
    lines = text.strip("\r\n").splitlines()
    first = one_line(lines[0]) if lines else ""
    if failed:
        return _cut(first, LONGEST_ERROR, LONGEST_ERROR - len(CUT))
    if len(text) <= LONGEST_RESULT:
        return first
    return f"{len(lines)} lines" if len(lines) > 1 else f"{len(text)} chars"


def _decoded(text: str | bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _cut(line: str, longest: int, kept: int) -> str:
    return line if len(line) <= longest else line[:kept] + CUT

"""The parts of a script, and the facts it can use: the transcript, and nothing else.

`model.py` describes the format for people, `reader.py` reads it, `model.py` plays it. Everything here is
pure: which turn comes next is computed from the request alone, so a run that is resumed in another process, replayed
or forked gets the turn it would have got.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from foliot.kernel.messages import Message, ModelRequest, StopReason, ToolResult, Usage

_PLACEHOLDER: Final = re.compile(r"\{(\{?)([a-z_]+)\}(\}?)")


class Moment:
    """The facts when an answer is due: the request, cut off behind `messages`. `step` counts answers from 1."""

    __slots__ = ("messages", "request", "step")

    def __init__(self, request: ModelRequest, messages: tuple[Message, ...], step: int) -> None:
        self.request = request
        self.messages = messages
        self.step = step

    @property
    def input(self) -> str:
        """The text of the last thing a person said."""
        return next((m.text for m in reversed(self.messages) if m.role == "user"), "")

    @property
    def first_input(self) -> str:
        return next((m.text for m in self.messages if m.role == "user"), "")

    @property
    def result(self) -> ToolResult | None:
        """The last tool result in the transcript."""
        for message in reversed(self.messages):
            for part in reversed(message.parts):
                if isinstance(part, ToolResult):
                    return part
        return None

    @property
    def last_result(self) -> str:
        result = self.result
        if result is None:
            return ""
        return result.text or (result.error.message if result.error else "")

    @property
    def called(self) -> set[str]:
        """The names of all tools called so far, in lower case."""
        return {call.name.lower() for message in self.messages for call in message.calls}


NAMES: Final[Mapping[str, Callable[[Moment], str]]] = {
    "input": lambda m: m.input,
    "first_input": lambda m: m.first_input,
    "last_result": lambda m: m.last_result,
    "last_tool": lambda m: m.result.name if m.result else "",
    "step": lambda m: str(m.step),
    "model": lambda m: m.request.model,
    "agent": lambda m: m.request.agent,
    "system": lambda m: m.request.system,
}
"""What may stand in braces in a text. Other words in braces are left as they are: texts often hold JSON or code."""

Condition: TypeAlias = Callable[[Moment], bool]


def render(text: str, moment: Moment) -> str:
    """Fill in the names of `NAMES`; `{{input}}` gives a literal `{input}`. Nothing is evaluated, nothing nests."""

    def fill(found: re.Match[str]) -> str:
        name = found[2]
        if name not in NAMES:
            return found[0]
        if found[1] and found[3]:
            return "{" + name + "}"
        return found[1] + NAMES[name](moment) + found[3]

    return _PLACEHOLDER.sub(fill, text)


def render_value(value: Any, moment: Moment) -> Any:
    """`render` for every text inside a JSON value; keys stay as they are."""
    if isinstance(value, str):
        return render(value, moment)
    if isinstance(value, dict):
        return {key: render_value(item, moment) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [render_value(item, moment) for item in cast("list[Any]", value)]
    return value


def has_names(value: Any) -> bool:
    """Whether `render_value` would change anything: what is fixed is prepared once, not at each answer."""
    if isinstance(value, str):
        return any(found[2] in NAMES for found in _PLACEHOLDER.finditer(value))
    if isinstance(value, dict):
        return any(has_names(item) for item in cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        return any(has_names(item) for item in cast("list[Any]", value))
    return False


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call. `text` is its finished JSON when the arguments hold no names, else None."""

    name: str
    args: Any
    text: str | None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. `say` is a text, or a JSON value that is said as JSON."""

    say: Any = None
    think: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    after: float = 0.0
    chunk: int = 16
    pace: float = 0.0
    fail: str | None = None
    times: int | None = None
    fail_at: int | None = None
    retry_after: float | None = None
    usage: Usage | None = None
    stop: StopReason | None = None
    when: Condition | None = None
    fixed: bool = True


@dataclass(frozen=True, slots=True)
class Scene:
    """One role in a script: whom it serves, its turns in order, and what comes when they run out."""

    turns: tuple[Turn, ...] = ()
    match: Condition | None = None
    otherwise: Turn | None = None
    loop: bool = False
    by_input: bool = False
    branches: bool = False

    def pick(self, request: ModelRequest) -> tuple[Turn | None, int]:
        """The turn for this request, None when there is none left, and the number of the answer, from 1."""
        messages = request.messages
        begin = self._begin(messages)
        if self.branches:
            return self._walk(request, begin)
        count = 0
        for message in messages[begin:] if begin else messages:
            if message.role == "assistant":
                count += 1
        if self.loop and self.turns:
            return self.turns[count % len(self.turns)], count + 1
        return (self.turns[count] if count < len(self.turns) else self.otherwise), count + 1

    def _begin(self, messages: tuple[Message, ...]) -> int:
        if not self.by_input:
            return 0
        return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "user"), 0)

    def _walk(self, request: ModelRequest, begin: int) -> tuple[Turn | None, int]:
        """Play the script again along the transcript: each answer took the next turn whose `when` held at that point.

        A pointer kept in memory would be lost in a crash and wrong after a fork; this costs a few microseconds a turn.
        """
        position, step = 0, 1
        turn: Turn | None = None
        messages = request.messages
        for end in range(begin, len(messages) + 1):
            if end < len(messages) and messages[end].role != "assistant":
                continue
            found = self._next(position, Moment(request, messages[:end], step))
            turn, position = (self.turns[found], found + 1) if found is not None else (self.otherwise, len(self.turns))
            step += 1
        return turn, step - 1

    def _next(self, position: int, moment: Moment) -> int | None:
        count = len(self.turns)
        order = range(position, position + count) if self.loop else range(position, count)
        for number in order:
            when = self.turns[number % count].when
            if when is None or when(moment):
                return number % count
        return None


@dataclass(frozen=True, slots=True)
class Script:
    """The scenes of a script; the first one that matches the request plays."""

    scenes: tuple[Scene, ...]

    def scene_for(self, request: ModelRequest) -> Scene | None:
        for scene in self.scenes:
            if scene.match is None or scene.match(Moment(request, request.messages, 0)):
                return scene
        return None

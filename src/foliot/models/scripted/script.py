"""The parts of a script, and the facts it can use: the transcript, and nothing else.

`model.py` describes the format for people, `reader.py` reads it, `model.py` plays it. Everything here is
pure: which turn comes next is computed from the request alone, so a run that is resumed in another process, replayed
or forked gets the turn it would have got.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast, get_args

import msgspec

from foliot.common.durations import seconds
from foliot.common.suggestions import suggestion
from foliot.errors import InvalidInput
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
    def unanswered(self) -> set[str]:
        """The names of the tools with a result behind the last answer, in lower case."""
        answers = [n for n, message in enumerate(self.messages) if message.role == "assistant"]
        new = self.messages[answers[-1] + 1 if answers else 0 :]
        return {part.name.lower() for each in new for part in each.parts if isinstance(part, ToolResult)}

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
class ScriptTurn:
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

    turns: tuple[ScriptTurn, ...] = ()
    match: Condition | None = None
    otherwise: ScriptTurn | None = None
    loop: bool = False
    by_input: bool = False
    branches: bool = False

    def pick(self, request: ModelRequest) -> tuple[ScriptTurn | None, int]:
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

    def _walk(self, request: ModelRequest, begin: int) -> tuple[ScriptTurn | None, int]:
        """Play the script again along the transcript: each answer took the next turn whose `when` held at that point.

        A pointer kept in memory would be lost in a crash and wrong after a fork; this costs a few microseconds a turn.
        """
        position, step = 0, 1
        turn: ScriptTurn | None = None
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


# --- reader ----------------------------------------------------------------------------------------------------------

# Reads a script and names everything that is wrong with it, each with its place.
#
# A script is data that people write by hand, so a mistake is found when it is loaded, not in the middle of a run, and
# all of them at once. The format itself is described in `model.py`.

# --- script conditions -----------------------------------------------------------------------------------------------

# The conditions of a script: what may stand under `when` and `match`, turned into a function of the moment.

_Report: TypeAlias = Callable[[str, str], None]
_Test: TypeAlias = Callable[[Moment, tuple[str, ...]], bool]


def _within(text: str, words: tuple[str, ...]) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in words)


# Each takes the words in lower case; a list of words means "any of these".
_WORDS: Final[dict[str, _Test]] = {
    "input": lambda m, words: _within(m.input, words),
    "result": lambda m, words: _within(m.last_result, words),
    "system": lambda m, words: _within(m.request.system, words),
    "agent": lambda m, words: m.request.agent.lower() in words,
    "model": lambda m, words: m.request.model.lower() in words,
    "tool": lambda m, words: any(tool.name.lower() in words for tool in m.request.tools),
    "called": lambda m, words: not m.called.isdisjoint(words),
    "last_tool": lambda m, words: (result := m.result) is not None and result.name.lower() in words,
    "unanswered": lambda m, words: not m.unanswered.isdisjoint(words),
}
_OTHER: Final = ("failed", "step", "not", "any")


def read_condition(value: Any, place: str, report: _Report, *, fixed: bool = False) -> Condition:
    """All tests of the mapping `value` must hold. Mistakes go to `report`; `fixed` forbids `step` (under `match`)."""
    if not isinstance(value, dict) or not value:
        report(place, "must be a mapping of conditions, such as `input: refund` or `called: search`")
        return lambda _: False
    tests: list[Condition] = []
    for key, wanted in cast("dict[Any, Any]", value).items():
        here = f"{place}.{key}"
        if key in _WORDS:
            tests.append(_word_test(_WORDS[key], wanted, here, report))
        elif key == "failed" and isinstance(wanted, bool):
            tests.append(_failed(wanted))
        elif key == "step" and isinstance(wanted, int) and not isinstance(wanted, bool) and not fixed:
            tests.append(_step(wanted))
        elif key == "not":
            tests.append(_negation(read_condition(wanted, here, report, fixed=fixed)))
        elif key == "any" and isinstance(wanted, list):
            items = cast("list[Any]", wanted)
            choices = [read_condition(item, f"{here}[{n}]", report, fixed=fixed) for n, item in enumerate(items)]
            tests.append(_either(choices))
        else:
            report(here, _complaint(key, fixed))
    return tests[0] if len(tests) == 1 else _all(tests)


def _word_test(test: _Test, wanted: Any, place: str, report: _Report) -> Condition:
    given: list[Any] = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    if not given or not all(isinstance(word, str | int | float) and str(word).strip() for word in given):
        report(place, "must be a text or a list of texts")
        return lambda _: False
    words = tuple(str(word).lower() for word in given)
    return lambda moment: test(moment, words)


def _failed(wanted: bool) -> Condition:
    return lambda moment: ((result := moment.result) is not None and result.error is not None) is wanted


def _step(number: int) -> Condition:
    return lambda moment: moment.step == number


def _negation(test: Condition) -> Condition:
    return lambda moment: not test(moment)


def _either(tests: list[Condition]) -> Condition:
    return lambda moment: any(test(moment) for test in tests)


def _all(tests: list[Condition]) -> Condition:
    return lambda moment: all(test(moment) for test in tests)


def _complaint(key: Any, fixed: bool) -> str:
    shapes = {
        "failed": "must be true or false",
        "step": "has no meaning under `match`, which chooses for the whole run" if fixed else "must be a whole number",
        "any": "must be a list of conditions",
    }
    if key in shapes:
        return shapes[key]
    known = [*_WORDS, *_OTHER]
    hint = suggestion(str(key), known, f"known: {', '.join(known)}")
    return f"is not a condition; {hint}"


# --- script reader ---------------------------------------------------------------------------------------------------

Problem: TypeAlias = tuple[str, str]

FAILURES: Final = ("rate_limit", "overloaded", "timeout", "garbage", "auth", "request", "context_overflow")
_TURN: Final = (
    *("say", "think", "call", "after", "chunk", "pace", "fail", "times", "fail_at", "retry_after"),
    *("usage", "stop", "when", "repeat"),
)
_SCENE: Final = ("match", "turns", "otherwise", "loop", "count", "after", "chunk", "pace")
_USAGE: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_REPEAT_MOST: Final = 10_000


def validate_script(script: Any) -> list[Problem]:
    """Every mistake in `script` as (place, message), in reading order; empty when it can be played."""
    return _Reader().read(script)[1]


def read_script(script: Any) -> Script:
    """The script, ready to play. Raises `InvalidInput` that names every mistake with its place."""
    read, problems = _Reader().read(script)
    if problems:
        lines = "\n".join(f"  {place}: {message}" for place, message in problems)
        raise InvalidInput(f"the model script cannot be used:\n{lines}", problems=problems)
    return read


def read_turn(turn: Any, place: str = "turn") -> ScriptTurn:
    """One turn on its own, from Python: words in braces stay as they are. Raises `InvalidInput` like `read_script`."""
    reader = _Reader(literal=True)
    turns = reader.turn(turn, place, {})
    if reader.problems:
        lines = "; ".join(f"{where}: {message}" for where, message in reader.problems)
        raise InvalidInput(f"the scripted turn cannot be used: {lines}", problems=reader.problems)
    return turns[0]


@dataclass(slots=True)
class _Reader:
    problems: list[Problem] = field(default_factory=list[Problem])
    literal: bool = False

    def problem(self, place: str, message: str) -> None:
        self.problems.append((place, message))

    def read(self, script: Any) -> tuple[Script, list[Problem]]:
        try:
            return Script(self.scenes(script)), self.problems
        except RecursionError:  # YAML can make a list that holds itself
            self.problem("script", "is nested too deeply")
            return Script(()), self.problems

    def scenes(self, script: Any) -> tuple[Scene, ...]:
        scenes: list[Scene] = []
        if isinstance(script, list):
            items = cast("list[Any]", script)
            if any(isinstance(item, dict) and ("turns" in item or "match" in item) for item in items):
                scenes = [self.scene(item, f"script[{n}]") for n, item in enumerate(items)]
            else:
                scenes = [self.scene({"turns": items}, "script", turns_at="script")]
        elif isinstance(script, dict):
            scenes = [self.scene(script, "script")]
        else:
            self.problem("script", f"must be a list of turns or a mapping with `turns`, not {_a(script)}")
        return tuple(scenes)

    def scene(self, value: Any, place: str, turns_at: str | None = None) -> Scene:
        data = self.mapping(value, place, _SCENE)
        if data is None:
            return Scene()
        defaults = {key: data[key] for key in ("after", "chunk", "pace") if key in data}
        turns = self.turns(data.get("turns", []), turns_at or f"{place}.turns", defaults)
        if not turns and "otherwise" not in data:
            self.problem(turns_at or place, "has no turn to play; add one, or `otherwise`")
        otherwise = self.turn(data["otherwise"], f"{place}.otherwise", defaults) if "otherwise" in data else ()
        if otherwise and otherwise[0].when is not None:
            self.problem(f"{place}.otherwise.when", "`otherwise` is what is left; it takes no condition")
        count = data.get("count", "conversation")
        if count not in ("conversation", "input"):
            self.problem(f"{place}.count", f"must be `conversation` or `input`, not {count!r}")
        loop = data.get("loop", False)
        if not isinstance(loop, bool):
            self.problem(f"{place}.loop", f"must be true or false, not {_a(loop)}")
        match = data.get("match")
        return Scene(
            turns=tuple(turns),
            match=read_condition(match, f"{place}.match", self.problem, fixed=True) if match is not None else None,
            otherwise=otherwise[0] if otherwise else None,
            loop=bool(loop),
            by_input=count == "input",
            branches=any(turn.when is not None for turn in turns),
        )

    def turns(self, value: Any, place: str, defaults: Mapping[str, Any]) -> list[ScriptTurn]:
        if not isinstance(value, list):
            self.problem(place, f"must be a list of turns, not {_a(value)}")
            return []
        items = cast("list[Any]", value)
        return [turn for n, item in enumerate(items) for turn in self.turn(item, f"{place}[{n}]", defaults)]

    def turn(self, value: Any, place: str, defaults: Mapping[str, Any]) -> list[ScriptTurn]:
        """The turn, as often as its `repeat` says; one empty turn when it cannot be read."""
        if isinstance(value, str):
            value = {"say": value}
        data = self.mapping(value, place, _TURN)
        if data is None:
            return [ScriptTurn()]
        if not any(key in data for key in ("say", "call", "fail", "think", "stop")):
            self.problem(place, "does nothing; give `say`, `call` or `fail`")
        merged = {**defaults, **data}
        calls = self.calls(data["call"], f"{place}.call") if data.get("call") is not None else ()
        think = data.get("think", "")
        if not isinstance(think, str):
            self.problem(f"{place}.think", f"must be a text, not {_a(think)}")
        if not isinstance(say := data.get("say"), str):
            self.json(say, f"{place}.say")
        when = data.get("when")
        turn = ScriptTurn(
            say=say,
            think=str(think),
            calls=calls,
            after=self.duration(merged, "after", place) or 0.0,
            chunk=self.integer(merged, "chunk", place, least=1) or 16,
            pace=self.duration(merged, "pace", place) or 0.0,
            fail=self.choice(data, "fail", place, FAILURES),
            times=self.integer(data, "times", place, least=1),
            fail_at=self.integer(data, "fail_at", place, least=0),
            retry_after=self.duration(data, "retry_after", place),
            usage=self.usage(data.get("usage"), f"{place}.usage"),
            stop=cast("StopReason | None", self.choice(data, "stop", place, get_args(StopReason))),
            when=read_condition(when, f"{place}.when", self.problem) if when is not None else None,
            fixed=self.literal or not (has_names(say) or has_names(think)),
        )
        self.check_failure(data, place)
        repeat = self.integer(data, "repeat", place, least=1, most=_REPEAT_MOST) or 1
        return [turn] * repeat

    def check_failure(self, data: Mapping[str, Any], place: str) -> None:
        if data.get("fail") is None:
            for key in ("times", "fail_at", "retry_after"):
                if key in data:
                    self.problem(f"{place}.{key}", "belongs to `fail`, which is not given")
        elif "times" not in data and "call" in data:
            self.problem(f"{place}.fail", "without `times` it always fails, so `call` is never played")
        elif "times" not in data and "say" in data and "fail_at" not in data:
            self.problem(f"{place}.fail", "without `times` or `fail_at` it always fails, so `say` is never played")

    def calls(self, value: Any, place: str) -> tuple[ScriptedCall, ...]:
        if isinstance(value, list):
            items = cast("list[Any]", value)
            calls = [call for n, item in enumerate(items) for call in self.calls(item, f"{place}[{n}]")]
            ids = [call.id for call in calls if call.id is not None]
            for twice in sorted({item for item in ids if ids.count(item) > 1}):
                self.problem(place, f"two calls have the id {twice!r}")
            return tuple(calls)
        if isinstance(value, str):
            return (self.one_call(value, {}, None, place),)
        if not isinstance(value, dict) or not value:
            self.problem(place, f"must be a tool's name, `name: {{arguments}}`, or a list of these, not {_a(value)}")
            return ()
        data = cast("dict[Any, Any]", value)
        if "tool" in data:
            self.mapping(data, place, ("tool", "args", "id"))
            call_id = data.get("id")
            if call_id is not None and (not isinstance(call_id, str) or not call_id):
                self.problem(f"{place}.id", f"must be a text, not {_a(call_id)}")
            return (self.one_call(data["tool"], data.get("args"), cast("str | None", call_id), place),)
        return tuple(self.one_call(name, args, None, f"{place}.{name}") for name, args in data.items())

    def one_call(self, name: Any, args: Any, call_id: str | None, place: str) -> ScriptedCall:
        args = {} if args is None else args
        if not isinstance(name, str) or not name.strip():
            self.problem(place, f"a tool's name must be a text, not {_a(name)}")
        if not isinstance(args, dict | str):
            self.problem(place, f"arguments must be a mapping (or a text, sent just as it is), not {_a(args)}")
        text = args if isinstance(args, str) else self.json(args, place)
        fixed = self.literal or not has_names(args)
        return ScriptedCall(str(name).strip(), args, text if fixed else None, call_id)

    def json(self, value: Any, place: str) -> str:
        try:
            return msgspec.json.encode(value).decode()
        except (TypeError, ValueError) as error:
            self.problem(place, f"cannot be written as JSON: {error}")
            return ""

    def usage(self, value: Any, place: str) -> Usage | None:
        if value is None:
            return None
        data = self.mapping(value, place, _USAGE)
        if data is None:
            return None
        counts = {key: self.integer(data, key, place, least=0) or 0 for key in _USAGE}
        return Usage(**counts)  # pyright: ignore[reportArgumentType]  # only the integer fields are in _USAGE

    def mapping(self, value: Any, place: str, keys: Iterable[str]) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            self.problem(place, f"must be a mapping, not {_a(value)}")
            return None
        known = list(keys)
        data = cast("dict[Any, Any]", value)
        for key in data:
            if key not in known:
                hint = suggestion(str(key), known, f"known here: {', '.join(known)}")
                self.problem(f"{place}.{key}", f"is not known; {hint}")
        return cast("dict[str, Any]", data)

    def choice(self, data: Mapping[str, Any], key: str, place: str, allowed: tuple[str, ...]) -> str | None:
        value = data.get(key)
        if value is None or value in allowed:
            return value
        self.problem(f"{place}.{key}", f"must be one of {', '.join(allowed)}, not {value!r}")
        return None

    def integer(
        self, data: Mapping[str, Any], key: str, place: str, *, least: int, most: int | None = None
    ) -> int | None:
        value = data.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most and value > most):
            bound = f"from {least} to {most}" if most else f"of {least} or more"
            self.problem(f"{place}.{key}", f"must be a whole number {bound}, not {value!r}")
            return None
        return value

    def duration(self, data: Mapping[str, Any], key: str, place: str) -> float | None:
        value = data.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
            return float(value)
        with suppress(ValueError):
            return seconds(value if isinstance(value, str) else "")
        self.problem(f"{place}.{key}", f"must be a duration such as 200ms, 1.5s or 2m, not {value!r}")
        return None


def _a(value: Any) -> str:
    """Describes a value in the words of somebody who writes YAML."""
    names: list[tuple[type | tuple[type, ...], str]] = [
        (bool, "true or false"),
        (str, f"the text {str(value)[:40]!r}"),
        ((int, float), f"the number {value!r}"),
        (list, "a list"),
        (dict, "a mapping" if value else "an empty mapping"),
    ]
    if value is None:
        return "nothing"
    return next((name for kind, name in names if isinstance(value, kind)), f"a {type(value).__name__}")
